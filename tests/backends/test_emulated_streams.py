"""Streams and events in and around a recording, by the rules of torch.cuda: what is legal, and its illegal twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend, streams
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.recording import Recording
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, default_stream, using
from tsgraph.errors import CaptureUnsupported, NotEmulated, ReplayFailed

Record = Callable[[Callable[[], object]], EmulatedGraph]


@pytest.fixture
def side() -> Stream:
    """A stream beside that of the capture."""
    return Stream(name="side")


@pytest.fixture
def recording(backend: EmulatedBackend) -> Iterator[Callable[..., Recording]]:
    """Makes recordings that are begun and ended by hand; those left open are aborted."""
    made: list[Recording] = []

    def make(**options: Any) -> Recording:
        made.append(Recording(backend._residence, backend.pool(), **options))
        return made[-1]

    yield make
    for each in made:
        each.abort()


@contextmanager
def refused(cuda: str, match: str = ".") -> Iterator[pytest.ExceptionInfo[CaptureUnsupported]]:
    """The block is refused, and the error names the one that CUDA gives."""
    with pytest.raises(CaptureUnsupported, match=match) as caught:
        yield caught
    assert cuda == caught.value.context.get("cuda")


class TestForkAndJoin:
    def test_work_of_a_stream_that_joined_is_recorded(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """A stream that waits on an event of the capture takes part, and nodes say which stream has them."""
        made = []

        def step() -> None:
            main, doubled = current_stream(), x * 2
            side.wait_stream(main)
            with using(side):
                made.append(doubled + 1)
            main.wait_stream(side)
            made.append(made[0] * 10)

        graph = record(step)
        assert [0, 1, 0] == [node.stream for node in graph.nodes]
        graph.replay()
        assert [30] * 4 == made[1].tolist()
        assert side.capture is None

    def test_one_stream_is_no_stream(self, record: Record, x: torch.Tensor) -> None:
        """Where all is on one stream, nodes name none."""
        assert [None, None] == [node.stream for node in record(lambda: (x * 2) + 1).nodes]

    def test_a_fork_must_be_joined(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """Work that the capture's stream does not wait for is an error that names stream, operation and line."""

        def step() -> None:
            side.wait_stream(current_stream())
            with using(side):
                x.mul_(2)
                x.add_(1)

        match = r"aten\.add_\.Tensor at \S+test_emulated_streams\.py:\d+: .*never waited for side"
        with refused("cudaErrorStreamCaptureUnjoined", match) as caught:
            record(step)
        assert "side" == caught.value.context["stream"]
        record(lambda: x + 1).replay()  # the stream is clean, and so is the capture's

    def test_work_after_the_join_needs_another(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """A join counts for what was there: later work on the stream is unjoined again."""

        def step(*, again: bool) -> None:
            main = current_stream()
            side.wait_stream(main)
            with using(side):
                x.add_(1)
                main.wait_stream(side)
                x.mul_(2)
            if again:
                main.wait_stream(side)

        record(lambda: step(again=True))
        with refused("cudaErrorStreamCaptureUnjoined"):
            record(lambda: step(again=False))

    def test_a_join_may_go_through_another_stream(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """The capture's stream waits for one that waited for the other: all is joined."""
        further = Stream()

        def step(*, joins: bool) -> None:
            main = current_stream()
            side.wait_stream(main)
            further.wait_event(main.record_event())
            with using(side):
                x.mul_(2)
            if joins:
                further.wait_stream(side)
            main.wait_stream(further)

        record(lambda: step(joins=True))
        with refused("cudaErrorStreamCaptureUnjoined"):
            record(lambda: step(joins=False))

    def test_an_event_stands_for_what_was_before_it(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """To wait for an event is not to wait for what its stream did after it."""

        def step(*, early: bool) -> None:
            main, event = current_stream(), Event()
            side.wait_stream(main)
            with using(side):
                if early:
                    event.record()
                x.mul_(2)
                if not early:
                    event.record()
            event.wait()

        record(lambda: step(early=False))
        with refused("cudaErrorStreamCaptureUnjoined"):
            record(lambda: step(early=True))

    def test_a_fork_without_work_needs_no_join(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """Nothing of a stream that only waited is left behind; and the stream is free afterwards."""

        def step() -> None:
            side.wait_stream(current_stream())
            x.mul_(2)

        record(step)
        assert side.capture is None

    def test_streams_that_take_no_part_work_at_once(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, side: Stream
    ) -> None:
        """Work on them is done, on device memory, and is no node."""
        other, made = backend.allocate((4,), torch.float32, 1), []

        def step() -> None:
            with using(side):
                made.append(other.add_(1) * 3)
            x.mul_(2)

        graph = record(step)
        assert ["aten.mul_.Tensor"] == [node.operator for node in graph.nodes]
        assert ([6] * 4, True) == (made[0].tolist(), backend.holds(made[0]))

    def test_a_mark_in_and_after_a_side_stream(self, backend: EmulatedBackend) -> None:
        """The backend's own stream is current in its block, and the caller's again afterwards, also after an error."""
        with backend.side_stream():
            assert current_stream() is not default_stream()
        with pytest.raises(ValueError, match="planted"), backend.side_stream():
            raise ValueError("planted")
        assert current_stream() is default_stream()


class TestBounds:
    def test_no_wait_for_what_was_before(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """An event that was recorded outside is no business of the capture; one that was recorded inside is."""
        event = side.record_event()

        def step(*, inside: bool) -> None:
            if inside:
                event.record()
            x.mul_(2)
            event.wait()

        with refused("cudaErrorStreamCaptureIsolation", "outside the recording"):
            record(lambda: step(inside=False))
        record(lambda: step(inside=True))

    def test_no_wait_for_a_stream_that_takes_no_part(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """`wait_stream` records an event there, which is outside: an error; nor can one forget to fork (fault N3)."""

        def step() -> None:
            with using(side):
                x.add_(1)
            current_stream().wait_stream(side)

        with refused("cudaErrorStreamCaptureIsolation"):
            record(step)

    def test_what_was_never_recorded_is_no_wait(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """Neither inside nor outside."""
        record(lambda: methodcaller("wait")(Event()))
        side.wait_event(Event())

    def test_no_wait_outside_for_what_is_inside(self, record: Record, x: torch.Tensor, side: Stream) -> None:
        """An event of a capture that has ended can be waited for, and asked, only once recorded again."""
        event = Event()
        record(lambda: methodcaller("record")(event))
        for use in (event.wait, event.query, event.synchronize, lambda: side.wait_event(event)):
            with refused("cudaErrorInvalidValue", "recorded in a recording"):
                use()
        event.record()
        event.wait()
        event.synchronize()
        assert event.query()

    def test_the_default_stream_takes_no_part(self, record: Record, x: torch.Tensor) -> None:
        """It may not join."""
        with refused("cudaErrorStreamCaptureImplicit"):
            record(lambda: default_stream().wait_event(current_stream().record_event()))
        assert default_stream().capture is None

    @pytest.mark.parametrize("ask", ["query", "synchronize"])
    def test_nobody_asks_a_stream_that_is_recorded(self, record: Record, x: torch.Tensor, ask: str) -> None:
        """How far it is, is no question while nothing runs; after the recording it is."""
        with refused("cudaErrorStreamCaptureUnsupported", "is being recorded"):
            record(lambda: methodcaller(ask)(current_stream()))
        assert getattr(current_stream(), ask)() in (True, None)

    @pytest.mark.parametrize("ask", ["query", "synchronize"])
    def test_nobody_asks_an_event_of_the_capture(self, record: Record, x: torch.Tensor, ask: str) -> None:
        """Nor an event that was recorded in it."""
        with refused("cudaErrorCapturedEvent"):
            record(lambda: methodcaller(ask)(current_stream().record_event()))

    def test_time_is_not_emulated(self) -> None:
        """Events keep no time, and say so."""
        first, second = Event(enable_timing=True), Event(enable_timing=True)
        first.record()
        second.record()
        with pytest.raises(NotEmulated, match="no time"):
            first.elapsed_time(second)


class TestBeginAndEnd:
    def test_not_on_the_default_stream(self, recording: Callable[..., Recording], side: Stream) -> None:
        """A capture begins on the current stream, which may be any but the default one."""
        with pytest.raises(CaptureUnsupported, match="non-default stream"):
            recording().begin()
        with using(side):
            made = recording()
            made.begin()
            assert streams.is_current_stream_capturing()
            made.end()
        assert not streams.is_current_stream_capturing()

    def test_not_on_a_stream_that_is_recorded(
        self, recording: Callable[..., Recording], x: torch.Tensor, side: Stream
    ) -> None:
        """A second recording is refused there, and the first goes on."""
        outer, made = recording(), []
        with using(side):
            outer.begin()
            with refused("cudaErrorIllegalState", "takes part in a recording already"):
                recording().begin()
            made.append(x * 3)
            outer.end()
        outer.graph.replay()
        assert [3] * 4 == made[0].tolist()

    def test_ends_on_its_stream(self, recording: Callable[..., Recording], x: torch.Tensor, side: Stream) -> None:
        """An end elsewhere is refused, and the recording goes on."""
        made = recording()
        with using(side):
            made.begin()
            x.mul_(2)
        with pytest.raises(CaptureUnsupported, match="the stream on which it began: side, not the default stream"):
            made.end()
        with using(side):
            x.mul_(3)
            made.end()
        made.graph.replay()
        assert [6] * 4 == x.tolist()

    def test_an_end_needs_a_beginning(self, recording: Callable[..., Recording]) -> None:
        """And an abort needs none."""
        made = recording()
        made.abort()
        with pytest.raises(CaptureUnsupported, match="none is in progress"):
            made.end()

    def test_an_abort_leaves_nothing(self, recording: Callable[..., Recording], x: torch.Tensor, side: Stream) -> None:
        """Eager work goes on, the graph has failed, and the stream can be recorded again."""
        made = recording()
        with using(side):
            made.begin()
            kept = x * 2
            made.abort()
            made.abort()
            assert [2] * 4 == (x * 2).tolist()
            with pytest.raises(ReplayFailed, match="this graph is failed"):
                made.graph.replay()
            again = recording()
            again.begin()
            kept = x * 5
            again.end()
        again.graph.replay()
        assert [5] * 4 == kept.tolist()

    def test_a_graph_replays_beside_a_capture_but_not_in_it(
        self, record: Record, x: torch.Tensor, side: Stream
    ) -> None:
        """On the stream that is recorded a replay is refused (fault R1); on one that takes no part it is done."""
        inner = record(lambda: x.add_(1))

        def replays(stream: Stream) -> None:
            with using(stream):
                inner.replay()

        with pytest.raises(CaptureUnsupported, match=r"a replay .*not inside a recording"):
            record(lambda: replays(current_stream()))
        assert [1] * 4 == x.tolist()
        assert () == record(lambda: replays(side)).nodes
        assert [2] * 4 == x.tolist()


BEFORE_CUDA: dict[str, Callable[[torch.Tensor], object]] = {
    "copy": lambda x: x.copy_(torch.ones(4)),
    "element": lambda x: x.__setitem__(0, torch.ones(4)[0]),
    "copy back": lambda x: torch.ones(4).copy_(x),
    "upload": lambda x: torch.ones(4).to(x),
    "data": lambda x: x.new_tensor([1.0]),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "tolist": lambda x: x.tolist(),
    "float index": lambda x: x.sum().__index__(),
    "several as a bool": bool,
    "several as a number": lambda x: x.item(),
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
    "mask": lambda x: x[x[:3] > 0],
    "select": lambda x: x.masked_select(x[:3] > 0),
}


class TestInvalid:
    @pytest.mark.parametrize(
        "forbidden",
        [
            lambda x: x.sum().item(),
            lambda x: x[x > 0],
            lambda x: current_stream().synchronize(),
            lambda x: current_stream().record_event().query(),
        ],
        ids=["item", "mask", "synchronize", "query"],
    )
    def test_a_swallowed_error_comes_back(
        self, record: Record, x: torch.Tensor, forbidden: Callable[[torch.Tensor], object]
    ) -> None:
        """What CUDA refuses invalidates the capture: later work and the end are refused, from the first error."""
        later: list[BaseException] = []

        def step() -> None:
            for work in (forbidden, lambda x: x * 2):
                try:
                    work(x)
                except CaptureUnsupported as error:
                    later.append(error)

        with refused("cudaErrorStreamCaptureInvalidated") as caught:
            record(step)
        assert [None, later[0]] == [later[0].__cause__, later[1].__cause__]
        assert later[0] is caught.value.__cause__

    def test_nothing_can_be_done_with_its_streams_and_events(
        self, record: Record, x: torch.Tensor, side: Stream
    ) -> None:
        """Until it ends: streams of it and events in it are refused, also to a stream that takes no part."""
        errors = []

        def step() -> None:
            main, event = current_stream(), current_stream().record_event()
            for call in (main.query, main.record_event, lambda: main.wait_event(event), lambda: side.wait_event(event)):
                with pytest.raises(CaptureUnsupported) as caught:
                    call()
                errors.append(caught.value.context["cuda"])

        with refused("cudaErrorStreamCaptureInvalidated"):
            record(step)
        invalidated = ["cudaErrorStreamCaptureInvalidated"] * 2
        assert ["cudaErrorStreamCaptureUnsupported", *invalidated, "cudaErrorInvalidValue"] == errors
        assert side.capture is None

    def test_what_torch_refuses_does_not(self, record: Record, x: torch.Tensor) -> None:
        """Tensors on two devices, or shapes that do not fit, are no errors of CUDA: the capture stays whole."""

        def step() -> None:
            for work in (lambda: x + torch.ones(4), lambda: x.view(3)):
                with pytest.raises(RuntimeError):
                    work()
            x.mul_(2)

        record(step).replay()
        assert [2] * 4 == x.tolist()

    @pytest.mark.parametrize("forbidden", BEFORE_CUDA.values(), ids=BEFORE_CUDA)
    def test_what_torch_refuses_before_cuda_does_not(
        self, record: Record, x: torch.Tensor, forbidden: Callable[[torch.Tensor], object]
    ) -> None:
        """Pageable copies, and arguments that do not fit: where the step catches the error, the rest replays."""

        def step() -> None:
            with pytest.raises((RuntimeError, IndexError, TypeError)):
                forbidden(x)
            x.mul_(2)

        record(step).replay()
        assert [2] * 4 == x.tolist()

    @pytest.mark.parametrize("to_device", [True, False], ids=["to the device", "to the host"])
    def test_a_pinned_copy_that_blocks_does(
        self, backend: EmulatedBackend, record: Record, x: torch.Tensor, to_device: bool
    ) -> None:
        """Torch lets it pass, and the host waits for the stream: CUDA refuses, and the capture is lost."""
        pinned = backend.pin((4,), torch.float32)

        def step() -> None:
            with refused("cudaErrorStreamCaptureUnsupported"):
                x.copy_(pinned) if to_device else pinned.copy_(x)

        with refused("cudaErrorStreamCaptureInvalidated"):
            record(step)

    def test_no_waiting_beside_the_capture_either(
        self, backend: EmulatedBackend, recording: Callable[..., Recording], side: Stream
    ) -> None:
        """In the thread that records, waiting is forbidden on any stream, unless the mode is relaxed."""
        other = backend.allocate((4,), torch.float32, 1)
        for mode, whole in (("global", False), ("thread_local", False), ("relaxed", True)):
            made = recording(mode=mode)
            with using(Stream()):
                made.begin()
                with using(side):
                    assert whole == succeeds(lambda: other.copy_(torch.full((4,), 7.0)))
                assert whole == succeeds(made.end)


def succeeds(call: Callable[[], object]) -> bool:
    """Whether `call` is not refused."""
    try:
        call()
    except CaptureUnsupported:
        return False
    return True
