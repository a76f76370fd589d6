"""Host functions: recorded in order, run in order at replay only, and what they raise surfaces."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.hostfunc import record_host_function
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, using
from tsgraph.errors import CaptureUnsupported, ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]


def host(function: Callable[..., object], *args: object) -> object:
    """`record_host_function` as an expression."""
    record_host_function(function, *args)
    return None


class TestOrder:
    def test_runs_at_replay_only(self, record: Record, x: torch.Tensor) -> None:
        """Not while recording; once at each replay, with its arguments."""
        calls: list[str] = []
        graph = record(lambda: (host(calls.append, "called"), x.mul_(2)))
        assert [] == calls
        graph.replay()
        graph.replay()
        assert ["called", "called"] == calls

    def test_runs_between_its_neighbours(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """It finds what was copied to it before, and what it writes is copied after it: a step fills a mask so."""
        tokens, mask = backend.pin((4,), torch.float32), backend.pin((4,), torch.float32)
        out, seen = backend.allocate((4,), torch.float32, 0), []

        def build() -> None:
            seen.append(tokens.tolist())
            mask.copy_(tokens * 10)

        def step() -> None:
            tokens.copy_(x, non_blocking=True)
            record_host_function(build)
            out.copy_(mask, non_blocking=True)
            x.add_(1)

        graph = record(step)
        graph.replay()
        graph.replay()
        assert ([[1] * 4, [2] * 4], [20] * 4) == (seen, out.tolist())

    def test_keeps_the_order_of_the_program_over_streams(self, record: Record, x: torch.Tensor) -> None:
        """One on a side stream that joined runs where the program has it."""
        calls: list[str] = []

        def step() -> None:
            main, side = current_stream(), Stream()
            record_host_function(calls.append, "fetch")
            side.wait_stream(main)
            with using(side):
                record_host_function(calls.append, "build")
            main.wait_stream(side)
            record_host_function(calls.append, "apply")

        graph = record(step)
        assert [0, 1, 0] == [node.stream for node in graph.nodes]
        graph.replay()
        assert ["fetch", "build", "apply"] == calls

    def test_must_be_joined_as_any_work(self, record: Record, x: torch.Tensor) -> None:
        """One on a side stream that nobody waits for is named as such."""

        def step() -> None:
            side = Stream(name="side")
            side.wait_stream(current_stream())
            with using(side):
                record_host_function(print)

        with pytest.raises(CaptureUnsupported, match=r"host function print at .*never waited for side"):
            record(step)

    def test_outside_a_recording_it_runs_now(self) -> None:
        """As all work does here."""
        calls: list[int] = []
        record_host_function(calls.append, 1)
        assert [1] == calls

    def test_on_a_stream_that_takes_no_part_it_runs_now(self, record: Record, x: torch.Tensor) -> None:
        """And is not recorded."""
        calls: list[int] = []

        def step() -> None:
            with using(Stream()):
                record_host_function(calls.append, 1)

        assert ((), [1]) == (record(step).nodes, calls)

    def test_is_a_node_with_its_line(self, record: Record, x: torch.Tensor) -> None:
        """Nodes name the function and the line of the step."""
        node = record(lambda: host(print)).nodes[0]
        assert "host function print" == node.operator
        assert "test_emulated_hostfunc.py:" in node.line

    def test_runs_in_the_state_of_a_fresh_thread(self, record: Record, x: torch.Tensor) -> None:
        """Grad mode on and inference mode off, whatever the step and the replay are under: CUDA has its own thread."""
        states: list[tuple[bool, bool]] = []
        with torch.inference_mode():
            graph = record(
                lambda: host(lambda: states.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled())))
            )
            graph.replay()
        assert [(True, False)] == states

    def test_goes_with_its_graph(self, backend: EmulatedBackend, record: Record) -> None:
        """The graph keeps the function as long as it can be replayed, and no longer."""

        class Handle:
            def __call__(self) -> None: ...

        handle = Handle()
        alive = weakref.ref(handle)
        graph = record(partial(record_host_function, handle))
        del handle
        gc.collect()
        assert alive() is not None
        graph.replay()
        graph.release()
        gc.collect()
        assert alive() is None


class TestFailures:
    def test_surfaces_after_the_graph_has_run(self, record: Record, x: torch.Tensor) -> None:
        """The replay raises, from what was raised, naming function and line; what comes later has run all the same."""

        def fails() -> None:
            raise ValueError("planted")

        graph = record(lambda: (host(fails), x.mul_(2)))
        with pytest.raises(ReplayFailed, match=r"host function .*fails at \S+: ValueError: planted") as caught:
            graph.replay()
        assert isinstance(caught.value.__cause__, ValueError)
        assert "test_emulated_hostfunc.py:" in caught.value.context["line"]
        assert [2] * 4 == x.tolist()

    def test_the_next_replay_is_a_new_one(self, record: Record, x: torch.Tensor) -> None:
        """A failure is raised once: when the function works again, so does the replay."""
        broken = [True]

        def step() -> None:
            record_host_function(lambda: 1 // (not broken[0]))

        graph = record(step)
        for _ in range(2):
            with pytest.raises(ReplayFailed, match="ZeroDivisionError"):
                graph.replay()
        broken[0] = False
        graph.replay()

    def test_the_first_is_raised_and_the_others_are_noted(self, record: Record, x: torch.Tensor) -> None:
        """All run; none is swallowed."""
        calls: list[int] = []

        def fails(number: int) -> None:
            calls.append(number)
            raise ValueError(f"number {number}")

        graph = record(lambda: [host(fails, number) for number in range(3)])
        with pytest.raises(ReplayFailed, match="number 0") as caught:
            graph.replay()
        assert [0, 1, 2] == calls
        assert ["number 1", "number 2"] == [note.split(": ")[-1] for note in caught.value.__notes__]

    def test_is_noted_where_a_kernel_fails_too(self, record: Record, x: torch.Tensor) -> None:
        """The kernel's failure ends the replay; that of the function is not lost."""
        index = torch.tensor([0])

        def step(backend: EmulatedBackend) -> None:
            record_host_function(lambda: 1 // 0)
            x[index]

        backend = EmulatedBackend()
        backend.adopt([x, index])
        with backend.record(backend.pool()) as graph:
            step(backend)
        index.fill_(9)
        with pytest.raises(ReplayFailed, match=r"aten\.index\.Tensor") as caught:
            graph.replay()
        assert "ZeroDivisionError" in caught.value.__notes__[0]

    def test_an_interrupt_is_no_failure(self, record: Record, x: torch.Tensor) -> None:
        """What is not an Exception stops the replay at once."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        graph = record(lambda: (host(interrupt), x.mul_(2)))
        with pytest.raises(KeyboardInterrupt):
            graph.replay()
        assert [1] * 4 == x.tolist()

    @pytest.mark.parametrize(
        "call",
        [
            lambda backend: backend.synchronize(),
            lambda backend: backend.allocate((1,), torch.float32, 0),
            lambda backend: Event().record(),
            lambda backend: Event().synchronize(),
            lambda backend: current_stream().query(),
            lambda backend: host(print),
        ],
    )
    def test_may_not_call_the_device(
        self, backend: EmulatedBackend, record: Record, call: Callable[[EmulatedBackend], object]
    ) -> None:
        """CUDA forbids it, since the device waits for the function; afterwards the thread may again."""
        graph = record(lambda: host(call, backend))
        with pytest.raises(ReplayFailed, match="a host function may not call the device") as caught:
            graph.replay()
        assert isinstance(caught.value.__cause__, CaptureUnsupported)
        assert "cudaErrorNotPermitted" == caught.value.__cause__.context["cuda"]
        call(backend)

    def test_may_not_replay(self, record: Record, x: torch.Tensor) -> None:
        """Nor launch a graph."""
        inner = record(lambda: x.mul_(2))
        with pytest.raises(ReplayFailed, match=r"a replay .*may not call the device"):
            record(lambda: host(inner.replay)).replay()
