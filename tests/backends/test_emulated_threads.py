"""Several threads and a capture: what is recorded, and what is forbidden to whom (CUDA's capture error modes)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, default_stream, using
from tsgraph.errors import CaptureUnsupported, NotEmulated, TsgraphError


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of four ones."""
    return backend.allocate((4,), torch.float32, 1)


@contextmanager
def capture(backend: EmulatedBackend, **options: Any) -> Iterator[EmulatedGraph]:
    """A recording on a stream of its own."""
    with using(Stream()), Recording(backend._residence, backend.pool(), **options).run() as graph:
        yield graph


def elsewhere(call: Callable[[], object]) -> object:
    """What `call` returns, or the error of the library that it raises, in another thread."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except TsgraphError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    return results[0]


def _unsafe_calls(backend: EmulatedBackend) -> dict[str, Callable[[], object]]:
    event, stream = Event(), Stream()
    event.record(stream)
    return {
        "event query": event.query,
        "event synchronize": event.synchronize,
        "stream query": stream.query,
        "stream synchronize": stream.synchronize,
        "allocation": lambda: backend.allocate((1,), torch.float32, 0),
        "pinning": lambda: backend.pin((1,), torch.float32),
    }


UNSAFE = list(_unsafe_calls(EmulatedBackend()))


class TestErrorModes:
    @pytest.mark.parametrize("name", UNSAFE)
    @pytest.mark.parametrize(("mode", "allowed"), [("global", False), ("thread_local", True), ("relaxed", True)])
    def test_calls_of_other_threads(
        self, backend: EmulatedBackend, x: torch.Tensor, mode: str, allowed: bool, name: str
    ) -> None:
        """A global capture forbids unsafe calls to all threads, and one that is made invalidates it (fault N1)."""
        call, results = _unsafe_calls(backend)[name], []

        def records() -> None:
            with capture(backend, mode=mode):
                x.mul_(2)
                results.append(elsewhere(call))

        if allowed:
            records()
            assert not isinstance(results[0], CaptureUnsupported)
        else:
            with pytest.raises(CaptureUnsupported, match="this recording is invalid") as caught:
                records()
            cause = caught.value.__cause__
            assert isinstance(cause, CaptureUnsupported)
            assert cause is results[0]
            assert "cudaErrorStreamCaptureUnsupported" == cause.context["cuda"]
            assert "another thread is recording (global error mode)" in str(cause)

    @pytest.mark.parametrize("name", UNSAFE[:4])
    @pytest.mark.parametrize(("mode", "allowed"), [("global", False), ("thread_local", False), ("relaxed", True)])
    def test_calls_of_the_thread_that_records(
        self, backend: EmulatedBackend, x: torch.Tensor, mode: str, allowed: bool, name: str
    ) -> None:
        """It may not make unsafe calls, whatever they are about, unless its capture is relaxed."""
        call = _unsafe_calls(backend)[name]
        if allowed:
            with capture(backend, mode=mode):
                call()
        else:
            with pytest.raises(CaptureUnsupported, match="not inside a recording"), capture(backend, mode=mode):
                call()

    @pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
    def test_nobody_waits_for_the_device(self, backend: EmulatedBackend, x: torch.Tensor, mode: str) -> None:
        """To synchronise with the whole device is an error from any thread in any mode, and invalidates the capture."""
        results: list[Any] = []

        def records() -> None:
            with capture(backend, mode=mode):
                x.mul_(2)
                results.append(elsewhere(backend.synchronize))

        with pytest.raises(CaptureUnsupported, match="this recording is invalid since a synchronisation was refused"):
            records()
        assert f"another thread is recording ({mode} error mode)" in str(results[0])
        backend.synchronize()

    def test_recordings_of_the_backend_are_thread_local(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """As those of the CUDA backend are: a watchdog may ask its events meanwhile."""
        event = Event()
        event.record()
        with backend.record(backend.pool()):
            x.mul_(2)
            assert elsewhere(event.query) is True

    def test_an_event_of_the_capture_is_nobodys(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """To ask an event that was recorded in a capture is an error in any mode and thread."""
        results: list[Any] = []

        def records() -> None:
            with capture(backend, mode="relaxed"):
                x.mul_(2)
                results.append(elsewhere(current_stream().record_event().query))

        with pytest.raises(CaptureUnsupported, match="this recording is invalid"):
            records()
        assert "cudaErrorCapturedEvent" == results[0].context["cuda"]


class TestWhatIsRecorded:
    def test_operations_of_other_threads_run_at_once(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """They are on other streams, and no nodes, also where they work on device tensors (fault N1)."""
        y = backend.allocate((4,), torch.float32, 1)
        with capture(backend) as graph:
            x.mul_(2)
            assert [3] * 4 == elsewhere(lambda: y.add_(2).tolist())
        assert ["aten.mul_.Tensor"] == [node.operator for node in graph.nodes]

    def test_every_thread_begins_on_the_default_stream(self, backend: EmulatedBackend) -> None:
        """The current stream is one thread's."""
        with using(Stream()):
            assert default_stream() is elsewhere(current_stream)
            assert default_stream() is not current_stream()

    def test_a_stream_that_is_recorded_cannot_be_used_elsewhere(
        self, backend: EmulatedBackend, x: torch.Tensor
    ) -> None:
        """CUDA would record that thread's work, too; here it is refused, since it would not be seen."""
        with capture(backend):
            stream, event = current_stream(), current_stream().record_event()

            def enters() -> None:
                with using(stream):
                    x.add_(1)

            for use in (enters, lambda: Stream().wait_event(event)):
                assert isinstance(elsewhere(use), NotEmulated)
            x.mul_(2)
        assert elsewhere(enters) is None

    def test_two_threads_record_at_once(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """Each its own graph on its own stream; both replay what they recorded: neither forbids anything."""
        both, made = threading.Barrier(2, timeout=30), {}

        def records(factor: int) -> None:
            with capture(backend, mode="thread_local") as graph:
                both.wait()
                product = x * factor
                both.wait()
                made[factor] = (graph, product + 1)
                both.wait()

        threads = [threading.Thread(target=records, args=(factor,)) for factor in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        for factor, (graph, result) in made.items():
            assert 2 == len(graph.nodes)
            graph.replay()
            assert [factor + 1] * 4 == result.tolist()
        assert {2, 3} == set(made)

    def test_a_global_recording_does_not_let_another_thread_end_one(
        self, backend: EmulatedBackend, x: torch.Tensor
    ) -> None:
        """To make a graph of what was recorded is a call that it forbids, and both recordings are lost."""

        def records() -> None:
            with capture(backend, mode="thread_local"):
                x.mul_(2)

        def records_beside() -> None:
            with capture(backend):
                errors.append(elsewhere(records))

        errors: list[object] = []
        with pytest.raises(CaptureUnsupported, match="invalid since the end of a recording"):
            records_beside()
        (error,) = errors
        assert isinstance(error, CaptureUnsupported)
        assert "another thread is recording" in str(error)

    def test_two_captures_stay_apart(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A stream of one that waits for an event of the other is an error that invalidates both."""
        marked, done, event, others = threading.Event(), threading.Event(), Event(), []

        def other() -> None:
            try:
                with capture(backend):
                    x * 2
                    event.record()
                    marked.set()
                    done.wait(timeout=30)
            except CaptureUnsupported as error:
                others.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        marked.wait(timeout=30)
        with pytest.raises(CaptureUnsupported, match="two recordings one") as caught, capture(backend):
            event.wait()
        done.set()
        thread.join(timeout=30)
        assert "cudaErrorStreamCaptureMerge" == caught.value.context["cuda"]
        assert others[0].__cause__ is caught.value

    def test_one_backend_records_for_one_thread(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """Its recordings go to one stream: a second thread gets a clear error, and the first goes on."""

        def again() -> None:
            with backend.record(backend.pool()):
                x.add_(1)

        with backend.record(backend.pool()) as graph:
            x.mul_(2)
            assert "another thread is recording" in str(elsewhere(again))
        graph.replay()
        assert [2] * 4 == x.tolist()
        assert elsewhere(again) is None

    def test_ends_in_its_thread(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """An end or an abort elsewhere is refused, and the recording goes on."""
        with using(Stream()) as _:
            made = Recording(backend._residence, backend.pool())
            made.begin()
            x.mul_(2)
            for end in (made.end, made.abort):
                error = elsewhere(end)
                assert isinstance(error, CaptureUnsupported)
                assert "cudaErrorStreamCaptureWrongThread" == error.context["cuda"]
            made.end()
        made.graph.replay()
        assert [2] * 4 == x.tolist()

    def test_replays_in_any_thread(self, backend: EmulatedBackend, x: torch.Tensor) -> None:
        """A graph belongs to no thread (fault N2), and one thread's capture does not stop another's replay."""
        with backend.record(backend.pool()) as graph:
            x.mul_(2)
        with capture(backend, mode="thread_local"):
            assert elsewhere(graph.replay) is None
        assert [2] * 4 == x.tolist()


def test_compilation_is_off_until_the_last_recording_ends(backend: EmulatedBackend) -> None:
    """Torch has one switch for all threads: recordings that overlap leave it as they found it."""
    from torch._dynamo.eval_frame import _stance as before

    began, ended = threading.Event(), threading.Event()

    def longer() -> None:
        with capture(backend, mode="relaxed"):
            began.set()
            ended.wait(timeout=30)

    thread = threading.Thread(target=longer)
    with capture(backend, mode="relaxed"):
        thread.start()
        began.wait(timeout=30)
    from torch._dynamo.eval_frame import _stance as meanwhile

    ended.set()
    thread.join(timeout=30)
    from torch._dynamo.eval_frame import _stance as after

    assert ("default", "force_eager", "default") == (before.stance, meanwhile.stance, after.stance)
