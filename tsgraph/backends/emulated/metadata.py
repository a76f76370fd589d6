"""Shapes, strides and dtypes of an operation's outputs, without running a kernel: torch's fake tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from tsgraph.backends.emulated.dispatcher import functional_variant, is_pointwise, out_names, unseen_by_operators
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.refusal import ON_DEVICE, refuse
from tsgraph.errors import CaptureUnsupported

_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class Metadata:
    """What operations return, as fake tensors. One for each recording."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_fallback_kernels=False)

    def infer(self, operation: Operation) -> tuple[Any, dict[int, torch.Tensor]]:
        """What it returns, and for each tensor argument, by identity, its fake: resized, if the operation resizes it.

        Raises: CaptureUnsupported where outputs depend on values, or nobody said what the operator returns; torch's
        own error for arguments that do not fit, in the words of its fake kernels.
        """
        fakes: dict[int, torch.Tensor] = {}

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Generator):
                return None  # no shape depends on it, and some fake kernels refuse one
            return fakes.setdefault(id(value), self._fake(value)) if isinstance(value, torch.Tensor) else value

        with unseen_by_operators():  # a stand-in is itself made by an operator
            faked = operation.with_leaves(stand_in)
        with _translated(operation), torch.no_grad(), self._mode:
            return faked.run_on_device(), fakes

    def infer_out(self, operation: Operation, name: str) -> Any:
        """What an elementwise operation makes for its empty output `name`, or None for other operations.

        Its fake kernels lay an output out anew, where the device lays it out as the operands.
        """
        outs = out_names(operation.operator)
        variant = functional_variant(operation.operator) if is_pointwise(operation.operator) and name in outs else None
        if variant is None:
            return None
        given = {key: value for key, value in operation.arguments().items() if key not in outs}
        made, _ = self.infer(attrs.evolve(operation, operator=variant, args=(), kwargs=given))
        return made[outs.index(name)] if len(outs) > 1 else made

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self._mode, meta.conj() if tensor.is_conj() else meta, torch.device("cpu"))


@contextmanager
def _translated(operation: Operation) -> Iterator[None]:
    quiet, _LOG.disabled = _LOG.disabled, True  # it logs a traceback for each error that is raised anyway
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        why = "what it returns depends on values that are known to the device alone"
        raise refuse(operation, why, ON_DEVICE) from error
    except (UnsupportedOperatorException, NotImplementedError) as error:
        raise _without_fake(operation) from error
    except RuntimeError as error:
        if "no fake impl" not in str(error):
            raise
        raise _without_fake(operation) from error
    finally:
        _LOG.disabled = quiet


def _without_fake(operation: Operation) -> CaptureUnsupported:
    why = "no fake kernel says which shapes and dtypes it returns, and a recording runs no kernel"
    return refuse(operation, why, "register one with torch.library.register_fake")
