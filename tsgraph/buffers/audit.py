"""A watch that refuses writes of a warm-up to memory that nobody declared (rule R12).

A warm-up is a real run: a counter that the step increments would be advanced by it (faults J1, J3, J4). Under
`WriteAudit` each operator is looked at before it runs, so that a refusal finds everything unchanged. The policy
`undeclared_writes = "allow"` is to do without the watch.

Not seen: Triton kernels and other direct launches, and the inside of regions compiled by Inductor, which are mostly
such launches. What those return is taken for memory of the warm-up's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tsgraph.backends.blame import user_line
from tsgraph.backends.opaque import compiled_regions
from tsgraph.buffers.owners import Owners, storage_address
from tsgraph.errors import ContractViolation

# -- what an operator writes ------------------------------------------------------------------------------------------


Place = tuple[int, str]
"""An argument of an operator: its position and its name."""


@attrs.frozen
class Writes:
    """Which arguments an operator writes: always, and, where the argument at `flag` is true, running statistics."""

    always: tuple[Place, ...] = ()
    statistics: tuple[Place, ...] = ()
    flag: Place | None = None


def written_tensors(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call of `operator` writes, by its schema; lists are flattened.

    Two families write more than their schemas say: normalisations update `running_mean` and `running_var` when
    training, and operators named with a trailing underscore but no annotation (collectives) write their first argument.
    """
    writes = writes_of(operator)
    trains = writes.flag is None or bool(_argument(writes.flag, args, kwargs))
    places = writes.always + (writes.statistics if trains else ())
    if not places:
        return []
    return _tensors([_argument(place, args, kwargs) for place in places])


_HARMLESS = frozenset({"aten::record_stream", "aten::detach_"})
_STATISTICS = ("running_mean", "running_var")
_NO_STATISTICS = ("backward", "no_training", "no_update", "functional")
_TRAINING = ("training", "train", "use_input_stats")


@functools.cache
def writes_of(operator: Any) -> Writes:
    """What `operator` writes. A higher-order operator has no schema, and is taken to write nothing."""
    schema = getattr(operator, "_schema", None)
    if schema is None or schema.name in _HARMLESS:
        return Writes()
    arguments = list(enumerate(schema.arguments))
    always = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if not always and schema.name.endswith("_") and not schema.name.endswith("__"):
        always = [(i, a.name) for i, a in arguments[:1]]
    if any(word in schema.name for word in _NO_STATISTICS):
        return Writes(tuple(always))
    statistics = [(i, a.name) for i, a in arguments if a.alias_info is None and a.name in _STATISTICS]
    flag = next(((i, a.name) for i, a in arguments if a.name in _TRAINING), None)
    return Writes(tuple(always), tuple(statistics), flag)


def _argument(place: Place, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# -- the watch --------------------------------------------------------------------------------------------------------


class WriteAudit(TorchDispatchMode):
    """Refuses, before the operator runs, a write to memory older than the block that no buffer or state declares.

    Memory that an operator inside the block returned first is its own. Works in inference mode, where composite
    operators arrive whole, and in no-grad mode.

    Raises: ContractViolation naming the tensor, the operator and the line of the step.
    """

    supports_higher_order_operators = True

    def __init__(self, owners: Owners) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners = owners
        self._own: set[int] = set()
        self._inside_compiled = False
        self._patches = ExitStack()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: else a step under torch.compile runs eagerly here, and afterwards too."""
        return True

    def __enter__(self) -> Self:
        self.owners.refresh()
        self._own.clear()
        self._patches.enter_context(compiled_regions(self._run_compiled))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type[torch.Tensor]],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a wrapper takes itself apart; its plain tensors come by here
        if self._inside_compiled:
            return func(*args, **kwargs)
        for tensor in written_tensors(func, args, kwargs):
            self._judge(func, tensor)
        given = _addresses((args, kwargs))
        result = func(*args, **kwargs)
        self._adopt(func, given, result)
        return result

    def _judge(self, func: Any, tensor: torch.Tensor) -> None:
        address = storage_address(tensor)
        if address and tensor.numel() and address not in self._own and not self.owners.may_write(tensor):
            raise self._refusal(func, tensor)

    def _adopt(self, func: Any, given: set[int], result: Any) -> None:
        """Note what the operator made: results in no input's memory, grown outputs among them, and fresh constants."""
        if func is torch.ops.aten.lift_fresh.default:
            self._own |= given
        elif not str(func).startswith("aten.set_"):  # set_ gives a tensor other memory, which may be anyone's
            self._own |= _addresses(result) - given

    def _run_compiled(self, _: Any, call: Callable[[], Any], inputs: Any) -> Any:
        given, outer, self._inside_compiled = _addresses(inputs), self._inside_compiled, True
        try:
            result = call()
        finally:
            self._inside_compiled = outer
        self._own |= _addresses(result) - given
        return result

    def _refusal(self, func: Any, tensor: torch.Tensor) -> ContractViolation:
        owner = self.owners.find(tensor)
        what = f"{owner}" if owner else "an undeclared tensor"
        return ContractViolation(
            "State",
            owner.name if owner else "undeclared",
            "a warm-up that writes only to declared buffers and states",
            f"{func} at {user_line()} writing {what} of {tensor.dtype} and shape {tuple(tensor.shape)}",
            hint=f'declare it: state={{"{owner.name if owner else "…"}": State(tensor, sink=…)}} with the rows that no '
            "request owns, or State(tensor, restore=True) to undo what warm-ups write",
        )


def _addresses(tree: Any) -> set[int]:
    return {storage_address(tensor) for tensor in _tensors(tree)}
