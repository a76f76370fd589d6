"""Pads, through the whole runtime: whatever came before, pad rows hold their pads and touch nothing live."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.conftest import PAGES, WIDTH, ToyEngine
from tsgraph.backends.choice import choose_backend

PADS = {"ids": 0, "seq_lens": 1, "table": -1}


@st.composite
def batches(draw):
    """A history of batches that grows and shrinks; each row owns one page, no two rows the same."""
    history = draw(st.lists(st.integers(0, 8), min_size=1, max_size=6))
    return [draw(st.permutations(range(1, PAGES)))[:rows] for rows in history]


def sources_of(pages, step):
    """Sources for rows that own `pages`, different at each step."""
    table = torch.full((len(pages), WIDTH), -1, dtype=torch.int32)
    table[:, 0] = torch.tensor(pages, dtype=torch.int32)
    ids = torch.tensor(pages, dtype=torch.int64) * 7 + step
    return {"ids": ids, "seq_lens": torch.tensor(pages, dtype=torch.int32) + 1, "table": table}


def serve_history(backend, history):
    """Serve a history of batches, checking every promise about pads after each."""
    weight = torch.arange(1.0, 4.0, device=backend.device)
    pages = torch.arange(PAGES * 3, dtype=torch.float32, device=backend.device).reshape(PAGES, 3)
    engine = ToyEngine(backend.device, weight, pages)
    runtime = engine.runtime(backend, sizes=(2, 8))
    runtime.capture()
    for step, owned in enumerate(history):
        before = pages.clone()
        sources = sources_of(owned, step)
        decision = runtime.explain(len(owned))
        expected = {
            name: leaf.clone()
            for name, leaf in runtime.eager(rows=len(owned), padded_to=decision.padded_to, **sources).items()
        }
        eager_pages = pages.clone()
        pages.copy_(before)
        outputs = runtime(rows=len(owned), **sources)
        check_pads(runtime, decision.padded_to, len(owned))
        check_state(before, pages, owned)
        assert torch.equal(eager_pages, pages)
        assert all(torch.equal(leaf, outputs[name]) for name, leaf in expected.items())


def check_pads(runtime, size, live):
    """Every row from `live` on holds the pad of its buffer."""
    for name, view in runtime.slots["default", size].batch.buffers.items():
        assert torch.equal(view[live:], torch.full_like(view[live:], PADS[name])), name


def check_state(before, after, owned):
    """Only pages of live rows, and the sink, may differ."""
    changed = {row for row in range(PAGES) if not torch.equal(before[row], after[row])}
    assert changed <= {0, *owned}


@pytest.mark.no_cover
@given(history=batches())
def test_no_history_of_batches_leaves_a_trace(history):
    """For any batches after any others, pads hold, only live rows' state changes, and outputs equal eager's bits."""
    serve_history(choose_backend("emulated", [], "cpu"), history)


def test_the_same_holds_on_every_backend(backend):
    """A fixed history that shrinks, idles and grows, on each backend there is."""
    serve_history(backend, [[3, 5, 7, 9, 11, 13, 15, 1], [2], [], [4, 6, 8], [1, 2]])
