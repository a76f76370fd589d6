"""The lower layer of a recording: the operators. On the device they are recorded, not run; on the host they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Self

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated import current, operators
from tsgraph.backends.emulated.admission import Admission
from tsgraph.backends.emulated.aliases import Aliases
from tsgraph.backends.emulated.copies import refuse_pageable
from tsgraph.backends.emulated.dispatch_state import DispatchState
from tsgraph.backends.emulated.dispatcher import (
    casts_itself,
    decompose,
    is_composite,
    is_operator,
    is_plain,
    is_view,
    makes_tensor,
    out_names,
    returns_facts,
    tracks_views_itself,
    unseen_by_functions,
    unseen_by_operators,
    with_keys,
    without_autocast,
    written_names,
    written_returns,
)
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.hazards import Access
from tsgraph.backends.emulated.metadata import Metadata
from tsgraph.backends.emulated.nodes import Launch, compile_run
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.overlaps import refuse_overlaps
from tsgraph.backends.emulated.refusal import FILL, ON_DEVICE, refuse
from tsgraph.backends.emulated.streams import access, current_stream
from tsgraph.backends.emulated.trace import Storages
from tsgraph.backends.emulated.trees import map_leaves, tensors_in
from tsgraph.backends.emulated.waits import knows_answer

Allocate = Callable[[torch.Tensor], torch.Tensor]


class OperationMode(TorchDispatchMode):
    """Appends a launch for each device operation. What it returns is allocated and poisoned; views are real.

    `allocate` gives a device tensor of the shape, stride and dtype of a fake one.
    """

    supports_higher_order_operators = True

    def __init__(self, functions: FunctionMode, allocate: Allocate, aliases: Aliases) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[Launch] = []
        self._functions = functions
        self._residence = functions.residence
        self._storages = Storages(self._residence)
        self._take_memory = allocate
        self._aliases = aliases
        self._metadata = Metadata()
        self._seed: int | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else a callable that is compiled under this mode stays eager for ever after."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the operation, run it at once, or refuse it."""
        if not all(map(is_plain, types)):
            return NotImplemented  # the subclass comes back with the tensors inside it
        if not is_operator(func):
            raise refuse(func, "a higher-order operator decides in Python at each run", "call what it chooses, eagerly")
        operation = self._with_bounds(Operation(func, args, kwargs or {}, self._functions.call))
        with unseen_by_functions():
            return self._take(operation)

    def _with_bounds(self, operation: Operation) -> Operation:
        """An operation that reads its bounds from host tensors, as the one that is told them."""
        if operation.operator not in operators.BOUNDED_BY_TENSORS:
            return operation
        bounds = {id(tensor): tensor for name, tensor in operation.operands() if name in operators.BOUNDS}
        if any(map(self._residence.holds, bounds.values())):
            return operation
        number = operation.with_leaves(lambda leaf: leaf.item() if id(leaf) in bounds else leaf)
        packet, fills = operation.operator.overloadpacket, len(out_names(operation.operator)) > 0
        return attrs.evolve(number, operator=packet.out if fills else packet.default)

    def __enter__(self) -> Self:
        """Begin, or go on after a composition."""
        self._seed = torch.initial_seed() if self._seed is None else self._seed
        entered: Self = super().__enter__()  # type: ignore[no-untyped-call]
        return entered

    def _take(self, operation: Operation) -> Any:
        if is_composite(operation.operator):
            return self._decompose(operation)
        if current_stream().capture is None:
            return self._run_aside(operation)
        self._refuse_constants(operation)
        if not self._is_on_device(operation) or needs_no_kernel(operation):
            return operation.run()
        return self._record(operation)

    def _run_aside(self, operation: Operation) -> Any:
        """On a stream that takes no part in the recording: at once, as on a GPU; but here too the host may not wait."""
        if not self._is_on_device(operation):
            return operation.run()
        if not current.may_wait() and not needs_no_kernel(operation):
            self._bake(operation)
            self._metadata.infer(operation)
        returned = operation.run_on_device()
        for tensor in _fresh(operation, returned):
            self._residence.add(tensor)
        return returned

    def _decompose(self, operation: Operation) -> Any:
        """Run the composition, operator by operator, as it would run without this mode.

        Under inference mode it arrives here whole, past the layers that its operators would pass: autocast, and the
        one that keeps track of views. What autocast has cast as a whole is not cast again.
        """
        keys = operation.call.keys
        if keys is not None:
            keys = without_autocast(keys, operation.operator)
        layers = nullcontext() if keys is None or tracks_views_itself(operation.operator) else with_keys(keys)
        with self, self._functions.calling(attrs.evolve(operation.call, keys=keys)), layers:
            return decompose(operation.operator, operation.args, operation.kwargs)

    def _is_on_device(self, operation: Operation) -> bool:
        if any(self._residence.holds(tensor) for _, tensor in operation.operands()):
            return _makes_on_cpu(operation)
        return makes_tensor(operation.operator) and operation.call.makes and _makes_on_cpu(operation)

    def _record(self, operation: Operation) -> Any:
        current.refuse_if_invalid(operation)
        self._refuse_gradients(operation)
        self._refuse_new_seed(operation)
        baked = self._bake(operation)
        returned, fakes = self._metadata.infer(operation)
        refuse_overlaps(operation)
        self._grow_outputs(operation, fakes)
        results = self._results(operation, returned)
        self._append(operation, baked, results)
        return results if len(results) > 1 else results[0] if results else None

    def _bake(self, operation: Operation) -> dict[int, torch.Tensor]:
        return {} if makes_tensor(operation.operator) else Admission(self._residence, operation).bake()

    def _refuse_constants(self, operation: Operation) -> None:
        """Lists of numbers that torch's own code brings to the device; a single number may be a launch argument."""
        if operation.operator is operators.LIFT and operation.call.makes and operation.args[0].dim() > 0:
            why = "the numbers are in pageable memory: a hidden copy from the host to the device"
            raise refuse_pageable(operation, why, FILL)

    def _refuse_gradients(self, operation: Operation) -> None:
        asking = [name for name, tensor in operation.operands() if tensor.requires_grad and operation.call.grad]
        if asking:
            why = f"{asking[0]!r} requires a gradient and grad mode is on, but a recording has no backward pass"
            raise refuse(operation, why, "run the step under torch.inference_mode() or torch.no_grad()")

    def _refuse_new_seed(self, operation: Operation) -> None:
        if self._functions.draws_by_default and torch.initial_seed() != self._seed:
            why = "the device's random numbers were seeded anew, which a recording cannot hold"
            raise refuse(operation, why, "seed outside the recording: a replay draws on from there")

    def _grow_outputs(self, operation: Operation, fakes: Mapping[int, torch.Tensor]) -> None:
        """Give each `out=` tensor the shape that the operator would give it, and if it is empty the memory."""
        for name, tensor in operation.operands():
            fake = fakes[id(tensor)]
            if name not in written_names(operation.operator) or fake.shape == tensor.shape:
                continue
            if 0 < tensor.numel() != fake.numel():
                raise refuse(operation, f"it resizes {name!r}, which has elements", "give it one of the right shape")
            with unseen_by_operators():
                if tensor.numel() > 0:  # `torch.matmul` does so with its own `out=`, and puts the shape back
                    tensor.resize_(fake.shape)
                else:
                    made = self._metadata.infer_out(operation, name)
                    layout = fake if made is None else torch.empty_like(made, dtype=fake.dtype)
                    tensor.set_(self._allocate(layout))  # type: ignore[call-overload]  # the stubs lack this form

    def _results(self, operation: Operation, returned: Any) -> list[Any]:
        names = written_returns(operation.operator)
        values = returned if len(names) > 1 else (returned,) * len(names)
        arguments = operation.arguments()

        def make(leaf: Any) -> Any:
            if leaf is None:
                return None
            if not isinstance(leaf, torch.Tensor):
                raise refuse(operation, "it returns a number to the host", ON_DEVICE)
            return self._allocate(leaf)

        pairs = zip(names, values, strict=True)
        return [map_leaves(make, value) if name is None else arguments[name] for name, value in pairs]

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        tensor = self._take_memory(like)
        self._storages.take(tensor)
        return tensor

    def _append(self, operation: Operation, baked: Mapping[int, torch.Tensor], results: list[Any]) -> None:
        if operation.operator.overloadpacket in operators.TAKE_MEMORY:
            return

        def freeze(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return baked[id(leaf)] if id(leaf) in baked else self._aliases.of(leaf, operation)

        pairs = zip(written_returns(operation.operator), results, strict=True)
        with unseen_by_operators():
            frozen = operation.with_leaves(freeze)
            fresh = [map_leaves(freeze, result) if name is None else None for name, result in pairs]
        node = self._storages.node(operation, results, user_line())
        stream = current_stream()
        if stream.capture is not None:
            node = stream.capture.append(stream, node, _accesses(operation, baked, results))
        self.launches.append(Launch(node, _state_of(operation), *compile_run(frozen, fresh)))


def needs_no_kernel(operation: Operation) -> bool:
    """Whether the host knows all that it returns."""
    return is_view(operation.operator) or returns_facts(operation.operator) or knows_answer(operation)


def _fresh(operation: Operation, returned: Any) -> list[torch.Tensor]:
    """The tensors that the operation returned and that are none of its arguments."""
    names = written_returns(operation.operator)
    values = returned if len(names) > 1 else (returned,)
    return [each for name, value in zip(names, values, strict=False) if name is None for each in tensors_in(value)]


def _accesses(operation: Operation, baked: Mapping[int, torch.Tensor], results: list[Any]) -> Iterator[Access]:
    """The memory that it reads and writes when it is replayed. A factory reads none of its arguments."""
    written = written_names(operation.operator)
    for name, tensor in operation.operands():
        if name in written or not (id(tensor) in baked or makes_tensor(operation.operator)):
            yield from access(tensor, name in written)
    for tensor in _fresh(operation, results if len(results) != 1 else results[0]):
        yield from access(tensor, True)


def _makes_on_cpu(operation: Operation) -> bool:
    """False only for a factory that was asked for another device, such as meta."""
    device = operation.arguments().get("device") if makes_tensor(operation.operator) else None
    return device is None or torch.device(device).type == "cpu"


def _state_of(operation: Operation) -> DispatchState:
    """ATen operators are recorded with their arguments cast, so autocast is off for them; other kernels may ask."""
    sees_autocast = operation.operator.namespace != "aten" and not casts_itself(operation.operator)
    return DispatchState.now(operation.call.autocast if sees_autocast else ())
