"""Which sizes are chosen, against all that could be."""

from itertools import combinations
from math import ceil, inf

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.dispatch.costs import Costs
from tsgraph.dispatch.forecast import Forecast
from tsgraph.dispatch.histogram import Histogram
from tsgraph.dispatch.sizes import capture_sizes
from tsgraph.dispatch.tune import tune
from tsgraph.errors import CallerError, OutOfBudget, SpecError
from tsgraph.keys import SlotKey
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Sizes

DECODE = load_spec("decode").sizes
CAP = 7
STEPS = st.dictionaries(st.integers(0, CAP + 2), st.integers(0, 20), max_size=6)
FORECASTS = st.builds(Forecast, shared=st.integers(0, 9), row=st.integers(0, 9), slot=st.integers(0, 9))


@st.composite
def problems(draw):
    """Steps of up to two variants, a spec's sizes up to 7 with or without padding, and costs rising or not."""
    steps = {name: draw(STEPS) for name in draw(st.sampled_from((("default",), ("default", "b"))))}
    steps["default"][draw(st.integers(1, CAP))] = draw(st.integers(1, 20))
    seen = Histogram(steps=steps, tokens_per_request=draw(st.sampled_from((1, 4))))
    order = draw(st.sampled_from(("largest_first", "smallest_first")))
    sizes = Sizes(default=(2, 4), default_without_padding=(1, 4), cap=CAP, order=order, padding=draw(st.booleans()))
    seconds = draw(st.none() | st.dictionaries(st.integers(1, CAP + 2), st.integers(1, 9), min_size=1))
    costs = Costs(seconds=seconds, eager=draw(st.sampled_from((1, 1.5, 3))))
    return seen, sizes, costs, draw(FORECASTS)


def work_of(sizes, seen, law, costs):
    """What all steps cost, one by one."""
    work = 0
    for steps in seen.steps.values():
        for rows, count in steps.items():
            fitting = [size for size in sizes if (size >= rows if law.padding else size == rows)]
            cost = costs.of_replay(min(fitting), seen.tokens_per_request) if fitting else None
            work += count * (costs.of_eager(rows, seen.tokens_per_request) if cost is None else cost)
    return work


def bytes_of(sizes, forecast, law, variants):
    """What all slots take, in their order."""
    own = variants * sum(forecast.row * size + forecast.slot for size in sizes)
    shared = forecast.shared * (max(sizes) if law.order == "largest_first" else sum(sizes) * variants)
    return own + shared


def every_choice(most, rows):
    """All choices of sizes, with anything from 1 to `rows`."""
    return [sizes for number in range(1, most + 1) for sizes in combinations(range(1, rows + 1), number)]


@given(problem=problems(), slots=st.integers(1, 4), rows=st.integers(CAP, CAP + 2))
def test_no_choice_of_sizes_costs_less(problem, slots, rows):
    """Of all choices of so many sizes up to the cap none is cheaper, whatever costs, eager steps and padding are."""
    seen, law, costs, _ = problem
    tuning = tune(seen, law, slots=slots, rows=rows, costs=costs)
    least = min(work_of(sizes, seen, law, costs) for sizes in every_choice(slots, CAP))
    assert pytest.approx(least) == tuning.chosen.work
    assert pytest.approx(least) == work_of(tuning.chosen.sizes, seen, law, costs)
    assert len(tuning.chosen.sizes) <= slots


@given(problem=problems(), slots=st.integers(1, 4), memory=st.integers(0, 150))
def test_no_choice_within_memory_costs_less(problem, slots, memory):
    """Of the choices that take no more bytes, a size once for each variant, none is cheaper; if none: OutOfBudget."""
    seen, law, costs, forecast = problem
    costs_of_fitting = {
        sizes: work_of(sizes, seen, law, costs)
        for sizes in every_choice(slots, CAP)
        if bytes_of(sizes, forecast, law, len(seen.variants)) <= memory
    }
    try:
        chosen = tune(seen, law, slots=slots, costs=costs, forecast=forecast, memory=memory).chosen
    except OutOfBudget:
        observed = [max(rows, 1) for rows in seen.total]
        assert not [sizes for sizes in costs_of_fitting if set(sizes) & set(observed)]
    else:
        assert chosen.sizes in costs_of_fitting
        assert pytest.approx(min(costs_of_fitting.values())) == chosen.work
        assert bytes_of(chosen.sizes, forecast, law, len(seen.variants)) == chosen.bytes <= memory


@given(problem=problems(), slots=st.integers(1, 4), rows=st.integers(1, CAP + 2))
def test_sizes_keep_the_rule(problem, slots, rows):
    """They increase strictly within cap and rows (R1), so that a runtime takes them as they are."""
    seen, law, costs, _ = problem
    if min(seen.total) > min(rows, CAP):
        with pytest.raises(CallerError, match="every observed batch has more"):
            tune(seen, law, slots=slots, rows=rows, costs=costs)
    else:
        tuning = tune(seen, law, slots=slots, rows=rows, costs=costs)
        assert tuning.chosen.sizes == capture_sizes(law, rows, tuning.chosen.sizes)
        assert tuning.chosen.sizes[-1] <= tuning.limit == min(rows, CAP)


@given(problem=problems(), slots=st.integers(1, 4))
def test_an_outcome_counts_what_steps_come_to(problem, slots):
    """Rows, pads, eager steps and unused slots are those of sending every step to the smallest size that fits."""
    seen, law, costs, _ = problem
    chosen = tune(seen, law, slots=slots, costs=costs).chosen
    live = pads = 0
    eager, used = {}, set()
    for variant, steps in seen.steps.items():
        for rows, count in steps.items():
            fitting = [size for size in chosen.sizes if (size >= rows if law.padding else size == rows)]
            if fitting and count:
                live, pads = live + rows * count, pads + (min(fitting) - rows) * count
                used.add((variant, min(fitting)))
            elif count:
                eager[rows] = eager.get(rows, 0) + count
    assert (live, pads, eager) == (chosen.live_rows, chosen.pad_rows, chosen.eager)
    assert sum(eager.values()) == chosen.eager_steps
    assert len(chosen.sizes) * len(seen.variants) == chosen.slots == len(used | set(chosen.unused))
    assert not used & set(chosen.unused)
    assert pytest.approx(pads) == chosen.pad_share * (live + pads)


def test_a_worked_example():
    """Three sizes for five batches: the two that are near each other share one, the rare large one is worth its own."""
    seen = Histogram.of({1: 900, 6: 300, 7: 400, 30: 20, 64: 50})
    tuning = tune(seen, DECODE, slots=3)
    assert (1, 7, 64) == tuning.chosen.sizes
    assert 900 + 7 * 700 + 64 * 70 == tuning.chosen.work
    assert 900 + 8 * 700 + 32 * 20 + 64 * 50 == tuning.defaults.work
    assert (1, 6, 7, 30, 64) == tuning.exact.sizes
    assert 300 + 34 * 20 == tuning.chosen.pad_rows
    assert pytest.approx((300 + 34 * 20) / tuning.exact.work) == tuning.padded_work(tuning.chosen)


def test_large_batches_run_eagerly_where_that_is_cheaper():
    """A size for one step in a thousand is not worth one that all others need, unless eager steps are too dear."""
    seen = Histogram.of({2: 1000, 5: 1000, 40: 1})
    assert (2, 5) == tune(seen, DECODE, slots=2).chosen.sizes
    assert {40: 1} == tune(seen, DECODE, slots=2).chosen.eager
    assert (5, 40) == tune(seen, DECODE, slots=2, costs=Costs(eager=1000)).chosen.sizes


def test_a_larger_size_may_be_cheaper():
    """Where measured costs fall, a size that no batch has may be the best."""
    seen, costs = Histogram.of({33: 10}), Costs(seconds={32: 1.0, 33: 3.0, 40: 2.0, 160: 9.0})
    assert (40,) == tune(seen, DECODE, slots=1, costs=costs).chosen.sizes


def test_a_step_without_a_row_needs_a_size_as_well():
    """It is cheapest in a slot of one row."""
    assert (1, 9) == tune(Histogram.of({0: 10, 9: 1}), DECODE).chosen.sizes


def test_no_more_sizes_than_are_of_use():
    """A size that saves nothing is not chosen, however many are allowed."""
    assert (3, 9) == tune(Histogram.of({3: 5, 9: 5}), DECODE, slots=32).chosen.sizes


def test_as_many_slots_as_the_spec_has_by_default():
    """The comparison with the spec's sizes is then one of equals."""
    tuning = tune(Histogram.of(dict.fromkeys(range(1, 161), 3)), DECODE)
    assert len(tuning.defaults.sizes) == len(tuning.chosen.sizes) == 23
    assert tuning.chosen.work < tuning.defaults.work


def test_defaults_are_those_for_the_rows():
    """What the spec's list comes to for so many rows is compared, and what it does not use is named."""
    tuning = tune(Histogram(steps={"b": {3: 5, 90: 1}}), DECODE, rows=20, slots=1)
    assert capture_sizes(DECODE, 20) == tuning.defaults.sizes
    assert {90: 1} == tuning.defaults.eager == tuning.exact.eager
    assert SlotKey("default", 4) in tuning.defaults.unused
    assert SlotKey("b", 4) not in tuning.defaults.unused


def test_memory_buys_sizes():
    """With more memory more sizes fit, and at last all that are of use."""
    seen, forecast = Histogram.of(dict.fromkeys(range(1, 41), 10)), Forecast(shared=100, row=3, slot=50)
    works, whole = [], tune(seen, DECODE, slots=8, forecast=forecast).chosen
    assert whole.bytes is not None
    for part in (0.3, 0.5, 0.8, 1):
        chosen = tune(seen, DECODE, slots=8, forecast=forecast, memory=ceil(whole.bytes * part)).chosen
        works.append(chosen.work)
        assert (chosen.bytes or inf) <= whole.bytes * part + 1
    assert sorted(works, reverse=True) == works
    assert whole.work == works[-1] < works[0]


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"slots": 0}, CallerError, "0 sizes are too few"),
        ({"rows": 0}, SpecError, "none of"),
        ({"rows": 2}, CallerError, "more than the 2 rows"),
        ({"memory": 10**9}, CallerError, "there is no forecast"),
        ({"memory": 10, "forecast": Forecast(slot=11)}, OutOfBudget, "no size fits into 10 bytes: .* 3 rows, takes 11"),
    ],
)
def test_what_cannot_be_asked_is_refused(words, error, says):
    """Each with a typed error that says what is wrong and what to do."""
    with pytest.raises(error, match=says):
        tune(Histogram.of({3: 5, 9: 5}), DECODE, **words)


def test_sizes_without_padding_serve_their_own_rows():
    """With padding off the batches that save most by a size of their own get one (R29)."""
    law = attrs.evolve(DECODE, padding=False)
    tuning = tune(Histogram.of({3: 50, 4: 1, 60: 2}), law, slots=2)
    assert ((3, 60), {4: 1}) == (tuning.chosen.sizes, tuning.chosen.eager)
