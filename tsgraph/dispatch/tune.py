"""Which sizes to capture for the batches that an engine sees: those that cost its steps least, exactly.

A step costs what a replay of the smallest size that fits costs; one with more rows than the largest size runs eagerly.
Of all choices of so many sizes and so much memory the cheapest is found. It is not found by trying them all, but by a
dynamic programme over the candidates (`chains`) and, where memory is limited, a search that bounds keep small
(`allowance`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from tsgraph.dispatch.allowance import cheapest_within
from tsgraph.dispatch.chains import Chains
from tsgraph.dispatch.costs import Costs
from tsgraph.dispatch.decision import Dispatch
from tsgraph.dispatch.forecast import Forecast
from tsgraph.dispatch.histogram import Histogram
from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.errors import CallerError, OutOfBudget
from tsgraph.keys import Decision, SlotKey
from tsgraph.spec.model import Sizes


@attrs.frozen(kw_only=True)
class Outcome:
    """What the observed steps come to with some `sizes`, captured for every variant in so many `slots`.

    `work`: what all steps cost. `live_rows`, `pad_rows`: of steps that a slot serves. `eager`: the steps that no size
    covers, by their rows. `unused`: slots that serve no step. `bytes`: of the pool, where there is a forecast.
    """

    sizes: tuple[int, ...]
    slots: int
    work: float
    live_rows: int
    pad_rows: int
    eager: Mapping[int, int]
    unused: tuple[SlotKey, ...]
    bytes: int | None

    @property
    def pad_share(self) -> float:
        """How many of the rows that slots compute are pads, from 0 to 1."""
        computed = self.live_rows + self.pad_rows
        return self.pad_rows / computed if computed else 0

    @property
    def eager_steps(self) -> int:
        """How many steps no size covers."""
        return sum(self.eager.values())


@attrs.frozen(kw_only=True)
class Tuning:
    """The sizes that were `chosen`, beside the spec's `defaults` and `exact` ones, a size for each batch up to `limit`.

    `limit`: the most rows that a size may have. `unit`: of work, "tokens" or "seconds".
    """

    chosen: Outcome
    defaults: Outcome
    exact: Outcome
    limit: int
    unit: str

    def padded_work(self, outcome: Outcome) -> float:
        """By which part of the work with exact sizes `outcome` exceeds it: pads, and steps that run eagerly instead."""
        return outcome.work / self.exact.work - 1


def tune(
    histogram: Histogram,
    sizes: Sizes,
    *,
    slots: int | None = None,
    rows: int | None = None,
    costs: Costs | None = None,
    forecast: Forecast | None = None,
    memory: int | None = None,
) -> Tuning:
    """The sizes, `slots` at most, with which the steps of `histogram` cost least (R1).

    `sizes`: the spec's, whose cap, order and padding hold, and whose defaults are compared. `slots`: of each variant
    (None: as many as the defaults). `rows`: the most live rows of a step (None: the cap). `memory`: bytes that the pool
    may take as `forecast` says. Without that limit, of choices that cost the same one of the fewest sizes is taken.

    Raises: CallerError where no size is allowed, no batch is within cap and rows, or there is no forecast for a limit;
    OutOfBudget where no size fits into memory; SpecError where `rows` leave no default.
    """
    defaults = capture_sizes(sizes, sizes.cap if rows is None else rows)
    limit = sizes.cap if rows is None else min(sizes.cap, rows)
    ordered = None if forecast is None else forecast.ordered(sizes.order)
    problem = _Problem(histogram, sizes, limit, costs or Costs(), ordered)
    chosen = problem.choose(len(defaults) if slots is None else slots, memory)
    return Tuning(
        chosen=problem.outcome(capture_sizes(sizes, limit, chosen)),
        defaults=problem.outcome(defaults),
        exact=problem.outcome(problem.observed()),
        limit=limit,
        unit=problem.costs.unit,
    )


@attrs.frozen
class _Problem:
    histogram: Histogram
    sizes: Sizes
    limit: int
    costs: Costs
    forecast: Forecast | None

    def observed(self) -> tuple[int, ...]:
        """The rows of observed batches that a size may have; one without a row needs a size of 1."""
        found = tuple(dict.fromkeys(max(rows, 1) for rows in self.histogram.total if rows <= self.limit))
        if not found:
            what = f"every observed batch has more than the {self.limit} rows that a size may have"
            raise CallerError(what, hint="raise [sizes] cap of the spec, or the most rows of a step")
        return found

    def candidates(self) -> tuple[int, ...]:
        """Where no larger size costs less, a size that no batch has is of no use: the next smaller serves as many."""
        every = range(1, self.limit + 1)
        dearer = all(self._replay(size) <= self._replay(larger) for size, larger in pairwise(every))
        return self.observed() if dearer else tuple(every)

    def choose(self, most: int, memory: int | None) -> tuple[int, ...]:
        """The sizes with which steps cost least."""
        if most < 1:
            raise CallerError(f"{most} sizes are too few", hint="allow one at least")
        candidates = self.candidates()
        chains = self._padded(candidates) if self.sizes.padding else self._unpadded(candidates)
        chain = chains.cheapest(most) if memory is None else self._within(memory, chains, candidates, most)
        return tuple(candidates[place] for place in chain)

    def _padded(self, candidates: Sequence[int]) -> Chains:
        """A link costs the steps with more rows than the size before, the end those beyond the largest size."""
        steps, price = self.histogram.total, [self._replay(size) for size in candidates]
        seen = [sum(count for rows, count in steps.items() if rows <= size) for size in candidates]
        eager = [sum(self._eager(rows) * count for rows, count in steps.items() if rows > size) for size in candidates]
        return Chains([each * before for each, before in zip(price, seen, strict=True)], price, seen, eager)

    def _unpadded(self, candidates: Sequence[int]) -> Chains:
        """A size serves steps of exactly its rows, and saves them from running eagerly, as all others do (R29)."""
        steps, nothing = self.histogram.total, [0] * len(candidates)
        saved = [steps.get(size, 0) * (self._replay(size) - self._eager(size)) for size in candidates]
        return Chains(
            saved, nothing, nothing, [sum(self._eager(rows) * steps[rows] for rows in steps)] * len(candidates)
        )

    def _within(self, memory: int, chains: Chains, candidates: Sequence[int], most: int) -> tuple[int, ...]:
        if self.forecast is None:
            hint = "say what slots take: --slot-bytes, --row-bytes, --shared-bytes or --forecast"
            raise CallerError("memory is limited, but there is no forecast", hint=hint)
        variants = len(self.histogram.variants)
        room = self.forecast.room(memory, variants)
        chain = cheapest_within(chains, most, candidates, lambda number, last: room(number, candidates[last]))
        if chain is None:
            needed = self.forecast.bytes(candidates[:1], variants)
            what = f"no size fits into {memory} bytes: the smallest of use, of {candidates[0]} rows, takes {needed}"
            raise OutOfBudget(what, hint="grant more memory", memory=memory, needed=needed)
        return chain

    def outcome(self, sizes: tuple[int, ...]) -> Outcome:
        """What the observed steps come to with `sizes`: each goes where a runtime would send it."""
        dispatch, variants = Dispatch(sizes, self.sizes.padding), self.histogram.variants
        sent = [
            (dispatch.decide(rows, variant=variant), count)
            for variant, steps in self.histogram.steps.items()
            for rows, count in steps.items()
            if count
        ]
        eager: Counter[int] = Counter()
        for decision, count in sent:
            eager[decision.rows] += count if decision.eager else 0
        slots, used = [SlotKey(name, size) for size in sizes for name in variants], {each.key for each, _ in sent}
        return Outcome(
            sizes=sizes,
            slots=len(slots),
            work=sum(self._cost(decision) * count for decision, count in sent),
            live_rows=sum(decision.rows * count for decision, count in sent if not decision.eager),
            pad_rows=sum(decision.waste * count for decision, count in sent),
            eager={rows: eager[rows] for rows in sorted(eager) if eager[rows]},
            unused=tuple(slot for slot in slots if slot not in used),
            bytes=None if self.forecast is None else self.forecast.bytes(sizes, len(variants)),
        )

    def _cost(self, decision: Decision) -> float:
        return self._eager(decision.rows) if decision.eager else self._replay(decision.padded_to)

    def _replay(self, size: int) -> float:
        return self.costs.of_replay(size, self.histogram.tokens_per_request)

    def _eager(self, rows: int) -> float:
        return self.costs.of_eager(rows, self.histogram.tokens_per_request)
