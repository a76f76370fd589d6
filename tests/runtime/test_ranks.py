"""Captures and steps of several ranks, seen from one of them."""

from typing import Any

import attrs
import pytest
import torch

from tsgraph.buffers.contract import Rows
from tsgraph.errors import BadBatch, CaptureFailed, ContractViolation, RankDisagreement
from tsgraph.keys import Mode, RankCounts, Reason
from tsgraph.runtime import GraphRuntime
from tsgraph.testing.fakes import FakeAttention, FakeRanks, FakeSampler

IDS = torch.tensor([1, 2])


@attrs.define(eq=False)
class Watchful(FakeAttention):
    """Attention metadata that note which counts each batch has."""

    seen: list[Any] = attrs.field(factory=list)

    def bind(self, batch):
        self.seen.append(("bind", batch.counts))

    def refresh(self, batch, live):
        self.seen.append(("refresh", batch.rows, live, batch.counts))

    def begin_eager(self, batch):
        self.seen.append(("eager", batch.rows, batch.counts))


def decoding(*tokens):
    """Counts of a step in which all decode or idle."""
    return RankCounts(tokens, all_decode_or_idle=True)


def full(*tokens):
    """The same, with the rows of each rank, as a batch carries them."""
    return RankCounts(tokens, tokens, all_decode_or_idle=True)


@pytest.fixture
def watch():
    """What attention saw."""
    return Watchful()


@pytest.fixture
def build(backend, watch):
    """A runtime of one rank among several."""

    def build(count=2, index=0, calls=None, step=lambda ids: ids + 1, **rest):
        ranks = FakeRanks([] if calls is None else calls, count=count, index=index)
        words = {"sizes": (2, 4, 8), "outputs": "request", "attention": watch, "ranks": ranks, **rest}
        return GraphRuntime.for_step(step, inputs={"ids": Rows(torch.int64, pad=0)}, backend=backend, **words)

    return build


# -- captures ---------------------------------------------------------------------------------------------------------


def test_a_recording_has_uniform_ranks(build, watch):
    """Each slot is warmed and recorded with its size on every rank, all decoding (R14, R15)."""
    build(count=3).capture(("default", 4))
    assert {("bind", full(4, 4, 4))} == set(watch.seen)


def test_a_rank_alone_has_no_counts(build, watch):
    """Without other ranks a batch says nothing of them."""
    runtime = build(count=1)
    runtime.capture(("default", 4))
    runtime(ids=torch.tensor([1, 2, 3]))
    assert {("bind", None), ("refresh", 4, 3, None)} == set(watch.seen)


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("R14", None),
        ("R14", RankCounts([2, 2], all_decode_or_idle=True)),
        ("R14", RankCounts([2, 1], [2, 1], all_decode_or_idle=True)),
        ("R15", RankCounts([2, 2], [2, 2], all_decode_or_idle=False)),
    ],
)
def test_another_recording_is_refused(build, rule, planted):
    """A batch whose counts a collaborator has changed is not recorded: what one rank brings now would be frozen in."""

    class Meddling(FakeSampler):
        def prepare(self, batch):
            batch.counts = planted

    runtime = build(sampler=Meddling())
    for trigger in ("warm", "bind"):
        runtime.fire(("default", 2), trigger)
    with pytest.raises(CaptureFailed, match=rf"Batch\.counts: expected RankCounts.*{rule}"):
        runtime.fire(("default", 2), "capture")


def test_ranks_agree_on_the_plan_first(build):
    """Before anything is captured all ranks agree on which slots, in which order (R6)."""
    calls = []
    build(calls=calls).capture(("default", 2), ("default", 8))
    assert ("ranks.settle", "plan of 2 slots: default/2, default/8", True) == calls[0]


def test_plans_differ_in_their_digest_and_recordings_do_not(build):
    """Another order is another plan; a slot that is captured again has the digest that it had."""
    settled = []

    class Noting(FakeRanks):
        def settle(self, point, ok, digest, deadline):
            settled.append((point, digest))
            return "agreed"

    runtime = build(ranks=Noting(count=2))
    for keys in ([("default", 2), ("default", 4)], [("default", 4), ("default", 2)]):
        runtime.capture(*keys)
        runtime.release()
        runtime.reset()
    slots = {(point, digest) for point, digest in settled if point.startswith("capture")}
    assert (6, 4) == (len(settled), len(set(settled)))
    assert {"capture default/2", "capture default/4"} == {point for point, _ in slots}
    assert 2 == len({digest for _, digest in slots})


@pytest.mark.parametrize("wrong", ["refused", "disagreement"])
def test_a_plan_that_others_do_not_share_changes_nothing(build, wrong):
    """Where the plan is not agreed, nothing is captured: the first collective that differs would wait for ever (R6)."""

    class Elsewhere(FakeRanks):
        def settle(self, point, ok, digest, deadline):
            if wrong == "refused":
                return "refused"
            raise RankDisagreement("ranks settle different points")

    runtime = build(ranks=Elsewhere(count=2))
    with pytest.raises(RankDisagreement):
        runtime.capture()
    assert {"allocated"} == {slot.state for slot in runtime.slots.values()}


@pytest.mark.parametrize(
    ("member", "value"), [("count", 0), ("count", "2"), ("count", True), ("index", 2), ("index", -1), ("index", None)]
)
def test_ranks_that_cannot_be_counted_are_refused(build, member, value):
    """Numbers that cannot be are a violation of the protocol, found when the runtime is built."""
    ranks = FakeRanks(count=2)
    setattr(ranks, member, value)
    with pytest.raises(ContractViolation, match=rf"Ranks\.{member}: expected an integer"):
        build(ranks=ranks)


# -- steps ------------------------------------------------------------------------------------------------------------


def test_a_replay_carries_the_real_counts(build, watch):
    """Metadata are refreshed with what the ranks bring now; the recorded batch keeps its dummies for a recapture."""
    runtime = build()
    runtime.capture()
    watch.seen.clear()
    for counts in (decoding(2, 4), decoding(2, 3)):
        assert [2, 3] == runtime(ids=IDS, counts=counts).tolist()
    assert [("refresh", 4, 2, full(2, 4)), ("refresh", 4, 2, full(2, 3))] == watch.seen
    assert full(4, 4) == runtime.slots["default", 4].batch.counts


def test_an_eager_step_carries_the_real_counts(build, watch):
    """An eager batch says what the ranks bring: rows where they are known, and None where nothing was said."""
    runtime = build()
    runtime.capture()
    watch.seen.clear()
    mixed = RankCounts([2, 77], [2, 1])
    runtime(ids=IDS, counts=mixed)
    runtime(ids=IDS)
    runtime.eager(ids=IDS, counts=decoding(2, 1))
    assert [("eager", 2, mixed), ("eager", 2, None), ("eager", 2, full(2, 1))] == watch.seen


REFUSED = {
    "nothing is known": (None, Reason.OTHER_RANKS_UNKNOWN),
    "a rank extends": (RankCounts([2, 77]), Reason.OTHER_RANKS_BUSY),
    "a rank is too wide": (decoding(2, 9), Reason.NO_SIZE_FITS),
}


@pytest.mark.parametrize(("counts", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_step_that_not_all_can_take_by_slot_is_eager(build, counts, reason):
    """Planted: this rank's rows fit a slot, but the others' do not, or nobody knows (R26)."""
    runtime = build()
    runtime.capture()
    step = runtime.step(ids=IDS, counts=counts)
    assert (reason, [2, 3]) == (step.decision.reason, step.outputs.tolist())
    assert step.decision == runtime.explain(2, counts=counts)


def test_all_idle_is_eager(build):
    """Where no rank has a row, no graph is replayed (R26)."""
    runtime = build()
    runtime.capture()
    assert Reason.ALL_IDLE is runtime.explain(0, counts=decoding(0, 0), mode=Mode.IDLE).reason


@pytest.mark.parametrize("mode", [Mode.IDLE, Mode.DECODE])
def test_an_idle_rank_replays_with_the_others(build, watch, mode):
    """A rank with 0 rows replays the common size: all rows padded, nothing live, outputs of length 0 (fault S1, H2)."""
    runtime = build(index=1)
    runtime.capture()
    step = runtime.step(rows=0, mode=mode, counts=decoding(3, 0))
    assert (("default", 4), 4, 0) == (step.decision.key, step.decision.waste, len(step.outputs))
    assert ("refresh", 4, 0, full(3, 0)) == watch.seen[-1]


def test_the_widest_rank_decides(build):
    """Neither this rank's own rows (fault H2) nor the sum of all (fault H1) choose the slot (R27)."""
    runtime = build(count=3)
    runtime.capture()
    keys = [runtime.explain(2, counts=decoding(2, other, other)).key for other in (1, 3, 4, 5)]
    assert [("default", 2), ("default", 4), ("default", 4), ("default", 8)] == keys


def test_without_padding_the_global_size_is_exact(backend, build):
    """With padding off the widest rank needs a slot of exactly its size; smaller ranks are padded to it (R29)."""
    from tsgraph.spec.load import load_spec

    law = load_spec("decode")
    runtime = build(spec=attrs.evolve(law, sizes=attrs.evolve(law.sizes, padding=False)))
    runtime.capture()
    exact, between = runtime.explain(2, counts=decoding(2, 4)), runtime.explain(2, counts=decoding(2, 3))
    assert (("default", 4), Reason.NO_EXACT_SIZE) == (exact.key, between.reason)
    assert [2, 3] == runtime(ids=IDS, counts=decoding(2, 4)).tolist()


@pytest.mark.parametrize(
    "counts", [decoding(2), decoding(2, 2, 2), decoding(2, -1), decoding(3, 4), RankCounts([2, 1], [1, 1]), [2, 4]]
)
def test_wrong_counts_are_refused_with_nothing_changed(build, counts):
    """Counts of another number of ranks, negative, or not this rank's are a BadBatch; no step runs."""
    runtime = build()
    runtime.capture()
    with pytest.raises(BadBatch, match="counts"):
        runtime(ids=IDS, counts=counts)
    assert {"replays": 0, "pad_rows": 0, "eager": {}} == runtime.counters()


def test_tokens_per_request_divide_the_tokens(build):
    """Counts are tokens: with two a request, four tokens are two rows, and five are none at all."""
    runtime = build(tokens_per_request=2)
    runtime.capture()
    assert ("default", 4) == runtime.explain(2, counts=decoding(4, 6)).key
    with pytest.raises(BadBatch, match="multiples of 2"):
        runtime.explain(2, counts=decoding(4, 5))
