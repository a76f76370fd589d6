"""What a recording does with host tensors that meet device tensors in one operation: the rules of a CUDA capture.

Measured on a GPU (torch 2.11): a zero-dimensional host tensor is a launch argument of elementwise kernels, so its value
is baked; everywhere else devices may not mix. Only pinned memory may be copied from or to, without blocking.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch

from tsgraph.backends.emulated import operators
from tsgraph.backends.emulated.copies import refuse_blocking, refuse_pageable
from tsgraph.backends.emulated.dispatcher import unseen_by_operators, written_names
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.refusal import ADOPT, ON_DEVICE, refuse
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.trees import describe, tensors_in
from tsgraph.backends.emulated.waits import refuse_waiting

_MASKS = (torch.bool, torch.uint8)


@attrs.frozen
class Admission:
    """Judges the operands of one operation."""

    residence: Residence
    operation: Operation

    def bake(self) -> dict[int, torch.Tensor]:
        """A copy of each host operand whose value is baked, by the operand's identity.

        Raises: CaptureUnsupported for an operation, or an operand of it, that no recording may contain.
        """
        operation, packet = self.operation, self.operation.operator.overloadpacket
        refuse_waiting(operation, self.residence.holds)
        if packet is operators.COPY_INTO:
            self._judge_copy(*operation.args)
            return {}
        if packet in operators.INDEXING:
            self._judge_indices()
        if packet is torch.ops.aten.masked_select:
            arguments = operation.arguments()  # torch refuses shapes that do not fit before it asks the device
            torch.broadcast_shapes(arguments["self"].shape, arguments["mask"].shape)
        host = [(name, tensor) for name, tensor in operation.operands() if not self.residence.holds(tensor)]
        for name, tensor in host:
            self._judge_host(name, tensor)
        with unseen_by_operators():
            return {id(tensor): tensor.clone() for _, tensor in host}

    def _judge_host(self, name: str, tensor: torch.Tensor) -> None:
        if name in written_names(self.operation.operator):
            raise refuse(self.operation, f"it writes into {name!r}, a host tensor {describe(tensor)}", ADOPT)
        if tensor.dim() == 0 and self.operation.operator.overloadpacket is torch.ops.aten.where:
            why = f"{name!r} is a host tensor {describe(tensor)}: a hidden copy from the host to the device"
            raise refuse_pageable(self.operation, why, ADOPT)
        if tensor.dim() > 0 or not self._takes_a_scalar():
            why = f"all its tensors must be on the same device, but {name!r} is a host tensor {describe(tensor)}"
            raise refuse(self.operation, why, ADOPT)

    def _takes_a_scalar(self) -> bool:
        operator = self.operation.operator
        if operator.overloadpacket in operators.INDEXING:
            return self._fills_a_mask()
        elementwise = torch.Tag.pointwise in operator.tags and operator.overloadpacket not in operators.TAKE_NO_SCALAR
        return elementwise or operator.overloadpacket in operators.TAKE_A_SCALAR or operator.namespace != "aten"

    def _judge_indices(self) -> None:
        for tensor in self._indices():
            if not self.residence.holds(tensor):
                why = f"its index is a host tensor {describe(tensor)}: a hidden copy from the host to the device"
                raise refuse(self.operation, why, ADOPT)
        self._check_masks()
        if any(tensor.dtype in _MASKS for tensor in self._indices()) and not self._fills_a_mask():
            raise refuse(self.operation, "how many elements a mask selects is known to the device alone", ON_DEVICE)

    def _check_masks(self) -> None:
        """As torch does before it asks the device. Raises: IndexError for a mask that does not fit."""
        indexed, first = self.operation.arguments()["self"].shape, 0
        for index in self.operation.arguments()["indices"]:
            is_mask = index is not None and index.dtype in _MASKS
            dims = index.dim() if is_mask else 1
            if is_mask and index.shape != indexed[first : first + dims]:
                raise IndexError(f"the mask {describe(index)} does not fit {tuple(indexed)} at dimension {first}")
            first += dims

    def _indices(self) -> Iterator[torch.Tensor]:
        return tensors_in(self.operation.arguments()["indices"])

    def _fills_a_mask(self) -> bool:
        """Whether it is `x[mask] = host scalar`, which the GPU does without knowing how many elements that are."""
        value = self.operation.arguments().get("values")
        masks = [tensor.dtype in _MASKS for tensor in self._indices()]
        return value is not None and value.numel() == 1 and not self.residence.holds(value) and masks == [True]

    def _judge_copy(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        way, host = ("device→host", to) if self.residence.holds(source) else ("host→device", source)
        if self.residence.holds(host):
            return
        if self.residence.place(host) != "pinned":
            why = f"a {way} copy, but the host tensor {describe(host)} is not pinned"
            raise refuse_pageable(self.operation, why)
        if not _goes_straight(host, to, source):
            why = f"a {way} copy that passes through pageable memory, since {describe(host)} is not contiguous"
            raise refuse_pageable(self.operation, why)
        if not non_blocking:
            raise refuse_blocking(self.operation, f"a {way} copy that blocks the host")


def _goes_straight(host: torch.Tensor, to: torch.Tensor, source: torch.Tensor) -> bool:
    same_layout = to.shape == source.shape and to.stride() == source.stride() and _is_dense(to)
    return same_layout or (host.is_contiguous() and (host is to or to.shape == source.shape))


def _is_dense(tensor: torch.Tensor) -> bool:
    outermost_first = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(outermost_first).is_contiguous()
