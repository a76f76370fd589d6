"""What no recording may contain: refused at the operation, by name, with this file's line, leaving everything clean.

The list was measured on a GPU: what `torch.cuda.graph` refuses or would silently freeze is refused here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.errors import CaptureUnsupported


@attrs.define
class Tensors:
    """Operands: `x`, `i`, `mask`, `d0` on the device, `h*` on the host, `p` pinned; `h0` and `d0` have no dimension."""

    backend: EmulatedBackend = attrs.field(factory=EmulatedBackend)
    x: torch.Tensor = attrs.field(init=False)
    i: torch.Tensor = attrs.field(init=False)
    mask: torch.Tensor = attrs.field(init=False)
    d0: torch.Tensor = attrs.field(init=False)
    p: torch.Tensor = attrs.field(init=False)
    h: torch.Tensor = attrs.field(factory=lambda: torch.ones(4, 4))
    hi: torch.Tensor = attrs.field(factory=lambda: torch.tensor([0, 1]))
    h0: torch.Tensor = attrs.field(factory=lambda: torch.tensor(2.0))

    def __attrs_post_init__(self) -> None:
        self.x = self.backend.allocate((4, 4), torch.float32, 1)
        self.i = self.backend.allocate((2,), torch.int64, 1)
        self.mask = self.backend.allocate((4, 4), torch.bool, 1)
        self.d0 = self.backend.allocate((), torch.float32, 1)
        self.p = self.backend.pin((4, 4), torch.float32)


Step = Callable[[Tensors], object]
READS: dict[str, tuple[str, Step]] = {
    "item": ("torch.Tensor.item", lambda t: t.d0.item()),
    "tolist": ("torch.Tensor.tolist", lambda t: t.x.tolist()),
    "numpy": ("torch.Tensor.numpy", lambda t: t.x.numpy()),
    "array": ("torch.Tensor.__array__", lambda t: np.asarray(t.x)),
    "cpu": ("torch.Tensor.cpu", lambda t: t.x.cpu()),
    "to cpu": ("torch.Tensor.to", lambda t: t.x.to("cpu")),
    "to cpu and dtype": ("torch.Tensor.to", lambda t: t.x.to("cpu", torch.float16)),
    "to a host tensor": ("torch.Tensor.to", lambda t: t.x.to(t.h)),
    "bool": ("torch.Tensor.__bool__", lambda t: bool(t.d0)),
    "if": ("torch.Tensor.__bool__", lambda t: 1 if (t.x > 0).any() else 0),
    "int": ("torch.Tensor.__int__", lambda t: int(t.d0)),
    "float": ("torch.Tensor.__float__", lambda t: float(t.d0)),
    "index": ("torch.Tensor.__index__", lambda t: [1, 2][t.i[0]]),
    "repr": ("torch.Tensor.__repr__", lambda t: repr(t.x)),
    "str": ("torch.Tensor.__repr__", lambda t: str(t.x)),
    "format": ("torch.Tensor.__format__", lambda t: f"{t.d0}"),
    "contains": ("torch.Tensor.__contains__", lambda t: 1.0 in t.x),
    "values of an iteration": ("torch.Tensor.__float__", lambda t: [float(value) for value in t.x[0]]),
    "dlpack": ("torch.Tensor.__dlpack__", lambda t: torch.utils.dlpack.from_dlpack(t.x)),
    "is_nonzero": ("torch.is_nonzero", lambda t: torch.is_nonzero(t.d0)),
    "equal": ("aten.equal.default", lambda t: torch.equal(t.x, t.x)),
    "allclose": ("torch.allclose", lambda t: torch.allclose(t.x, t.x)),
    "device scalar as an index": ("_local_scalar_dense", lambda t: t.x[t.i[0]]),
    "device scalar as a number": ("torch.Tensor.new_full", lambda t: t.x.new_full((2,), t.d0)),  # type: ignore[arg-type]  # not annotated, but taken
    "tensor of device tensors": ("torch.tensor", lambda t: torch.tensor([t.d0, t.d0])),
    "checked inverse": ("torch.linalg.inv", lambda t: torch.linalg.inv(t.x)),
    "tensor_split": ("torch.tensor_split", lambda t: torch.tensor_split(t.x, t.i)),
}
SHAPES: dict[str, tuple[str, Step]] = {
    "nonzero": ("aten.nonzero.default", lambda t: torch.nonzero(t.x)),
    "argwhere": ("torch.argwhere", lambda t: torch.argwhere(t.x)),
    "where": ("torch.where", lambda t: torch.where(t.mask)),
    "mask (D1)": ("aten.index.Tensor", lambda t: t.x[t.mask]),
    "assign to a mask": ("aten.index_put_.default", lambda t: t.x.__setitem__(t.mask, t.d0)),
    "masked_select": ("aten.masked_select.default", lambda t: t.x.masked_select(t.mask)),
    "unique": ("aten._unique2.default", lambda t: torch.unique(t.x)),
    "unique_consecutive": ("aten.unique_consecutive.default", lambda t: torch.unique_consecutive(t.x)),
    "bincount": ("aten.bincount.default", lambda t: torch.bincount(t.i)),
    "repeat_interleave": ("torch.repeat_interleave", lambda t: torch.repeat_interleave(t.x[:2], t.i, dim=0)),
    "one_hot": ("torch.nn.functional.one_hot", lambda t: functional.one_hot(t.i)),
}
MIXES: dict[str, tuple[str, Step]] = {
    "add": ("'other' is a host tensor (4, 4) float32", lambda t: t.x + t.h),
    "pinned": ("'other' is a host tensor (4, 4) float32", lambda t: t.x + t.p),
    "linear": ("host tensor", lambda t: functional.linear(t.x, t.h)),
    "cat": ("'tensors' is a host tensor", lambda t: torch.cat([t.x, t.h])),
    "stack of scalars": ("'tensors' is a host tensor ()", lambda t: torch.stack([t.d0, t.h0])),
    "where": ("'other' is a host tensor ()", lambda t: torch.where(t.mask, t.x, t.h0)),
    "clamp": ("'min' is a host tensor ()", lambda t: t.x.clamp(min=t.h0)),
    "embedding": ("'indices' is a host tensor (2,) int64", lambda t: functional.embedding(t.hi, t.x)),
    "gather": ("'index' is a host tensor ()", lambda t: t.x[0].gather(0, t.hi[0])),
    "out": ("writes into 'out', a host tensor", lambda t: torch.add(t.x, t.x, out=t.h)),
    "in place": ("writes into 'self', a host tensor", lambda t: t.h.add_(t.x)),
    "factory without a device": ("'other' is a host tensor (4,) int64", lambda t: t.x + torch.arange(4)),
}
UPLOADS: dict[str, tuple[str, Step]] = {
    "list index (D2)": ("torch.Tensor.__getitem__", lambda t: t.x[[0, 2]]),
    "list index of a column": ("torch.Tensor.__getitem__", lambda t: t.x[:, [0, 2]]),
    "assign to a list index (D2)": ("torch.Tensor.__setitem__", lambda t: t.x.__setitem__((slice(None), [0, 2]), -1.0)),
    "range index": ("torch.Tensor.__getitem__", lambda t: t.x[range(2)]),
    "array index": ("torch.Tensor.__getitem__", lambda t: t.x[np.array([0, 1])]),
    "host index": ("its index is a host tensor (2,) int64", lambda t: t.x[t.hi]),
    "host mask": ("its index is a host tensor", lambda t: t.x[t.h > 0]),
    "scalar to a device index": ("'values' is a host tensor ()", lambda t: t.x.__setitem__(t.i, 5.0)),
    "tensor": ("torch.tensor", lambda t: torch.tensor([1, 2], device=t.x.device)),
    "scalar tensor": ("torch.tensor", lambda t: torch.tensor(1.0, device=t.x.device)),
    "as_tensor": ("torch.as_tensor", lambda t: torch.as_tensor([1, 2], device=t.x.device)),
    "new_tensor": ("torch.Tensor.new_tensor", lambda t: t.x.new_tensor([1.0])),
    "host to device": ("torch.Tensor.to", lambda t: t.h.to(t.x.device)),
    "host to a device tensor": ("torch.Tensor.to", lambda t: t.h0.to(t.x)),
    "pageable, not blocking": ("not pinned", lambda t: t.h.to(t.x.device, non_blocking=True)),
    "pinned, but blocking": ("torch.Tensor.to", lambda t: t.p.to(t.x.device)),
    "copy from pageable": ("host→device copy, but the host tensor (4, 4)", lambda t: t.x.copy_(t.h, non_blocking=True)),
    "copy a host scalar": ("host→device copy, but the host tensor ()", lambda t: t.x.copy_(t.h0)),
    "blocking copy from pinned": ("host→device copy that blocks", lambda t: t.x.copy_(t.p)),
    "row of host values": ("is not pinned", lambda t: t.x.__setitem__(0, t.h[0])),
    "copy through pageable": ("passes through pageable memory", lambda t: t.x.copy_(t.p.t(), non_blocking=True)),
    "spread from pinned": ("passes through pageable memory", lambda t: t.x.copy_(t.p[0], non_blocking=True)),
    "copy into pageable": ("device→host copy, but the host tensor", lambda t: t.h.copy_(t.x, non_blocking=True)),
    "blocking copy into pinned": ("device→host copy that blocks", lambda t: t.p.copy_(t.x)),
    "copy into a pinned column": ("passes through", lambda t: t.p[:, 0].copy_(t.x[:, 0], non_blocking=True)),
}
REFUSED = {**READS, **SHAPES, **MIXES, **UPLOADS}


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, inference: bool) -> None:
    """The error names the operation and the line of the step; nothing of the recording is left."""
    words, step = REFUSED[name]
    tensors = Tensors()
    pool, before = tensors.backend.pool(), tensors.backend.memory().allocated
    refused = pytest.raises(CaptureUnsupported)
    with torch.inference_mode(inference), torch.no_grad(), refused as caught, tensors.backend.record(pool):
        tensors.x.add(1)
        step(tensors)
    assert words in str(caught.value)
    assert f"{__file__}:{inspect.getsourcelines(step)[1]}" == caught.value.context["line"]
    assert "fix: " in str(caught.value)
    assert (0, before) == (pool.bytes, tensors.backend.memory().allocated)
    assert 0 == torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()


ACCEPTED: dict[str, Step] = {
    "assign a scalar to a mask": lambda t: t.x.__setitem__(t.mask, 5.0),
    "assign a scalar to a row": lambda t: t.x.__setitem__(0, 5.0),
    "assign a host scalar to a row": lambda t: t.x.__setitem__(0, t.h0),
    "host scalar as an index": lambda t: t.x[t.hi[0]],
    "masked_fill with a host scalar": lambda t: t.x.masked_fill(t.mask, t.h0),
    "fill with a host scalar": lambda t: t.x.fill_(t.h0),
    "numpy number as an index": lambda t: t.x[np.int64(1)],
    "list of device tensors as an index": lambda t: t.x[(t.i, t.i)],
    "iteration": lambda t: list(t.x),
    "length": lambda t: len(t.x),
    "scalar power": lambda t: t.x**t.d0,
    "as_tensor of a device tensor": lambda t: torch.as_tensor(t.x, device=t.x.device),
    "one_hot of a known number": lambda t: functional.one_hot(t.i, 4),
    "nonzero of a known size": lambda t: torch.nonzero_static(t.x, size=3),
    "repeat_interleave of a known size": lambda t: torch.repeat_interleave(t.x[:2], t.i, dim=0, output_size=2),
    "copy into a strided tensor": lambda t: t.x.t().copy_(t.p, non_blocking=True),
    "copy of equal strides": lambda t: t.x.t().copy_(t.p.t(), non_blocking=True),
    "copy from a strided tensor": lambda t: t.p.copy_(t.x.t(), non_blocking=True),
    "assert on the device": lambda t: torch._assert_async(t.d0 > 0),
    "profiler range": lambda t: torch.profiler.record_function("step").__enter__(),
}


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str, inference: bool) -> None:
    """What a GPU records is recorded here, and replays."""
    tensors = Tensors()
    with torch.inference_mode(inference), torch.no_grad():
        with tensors.backend.record(tensors.backend.pool()) as graph:
            ACCEPTED[name](tensors)
        graph.replay()


@pytest.mark.parametrize("step", [lambda t: torch.cond(t.d0 > 0, torch.sin, torch.cos, (t.x,))], ids=["cond"])
def test_refuses_higher_order_operators(step: Step) -> None:
    """An operator that runs Python functions is refused by name."""
    tensors = Tensors()
    refused = pytest.raises(CaptureUnsupported, match="cond at")
    with torch.no_grad(), refused, tensors.backend.record(tensors.backend.pool()):
        step(tensors)


def test_refuses_an_output_that_does_not_fit() -> None:
    """An `out=` tensor with elements is not resized behind the caller's back."""
    tensors = Tensors()
    refused = pytest.raises(CaptureUnsupported, match="it resizes 'out'")
    with pytest.warns(UserWarning, match="resized"), refused, tensors.backend.record(tensors.backend.pool()):
        torch.add(tensors.x, 1, out=torch.empty(3, device=tensors.x.device))
