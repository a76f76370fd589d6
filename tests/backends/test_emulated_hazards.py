"""Missing waits between streams: the checker against the definition of happens-before, and in recordings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Literal

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.graph import EmulatedGraph
from tsgraph.backends.emulated.hazards import Access, Race, Region, Step, Timeline
from tsgraph.backends.emulated.streams import Event, Stream, current_stream, record_stream, using
from tsgraph.errors import CaptureUnsupported

Record = Callable[[Callable[[], object]], EmulatedGraph]
LANES, EVENTS = 3, 3


@attrs.frozen
class Do:
    """An instruction: a step that touches bytes, or an event (by its number) that is recorded or waited for."""

    kind: Literal["step", "record", "wait"]
    lane: int
    event: int = 0
    touches: tuple[tuple[int, int, bool], ...] = ()  # first byte, last byte, writes


def _instructions() -> st.SearchStrategy[list[Do]]:
    lanes, events = st.integers(0, LANES - 1), st.integers(0, EVENTS - 1)
    writes = st.sampled_from([True, False, False])
    touch = st.tuples(st.integers(0, 5), st.integers(0, 2), writes).map(lambda t: (t[0], t[0] + t[1], t[2]))
    steps = st.builds(Do, st.just("step"), lanes, touches=st.lists(touch, max_size=2).map(tuple)).map(lambda do: [do])
    single = st.builds(Do, st.sampled_from(["record", "wait"]), lanes, events).map(lambda do: [do])
    order = st.tuples(lanes, lanes, events).map(lambda t: [Do("record", t[0], t[2]), Do("wait", t[1], t[2])])
    return st.lists(steps | order | single, max_size=25).map(lambda parts: [do for part in parts for do in part])


def _checked(program: list[Do]) -> Timeline:
    timeline, events = Timeline(), dict[int, Any]()
    for place, each in enumerate(program):
        if each.kind == "record":
            events[each.event] = timeline.clock(each.lane)
        elif each.kind == "wait":
            timeline.wait(each.lane, events.get(each.event, {}))
        else:
            accesses = [Access(_bytes(first, last), writes) for first, last, writes in each.touches]
            timeline.append(each.lane, f"lane {each.lane}", str(place), "", accesses)
    return timeline


def _bytes(first: int, last: int) -> Region:
    return Region(64 + first, (last - first + 1,), (1,), 1)


class Oracle:
    """The same by definition: steps are vertices, each wait and each lane gives edges, and paths order."""

    def __init__(self, program: list[Do]) -> None:
        self.before: dict[int, set[int]] = {}  # each step, and all steps with a path to it
        self.ends: list[set[int]] = [set() for _ in range(LANES)]  # the steps that the next one of a lane comes after
        self.touches: dict[int, tuple[tuple[int, int, bool], ...]] = {}
        self.lane: dict[int, int] = {}
        events: dict[int, set[int]] = {}
        for place, each in enumerate(program):
            if each.kind == "record":
                events[each.event] = set(self.ends[each.lane])
            elif each.kind == "wait":
                self.ends[each.lane] |= events.get(each.event, set())
            else:
                self._add(place, each)

    def _add(self, place: int, each: Do) -> None:
        self.before[place] = {place}.union(*(self.before[end] for end in self.ends[each.lane]))
        self.ends[each.lane] = {place}
        self.touches[place], self.lane[place] = each.touches, each.lane

    def races(self) -> list[tuple[int, int]]:
        """Pairs (second, first) of steps of two lanes that no path orders and that share a byte one of them writes."""
        steps = list(self.before)
        return [(b, a) for a, b in product(steps, steps) if a < b and a not in self.before[b] and self._meet(a, b)]

    def _meet(self, a: int, b: int) -> bool:
        pairs = product(self.touches[a], self.touches[b])
        return any(one[0] <= two[1] and two[0] <= one[1] and (one[2] or two[2]) for one, two in pairs)

    def loose(self) -> int | None:
        """The newest step without a path to where lane 0 is now."""
        joined: set[int] = set().union(*(self.before[end] for end in self.ends[0]))
        return max(set(self.before) - joined, default=None)


class TestAgainstTheDefinition:
    @given(_instructions())
    def test_finds_the_first_race_and_no_other(self, program: list[Do]) -> None:
        """A race is told if and only if two steps have no path; of several, the one whose second step comes first."""
        race = _checked(program).race()
        found = None if race is None else (int(race.second.operation), int(race.first.operation))
        assert min(Oracle(program).races(), default=None) == found

    @given(_instructions())
    def test_finds_what_is_not_joined(self, program: list[Do]) -> None:
        """The newest step that the first lane does not wait for, if there is one."""
        loose = _checked(program).loose_end(0)
        assert Oracle(program).loose() == (None if loose is None else int(loose.operation))

    def test_small_regions_do_not_hide_a_large_one(self) -> None:
        """What begins long before, and ends after, is still there when others have begun and ended."""
        whole, parts = (
            Do("step", 0, touches=((0, 9, True),)),
            [Do("step", 0, touches=((at, at, False),)) for at in (1, 2)],
        )
        race = _checked([whole, *parts, Do("step", 1, touches=((5, 5, True),))]).race()
        assert race is not None
        assert ("0", "3") == (race.first.operation, race.second.operation)

    def test_a_wait_more_never_makes_a_race(self) -> None:
        """The planted twin of every finding: with a wait before each step for all others, nothing races."""
        steps = [Do("step", lane, touches=((0, 3, True),)) for lane in (0, 1, 2, 1, 0)]
        waits = [Do("wait", lane, event) for lane in range(LANES) for event in range(EVENTS)]
        marks = [Do("record", lane, lane) for lane in range(LANES)]
        ordered = [each for step in steps for each in (*marks, *waits, step)]
        assert (True, None) == (_checked(steps).race() is not None, _checked(ordered).race())


_LAYOUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=3)


@st.composite
def _regions(draw: st.DrawFn) -> Region:
    layout = draw(_LAYOUTS)
    shape, strides = tuple(count for count, _ in layout), tuple(stride for _, stride in layout)
    return Region(draw(st.integers(64, 80)), shape, strides, draw(st.sampled_from([1, 2, 4])))


def _covered(region: Region) -> set[int]:
    places = product(*map(range, region.shape))
    starts = (region.start + sum(a * b for a, b in zip(place, region.strides, strict=True)) for place in places)
    return {start + byte for start in starts for byte in range(region.itemsize)}


class TestRegions:
    @given(_regions(), _regions())
    def test_overlap_where_they_share_a_byte(self, one: Region, other: Region) -> None:
        """By the byte, strides and empty regions included."""
        assert bool(_covered(one) & _covered(other)) == one.overlaps(other)

    @pytest.mark.parametrize(
        ("one", "other", "overlap"),
        [
            (lambda x: x[:, :2], lambda x: x[:, 2:], False),
            (lambda x: x[:, :3], lambda x: x[:, 2:], True),
            (lambda x: x[::2], lambda x: x[1::2], False),
            (lambda x: x[0].expand(3, 4), lambda x: x[1:], False),
            (lambda x: x.t(), lambda x: x[3, 3], True),
            (lambda x: x.view(torch.bfloat16)[:, 1::2], lambda x: x[:, :1], True),
            (lambda x: x, lambda x: x.clone(), False),
        ],
    )
    def test_of_tensors(self, one: Callable[..., Any], other: Callable[..., Any], overlap: bool) -> None:
        """Columns lie apart although their ranges of addresses do not."""
        x = torch.zeros(4, 4)
        first, second = one(x), other(x)
        assert overlap == Region.of(first).overlaps(Region.of(second)) == Region.of(second).overlaps(Region.of(first))

    def test_hard_cases_count_as_overlapping(self) -> None:
        """Where it would take too long to tell, a missing wait is not overlooked."""
        primes = (10007, 10009, 10037, 10039, 10061, 10067)
        one, other = (Region(start, (50,) * 6, primes, 1) for start in (64, 67))
        assert one.overlaps(other)


class TestWords:
    def test_a_race_names_all(self) -> None:
        """Operations, lines, streams, what they do to what, and the wait that is missing."""
        first = Step("add", "a.py:1", 0, "main", 0, 1, {0: 1})
        second = Step("mul", "a.py:2", 1, "side", 1, 1, {1: 1})
        race = Race(first, second, ("reads", "writes"), "a tensor (4,) float32")
        expected = (
            "mul at a.py:2, on side, writes a tensor (4,) float32, which add at a.py:1, on main, reads, "
            "and nothing orders the two"
        )
        assert expected == str(race)
        assert "after the first, record an event on main, and make side wait for it before the second" == race.fix


@pytest.fixture
def backend() -> EmulatedBackend:
    """A fresh one."""
    return EmulatedBackend()


@pytest.fixture
def x(backend: EmulatedBackend) -> torch.Tensor:
    """A static input of four rows of ones."""
    return backend.allocate((4, 4), torch.float32, 1)


@pytest.fixture
def side() -> Stream:
    """A stream beside that of the capture."""
    return Stream(name="side")


def record(backend: EmulatedBackend, step: Callable[[], object]) -> EmulatedGraph:
    """A graph of `step` in a pool of its own."""
    with backend.record(backend.pool()) as graph:
        step()
    return graph


def forked(side: Stream, here: Callable[[], object], there: Callable[[], object], *, ordered: bool) -> None:
    """`here` on the capture's stream, `there` on `side`, which waits for `here` only if `ordered`; then joined."""
    main, fork = current_stream(), Event()
    fork.record()
    here()
    side.wait_event(main.record_event() if ordered else fork)
    with using(side):
        there()
    main.wait_stream(side)


RACES: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = {
    "write after read": (lambda x: x + 1, lambda x: x.mul_(2)),
    "read after write": (lambda x: x.mul_(2), lambda x: x + 1),
    "write after write": (lambda x: x.fill_(1), lambda x: x.fill_(2)),
    "through a view": (lambda x: x.t().add_(1), lambda x: x[0].sum()),
    "rows": (lambda x: x[:3].add_(1), lambda x: x[2:].add_(1)),
    "given out": (lambda x: torch.add(x[0], 1, out=x[1]), lambda x: x[1] * 2),
}
PEACE: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = {
    "both read": (lambda x: x + 1, lambda x: x * 2),
    "rows apart": (lambda x: x[:2].add_(1), lambda x: x[2:].add_(1)),
    "columns apart": (lambda x: x[:, :2].add_(1), lambda x: x[:, 2:].add_(1)),
    "only its shape": (torch.zeros_like, lambda x: x.mul_(2)),
    "views alone": (lambda x: x.view(16)[2:], lambda x: x.mul_(2)),
    "empty": (lambda x: x[:0].add_(1), lambda x: x.mul_(2)),
    "both empty": (lambda x: x[:0].add_(1), lambda x: x[:0].mul_(2)),
}


class TestRecordings:
    @pytest.mark.parametrize("name", RACES)
    def test_a_missing_wait_is_an_error(
        self, backend: EmulatedBackend, x: torch.Tensor, side: Stream, name: str
    ) -> None:
        """Two streams that share memory without an order are refused at the end; with the wait they are not."""
        here, there = RACES[name]
        graph = record(backend, lambda: forked(side, lambda: here(x), lambda: there(x), ordered=True))
        assert {0, 1} == {node.stream for node in graph.nodes}
        with pytest.raises(CaptureUnsupported, match=r"a wait is missing: .* on side, .* on the capture stream, "):
            record(backend, lambda: forked(side, lambda: here(x), lambda: there(x), ordered=False))

    @pytest.mark.parametrize("name", PEACE)
    def test_streams_that_do_not_meet_need_no_wait(
        self, backend: EmulatedBackend, x: torch.Tensor, side: Stream, name: str
    ) -> None:
        """Reading together, or writing apart, is what streams are for."""
        here, there = PEACE[name]
        record(backend, lambda: forked(side, lambda: here(x), lambda: there(x), ordered=False))

    def test_the_error_names_all(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """Both operations with their lines, the tensor, and the wait to add."""
        with pytest.raises(CaptureUnsupported) as caught:
            record(backend, lambda: forked(side, lambda: x.add_(1), lambda: x.mul_(2), ordered=False))
        first, second = caught.value.context["first"], caught.value.context["operation"]
        assert "aten.mul_.Tensor" == second
        assert first.startswith("aten.add_.Tensor at ")
        assert "test_emulated_hazards.py:" in first
        assert "tensor (4, 4) float32" in str(caught.value)
        assert "record an event on the capture stream, and make side wait" in caught.value.hint

    def test_an_input_of_a_forked_stream_must_be_waited_for(
        self, backend: EmulatedBackend, x: torch.Tensor, side: Stream
    ) -> None:
        """The join too early, before the side's work: joined at last, but what is read between races."""

        def step(*, early: bool) -> None:
            main = current_stream()
            side.wait_stream(main)
            with using(side):
                made = x * 2
            if not early:
                main.wait_stream(side)
            made.add_(1)
            main.wait_stream(side)

        record(backend, lambda: step(early=False))
        with pytest.raises(CaptureUnsupported, match=r"aten\.add_\.Tensor .* writes .* aten\.mul\.Tensor .* writes"):
            record(backend, lambda: step(early=True))

    def test_unchecked_keeps_the_order_of_the_program(self, x: torch.Tensor, side: Stream) -> None:
        """As on a GPU it is no error; here the steps run as they were recorded."""
        backend = EmulatedBackend(checked=False)
        backend.adopt([x])
        graph = record(backend, lambda: forked(side, lambda: x.add_(1), lambda: x.mul_(2), ordered=False))
        graph.replay()
        assert 4 == x[0, 0].item()

    def test_a_failed_check_leaves_nothing(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """The pool has its memory back, the streams are free, and the next recording is whole."""
        pool = backend.pool()

        def step(*, ordered: bool) -> None:
            with backend.record(pool):
                forked(side, lambda: x.add_(1), lambda: x.mul(2).sum(), ordered=ordered)

        with pytest.raises(CaptureUnsupported, match="a wait is missing"):
            step(ordered=False)
        assert (0, None) == (pool.bytes, side.capture)
        step(ordered=True)

    def test_copies_from_pinned_memory_count(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """A copy reads its host tensor at replay: to write it on another stream needs an order (fault D4)."""
        host = backend.pin((4, 4), torch.float32)

        def step(*, ordered: bool) -> None:
            up, down = x.clone(), x.clone()
            forked(
                side,
                lambda: up.copy_(host, non_blocking=True),
                lambda: host.copy_(down, non_blocking=True),
                ordered=ordered,
            )

        def waits_first(*, ordered: bool) -> None:
            side.wait_stream(current_stream())
            step(ordered=ordered)

        record(backend, lambda: waits_first(ordered=True))
        with pytest.raises(CaptureUnsupported, match=r"writes a tensor \(4, 4\) float32, which aten\.copy_"):
            record(backend, lambda: waits_first(ordered=False))

    def test_host_functions_read_their_tensors(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """A host function that is handed a tensor needs an order with what writes it on another stream."""
        host = backend.pin((4, 4), torch.float32)

        def step(*, ordered: bool) -> None:
            fetch = partial(backend.host_function, partial(print, host))
            forked(side, fetch, lambda: host.copy_(x, non_blocking=True), ordered=ordered)

        record(backend, lambda: step(ordered=True))
        with pytest.raises(CaptureUnsupported, match=r"which host function print .* reads"):
            record(backend, lambda: step(ordered=False))

    def test_a_scalar_that_is_baked_is_not_read(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """The value of a host scalar was taken while recording: a copy into it may come at any time."""
        scalar, y = backend.pin((), torch.float32), backend.allocate((), torch.float32, 1)
        copy = partial(scalar.copy_, y, non_blocking=True)
        record(backend, lambda: forked(side, lambda: x.mul_(scalar), copy, ordered=False))


class TestMemoryThatIsUsedAgain:
    """A block goes back to the stream that took it: other streams that still use it are not asked."""

    def step(self, x: torch.Tensor, side: Stream, *, told: bool) -> None:
        """`side` reads a block of the capture's stream, which drops it and uses it again."""
        main, dropped = current_stream(), x * 2
        side.wait_stream(main)
        with using(side):
            _ = dropped + 1
        if told:
            record_stream(dropped, side)
        del dropped
        _ = x * 3
        main.wait_stream(side)

    def test_is_a_race(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """Nothing orders the next owner's write after the read of the side stream."""
        with pytest.raises(CaptureUnsupported, match=r"aten\.mul\.Tensor .* writes .* aten\.add\.Tensor .* reads"):
            record(backend, lambda: self.step(x, side, told=False))

    def test_is_none_with_record_stream(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """A block that another stream is known to use is not used again in the recording."""
        record(backend, lambda: self.step(x, side, told=True))

    def test_is_not_given_to_another_stream(self, backend: EmulatedBackend, x: torch.Tensor, side: Stream) -> None:
        """A block that one stream has dropped is not given to another, so no wait is missing."""

        def step() -> None:
            main = current_stream()
            side.wait_stream(main)
            _ = x * 2
            del _
            with using(side):
                _ = x * 3
            main.wait_stream(side)

        record(backend, step)
