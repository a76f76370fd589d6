"""Autocast for "cuda" under emulation: CUDA's lists, on the device's tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tsgraph.errors import CaptureUnsupported
from tsgraph.testing.cuda import cast_lists

pytestmark = pytest.mark.usefixtures("emulated")

HALF, FLOAT = torch.float16, torch.float32
APART = {
    "binary_cross_entropy",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
}  # refused by torch; no CPU has them
LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": cast_lists.LOWER,
    "AT_FORALL_FP32": cast_lists.FLOAT,
    "AT_FORALL_FP32_SET_OPT_DTYPE": cast_lists.FLOAT_BY_DTYPE,
    "AT_FORALL_PROMOTE": cast_lists.WIDEST,
}


@pytest.mark.parametrize("macro", LISTS)
def test_lists_are_those_of_torch(macro):
    """They are those of the header of torch 2.13; of another version, those that both know are in the same list."""
    header = Path(torch.__file__).with_name("include") / "ATen" / "autocast_mode.h"
    (body,) = re.findall(rf"#define {macro}\(_\)((?:[^\n]*\\\n)*[^\n]*)", header.read_text())
    torchs = {".".join(filter(None, found)) for found in re.findall(r"_\((\w+)(?:, (\w+))?\)", body)}
    assert torchs == set(LISTS[macro]) or not torch.__version__.startswith("2.13")
    others = {name for other, names in LISTS.items() if other != macro for name in names}
    assert set() == torchs & others


def test_no_rule_of_torch_is_forgotten():
    """Each operator that torch's autocast for CUDA has a kernel for is listed, but for those that are set apart."""
    names = torch._C._dispatch_get_all_op_names()
    known = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")}
    listed = {name for names in (*LISTS.values(), cast_lists.FLOAT_BY_OVERLOAD) for name in names}
    of_torch = {name.removeprefix("aten::") for name in known if name.startswith("aten::")}
    assert of_torch - APART <= listed


def _device(*shape, dtype=FLOAT):
    return torch.ones(shape, dtype=dtype, device="cuda")


CASTS = {
    "mv": (HALF, lambda x, h: x.mv(x[0])),
    "addmv": (HALF, lambda x, h: torch.addmv(x[0], x, x[0])),
    "einsum of one": (HALF, lambda x, h: torch.einsum("ij->j", x)),
    "matmul": (HALF, lambda x, h: x @ x),
    "exp": (FLOAT, lambda x, h: h.exp()),
    "sum": (FLOAT, lambda x, h: h.sum()),
    "sum of a dimension": (FLOAT, lambda x, h: h.sum(1, keepdim=True)),
    "sum as told": (HALF, lambda x, h: h.sum(dtype=HALF)),
    "norm": (FLOAT, lambda x, h: h.norm()),
    "group_norm": (FLOAT, lambda x, h: functional.group_norm(h, 2)),
    "softmax": (FLOAT, lambda x, h: h.softmax(-1)),
    "addcmul of both": (FLOAT, lambda x, h: torch.addcmul(x, h, h)),
    "addcmul of halves": (HALF, lambda x, h: torch.addcmul(h, h, h)),
    "double": (torch.float64, lambda x, h: x.double() @ x.double()),
    "not listed": (HALF, lambda x, h: h + h),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(("dtype", "step"), CASTS.values(), ids=CASTS)
def test_casts_as_cuda(mode, dtype, step):
    """To half, to float32, or to the widest dtype among the operands, eagerly and in a capture."""
    x, h, graph = _device(4, 4), _device(4, 4, dtype=HALF), torch.cuda.CUDAGraph()
    with mode(), torch.autocast("cuda"):
        eager = step(x, h)
        with torch.no_grad(), torch.cuda.graph(graph):
            made = step(x, h)
    graph.replay()
    assert (dtype, dtype) == (eager.dtype, made.dtype)
    assert torch.equal(eager, made)


def test_host_tensors_are_not_cast():
    """As on a GPU; autocast for the CPU casts them, and that for CUDA does not go by its list."""
    x = torch.ones(2, 2)
    with torch.autocast("cuda"):
        assert FLOAT is (x @ x).dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.bfloat16 is (x @ x).dtype
        with torch.autocast("cuda", enabled=False):
            assert FLOAT is (_device(2, 2) @ _device(2, 2)).dtype


def test_what_is_replayed_under_autocast_is_not_cast_again():
    """A replay inside the block runs what was captured outside, as it was captured."""
    x, graph = _device(2, 2), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = x @ x
    with torch.autocast("cuda"):
        graph.replay()
    assert (FLOAT, 2.0) == (made.dtype, made[0, 0].item())


def test_gradients_pass_the_casts():
    """Parameters stay float32, and so do their gradients."""
    layer = nn.Linear(4, 4, device="cuda")
    with torch.autocast("cuda"):
        made = layer(_device(2, 4))
        loss = made.sum()
    loss.backward()
    assert (HALF, FLOAT, FLOAT) == (made.dtype, loss.dtype, layer.weight.grad.dtype)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_half_precision_trains(dtype):
    """Norms whose statistics are float32, as CUDA's are, find their way back."""
    x = _device(4, 6, dtype=dtype).requires_grad_()
    running = _device(6, dtype=dtype), _device(6, dtype=dtype)
    (functional.layer_norm(x, (6,)) + functional.batch_norm(x, *running, training=True)).sum().backward()
    assert (dtype, (4, 6)) == (x.grad.dtype, tuple(x.grad.shape))


def test_what_a_failed_capture_made_stays_on_the_device():
    """Its memory is the device's, whatever became of the capture."""
    x, graph = _device(24), torch.cuda.CUDAGraph()
    made = []

    def capture():
        with torch.cuda.graph(graph):
            made.append(x + 1)
            torch.isin(x, x)

    with pytest.raises(CaptureUnsupported, match="invalid"):
        capture()
    assert made[0].is_cuda
