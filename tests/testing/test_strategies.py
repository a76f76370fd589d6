"""Strategies draw what is valid, as hostile as they say."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import resolve_fields
from tsgraph.buffers.staging import Staging
from tsgraph.drawing import register
from tsgraph.keys import Geometry
from tsgraph.spec.check import check_spec
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import COLLABORATORS, Spec
from tsgraph.testing import oracle
from tsgraph.testing.strategies import (
    LeftOut,
    Moved,
    Recipe,
    Values,
    Variation,
    batches,
    broken_variations,
    make_sources,
    rows_around,
)

WITHOUT_HYPOTHESIS = """
import sys
sys.modules["hypothesis"] = None
from tsgraph.testing import emulate
import tsgraph.testing.emulate
"""


@settings(max_examples=20)
@given(data=st.data())
def test_types_are_registered(data):
    """What the entry point calls lets `from_type` draw sound specs, and geometries for all of decode's buffers."""
    register()

    assert () == check_spec(data.draw(st.from_type(Spec)))
    assert resolve_fields(load_spec("decode").buffers, data.draw(st.from_type(Geometry)))


@settings(max_examples=20)
@given(data=st.data())
def test_batches_are_taken(data):
    """A drawn batch for the decode spec is what staging takes."""
    spec = load_spec("decode").restricted_to(frozenset({"recurrent", "drafter"}))
    geometry = Geometry(rows=5, tokens_per_request=2, sinks={"dummy_cache_slot": 0, "sentinel": 6})
    fields = resolve_fields(spec.buffers, geometry)
    sources = data.draw(batches(spec, geometry, (1, 4)))

    Staging(Arena(fields, 5, choose_backend("emulated", [], "cpu")), 5).stage(len(sources["seq_lens"]), sources)


def test_rows_are_around_the_sizes():
    """Every size, one less and one more, but never none."""
    drawn = set()

    @settings(max_examples=60, derandomize=True, database=None)
    @given(rows_around((1, 4)))
    def draw(rows):
        drawn.add(rows)

    draw()
    assert {1, 2, 3, 4, 5} == drawn


@given(start=st.integers(0, 30), stride=st.integers(1, 8), rows=st.integers(1, 8))
def test_distinct_values_are_distinct_and_in_range(start, stride, rows):
    """No two rows of a batch own the same."""
    spec = load_spec("decode").restricted_to(frozenset())
    fields = resolve_fields(spec.buffers, Geometry(rows=8, sinks={"dummy_cache_slot": 0, "sentinel": 9}))
    sources = make_sources(fields, Recipe(rows, start, stride), {"request_pool": Values(1, 8, distinct=True)})
    pool = sources["request_pool"].tolist()

    assert rows == len(set(pool))
    assert set(pool) <= set(range(1, 9))


def test_variation_prints_as_code():
    """A variation's repr makes it again, and it does what it says."""
    varied = Variation(present=("sampler",), forwards=1, edits=(LeftOut("warm", 0), Moved("warm", 0, 1)), rules=("R7",))
    before = load_spec("decode").lifecycle.transition("warm").steps
    spec = eval(repr(varied)).of("decode")  # noqa: S307  it was just made
    warm = spec.lifecycle.transition("warm")

    assert (1, (before[2], before[1], *before[3:])) == (warm.repeat, warm.steps)
    assert ["R7"] == [rule.id for rule in spec.rules]


@settings(max_examples=30)
@given(varied=broken_variations("decode"))
def test_broken_variations_keep_a_rule_to_break(varied):
    """Steps are out of order, and the rules that could refuse are there with what they need."""
    spec = varied.of("decode").restricted_to(frozenset(varied.present))

    assert varied.edits
    assert varied.rules is None or spec.rules or "freeze_gc" in {r.needs for r in varied.of("decode").rules}
    assert set(varied.present) <= set(COLLABORATORS) | {"freeze_gc"}


def test_oracle_shares_nothing_with_the_lifecycle():
    """Of tsgraph it imports the vocabulary of specs alone."""
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(oracle))) if isinstance(node, ast.ImportFrom)]

    taken = {node.module for node in imports if node.module.startswith("tsgraph")}
    assert {"tsgraph.spec.model", "tsgraph.testing.books"} == taken
    assert "restricted_to(" not in inspect.getsource(oracle)


def test_starting_hypothesis_imports_no_torch():
    """What the entry point calls costs no more than the vocabulary."""
    code = "import sys, hypothesis, tsgraph.drawing as d; d.register(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ("False", "") == (run.stdout.strip(), run.stderr)


def test_emulation_needs_no_hypothesis():
    """`emulate` can be used where the `testing` extra is not installed."""
    run = subprocess.run([sys.executable, "-c", WITHOUT_HYPOTHESIS], capture_output=True, text=True, check=False)

    assert (0, "") == (run.returncode, run.stderr)
