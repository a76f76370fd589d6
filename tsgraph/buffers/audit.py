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

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated.dispatcher import is_plain
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.backends.modes import OperatorMode
from tsgraph.backends.opaque import compiled_regions
from tsgraph.buffers.owners import Owners, addresses_in, storage_address
from tsgraph.errors import ContractViolation

# -- what an operator writes ------------------------------------------------------------------------------------------


Place = tuple[int, str]
"""An argument of an operator: its position and its name."""


@attrs.frozen
class Effect:
    """What an operator does to memory.

    It writes the arguments `always`, and `statistics` where the argument at `flag`, if it has one, is true. `lifts`:
    what it returns came into being with it, though it is its argument. `moves`: it gives a tensor other memory, which
    may be anyone's.
    """

    always: tuple[Place, ...] = ()
    statistics: tuple[Place, ...] = ()
    flag: Place | None = None
    lifts: bool = False
    moves: bool = False

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Place, ...]:
        """The arguments that a call with these writes."""
        if self.statistics and (self.flag is None or _argument(self.flag, args, kwargs)):
            return self.always + self.statistics
        return self.always


def written_tensors(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call of `operator` writes, by its schema; lists are flattened.

    Two families write more than their schemas say: normalisations update `running_mean` and `running_var` when
    training, and operators named with a trailing underscore but no annotation (collectives) write their first argument.
    """
    places = effect_of(operator).written(args, kwargs)
    return [tensor for place in places for tensor in tensors_in(_argument(place, args, kwargs))]


_HARMLESS = frozenset({"aten::record_stream", "aten::detach_"})
_STATISTICS = ("running_mean", "running_var")
_NO_STATISTICS = ("backward", "no_training", "no_update", "functional")
_TRAINING = ("training", "train", "use_input_stats")


@functools.lru_cache(maxsize=4096)
def effect_of(operator: Any) -> Effect:
    """What `operator` does to memory. A higher-order operator has no schema, and is taken to write nothing."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return Effect()
    moves = {"lifts": operator is torch.ops.aten.lift_fresh.default, "moves": schema.name == "aten::set_"}
    arguments = [] if schema.name in _HARMLESS else list(enumerate(schema.arguments))
    always = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if not always and schema.name.endswith("_") and not schema.name.endswith("__"):
        always = [(i, a.name) for i, a in arguments[:1]]
    if any(word in schema.name for word in _NO_STATISTICS):
        return Effect(tuple(always), **moves)
    statistics = [(i, a.name) for i, a in arguments if a.alias_info is None and a.name in _STATISTICS]
    flag = next(((i, a.name) for i, a in arguments if a.name in _TRAINING), None)
    return Effect(tuple(always), tuple(statistics), flag, **moves)


def _argument(place: Place, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)


# -- the watch --------------------------------------------------------------------------------------------------------


class WriteAudit(OperatorMode):
    """Refuses, before the operator runs, a write to memory older than the block that no buffer or state declares.

    Memory that an operator inside the block returned first is its own. Works in inference mode, where composite
    operators arrive whole, and in no-grad mode.

    Raises: ContractViolation naming the tensor, the operator and the line of the step.
    """

    def __init__(self, owners: Owners) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners = owners
        self._own: set[int] = set()
        self._inside_compiled = False
        self._patches = ExitStack()

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
        if types and not all(map(is_plain, types)):
            return NotImplemented  # a wrapper takes itself apart; its plain tensors come by here
        if self._inside_compiled:
            return func(*args, **kwargs)
        effect = effect_of(func)
        if effect.always or effect.statistics:
            self._judge(func, args, kwargs)
        given = addresses_in(args, kwargs.values())
        result = func(*args, **kwargs)
        if not effect.moves:  # else the memory may be anyone's
            self._own.update(given if effect.lifts else addresses_in((result,)).difference(given))
        return result

    def _judge(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for tensor in written_tensors(func, args, kwargs):
            address = storage_address(tensor)
            if address and tensor.numel() and address not in self._own and not self.owners.may_write(tensor):
                raise self._refusal(func, tensor)

    def _run_compiled(self, _: Any, call: Callable[[], Any], inputs: Any) -> Any:
        given, outer, self._inside_compiled = addresses_in(inputs), self._inside_compiled, True
        try:
            result = call()
        finally:
            self._inside_compiled = outer
        self._own |= addresses_in((result,)) - given
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
