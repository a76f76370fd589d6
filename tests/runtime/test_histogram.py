"""What a runtime tells of the batches that it served is what was called."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tsgraph import GraphRuntime, Rows
from tsgraph.dispatch.observations import parse_observations
from tsgraph.errors import BadBatch
from tsgraph.keys import Mode
from tsgraph.protocols.null import NullSampler

SIZES, MOST = (2, 4), 6


class Greedy(NullSampler):
    """One variant beside the default."""

    def variants(self, tokens_per_request):
        return ("greedy",)


def build(**words):
    """A runtime of two sizes and two variants, nothing captured."""
    return GraphRuntime.for_step(
        lambda x: x + 1,
        inputs={"x": Rows(torch.float32, pad=0)},
        outputs="request",
        sizes=SIZES,
        sampler=Greedy(),
        backend="emulated",
        observers=(),
        policy={"freeze_gc": False},
        **words,
    )


steps = st.tuples(st.just("step"), st.integers(0, MOST), st.sampled_from(["default", "greedy"]))
changes = st.sampled_from(["capture", "invalidate", "release", "wake", "disable", "enable"])
others = st.sampled_from(["eager", "extend", "refused"])
acts = st.lists(st.one_of(steps, steps, steps, others.map(lambda name: (name,)), changes.map(lambda name: (name,))))


def act(runtime, name, rows=3, variant="default"):
    """One call of the runtime."""
    x = torch.zeros(rows)
    if name == "step":
        runtime(x=x, variant=variant)
    elif name == "eager":
        runtime.eager(x=x)
    elif name == "extend":
        runtime(x=x, rows=rows, mode=Mode.EXTEND)
    elif name == "refused":
        with pytest.raises(BadBatch):
            runtime(x=x.long())
    elif name == "invalidate":
        runtime.invalidate("a weight moved")
    elif name in ("disable", "enable"):
        runtime.enabled = name == "enable"
    else:
        getattr(runtime, name)()


LIFE = [(name,) for name in ("invalidate", "capture", "release", "wake", "disable", "enable")]


@settings(max_examples=12)
@given(acts=acts)
@example(acts=[each for change in LIFE for each in (("step", 3, "default"), change)])
def test_the_histogram_is_what_was_called(acts):
    """Every decode step counts once, replayed or not, whatever happens to slots between; what has no slot does not."""
    runtime = build()
    runtime.capture()
    expected = {"default": Counter(), "greedy": Counter()}
    for name, *rest in acts:
        act(runtime, name, *rest)
        if name == "step":
            rows, variant = rest
            expected[variant][rows] += 1
    told = runtime.snapshot()
    assert {name: {str(rows): steps[rows] for rows in steps} for name, steps in expected.items()} == told["rows"]
    if any(rows for steps in expected.values() for rows in steps):
        seen = parse_observations(json.dumps({"event": "stats", **told}))
        assert (expected, ()) == (seen.steps, seen.notes)
    counters = runtime.counters()
    assert sum(slot.counts.replays for slot in runtime.slots.values()) == counters["replays"]


def test_a_lazily_captured_step_counts_once():
    """The step that has its slot captured is one step, as it is where nothing is captured and all run eagerly."""
    runtime = build()
    lazy = GraphRuntime.for_step(
        lambda x: x + 1,
        inputs={"x": Rows(torch.float32, pad=0)},
        outputs="request",
        sizes=SIZES,
        backend="emulated",
        policy={"capture": "lazy"},
    )
    for rows in (3, 3, 9):
        lazy(x=torch.zeros(rows))
        runtime(x=torch.zeros(rows))
    assert {"default": {"3": 2, "9": 1}} == lazy.snapshot()["rows"]
    assert {"default": {"3": 2, "9": 1}, "greedy": {}} == runtime.snapshot()["rows"]


def test_speculation_and_ranks_are_told():
    """So that the snapshot needs no words beside it."""
    runtime = build(tokens_per_request=2)
    assert (2, 1) == (runtime.snapshot()["tokens_per_request"], runtime.snapshot()["ranks"])
