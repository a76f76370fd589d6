"""Null collaborators keep their protocols, and a runtime with all of them is one that has none."""

from __future__ import annotations

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.protocols import collaborators, null
from tsgraph.runtime import GraphRuntime

NULLS = {
    "attention": (collaborators.Attention, null.NullAttention),
    "sampler": (collaborators.Sampler, null.NullSampler),
    "grammar": (collaborators.Grammar, null.NullGrammar),
    "drafter": (collaborators.Drafter, null.NullDrafter),
    "recurrent": (collaborators.Recurrent, null.NullRecurrent),
    "comm": (collaborators.Communication, null.NullCommunication),
}


@pytest.mark.parametrize("name", NULLS)
def test_each_keeps_its_protocol(name):
    """Every member is there."""
    protocol, null_class = NULLS[name]

    assert isinstance(null_class(), protocol)


def test_a_runtime_of_nulls_serves(backend):
    """With every collaborator there and none doing anything, replays are right."""
    runtime = GraphRuntime.for_step(
        lambda x: x + 1,
        inputs={"x": Rows(torch.int64, pad=0)},
        sizes=(2, 4),
        outputs="request",
        backend=backend,
        **{name: null_class() for name, (_, null_class) in NULLS.items()},
    )
    runtime.capture()

    assert ["replayable"] * 2 == [slot.state for slot in runtime.slots.values()]
    runtime.push(3)
    assert [2, 3, 4] == runtime(x=torch.tensor([1, 2, 3])).tolist()


def test_a_null_drafter_keeps_shared_indices():
    """A subclass that declares indices finds the target's in their place."""
    drafter, indices = null.NullDrafter(), torch.zeros(2)
    drafter.share_kv_indices(indices)

    assert indices is drafter.kv_indices
