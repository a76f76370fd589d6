"""Graph pools: when a block is free, who gets it, what becomes of it, and what a replay finds there."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.allocator import TIGHT
from tsgraph.backends.emulated.memory import alias, lease_of
from tsgraph.backends.emulated.streams import Stream, current_stream, using
from tsgraph.errors import CaptureUnsupported, ReplayFailed

MIB = 1 << 20


@pytest.fixture
def backend() -> EmulatedBackend:
    """A checked one, with segments no larger than what asked for them."""
    return EmulatedBackend(geometry=TIGHT)


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of 128 ones: a block."""
    return backend.allocate((128,), torch.float32, 1)


class TestDuringARecording:
    def test_a_dropped_temporary_is_the_next_output(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A chain needs two blocks, however long it is, and replays as it should."""
        pool = backend.pool()
        with backend.record(pool) as graph:
            y = x
            for _ in range(50):
                y = y + 1
        assert (1024, 1024) == (pool.bytes, graph.high_water)
        graph.replay()
        assert [51] * 128 == y.tolist()

    @pytest.mark.parametrize(
        "keep",
        [lambda t: t[1:], lambda t: t.detach(), lambda t: t.view(torch.int32), lambda t: t.view(2, 64).t()[3]],
        ids=["slice", "detach", "other dtype", "view of view"],
    )
    def test_any_view_keeps_a_block(
        self, backend: EmulatedBackend, x: torch.Tensor, keep: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """While any tensor of the user's lies in a block, nothing else does."""
        with backend.record(backend.pool()) as graph:
            kept = keep(x + 1)
            others = [x * 3, x * 4]
        graph.replay()
        assert torch.equal(keep(torch.full((128,), 2.0)), kept)
        assert [3, 4] == [other[0] for other in others]

    def test_launches_keep_no_block(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """An operand is free after the operation, also where the operator writes into given tensors or in place."""
        pool = backend.pool()
        with backend.record(pool) as graph:
            first = (x + 1).mul_(2)
            second = torch.add(first, 1, out=torch.empty(0, device=x.device))
            del first
            pairs = torch._foreach_add([second, x], 1)
            del second
            out = torch.cat([pairs[0], pairs[1]])
            del pairs
            out.topk(2)
        assert 2048 == graph.high_water
        graph.replay()
        assert [6, 2] == [out[0], out[-1]]

    def test_launches_see_views_as_they_are(self, backend: EmulatedBackend) -> None:
        """Operands that start inside their block, overlap themselves, or are views conjugate or negated."""
        z = backend.allocate((4,), torch.complex64, 0).fill_(1 + 2j)

        def step() -> list[torch.Tensor]:
            made = z * 2
            made[3].fill_(7)
            wide = made[2:].expand(3, 2)
            return [made.conj() + 1, made.conj().imag + 0, made.real + 0, wide * 2, made.unfold(0, 2, 1) + 0]

        with torch.no_grad():
            expected = step()
            with backend.record(backend.pool()) as graph:
                outs = step()
        graph.replay()
        assert [True] * 5 == [torch.equal(*pair) for pair in zip(expected, outs, strict=True)]

    def test_streams_do_not_share_free_blocks(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A block goes to the stream that it was made on, as CUDA's allocator has it."""
        pool, side = backend.pool(), Stream()
        with backend.record(pool) as graph:
            main = current_stream()
            side.wait_stream(main)
            with using(side):
                (x + 1).add_(1)
            main.wait_stream(side)
            x + 2
            side.wait_stream(main)
            with using(side):
                x + 3
            main.wait_stream(side)
        assert (1024, 512) == (graph.bytes, graph.high_water)

    def test_a_pool_serves_one_recording_at_a_time(self, backend: EmulatedBackend) -> None:
        """Two recordings at once, of two threads, would take each other's blocks."""
        pool = backend.pool()
        pool.enter(backend)
        with pytest.raises(CaptureUnsupported, match="same pool"):
            pool.enter(backend)

    def test_new_blocks_are_poisoned(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """Whatever lay there, an output holds poison until it is computed."""
        dtypes = [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e5m2]
        for _ in range(2):
            with backend.record(backend.pool()):
                floats = [torch.empty(3, dtype=dtype, device=x.device) for dtype in dtypes]
                small, wide = (torch.empty(3, dtype=d, device=x.device) for d in (torch.int8, torch.int64))
                flags = torch.empty(4, dtype=torch.bool, device=x.device)
            assert all(each.to(torch.complex64).isnan().all() for each in floats)
            assert ([-128] * 3, [-(2**63)] * 3) == (small.tolist(), wide.tolist())
            assert [True, False, True, False] == flags.tolist()


class TestAfterARecording:
    def test_a_later_graph_takes_the_blocks_of_an_earlier_one(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """Graphs of one pool share intermediates: the second costs what is kept of the first."""
        pool, graphs, outs = backend.pool(), [], []
        for number in (1, 2):
            with backend.record(pool) as graph:
                outs.append((((x + 1) * 2) + number).sum())
            graphs.append(graph)
        assert [1024, 512] == [graph.bytes for graph in graphs]
        for graph in (*graphs, *graphs):
            graph.replay()
        assert [5 * 128, 6 * 128] == outs

    def test_e1_an_earlier_graph_overwrites_what_took_its_place(
        self, backend: EmulatedBackend, x: torch.Tensor
    ) -> None:
        """E1: the output of a later graph lies where a dropped one of an earlier graph lay, which still writes it."""
        pool = backend.pool()
        with backend.record(pool) as first:
            earlier = x + 1
        address = earlier.data_ptr()
        del earlier
        with backend.record(pool) as second:
            later = x + 6
        assert address == later.data_ptr()
        second.replay()
        assert [7] * 128 == later.tolist()
        first.replay()
        assert [2] * 128 == later.tolist()

    def test_e5_a_workspace_made_in_a_recording_is_overwritten(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """E5: a buffer that a step caches lies where a temporary lay, which every replay computes again."""
        with backend.record(backend.pool()) as graph:
            temporary = x * 2
            del temporary
            workspace = torch.empty_like(x)
        workspace.fill_(1234.5)
        graph.replay()
        assert [2] * 128 == workspace.tolist()

    def test_a_block_is_free_when_numpy_lets_go(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """An array on an output keeps its block, and nothing else does."""
        pool = backend.pool()
        with backend.record(pool) as graph:
            out = x + 1
        array = out.numpy()
        del out
        assert 512 == pool.used
        graph.replay()
        assert 2 == array[0]
        del array
        assert (0, 512) == (pool.used, pool.bytes)

    def test_a_block_is_free_after_garbage_was_collected(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A tensor in a cycle keeps its block until the collector comes, as on a GPU."""
        pool = backend.pool()
        cycle: list[object] = []
        with backend.record(pool):
            cycle.extend([cycle, x + 1])
        del cycle
        gc.collect()
        assert 0 == pool.used

    @pytest.mark.parametrize("checked", [True, False])
    def test_freed_blocks_are_poisoned_when_checked(self, checked: bool) -> None:
        """Checked, what is free reads as poison; unchecked it costs nothing, and reads as it was."""
        backend = EmulatedBackend(checked=checked)
        x, pool = backend.allocate((4,), torch.float32, 1), backend.pool()
        with backend.record(pool) as graph:
            out = x + 1
        graph.replay()
        lease = lease_of(out)
        assert lease is not None
        seen = alias(out, lease)
        del out
        assert (0, True) == (pool.used, lease.gone())
        assert checked == seen.isnan().all()
        assert checked or [2] * 4 == seen.tolist()


class TestPools:
    @pytest.mark.parametrize(("order", "expected"), [([1, 2, 4, 8], 15), ([8, 4, 2, 1], 8)])
    def test_m1_largest_first_shares_what_smallest_first_cannot(
        self, backend: EmulatedBackend, order: list[int], expected: int
    ) -> None:
        """M1: a recording can use the blocks of the one before only if it fits into them."""
        pool, graphs = backend.pool(), []
        for size in order:
            with backend.record(pool) as graph:
                torch.zeros(size * MIB, dtype=torch.uint8, device="cpu")
            graphs.append(graph)
        assert expected * MIB == pool.bytes == sum(graph.bytes for graph in graphs)
        assert [size * MIB for size in order] == [graph.high_water for graph in graphs]
        assert max(order) * MIB == pool.high_water

    @pytest.mark.parametrize(("order", "expected"), [([12, 24], 36), ([24, 12], 24)])
    def test_m1_holds_in_cudas_segments(self, order: list[int], expected: int) -> None:
        """So it is by default, where small requests share segments and large ones have their own."""
        backend = EmulatedBackend()
        pool, graphs = backend.pool(), []
        for size in order:
            with backend.record(pool) as graph:
                torch.zeros(size * MIB, dtype=torch.uint8, device="cpu")
            graphs.append(graph)
        assert expected * MIB == pool.bytes

    def test_l3_failed_recordings_give_everything_back(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """L3: ten failures leave no bytes, though their outputs were leaked; those are host memory, and whole."""
        pool, leaked = backend.pool(), []

        def step() -> None:
            leaked.append(torch.zeros(MIB, dtype=torch.uint8, device="cpu"))
            raise ZeroDivisionError

        for _ in range(10):
            with pytest.raises(ZeroDivisionError), backend.record(pool):
                step()
        assert (0, 0) == (pool.bytes, pool.used)
        assert not any(map(backend.holds, leaked))
        for value, tensor in enumerate(leaked):
            tensor.fill_(value)
        assert list(range(10)) == [tensor[-1] for tensor in leaked]
        leaked.clear()
        assert (0, 512) == (pool.used, x.untyped_storage().nbytes())

    def test_a_failed_recording_leaves_the_blocks_of_others(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """Its blocks in the segments of earlier graphs are free again with their last tensor."""
        pool = backend.pool()
        with backend.record(pool) as graph:
            kept = (x + 1) * 2
        with pytest.raises(CaptureUnsupported), backend.record(pool):
            (x + 3).unsqueeze(0).tolist()
        assert (1024, 512) == (pool.bytes, pool.used)
        graph.replay()
        assert [4] * 128 == kept.tolist()

    def test_the_last_graph_gives_back_what_nobody_uses(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """While one graph lives, its pool shrinks by nothing; after it, by all but the outputs that are kept."""
        pool = backend.pool()
        with backend.record(pool) as first:
            kept = (x + 1) * 2
        with backend.record(pool) as second:
            x + 1
        first.release()
        assert 1024 == pool.bytes
        second.release()
        assert (512, 512) == (pool.bytes, pool.used)
        del kept
        assert (0, 1024) == (pool.bytes, pool.high_water)

    def test_outputs_outlive_pool_and_graph(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """What the user keeps stays as the last replay left it."""
        with backend.record(backend.pool()) as graph:
            out = x + 1
        graph.replay()
        graph.release()
        del graph
        gc.collect()
        assert [2] * 128 == out.tolist()


class TestDroppedInputs:
    def test_the_error_names_the_tensor(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """K2: shape and dtype of what was dropped, and which operation of which line captured it."""
        shift = backend.allocate((2, 64), torch.int32, 1)
        with backend.record(backend.pool()) as graph:
            out = x + shift[1].repeat(2)
        graph.replay()
        del shift
        named = r"tensor \(64,\) int32 that aten\.repeat\.default at .*test_emulated_memory\.py:\d+ captured was freed"
        with pytest.raises(ReplayFailed, match=named) as caught:
            graph.replay()
        assert "aten.repeat.default" == caught.value.context["operation"]
        assert [2] * 128 == out.tolist()

    @pytest.mark.parametrize(
        "keep",
        [lambda t: t[1:], lambda t: t.detach(), lambda t: t.numpy(), torch.nn.Parameter],
        ids=["slice", "detach", "numpy", "parameter"],
    )
    def test_any_view_keeps_an_input(self, backend: EmulatedBackend, keep: Callable[[torch.Tensor], object]) -> None:
        """An input lives as long as anything of the user's on its memory."""
        source = backend.allocate((4,), torch.float32, 1)
        with backend.record(backend.pool()) as graph:
            out = source + 1
        kept = keep(source)
        del source
        graph.replay()
        assert [2] * 4 == out.tolist()
        del kept
        with pytest.raises(ReplayFailed, match="was freed"):
            graph.replay()

    def test_graphs_do_not_keep_inputs_for_each_other(self, backend: EmulatedBackend) -> None:
        """Of two graphs on one input neither owns it, nor does a graph that was released or dropped since."""
        source, graphs = backend.allocate((4,), torch.float32, 1), []
        pools = [backend.pool() for _ in range(4)]
        for pool in pools:
            with backend.record(pool) as graph:
                source.mul_(2).add_(source)
            graphs.append(graph)
            del graph
        graphs.pop().release()
        graphs.pop()
        for graph in graphs:
            graph.replay()
        assert [16] * 4 == source.tolist()
        del source
        for graph in graphs:
            with pytest.raises(ReplayFailed, match="was freed"):
                graph.replay()

    def test_e6_a_workspace_that_grew_is_found(self, backend: EmulatedBackend) -> None:
        """E6: a graph that wrote into a workspace may not go on when the workspace is another."""
        workspace = backend.allocate((2,), torch.float32, 0)
        with backend.record(backend.pool()) as graph:
            workspace.fill_(3)
        workspace = backend.allocate((4,), torch.float32, 0)
        with pytest.raises(ReplayFailed, match=r"\(2,\) float32 that aten\.fill_\.Scalar .* was freed"):
            graph.replay()
        assert [0] * 4 == workspace.tolist()

    def test_a_dropped_pinned_tensor_is_found(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A copy re-reads its host address at each replay, which must be there."""
        staged = backend.pin((128,), torch.float32)
        with backend.record(backend.pool()) as graph:
            x.copy_(staged, non_blocking=True)
        graph.replay()
        assert [0] * 128 == x.tolist()
        del staged
        with pytest.raises(ReplayFailed, match=r"aten\.copy_\.default .* was freed"):
            graph.replay()

    def test_shapes_alone_capture_nothing(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A factory that was given a tensor for its shape does not need it later; nor do baked host values."""
        like = backend.allocate((128,), torch.float32, 5)
        with backend.record(backend.pool()) as graph:
            out = torch.ones_like(like) + x * torch.tensor(3.0)
        del like
        graph.replay()
        assert [4] * 128 == out.tolist()

    def test_unchecked_it_reads_poison(self) -> None:
        """Unchecked, nothing is said: what was dropped is somebody else's, and never harms the process."""
        backend = EmulatedBackend(checked=False)
        index, table = backend.allocate((2,), torch.int64, 1), backend.allocate((4,), torch.float32, 1)
        with backend.record(backend.pool()) as graph:
            out = table * 2
            found = index.add_(1) + 0
        graph.replay()
        del table, index
        for count in (1, 2):
            graph.replay()
            assert out.isnan().all()
            assert [count - 2**63] * 2 == found.tolist()

    def test_memory_that_was_dropped_does_not_count(self, backend: EmulatedBackend) -> None:
        """What only a graph still maps is not allocated."""
        before = backend.memory().allocated
        source = backend.allocate((256,), torch.float32, 1)
        with backend.record(backend.pool()):
            source.add_(1)
        with backend.record(backend.pool()) as graph:
            source.add_(1)
        assert before + 1024 == backend.memory().allocated
        del source
        assert before == backend.memory().allocated
        graph.release()
        assert before == backend.memory().allocated


class TestMemoryOfOtherGraphs:
    def test_e4_a_kept_workspace_survives_its_graph(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """E4: memory that the user has stays valid, whichever graph is released; nothing writes it any more."""
        with backend.record(backend.pool()) as first:
            workspace = x + 1
        with backend.record(backend.pool()) as second:
            out = workspace * 2
        first.replay()
        first.release()
        second.replay()
        assert [4] * 128 == out.tolist()

    @pytest.mark.parametrize("shared", [True, False], ids=["one pool", "two pools"])
    def test_e4_a_dropped_workspace_is_found(self, backend: EmulatedBackend, x: torch.Tensor, shared: bool) -> None:
        """E4: a graph that works in a block of another graph's, which was freed, is refused by name."""
        pools = [backend.pool(), backend.pool()]
        with backend.record(pools[0]) as first:
            workspace = x + 1
        with backend.record(pools[0 if shared else 1]) as second:
            out = workspace * 2
        del workspace
        first.release()
        with pytest.raises(ReplayFailed, match=r"\(128,\) float32 that aten\.mul\.Tensor .* was freed"):
            second.replay()
        assert out.isnan().all()

    def test_e4_unchecked_it_works_on_what_lies_there(self) -> None:
        """E4 unchecked, as on CUDA: the freed block is another graph's output, which the first graph spoils."""
        backend = EmulatedBackend(checked=False)
        x, pool = backend.allocate((4,), torch.float32, 1), backend.pool()
        with backend.record(pool):
            workspace = x + 1
        with backend.record(pool) as second:
            workspace.fill_(9)
        del workspace
        with backend.record(pool) as third:
            out = x + 2
        third.replay()
        assert [3] * 4 == out.tolist()
        second.replay()
        assert [9] * 4 == out.tolist()

    def test_e4_unchecked_memory_stays_mapped(self) -> None:
        """Also when the pool has given the segment back, a stale replay harms nobody."""
        backend = EmulatedBackend(checked=False)
        x, pool = backend.allocate((MIB,), torch.float32, 1), backend.pool()
        with backend.record(pool) as first:
            workspace = x + 1
        with backend.record(backend.pool()) as second:
            out = workspace.add_(1) * 2
        first.replay()
        del workspace
        first.release()
        assert 0 == pool.bytes
        second.replay()
        assert 6 == out[-1]
