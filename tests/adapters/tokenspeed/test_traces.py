"""The calls that the engine's parts see are those of the contract, in its order, with its arguments."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.tokenspeed.configuration import FULL, STATE, WINDOW, Configuration, Flags, Step
from tests.adapters.tokenspeed.oracle import Oracle

MODES = (*["DECODE"] * 8, "EXTEND", "MIXED", "IDLE")

mostly = st.sampled_from([True, True, True, True, False])

flags = st.builds(
    Flags,
    paged=st.booleans(),
    flat=st.booleans(),
    mask=st.booleans(),
    narrow=st.booleans(),
    indices=st.sampled_from([None, "same", "same", "wide"]),
)
pools = st.sampled_from([(), (FULL,), (FULL, WINDOW), (FULL, WINDOW, STATE), (WINDOW, FULL)])


@st.composite
def configurations(draw):
    """An engine of any kind; a draft's backend only with a drafter."""
    algo = draw(st.sampled_from([None, "EAGLE", "EAGLE", "DFLASH"]))
    drafter = algo is not None and draw(mostly)
    return Configuration(
        ranks=draw(st.sampled_from([1, 2])),
        spec_algo=algo,
        spec_num_tokens=draw(st.sampled_from([2, 3])),
        drafter=drafter,
        target=draw(flags),
        draft=draw(flags) if drafter and draw(mostly) else None,
        v4=draw(st.booleans()),
        mamba=draw(st.booleans()),
        verifies=draw(st.booleans()),
        groups=draw(pools),
        draft_groups=draw(st.sampled_from([(), (FULL,), (FULL, WINDOW)])),
        variants=draw(st.sampled_from([None, (), ("default",), ("greedy",), ("greedy", "default", "greedy")])),
        grammar=draw(st.sampled_from([None, "capturable", "eager"])),
        deepep=draw(st.booleans()),
        logprobs=draw(st.booleans()),
        runtime_states=draw(st.booleans()),
        sizes=draw(st.sampled_from([(1, 2), (2, 4), (3,)])),
        padding=draw(mostly),
        enforce_eager=not draw(mostly),
        context_len=draw(st.sampled_from([30, 0, -1])),
        depth=draw(st.integers(0, 1)),
    )


@st.composite
def steps(draw, configuration):
    """A step that the engine could ask for."""
    mode = draw(st.sampled_from(MODES))
    variants = ("default", *(configuration.variants or ()))
    rows = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 6])
    return Step(
        mode=mode,
        rows=draw(rows),
        others=draw(st.sampled_from([0, 1, 2, 2, 3])),
        known=draw(mostly),
        steady=mode in ("DECODE", "IDLE") and draw(mostly),
        recurrent=draw(st.integers(0, 4)),
        tables=draw(mostly),
        offsets=draw(st.booleans()),
        variant=draw(st.sampled_from(variants)),
    )


DRAFTING = Configuration(spec_algo="EAGLE", spec_num_tokens=2, drafter=True, sizes=(2, 4), grammar="capturable")
KINDS = {
    "a drafter without metadata": DRAFTING,
    "paged": attrs.evolve(
        DRAFTING,
        target=Flags(paged=True, mask=True),
        draft=Flags(paged=True, mask=True),
        groups=(FULL, WINDOW),
        draft_groups=(FULL,),
        verifies=True,
        mamba=True,
        variants=("greedy",),
        deepep=True,
    ),
    "flat": attrs.evolve(
        DRAFTING,
        target=Flags(flat=True, indices="same"),
        draft=Flags(flat=True, indices="same"),
        groups=(FULL, WINDOW, STATE),
    ),
    "draft paged alone": attrs.evolve(DRAFTING, draft=Flags(paged=True), groups=(FULL,), draft_groups=(FULL, WINDOW)),
    "draft flat alone": attrs.evolve(DRAFTING, draft=Flags(flat=True), groups=(FULL,)),
    "both conventions": attrs.evolve(
        DRAFTING,
        target=Flags(paged=True, flat=True),
        draft=Flags(paged=True, flat=True),
        groups=(FULL, WINDOW),
        draft_groups=(FULL,),
    ),
}
ENGINES = {
    "as it is": lambda kind: kind,
    "V4": lambda kind: attrs.evolve(kind, v4=True),
    "block drafter on two ranks": lambda kind: attrs.evolve(kind, spec_algo="DFLASH", ranks=2),
}
STEPS = (
    *(Step(rows=rows, others=2, recurrent=4, offsets=True) for rows in (2, 3, 0, 6)),
    Step(rows=0, others=1, tables=False),
    *(Step(mode=mode, rows=2, steady=False, offsets=True, recurrent=1) for mode in ("EXTEND", "MIXED")),
    Step(mode="IDLE", rows=0, others=2),
    Step(rows=1, tables=False),
)


@pytest.mark.parametrize("change", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_each_kind_of_draft(make, kind, change):
    """Engines that speculate, one of each kind, through every kind of step."""
    configuration = ENGINES[change](KINDS[kind])
    oracle, engine = Oracle(configuration), make(configuration)

    wrapper = engine.wrap()

    assert oracle.construction() == engine.trace
    for step in STEPS:
        check_step(engine, oracle, wrapper, step)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_calls_are_those_of_the_contract(data, make):
    """For any engine: its construction with all captures, then a few steps of any kind, each with its result."""
    configuration = data.draw(configurations())
    oracle, engine = Oracle(configuration), make(configuration)

    wrapper = engine.wrap()

    assert oracle.construction() == engine.trace
    assert oracle.aliased() == getattr(engine.draft, "_block_table_aliased", False)
    for step in data.draw(st.lists(steps(configuration), min_size=2, max_size=6)):
        check_step(engine, oracle, wrapper, step)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("target", [Flags(paged=True), Flags(flat=True)])
@pytest.mark.parametrize("groups", [(), (FULL,)])
def test_idle_step_with_empty_tables(make, ranks, target, groups):
    """Tables that are passed but empty count as missing where they are flat, and are passed on where they are paged."""
    configuration = Configuration(ranks=ranks, sizes=(2,), target=target, groups=groups)
    engine, step = make(configuration), Step(rows=0, others=1)
    wrapper = engine.wrap()
    ctx = engine.context(step)
    engine.trace.clear()

    wrapper(0, ctx, None, engine.pages, paged_cache_block_tables={}, flat_block_tables={})

    zeros = {group.group_id: ("fresh", "int32", [[0], [0]]) for group in groups}
    words = {name: value for name, value in engine.trace[0][-1].items() if name.endswith("tables")}
    flat = {"flat_block_tables": zeros} if zeros else {}
    assert ({"paged_cache_block_tables": {}} if target.paged else flat) == words


def check_step(engine, oracle, wrapper, step):
    """One step: its calls, its result, and its context, which is as before."""
    refused, size = oracle.refused(step), oracle.size(step)
    ctx = engine.context(step)
    assert (size is not None) == wrapper.can_run(step.rows, ctx)
    assert (step.rows if size is None else size) == wrapper.padded_bs(step.rows, ctx)

    with pytest.raises(ValueError, match="group") if refused else nullcontext():
        outcome = engine.serve(wrapper, step)
    assert step.rows == engine.target.context.bs

    if refused:
        assert [] == engine.trace
        return
    expected = oracle.call(step)
    if size is None:  # an eager step answers with what its forward returned
        if oracle.c.drafter and oracle.c.verifies and step.mode == "DECODE":
            expected = [*expected, ("target", "verified", engine.trace.told(outcome[1]), None, {"rows": step.rows})]
    else:
        assert oracle.result(step) == tuple(None if each is None else each.tolist() for each in outcome)
    assert expected == placeless(engine.trace, step)


def placeless(trace, step):
    """The trace, without telling where the accept lengths of a verified step live."""
    return [
        (*event[:2], ("fresh" if step.rows else "empty", *event[2][1:]), *event[3:])
        if event[1] == "verified"
        else event
        for event in trace
    ]


@pytest.mark.parametrize("ranks", [1, 2])
def test_captures_again_make_the_same_calls(make, ranks):
    """`capture` on a wrapper that has captured makes every call anew, on new contexts."""
    configuration = Configuration(ranks=ranks, sizes=(1, 2), grammar="capturable", variants=("greedy",))
    engine = make(configuration)
    wrapper = engine.wrap()
    engine.trace.clear()

    wrapper.capture()

    assert Oracle(configuration).capture() == engine.trace
    assert [("default", 1), ("default", 2), ("greedy", 1), ("greedy", 2)] == list(wrapper.graphs)


def test_oracle_is_no_echo(make):
    """The comparison can fail: a wrapper of another configuration makes other calls."""
    engine = make(Configuration(sizes=(1,)))
    engine.wrap()

    assert Oracle(attrs.evolve(engine.configuration, mamba=True)).construction() != engine.trace
