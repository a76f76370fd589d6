"""Eager work while another capture forbids potentially unsafe calls: there, too, nothing may wait for the device."""

from __future__ import annotations

import torch

from tsgraph.backends.emulated.aliases import Aliases
from tsgraph.backends.emulated.dispatcher import is_composite, is_view, makes_tensor, returns_facts
from tsgraph.backends.emulated.functions import FunctionMode
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.operations import OperationMode
from tsgraph.errors import CaptureUnsupported


class Judge(OperationMode):
    """Refuses the operations by which the host would wait for the device, as a recording does; others go on below."""

    def __init__(self, functions: FunctionMode) -> None:
        super().__init__(functions, torch.empty_like, Aliases())

    def _take(self, operation: Operation) -> object:
        if is_composite(operation.operator):
            return self._decompose(operation)
        if self._is_on_device(operation) and not (is_view(operation.operator) or returns_facts(operation.operator)):
            self._refuse_wait(operation)
        return operation.run()

    def _refuse_wait(self, operation: Operation) -> None:
        """Of what a recording refuses, what CUDA does: the rest is legal outside of one."""
        if makes_tensor(operation.operator):
            return
        try:
            self._bake(operation)
            self._metadata.infer(operation)
        except CaptureUnsupported as error:
            if "cuda" in error.context:
                raise
