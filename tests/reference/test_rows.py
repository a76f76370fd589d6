"""Rows of running requests: what a verification serves."""

from __future__ import annotations

import attrs
import pytest
import torch

from tsgraph.reference import DecoderConfig, EngineConfig, Parts, ReferenceEngine, graph_runtime
from tsgraph.reference.rows import RunningRows

HYBRID = DecoderConfig(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=40, recurrent=(1,))
FULL = EngineConfig(
    decoder=HYBRID, rows=4, pages=13, page_size=4, context=8, tokens_per_request=2, variants=True, constrained=True
)
PLAIN = attrs.evolve(
    FULL, decoder=attrs.evolve(HYBRID, recurrent=()), tokens_per_request=1, variants=False, constrained=False
)


@pytest.mark.parametrize("config", [PLAIN, FULL], ids=["plain", "full"])
def test_a_row_is_the_same_request_in_every_batch(config: EngineConfig):
    """So that a batch of fewer rows is the beginning of one of more; each has pages and slots of its own."""
    rows = RunningRows(Parts.build(config))
    three, four = rows(3), rows(4)
    for name, source in three.items():
        assert torch.equal(source, four[name][: len(source)]), name
    assert 4 == len(set(four["seq_lens"].tolist()))
    pages = four["page_table"].flatten().tolist()
    assert len(pages) == len(set(pages))
    assert 0 not in pages


def test_what_rows_read_is_noise():
    """Whatever a step reads of cache and recurrent state tells one row from another; what nobody reads stays."""
    parts = Parts.build(FULL)
    RunningRows(parts)(2)
    assert parts.draft is not None
    assert parts.memory is not None
    read = RunningRows(parts)(2)["page_table"].unique().long()
    for cache in (parts.cache, parts.draft.cache):
        assert cache.keys[read].abs().amin(dim=(1, 2, 3, 4)).gt(0).all()
        assert not cache.keys[0].any()
    assert parts.memory.states[:2].any()
    assert not parts.memory.states[2:].any()


@pytest.mark.parametrize("planted", [False, True], ids=["right", "planted"])
def test_the_reference_engine_is_right(planted: bool):
    """All of it: drafts, recurrent layers, penalties and a grammar's queue, whatever came before.

    Planted: recurrent states are updated after eager steps only. They are named.
    """
    engine = ReferenceEngine(FULL, lambda parts: graph_runtime(parts, backend="emulated", sizes=(2,), capture=False))
    engine.runtime.capture(("penalties", 2))
    for program in engine.runtime._server.routes.programs.values() if planted else ():
        program.updates = ()
    report = engine.runtime.verify(RunningRows(engine.parts))
    assert ("penalties/2",) == report.slots
    expected = {("equality", "state recurrent states")} if planted else set()
    assert expected == {(each.check, each.name) for each in report.findings}
    assert engine.parts.memory is not None
    assert not engine.parts.memory.states.any()
