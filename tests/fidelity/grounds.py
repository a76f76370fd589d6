"""Where programs run: on a GPU, or under emulation. Each gives an interpreter's programs a clean device."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch


class Ground(Protocol):
    """A place to run programs."""

    name: str

    def clean(self) -> AbstractContextManager[None]:
        """Run the block, one program, on a device as if nothing had run before."""
        ...

    def recover(self, scope: dict[str, Any]) -> None:
        """Put the device right after an error of the program whose names are `scope`."""
        ...

    def describe(self) -> dict[str, str]:
        """The machine and versions, for the record."""
        ...


class Cuda:
    """A GPU. What a failed capture leaves open in torch is closed, so that the next program finds it as it was."""

    name = "cuda"

    def __init__(self) -> None:
        self._warm_up()

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Seeds set, default stream, nothing queued, no memory kept, and a capture stream that no program has had.

        Torch hands out 32 streams in turn, and keeps what each has freed: a program would find what earlier ones left.
        Raises what asynchronous work raised: then nothing more runs.
        """
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.graph.default_capture_stream = None
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.manual_seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.synchronize()
            if torch.zeros(4, device="cuda").add_(1).sum().item() != 4.0:
                raise RuntimeError("the device does not add any more")

    def recover(self, scope: dict[str, Any]) -> None:
        """End captures that are open, close pools that are open, free the random generator."""
        _end_captures(scope)
        torch.cuda.set_stream(torch.cuda.default_stream())
        self._close_pools(scope)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):  # one that ends well: the generator leaves its capture
            torch.zeros(4, device="cuda")

    def describe(self) -> dict[str, str]:
        """The GPU and versions."""
        return {
            "ground": self.name,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
        }

    def _close_pools(self, scope: dict[str, Any]) -> None:
        device, pools = torch.cuda.current_device(), set()
        for value in scope.values():
            if isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, int) for each in value):
                pools.add(tuple(value))
            if isinstance(value, torch.cuda.CUDAGraph):
                with suppress(RuntimeError):
                    pools.add(tuple(value.pool()))
        for pool in pools:
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(device, pool)  # raises where nothing was left open
                torch._C._cuda_releasePool(device, pool)

    def _warm_up(self) -> None:
        """Libraries that initialise themselves in their first call cannot do so in a capture."""
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            square = torch.ones(8, 8, device="cuda", dtype=dtype)
            for _ in range(2):
                (square @ square).softmax(-1).sort(0).values.cumsum(1).topk(2)
                torch.nn.functional.linear(square, square, square[0]).addmm(square, square)
                torch.bmm(square[None], square[None])
        positive = torch.eye(4, device="cuda")
        torch.linalg.cholesky(positive)
        torch.linalg.solve(positive, positive)
        torch.rand(4, device="cuda")
        torch.cuda.synchronize()


class Emulated:
    """CPU tensors under `tsgraph.testing.emulate()`, installed anew for each program."""

    name = "emulated"

    def __init__(self) -> None:
        from tsgraph.testing import emulate  # not on a GPU, where the project need not be installed

        self._emulate = emulate

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Run the block under a fresh emulation, with seeds set."""
        with self._emulate():
            torch.cuda.manual_seed(0)
            torch.manual_seed(0)
            yield

    def recover(self, scope: dict[str, Any]) -> None:
        """End captures that are open; back to the default stream."""
        _end_captures(scope)
        torch.cuda.set_stream(torch.cuda.default_stream())

    def describe(self) -> dict[str, str]:
        """Versions."""
        import tsgraph

        return {"ground": self.name, "torch": torch.__version__, "tsgraph": tsgraph.__version__}


def _end_captures(scope: dict[str, Any]) -> None:
    graphs = [each for each in scope.values() if isinstance(each, torch.cuda.CUDAGraph)]
    streams = [each for each in scope.values() if isinstance(each, torch.cuda.Stream)]
    streams += [torch.cuda.current_stream(), torch.cuda.graph.default_capture_stream or torch.cuda.current_stream()]
    for stream, graph in itertools.product(streams, graphs):
        with torch.cuda.stream(stream):
            if torch.cuda.is_current_stream_capturing():
                with suppress(RuntimeError):
                    graph.capture_end()


def ground(name: str) -> Ground:
    """The ground by its name: cuda or emulated."""
    return Cuda() if name == "cuda" else Emulated()
