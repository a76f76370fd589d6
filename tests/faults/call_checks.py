"""What must hold of where a step goes, and of what a call refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.faults.bench import Bench, entry, require_replayable
from tests.faults.histories import Rows, Sources, Turn
from tests.faults.rig import require
from tests.faults.shape import Shape, shipped_law
from tsgraph import assembly
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.peers import Peers
from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.errors import BadBatch, SpecError
from tsgraph.keys import Mode, RankCounts, SlotKey
from tsgraph.runtime import GraphRuntime

# -- where a step goes -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Route:
    """A step of `rows` live rows, and everything that decides where it goes. `counts`: tokens of every rank."""

    sizes: tuple[int, ...]
    rows: int
    mode: Mode = Mode.DECODE
    padding: bool = True
    enabled: bool = True
    counts: tuple[int, ...] | None = None
    ranks: int = 1
    all_decode: bool = True
    tokens_per_request: int = 1

    def expected(self) -> int | None:
        """The size of the slot that serves it; None where it runs eagerly."""
        if not self.enabled or not self._decodes() or not self._ranks_agree():
            return None
        widest = -(-max(self.counts) // self.tokens_per_request) if self.counts else self.rows
        fitting = [size for size in self.sizes if size >= widest]
        if not fitting or (not self.padding and widest not in self.sizes):
            return None
        return min(fitting)

    def _decodes(self) -> bool:
        idles = self.mode is Mode.IDLE and self.rows == 0 and self.ranks > 1
        return self.mode is Mode.DECODE or idles

    def _ranks_agree(self) -> bool:
        return self.ranks == 1 or (self.counts is not None and self.all_decode and any(self.counts))


@st.composite
def routes(draw: st.DrawFn) -> Route:
    """Any step before any runtime; of several ranks, the first is this one."""
    ranks, tokens, rows = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 9))
    others = draw(st.lists(st.integers(0, 24), min_size=ranks - 1, max_size=ranks - 1))
    return Route(
        sizes=tuple(sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)))),
        rows=rows,
        mode=draw(st.sampled_from((Mode.DECODE, Mode.DECODE, Mode.EXTEND, Mode.MIXED, Mode.IDLE))),
        padding=draw(st.booleans()),
        enabled=draw(st.sampled_from((True, True, False))),
        counts=draw(st.sampled_from(((rows * tokens, *others), None))) if ranks > 1 else None,
        ranks=ranks,
        all_decode=draw(st.sampled_from((True, True, False))),
        tokens_per_request=tokens,
    )


def check_route(route: Route) -> None:
    """A step goes to the smallest slot that fits the widest rank, if it may use one at all (R26 to R29)."""
    peers = Peers(count=route.ranks, index=0, tokens_per_request=route.tokens_per_request)
    dispatch = Dispatch(route.sizes, padding=route.padding, enabled=route.enabled, peers=peers)
    counts = None if route.counts is None else RankCounts(route.counts, all_decode_or_idle=route.all_decode)
    decision = dispatch.decide(route.rows, variant="default", mode=route.mode, counts=counts)
    size = route.expected()
    expected = None if size is None else SlotKey("default", size)
    require(decision.key == expected, f"expected {expected}, got {decision}")


@attrs.frozen
class Call:
    """A captured runtime of `shape` that serves `turn`, switched on or off, in one mode."""

    shape: Shape
    turn: Turn
    mode: Mode = Mode.DECODE
    enabled: bool = True


SHAPES = (Shape(sizes=(2, 4), variants=("default", "greedy")),)
RUNTIMES: dict[Shape, GraphRuntime] = {}
"""What was captured before; whoever plants or pulls a fault empties it."""


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Calls of one captured runtime, also with more rows than it has slots for."""
    shape = draw(st.sampled_from(SHAPES))
    rows = tuple(range(1, 1 + draw(st.integers(0, shape.rows))))
    turn = Turn(rows, (shape.tokens,) * len(rows), draw(st.sampled_from(shape.variants)))
    mode = draw(st.sampled_from((Mode.DECODE, Mode.DECODE, Mode.EXTEND)))
    return Call(shape, turn, mode, draw(st.sampled_from((True, True, False))))


def _captured(shape: Shape) -> GraphRuntime:
    if shape not in RUNTIMES:
        RUNTIMES[shape] = Bench(shape).captured()
    require_replayable(RUNTIMES[shape])
    return RUNTIMES[shape]


def check_call(call: Call) -> None:
    """A call is served where `Route` says, by its own variant, at live size."""
    runtime, live = _captured(call.shape), call.turn
    runtime.enabled = call.enabled
    route = Route(sizes=call.shape.sizes, rows=len(live.rows), mode=call.mode, enabled=call.enabled)
    sources = Rows(call.shape, live, 1).sources()
    if route.expected() is None and not live.rows:
        return
    with entry(runtime, len(live.rows)):
        done = runtime.step(rows=len(live.rows), mode=call.mode, variant=live.variant, **sources)
    expected = None if (size := route.expected()) is None else SlotKey(live.variant, size)
    require(done.decision.key == expected, f"expected {expected}, got {done.decision}")
    due = [length + (100 if live.variant == "greedy" else 0) for length in live.lengths]
    require(done.outputs["accept_lengths"].tolist() == due, f"outputs of {live} are not its own, at live size")


# -- sizes -------------------------------------------------------------------------------------------------------------

size_lists = st.tuples(st.lists(st.integers(-1, 12), max_size=4), st.integers(1, 200))


def check_sizes(case: tuple[list[int], int]) -> None:
    """Lists that do not increase are refused; defaults always reach the largest batch, within the cap (R1)."""
    asked, rows = case
    sizes = shipped_law("decode").sizes
    sound = bool(asked) and all(size > 0 for size in asked) and sorted(set(asked)) == asked
    try:
        capture_sizes(sizes, rows, asked)
    except SpecError:
        require(not sound, f"sizes {asked} were refused")
    else:
        require(sound, f"sizes {asked} were accepted")
    chosen = vars(assembly)["capture_sizes"](sizes, rows)  # where a runtime takes it from
    require(chosen[-1] == min(rows, sizes.cap), f"defaults for {rows} rows end at {chosen[-1]}")
    require(list(chosen) == sorted(set(chosen)), f"defaults for {rows} rows are {chosen}")


# -- what a call refuses -----------------------------------------------------------------------------------------------

Wrong = Literal["buffer missing", "group missing", "group unknown", "one row", "too many", "name unknown", "dtype"]


@attrs.frozen
class Intake:
    """A call of `live` rows whose sources are right but for one thing, about `buffer`."""

    wrong: Wrong
    live: int
    buffer: str


GROUPED = ("paged_tables", "paged_offsets", "flat_tables")
PLAIN = ("input_ids", "positions", "cache_locations", "seq_lens", "request_pool", "recurrent_slots")

intakes = st.one_of(
    st.builds(Intake, st.sampled_from(("group missing", "group unknown")), st.integers(2, 4), st.sampled_from(GROUPED)),
    st.builds(
        Intake,
        st.sampled_from(("buffer missing", "one row", "too many", "dtype")),
        st.integers(2, 4),
        st.sampled_from(PLAIN),
    ),
    st.builds(Intake, st.just("name unknown"), st.integers(2, 4), st.just("input_idz")),
)


def check_intake(case: Intake) -> None:
    """What is wrong is a BadBatch, and every static buffer is as before."""
    runtime = _captured(SHAPES[0])
    live = Turn(tuple(range(1, case.live + 1)), (1,) * case.live)
    sources: dict[str, Any] = dict(Rows(SHAPES[0], live, 1).sources())
    runtime.enabled = True
    with entry(runtime, case.live):
        runtime(rows=case.live, **sources)
    before = {name: _copy(held) for name, held in _buffers(runtime).items()}
    _spoil(case, sources)
    try:
        with entry(runtime, case.live):
            runtime(rows=case.live, **sources)
    except BadBatch:
        now = _buffers(runtime)
        changed = [name for name in before if not _same(before[name], now[name])]
        require(not changed, f"a refused call changed {changed}")
    else:
        raise AssertionError(f"a call with a wrong source was served: {case}")


def _spoil(case: Intake, sources: Sources) -> None:
    spoilt: dict[str, Callable[[Any], Any]] = {
        "buffer missing": lambda _: None,
        "group missing": lambda held: {"full": held["full"]},
        "group unknown": lambda held: {**held, "fool": held["full"]},
        "one row": lambda held: held[:1],
        "too many": lambda held: held.repeat(2),
        "name unknown": lambda _: torch.zeros(case.live),
        "dtype": lambda held: held.double(),
    }
    sources[case.buffer] = spoilt[case.wrong](sources.get(case.buffer))


def _buffers(runtime: GraphRuntime) -> dict[str, Any]:
    return dict(runtime.slots["default", runtime.sizes[-1]].batch.buffers)


def _copy(held: Any) -> Any:
    return held.clone() if isinstance(held, Tensor) else {group: each.clone() for group, each in held.items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(torch.equal(one[group], other[group]) for group in one)
