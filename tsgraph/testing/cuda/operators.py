"""The lower layer of a thread under emulation, outside recordings.

Operators run at once, and what device tensors make lives on the device.
"""

# ruff: noqa: SLF001 - an underscore is part of many an operator's name

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor

from tsgraph.backends.emulated import operators
from tsgraph.backends.emulated.admission import Admission
from tsgraph.backends.emulated.aliases import Aliases
from tsgraph.backends.emulated.dispatcher import (
    is_composite,
    is_operator,
    is_plain,
    makes_tensor,
    written_names,
)
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.operations import OperationMode, needs_no_kernel
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.testing.cuda.functions import EmulatedFunctions
from tsgraph.testing.cuda.generators import drawing_from
from tsgraph.testing.cuda.places import DEVICE, HOST
from tsgraph.testing.cuda.refusals import not_emulated

aten = torch.ops.aten

# They take tensors of the host beside those of the device, by design.
_MIX = {
    aten._pack_padded_sequence, aten.tensor_split, aten.set_, aten.set_data, aten.is_same_size, aten._ctc_loss,
    aten.linspace, aten.logspace,
}  # fmt: skip


# What else than all that they return is on the device: of packed sequences, the sizes are the host's.
_SENT: dict[object, Callable[[Any], Any]] = {aten._pack_padded_sequence: itemgetter(0)}


def _all(returned: Any) -> Any:
    return returned


class EagerOperators(OperationMode):
    """Runs operators, judges their operands as CUDA does outside captures, and notes their outputs as the device's."""

    def __init__(self, functions: EmulatedFunctions) -> None:
        super().__init__(functions, torch.empty_like, Aliases())
        self._layer = functions

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation; within a recording, and on fake tensors, without looking."""
        layer = self._layer
        aside = layer.on_host or layer.recording or any(issubclass(kind, FakeTensor) for kind in types)
        if aside or not layer.active or not is_operator(func):
            return func(*args, **(kwargs or {}))
        if not all(map(is_plain, types)):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _take(self, operation: Operation) -> Any:
        operator = operation.operator
        if is_composite(operator):
            return self._decompose(operation)
        if operator is operators.LIFT and operation.call.makes:
            return self._lift(operation)
        if not self._is_on_device(operation) or needs_no_kernel(operation):
            return operation.run()
        if not makes_tensor(operation.operator):
            EagerAdmission(self._residence, operation).check()
        returned = self._run(operation)
        self._keep(operation, returned)
        return returned

    def _lift(self, operation: Operation) -> Any:
        """Torch's own code makes a tensor of numbers, beside those of the device that it was given."""
        made = operation.run()
        self._residence.add(made)
        return made

    def _keep(self, operation: Operation, returned: Any) -> None:
        """Note what is new among `returned` as the device's: not an argument that was written into."""
        given = {id(tensor) for _, tensor in operation.operands()}
        for tensor in tensors_in(_SENT.get(operation.operator.overloadpacket, _all)(returned)):
            if tensor.layout is not torch.strided:
                raise not_emulated(f"a tensor of layout {tensor.layout} on the device", "it has no storage to go by")
            if id(tensor) not in given and tensor.device == HOST and not self._residence.holds(tensor):
                self._residence.add(tensor)

    def _run(self, operation: Operation) -> Any:
        draws = torch.Tag.nondeterministic_seeded in operation.operator.tags
        if not draws or operation.arguments().get("generator") is not None:
            return operation.run_on_device()
        with drawing_from(self._layer.generator):
            return operation.run_on_device()


@attrs.frozen
class EagerAdmission(Admission):
    """Judges the operands of an operation that runs at once."""

    def check(self) -> None:
        """Raises: RuntimeError, as CUDA does, where tensors of host and device do not go together."""
        operator = self.operation.operator
        packet = operator.overloadpacket
        if packet is operators.COPY_INTO or packet in _MIX or operator.namespace != "aten":
            return
        if packet in operators.INDEXING:
            self._check_indices()
            return
        for name, tensor in self.operation.operands():
            if self.residence.holds(tensor) or self._may_stay(name, tensor):
                continue
            raise _mixed()

    def _may_stay(self, name: str, tensor: torch.Tensor) -> bool:
        written = name in written_names(self.operation.operator)
        return not written and tensor.dim() == 0 and self._takes_a_scalar()

    def _check_indices(self) -> None:
        arguments = self.operation.arguments()
        indexed = self.residence.holds(arguments["self"])
        if not indexed:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        values = arguments.get("values")
        if values is not None and not self.residence.holds(values) and values.numel() != 1:
            raise _mixed()


def _mixed() -> RuntimeError:
    found = f"found at least two devices, {DEVICE} and cpu!"
    return RuntimeError(f"Expected all tensors to be on the same device, but {found}")
