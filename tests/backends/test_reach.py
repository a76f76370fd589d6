"""What nodes are handed: parameters read from memory as the driver lays them out, and the blocks that words lie in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tsgraph.backends.cuda import CudaGraph
from tsgraph.backends.pools import CudaPool
from tsgraph.backends.reach import LOWEST, Blocks, Handed, Parameters, Unread, live_blocks, parameters_of
from tsgraph.backends.turns import Turns
from tsgraph.protocols.backend import Reached

BASE = 0x7F0000000000
HANDLE = ctypes.c_void_p(3)


def words(*values: int) -> bytes:
    """They in memory."""
    return np.array(values, np.uint64).tobytes()


class Memory:
    """Memory that holds values, as long as it lives."""

    def __init__(self, *values: bytes) -> None:
        self._values = [ctypes.create_string_buffer(value, max(len(value), 1)) for value in values]
        self._array = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, self._values))
        self.addresses = [ctypes.addressof(value) for value in self._values]
        self.array = ctypes.addressof(self._array)


def asking(*sizes: int, end: int = 1) -> Callable[..., int]:
    """The driver's call for a kernel with parameters of these sizes; `end`: its answer where there are no more."""

    def ask(handle: ctypes.c_void_p, at: ctypes.c_size_t, offset: Any, size: Any) -> int:
        assert (HANDLE.value, 0) == (handle.value, offset._obj.value)
        if at.value >= len(sizes):
            return end
        size._obj.value = sizes[at.value]
        return 0

    return ask


class TestParameters:
    def test_each_whole_word_is_read(self) -> None:
        """A pointer, an integer, a struct with pointers and a rest: only words of eight bytes can be addresses."""
        memory = Memory(words(BASE), b"\1\0\0\0", words(7, BASE + 8) + b"rest")
        found = parameters_of(asking(8, 4, 20), HANDLE)
        assert found is not None
        assert [words(BASE), words(7, BASE + 8)] == found.read(memory.array, None)

    def test_a_buffer_is_read_where_there_is_no_array(self) -> None:
        """As `cuLaunchKernel` takes it in `extra`: names, values, a zero; an array counts before it."""
        size = Memory(words(20))
        buffer = Memory(words(BASE, 5) + b"rest")
        extra = Memory(words(1, buffer.addresses[0], 2, size.addresses[0], 0))
        parameters = Parameters((8, 12))
        assert [words(BASE, 5)] == parameters.read(None, extra.addresses[0])
        array = Memory(words(1), words(2))
        assert [words(1), words(2)] == parameters.read(array.array, extra.addresses[0])

    @pytest.mark.parametrize("told", [(9, 0, 0), (1, 8, 0), (0,)], ids=["another name", "no size", "nothing"])
    def test_a_buffer_that_is_not_understood_is_not_read(self, told: tuple[int, ...]) -> None:
        """Unread, whatever is missing."""
        extra = Memory(words(*told))
        with pytest.raises(Unread):
            Parameters((8,)).read(None, extra.addresses[0])

    def test_a_kernel_without_parameters_is_handed_nothing(self) -> None:
        """Where something is there all the same, the driver's word is not believed; nor if there is too little."""
        none = parameters_of(asking(), HANDLE)
        assert none is not None
        assert [] == none.read(None, None)
        with pytest.raises(Unread):
            none.read(Memory(words(BASE)).array, None)
        with pytest.raises(Unread):
            Parameters((8,)).read(None, None)

    @pytest.mark.parametrize("end", [201, 0], ids=["an error", "no end"])
    def test_a_driver_that_knows_no_end_tells_nothing(self, end: int) -> None:
        """Any other answer than that there are no more, and none at all."""
        assert parameters_of(asking(8, end=end), HANDLE) is None


def handed(*nodes: tuple[str, bytes], before: Any = (), missed: bool = False) -> Handed:
    """What nodes are handed, all told."""
    made = Handed(Blocks.of(before))
    for name, given in nodes:
        made.add(name, [given[:8], given[8:]])
    if missed:
        made.miss()
    made.close()
    return made


def none() -> Blocks:
    """No block."""
    return Blocks.of(())


class TestHanded:
    def test_a_word_anywhere_in_a_block_reaches_it(self) -> None:
        """From its first byte to its last, and no further; by the first node in order, whichever of its words."""
        blocks = [(BASE, 512), (BASE + 512, 512), (BASE + 2048, 1024)]
        first, second = words(1, BASE + 2048 + 1023, BASE + 1024), words(BASE, BASE + 511, BASE + 2048, BASE - 1)
        found = handed(("one", first), ("two", second), before=blocks).reach(none, ())
        assert {BASE: Reached("two", 512), BASE + 2048: Reached("one", 1024)} == found

    def test_what_was_made_meanwhile_is_its_own(self) -> None:
        """Blocks of now count, too, and say so, unless they were there before."""
        made = handed(("rand", words(BASE, BASE + 512)), before=[(BASE, 512)])
        found = made.reach(lambda: Blocks.of([(BASE, 512), (BASE + 512, 512), (BASE + 1024, 512)]), ())
        assert {BASE: Reached("rand", 512), BASE + 512: Reached("rand", 512, own=True)} == found

    def test_what_is_gone_since_was_handed(self) -> None:
        """A block that was there when the recording began."""
        assert {BASE: Reached("add", 512)} == handed(("add", words(BASE)), before=[(BASE, 512)]).reach(none, ())

    def test_blocks_are_looked_at_once(self) -> None:
        """When it is first asked: what comes to lie there later is not what was handed."""
        made = handed(("add", words(BASE)))
        assert {} == made.reach(none, ())
        assert {} == made.reach(lambda: Blocks.of([(BASE, 8)]), ())

    def test_staging_is_left_out(self) -> None:
        """By where its memory starts."""
        made = handed(("take", words(BASE)), ("add", words(BASE + 512)), before=[(BASE, 512), (BASE + 512, 512)])
        assert [BASE + 512] == list(made.reach(none, {BASE}) or ())

    def test_numbers_are_no_addresses(self) -> None:
        """Sizes and counts below what a device has, and two numbers in one word that no device can have."""
        count, pair = LOWEST - 1, 0x3F8000003F800000
        assert {} == handed(("add", words(count, pair)), before=[(0, 1 << 62)]).reach(none, ())

    def test_nothing_is_told_where_a_node_does_not(self) -> None:
        """One is enough; and before the last node has been asked."""
        assert handed(("add", words(BASE)), before=[(BASE, 8)], missed=True).reach(none, ()) is None
        assert Handed(none()).reach(none, ()) is None

    def test_a_graph_of_nothing_reaches_nothing(self) -> None:
        """No node, no word."""
        assert {} == handed().reach(none, ())


def segment(pool: tuple[int, int], *blocks: tuple[int, int, str]) -> dict[str, Any]:
    """A segment as torch tells it."""
    made = [{"address": at, "size": size, "state": state} for at, size, state in blocks]
    return {"segment_pool_id": pool, "address": blocks[0][0], "total_size": 1 << 21, "blocks": made}


SEGMENTS = [
    segment((0, 0), (BASE, 512, "active_allocated"), (BASE + 512, 512, "inactive")),
    segment((0, 0), (BASE + 4096, 512, "active_pending_free")),
    segment((0, 7), (BASE + 8192, 512, "active_allocated")),
    segment((0, 8), (BASE + 16384, 1024, "active_allocated")),
]


@pytest.fixture(params=["with traces", "without"])
def snapshot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator with memory in two pools. Torch 2.11 has no word for leaving traces out."""

    def without(*, include_traces: bool) -> Any:
        assert not include_traces
        return SEGMENTS

    monkeypatch.setattr(torch.cuda, "memory_snapshot", without if request.param == "without" else lambda: SEGMENTS)


def test_live_blocks_are_those_in_use_outside_of_the_pools(snapshot: None) -> None:
    """Also those that wait for a stream before they are free; another's pool is outside."""
    found = live_blocks({(0, 7)})
    assert [BASE, BASE + 4096, BASE + 16384] == found.starts.tolist()
    assert [512, 512, 1024] == found.sizes.tolist()


def test_a_graph_reaches_what_is_outside_of_all_its_pools(snapshot: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pool may have had several; the memory of its staging is its own, and a graph that was not read tells none."""
    pool = CudaPool()
    handles = iter([(0, 7), (0, 8)])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    graph = CudaGraph(pool, Turns(), graph=SimpleNamespace(replay=int))  # type: ignore[arg-type]
    assert graph.reach is None

    pool.handle()
    pool.fail()
    pool.handle()
    table = SimpleNamespace(data_ptr=lambda: BASE + 4096)
    graph.feed = SimpleNamespace(stager=SimpleNamespace(memory=lambda: {"table": table}))  # type: ignore[assignment]
    graph.handed = handed(("add", words(*(each["address"] for each in SEGMENTS))), before=[])
    assert {BASE: Reached("add", 512, own=True)} == graph.reach
