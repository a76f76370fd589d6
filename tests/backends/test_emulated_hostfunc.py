"""Host functions of the emulated backend: recorded in order, run in order at replay only, and kept from the device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.memory import EmulatedPool
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, using
from tsgraph.errors import CaptureUnsupported, HostFunctionFailed, ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]
Host = Callable[..., object]


@pytest.fixture
def host(backend: EmulatedBackend) -> Host:
    """`host_function(partial(function, *args))` as an expression."""
    return lambda function, *args: backend.host_function(partial(function, *args) if args else function)


class TestOrder:
    def test_runs_at_replay_only(self, record: Record, x: torch.Tensor, host: Host) -> None:
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
            backend.host_function(build)
            out.copy_(mask, non_blocking=True)
            x.add_(1)

        graph = record(step)
        graph.replay()
        graph.replay()
        assert ([[1] * 4, [2] * 4], [20] * 4) == (seen, out.tolist())

    def test_keeps_the_order_of_the_program_over_streams(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """One on a side stream that joined runs where the program has it."""
        calls: list[str] = []

        def step() -> None:
            main, side = current_stream(), Stream()
            backend.host_function(partial(calls.append, "fetch"))
            side.wait_stream(main)
            with using(side):
                backend.host_function(partial(calls.append, "build"))
            main.wait_stream(side)
            backend.host_function(partial(calls.append, "apply"))

        graph = record(step)
        assert [0, 1, 0] == [node.stream for node in graph.nodes]
        graph.replay()
        assert ["fetch", "build", "apply"] == calls

    def test_must_be_joined_as_any_work(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """One on a side stream that nobody waits for is named as such."""

        def step() -> None:
            side = Stream(name="side")
            side.wait_stream(current_stream())
            with using(side):
                backend.host_function(print)

        with pytest.raises(CaptureUnsupported, match=r"host function print at .*never waited for side"):
            record(step)

    def test_outside_a_recording_it_runs_now(self, backend: EmulatedBackend) -> None:
        """As all work does here."""
        calls: list[int] = []
        backend.host_function(partial(calls.append, 1))
        assert [1] == calls

    def test_on_a_stream_that_takes_no_part_it_runs_now(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor
    ) -> None:
        """And is not recorded."""
        calls: list[int] = []

        def step() -> None:
            with using(Stream()):
                backend.host_function(partial(calls.append, 1))

        assert ((), [1]) == (record(step).nodes, calls)

    def test_is_a_node_with_its_line(self, record: Record, x: torch.Tensor, host: Host) -> None:
        """Nodes name the function and the line of the step."""
        node = record(lambda: host(print)).nodes[0]
        assert "host function print" == node.operator
        assert "test_emulated_hostfunc.py:" in node.line

    def test_runs_in_the_state_of_a_fresh_thread(self, record: Record, x: torch.Tensor, host: Host) -> None:
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
        graph = record(partial(backend.host_function, handle))
        del handle
        gc.collect()
        assert alive() is not None
        graph.replay()
        graph.release()
        gc.collect()
        assert alive() is None

    def test_one_alone_is_let_go_of(self, backend: EmulatedBackend) -> None:
        """Once it has run, nothing keeps it."""
        function = Lock()
        alive = weakref.ref(function)
        backend.host_function(function.release)
        del function
        assert alive() is None

    def test_a_recording_of_somebody_else_is_refused(self, backend: EmulatedBackend) -> None:
        """Its graph would not keep the function, nor tell of its errors."""
        recording = Recording(Residence(), EmulatedPool())
        with (
            using(Stream()),
            pytest.raises(CaptureUnsupported, match=r"host_function at .*is not the backend's"),
            recording.run(),
        ):
            backend.host_function(print)

    def test_another_recording_within_its_own_is_refused(self, backend: EmulatedBackend, record: Record) -> None:
        """The graph that the backend records is not the one that would call it."""

        def step() -> None:
            within = Recording(Residence(), EmulatedPool(), mode="relaxed")
            with using(Stream()), within.run():
                backend.host_function(print)

        with pytest.raises(CaptureUnsupported, match="is not the backend's"):
            record(step)

    def test_an_invalid_recording_refuses_it(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """As any work, after an operation that CUDA refuses."""

        def step() -> None:
            with suppress(CaptureUnsupported):
                x.sum().item()
            backend.host_function(print)

        with pytest.raises(CaptureUnsupported, match=r"host_function at .*this recording is invalid"):
            record(step)

    def test_a_failed_recording_keeps_none(self, backend: EmulatedBackend) -> None:
        """Its graph never calls what it took."""
        function = Lock()
        alive = weakref.ref(function)
        recording = backend.record(backend.pool())
        graph = recording.__enter__()
        backend.host_function(function.release)
        assert [function.release] == [each.function for each in graph.functions]
        assert not recording.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        del function
        gc.collect()
        assert (None, []) == (alive(), graph.functions)


class Lock:
    """Something whose method is a host function."""

    def release(self) -> None:
        """Do nothing."""


class TestFailures:
    def test_a_kernel_that_fails_notes_them(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """The kernel's failure ends the replay; that of the function is not lost, nor told twice."""
        index = torch.tensor([0])
        backend.adopt([index])
        with backend.record(backend.pool()) as graph:
            backend.host_function(lambda: 1 // 0)
            x[index]
            backend.host_function(print)
        index.fill_(9)
        with pytest.raises(ReplayFailed, match=r"aten\.index\.Tensor") as caught:
            graph.replay()
        assert "ZeroDivisionError" in caught.value.__notes__[0]
        backend.synchronize()
        assert [0, 0] == [len(function.turns) for function in graph.functions]

    def test_an_interrupt_is_no_failure(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, host: Host
    ) -> None:
        """It is the user's: it stops the replay at once, or what he asked for outside a recording."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        graph = record(lambda: (host(interrupt), x.mul_(2)))
        with pytest.raises(KeyboardInterrupt):
            graph.replay()
        with pytest.raises(KeyboardInterrupt):
            backend.host_function(interrupt)
        backend.synchronize()
        assert [1] * 4 == x.tolist()


CALLS: list[Callable[[EmulatedBackend, torch.Tensor], object]] = [
    lambda backend, x: backend.synchronize(),
    lambda backend, x: backend.allocate((1,), torch.float32, 0),
    lambda backend, x: Event().record(),
    lambda backend, x: Event().synchronize(),
    lambda backend, x: current_stream().query(),
    lambda backend, x: backend.ready(),
    lambda backend, x: backend.host_function(print),
    lambda backend, x: x.add_(1),
    lambda backend, x: torch.zeros(4).copy_(x),
    lambda backend, x: x.item(),
    lambda backend, x: x.tolist(),
    lambda backend, x: x.numpy(),
    lambda backend, x: x.view(1).cpu(),
]


class TestReentrance:
    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("recorded", [True, False])
    def test_may_not_call_the_device(
        self, backend: EmulatedBackend, call: Callable[[EmulatedBackend, torch.Tensor], object], recorded: bool
    ) -> None:
        """CUDA forbids it, since the device waits for the function; afterwards the thread may again."""
        x = backend.allocate((1,), torch.float32, 1)
        if recorded:
            with backend.record(backend.pool()) as graph:
                backend.host_function(partial(call, backend, x))
            graph.replay()
        else:
            backend.host_function(partial(call, backend, x))
        with pytest.raises(HostFunctionFailed, match="a host function may not call the device") as caught:
            backend.synchronize()
        assert isinstance(caught.value.__cause__, CaptureUnsupported)
        assert "cudaErrorNotPermitted" == caught.value.__cause__.context["cuda"]
        call(backend, x)

    def test_may_not_replay(self, backend: EmulatedBackend, record: Record, x: torch.Tensor) -> None:
        """Nor launch a graph."""
        inner = record(lambda: x.mul_(2))
        record(lambda: backend.host_function(inner.replay)).replay()
        with pytest.raises(HostFunctionFailed, match=r"a replay .*may not call the device"):
            backend.synchronize()

    def test_host_memory_is_its_own(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """It works on pinned and ordinary host tensors, and may look at what a device tensor is like."""
        host, seen = backend.pin((4,), torch.float32), list[object]()
        backend.host_function(lambda: seen.append((host.fill_(3).tolist(), x.shape, x.view(2, 2).dtype)))
        backend.synchronize()
        assert [([3] * 4, (4,), torch.float32)] == seen
