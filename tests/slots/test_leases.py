"""Outputs that are kept: views of memory that the next replay overwrites, leases that say so, and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch, LeaseExpired
from tsgraph.protocols.null import NullRecurrent
from tsgraph.runtime import GraphRuntime
from tsgraph.slots.leases import LeasedTensor

IDS = torch.tensor([1, 2, 3])


def build(backend, outputs="leased", step=lambda ids: {"next": ids + 1, "score": ids * 0.5, "none": None}, **rest):
    """A captured runtime of two sizes, whose outputs are handed out as `outputs` says."""
    words = {"inputs": {"ids": Rows(torch.int64, pad=0)}, "sizes": (2, 4), "outputs": "request", "observers": ()}
    policy = {"outputs": outputs, "freeze_gc": False}
    runtime = GraphRuntime.for_step(step, backend=backend, policy=policy, **{**words, **rest})
    runtime.capture()
    return runtime


@pytest.fixture
def runtime(backend):
    """One with leased outputs."""
    return build(backend)


def is_plain(tensor):
    """Whether it is an ordinary tensor."""
    return type(tensor) is torch.Tensor


# -- what is leased ----------------------------------------------------------------------------------------------------


def test_a_replay_leases_its_outputs(runtime):
    """They read as any tensor does; None stays None; each call makes new ones."""
    first = runtime(ids=IDS)
    assert ([2, 3, 4], [0.5, 1.0, 1.5], None) == (first["next"].tolist(), first["score"].tolist(), first["none"])
    assert isinstance(first["next"], LeasedTensor)
    assert first["next"] is not runtime(ids=IDS)["next"]


def test_what_is_made_of_them_is_the_callers(runtime):
    """Results with memory of their own are ordinary tensors, and outlive the lease; views are leased as it is."""
    out = runtime(ids=IDS)["next"]
    made = [out + 1, torch.stack([out, out])[0] + 1, copy.deepcopy(out) + 1, out.sum(), out.cpu().clone()]
    views = [out[:1], out.detach(), out.view(3, 1), *out.split(1), out.T if out.dim() > 1 else out.squeeze()]
    runtime(ids=IDS + 10)
    assert all(map(is_plain, made))
    assert [[3, 4, 5], [3, 4, 5], [3, 4, 5], 9, [2, 3, 4]] == [each.tolist() for each in made]
    for view in views:
        with pytest.raises(LeaseExpired):
            view.tolist()


def test_eager_outputs_are_nobodys(runtime):
    """What a step returned eagerly is not overwritten, and not leased."""
    asked, too_many = runtime.eager(ids=IDS), runtime(ids=torch.arange(9))
    runtime(ids=IDS + 10)
    assert is_plain(asked["next"])
    assert is_plain(too_many["next"])
    assert [2, 3, 4] == asked["next"].tolist()


def test_views_are_cached_and_cost_nothing(backend):
    """Unchecked, the same views come back at each call of as many rows, and show what the last replay wrote."""
    runtime = build(backend, "views")
    first = runtime(ids=IDS)["next"]
    assert first is runtime(ids=IDS + 10)["next"]
    assert [12, 13, 14] == first.tolist()
    assert is_plain(first)


# -- when a lease ends -------------------------------------------------------------------------------------------------

USES: dict[str, Any] = {
    "printing": repr,
    "formatting": lambda out: f"{out}",
    "tolist": lambda out: out.tolist(),
    "item": lambda out: out[0].item(),
    "an operator": lambda out: out + 1,
    "another operand": lambda out: torch.zeros_like(IDS, device=out.device).add_(out),
    "a list of operands": lambda out: torch.cat([torch.zeros(1, dtype=torch.int64, device=out.device), out]),
    "a copy": lambda out: out.clone(),
    "a comparison": lambda out: bool((out == 1).all()),
    "a loop": list,
    "its length": len,
    "its address": lambda out: out.data_ptr(),
    "numpy": lambda out: out.cpu().numpy(),
    "pickle": pickle.dumps,
    "writing": lambda out: out.zero_(),
}


def test_use_after_the_next_replay_is_refused(runtime):
    """Fault E1: whatever is done with it, the error names slot, output and replay, and says how to keep outputs."""
    device = runtime.backend.device
    kept = runtime(ids=IDS.to(device))["next"]
    runtime(ids=IDS.to(device) + 10)
    for use, do in USES.items():
        with pytest.raises(LeaseExpired) as expired:
            do(kept)
        facts = expired.value.context
        assert ("default/4", "output['next'] of slot default/4", 1, 2) == tuple(
            facts[name] for name in ("slot", "output", "replay", "now")
        ), use
    assert "output['next'] of slot default/4 is used by torch.Tensor.zero_, but it was of replay 1" in str(
        expired.value
    )
    assert "clone=True" in expired.value.hint


def test_a_replay_of_another_slot_ends_it_too(runtime):
    """All graphs share one pool (R5): a smaller slot's replay may have written there."""
    kept = runtime(ids=IDS)["score"]
    runtime(ids=IDS[:1])
    with pytest.raises(LeaseExpired, match="slot default/2 has been replayed since, as replay 2"):
        kept.sum()


def test_what_overwrites_nothing_ends_nothing(runtime):
    """Eager steps, refused calls and failed replays leave the outputs of the last replay as they are."""
    kept = runtime(ids=IDS)["next"]
    runtime.eager(ids=IDS + 10)
    with pytest.raises(BadBatch):
        runtime(ids=IDS.float())
    runtime.invalidate("a test", ("default", 4))
    runtime(ids=IDS + 20)
    assert [2, 3, 4] == kept.tolist()


def test_outputs_are_sources_of_the_next_step(runtime):
    """Fault R2: a step may read what the last one returned, also through another slot; after that it has expired."""
    out = runtime(ids=IDS)["next"]
    for expected in ([3, 4, 5], [4, 5, 6]):
        before, out = out, runtime(ids=out)["next"]
        assert expected == out.tolist()
        with pytest.raises(LeaseExpired, match="used by a step that reads it"):
            runtime(ids=before)
    assert [[5, 6], [5, 6]] == [runtime.eager(ids=out[:2])["next"].tolist(), runtime(ids=out[:2])["next"].tolist()]


def test_outputs_of_one_runtime_are_sources_of_another(backend):
    """Fault R2: g(f(x)) for two rounds; each is staged before anything overwrites it."""
    inner, outer = build(backend), build(backend, "views", lambda ids: {"twice": ids * 2})
    for start in (IDS, IDS + 10):
        middle = inner(ids=start)["next"]
        assert (2 * (start + 1)).tolist() == outer(ids=middle)["twice"].tolist()
    inner(ids=IDS)
    with pytest.raises(LeaseExpired):
        outer(ids=middle)


class Keeping(NullRecurrent):
    """State that keeps what it was given."""

    kept = None

    def update(self, outputs, live):
        self.kept, self.sum = outputs["next"], int(outputs["next"].sum())


def test_a_collaborator_is_told_as_anybody(backend):
    """An update reads the outputs of its own replay, and may not keep them."""
    state = Keeping()
    runtime = build(backend, recurrent=state)
    runtime(ids=IDS)
    kept = state.kept
    assert 9 == state.sum
    runtime(ids=IDS)
    with pytest.raises(LeaseExpired):
        kept.sum()


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", ["views", "leased"])
def test_cloned_outputs_are_the_callers(backend, outputs):
    """`clone=True` at any door: ordinary tensors that no later replay touches."""
    runtime = build(backend, outputs)
    kept = [
        runtime(ids=IDS, clone=True),
        runtime.step(ids=IDS, clone=True).outputs,
        runtime.eager(ids=IDS, clone=True),
        runtime.eager(ids=IDS, padded_to=4, clone=True),
    ]
    runtime(ids=IDS + 10)
    assert [[2, 3, 4]] * 4 == [each["next"].tolist() for each in kept]
    assert all(is_plain(each["next"]) and each["none"] is None for each in kept)


def test_no_buffer_is_called_like_a_word_of_a_call(backend):
    """What a call says by such a name would never reach the buffer."""
    for word in ("clone", "rows", "padded_to"):
        with pytest.raises(BadBatch, match=f"buffer '{word}' is called like a word of a call"):
            build(backend, inputs={word: Rows(torch.int64, pad=0)}, step=lambda **inputs: inputs)
