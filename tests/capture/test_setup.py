"""Setting up a runtime: metadata make their buffers once, before any bind; a draft may share the target's indices."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import Rows, as_buffers, resolve_fields
from tsgraph.capture.setup import SetupWork, check_capabilities
from tsgraph.errors import ContractViolation
from tsgraph.groups import CacheGroup
from tsgraph.keys import Geometry
from tsgraph.protocols.collaborators import Capabilities
from tsgraph.spec.model import Setup
from tsgraph.testing.fakes import FakeAttention, fake_drafter

FULL = CacheGroup(name="full", rows_per_page=4)
WINDOW = CacheGroup(name="window", rows_per_page=4, retention="sliding_window", window=8)
STATE = CacheGroup(name="state", rows_per_page=1, family="state")
GROUPS = (FULL, WINDOW, STATE)


@pytest.fixture
def work():
    """Makes the setup of two fakes; returns it with both."""

    def make(*, draft_flat: bool = False) -> tuple[SetupWork, FakeAttention, FakeAttention]:
        geometry = Geometry(rows=4, tokens_per_request=2, groups=GROUPS, context=16, overlap_depth=1)
        lengths = Rows(torch.int32, pad=1)
        fields = resolve_fields(as_buffers({"seq_lens": lengths, "draft_seq_lens": lengths}), geometry)
        arena = Arena(fields, 4, choose_backend("emulated", [], "cpu"))
        target, draft = FakeAttention(), fake_drafter([])
        draft.capabilities = Capabilities(flat_groups=draft_flat)
        declared = Setup(lengths="seq_lens", draft_lengths="draft_seq_lens")
        setup = SetupWork(declared=declared, geometry=geometry, arena=arena, attention=target, drafter=draft)
        return setup, target, draft

    return make


def test_metadata_are_told_what_they_are_made_for(work):
    """The largest slot, the tokens, the static lengths of each, its cache groups, and how far the engine runs ahead."""
    setup, target, draft = work()
    setup.init_metadata()
    tensors = setup.arena.tensors()

    assert (4, 2, 1, GROUPS) == _told(target)
    assert (4, 2, 1, GROUPS) == _told(draft)
    assert tensors["seq_lens"] is target.setup.lengths
    assert tensors["draft_seq_lens"] is draft.setup.lengths


def test_a_draft_of_flat_tables_reads_the_groups_that_it_can(work):
    """Windows and states are the target's alone; of paged tables a draft has a pool of its own."""
    setup, target, draft = work(draft_flat=True)
    setup.init_metadata()

    assert (GROUPS, (FULL,)) == (target.setup.groups, draft.setup.groups)


def test_lengths_of_a_buffer_that_there_is_not_are_none(work):
    """An engine that declares its own buffers need not have those that the spec names."""
    setup, target, _ = work()
    attrs.evolve(setup, declared=Setup(lengths="lens")).init_metadata()

    assert target.setup.lengths is None


def _told(part: Any) -> tuple[Any, ...]:
    setup = part.setup
    return setup.rows, setup.tokens_per_request, setup.overlap_depth, setup.groups


INDICES = torch.zeros(8, dtype=torch.int32)


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [
        (INDICES, INDICES.clone(), True),
        (INDICES, INDICES[:4], False),
        (INDICES, INDICES.long(), False),
        (None, INDICES, False),
        (INDICES, None, False),
    ],
    ids=["equal", "shape", "dtype", "no target", "no draft"],
)
def test_indices_are_shared_only_where_their_forms_are_equal(work, target, draft, shared):
    """Another shape or dtype would make the draft read wrong pages (R3)."""
    setup, one, other = work()
    one.kv_indices, other.kv_indices = target, draft
    setup.share_indices()

    assert shared == (other.kv_indices is target)
    assert [("drafter.share_kv_indices",)] * shared == other.calls


def test_nothing_is_shared_without_a_draft(work):
    """A target alone keeps its indices."""
    setup, target, _ = work()
    target.kv_indices = INDICES
    attrs.evolve(setup, drafter=None).share_indices()

    assert [] == target.calls


# -- capabilities ------------------------------------------------------------------------------------------------------

PAGED, FLAT, NONE = Capabilities(paged_groups=True), Capabilities(flat_groups=True), Capabilities()


@pytest.mark.parametrize(
    ("conventions", "parts"),
    [
        ((), {}),
        (("paged_groups",), {}),
        ((), {"Attention": NONE}),
        (("paged_groups",), {"Attention": PAGED}),
        (("paged_groups",), {"Attention": NONE, "Drafter": PAGED}),
        (("paged_groups", "flat_groups"), {"Attention": FLAT, "Drafter": PAGED}),
    ],
)
def test_capabilities_and_conventions_that_fit_are_accepted(conventions, parts):
    """Each convention has a part that consumes its tables, target or draft; a step alone may read them itself."""
    check_capabilities(Geometry(rows=1, conventions=conventions), _parts(parts))


@pytest.mark.parametrize(
    ("conventions", "parts", "message"),
    [
        ((), {"Attention": PAGED}, r"Attention.capabilities: expected paged_groups, among the conventions, got none"),
        (
            ("paged_groups",),
            {"Drafter": FLAT},
            r"Geometry.conventions: expected a part with the capability paged_groups",
        ),
        (
            ("paged_groups",),
            {"Attention": PAGED, "Drafter": FLAT},
            r"Drafter.capabilities: expected flat_groups, among the conventions, got paged_groups",
        ),
    ],
)
def test_capabilities_and_conventions_that_do_not_fit_are_refused(conventions, parts, message):
    """Tables that nobody stages, or nobody reads, are told with the part that is at fault."""
    with pytest.raises(ContractViolation, match=message):
        check_capabilities(Geometry(rows=1, conventions=conventions), _parts(parts))


def _parts(capabilities: dict[str, Capabilities]) -> dict[str, Any]:
    return {name: FakeAttention(capabilities=each) for name, each in capabilities.items()}
