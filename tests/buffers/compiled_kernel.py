"""The kernels that GPUs run, `staging.cu` itself, compiled for the CPU in the place of their emulation."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tsgraph.backends.emulated.staging import EmulatedKernel
from tsgraph.backends.kernels import DEPTH, SOURCE_FILE, block_of, grid_of
from tsgraph.backends.ring import TRAYS
from tsgraph.backends.stager import Load, Stager
from tsgraph.backends.trays import Layout

COMPILER = shutil.which("c++")
HARNESS = Path(__file__).with_name("staging_on_cpu.cpp")


@cache
def library() -> ctypes.CDLL:
    """`take` and `bring`, compiled once."""
    target = Path(tempfile.mkdtemp()) / "staging.so"
    assert COMPILER is not None
    words = ["-O1", "-shared", "-fPIC", f"-I{SOURCE_FILE.parent}", str(HARNESS), "-o", str(target)]
    subprocess.run([COMPILER, *words], check=True)
    return ctypes.CDLL(str(target))


def require_aligned() -> None:
    """A CPU loads from anywhere; a GPU does not."""
    assert 0 == ctypes.c_int.in_dll(library(), "misaligned").value


class CompiledKernel(EmulatedKernel):
    """Runs them thread by thread."""

    def bring_now(self, stager: Stager, load: Load) -> None:
        table, state = stager.table(load.layout).data_ptr(), stager.state.data_ptr()
        library().bring(
            *_grid(load.layout), *map(ctypes.c_void_p, (table, state, stager.ring.base, load.call.ctypes.data))
        )
        require_aligned()

    def take_now(self, stager: Stager, layout: Layout) -> None:
        ring, landing = stager.ring, stager.landing
        trays, last = (ring.trays_at, TRAYS - 1) if landing is None else (landing.data_ptr(), 0)
        addresses = map(ctypes.c_void_p, (stager.table(layout).data_ptr(), trays))
        counts = map(ctypes.c_void_p, (stager.state.data_ptr(), ring.base))
        words = (*addresses, ring.stride, last, layout.size, *counts)
        threads = self.threads(layout)
        if threads is None:
            library().take(*_grid(layout), *words)
        else:
            library().take_at_once(threads, *words, len(layout.forms))
        require_aligned()

    def threads(self, layout: Layout) -> int | None:
        """Those of the one block that is the node; None where a block will not do."""
        block = block_of(layout)
        return None if block is None else block.block_x


class CompiledDeep(CompiledKernel):
    """Has as few threads as may be, each with as many units."""

    def threads(self, layout: Layout) -> int | None:
        return max(-(-layout.units // DEPTH), 4 + len(layout.forms))


class CompiledInBlocks(CompiledKernel):
    """Has a block for each lane, or several, however few rows there are."""

    def threads(self, layout: Layout) -> int | None:
        return None


def _grid(layout: Layout) -> tuple[int, int, int]:
    config = grid_of(layout)
    return config.grid_x, config.grid_y, config.block_x
