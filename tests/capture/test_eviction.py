"""Which slots give way: by use that is recent, and only to what has earned it."""

import attrs
import pytest

from tsgraph.capture.budget import Budget
from tsgraph.capture.eviction import EARNED, Contest, Eviction
from tsgraph.dispatch.peers import Peers
from tsgraph.keys import SlotKey
from tsgraph.lifecycle import Cause
from tsgraph.slots.slot import Counts
from tsgraph.spec.model import Policy


@attrs.define(eq=False)
class Stub:
    """A slot as far as it is judged: of 4 rows, whose outputs are 100 bytes."""

    key: SlotKey
    counts: Counts = attrs.field(factory=lambda: Counts(4))
    cause: Cause | None = None
    graph: object = "a graph"

    @property
    def outputs(self):
        """Outputs of one leaf."""
        leaf = type("Leaf", (), {"nbytes": 100})
        return type("Outputs", (), {"leaves": (leaf, None)})


def eviction(limit=450, *, ranks=1, over_budget="evict"):
    """Slots `a` and `b`, which need 400 bytes each, and 500 together."""
    slots = {name: Stub(SlotKey(name, 4)) for name in "ab"}
    budget = Budget(limit)
    budget.charge(SlotKey("a", 4), 400, 400)
    policy = Policy(capture="lazy", over_budget=over_budget)
    return Eviction(policy, Peers(count=ranks), slots, budget), slots["a"], slots["b"]


def test_use_is_what_came_since_slots_came_or_went():
    """Replays of long ago count less than one of now; without any of now, those since its capture count."""
    judge, a, b = eviction()
    a.counts.rows[3], b.counts.rows[4] = 9, 2
    before = judge.staying([a, b], 450)
    judge.look()
    unused = judge.staying([a, b], 450)
    b.counts.rows[1] += 1
    assert ([a], [a], [b]) == (before, unused, judge.staying([a, b], 450))


def test_what_fits_together_stays_together():
    """In the order of capture, whoever is used more; `first` has its place before all."""
    judge, a, b = eviction()
    b.counts.rows[4] = 1
    assert ([a, b], [a], []) == (
        judge.staying([b, a], 500),
        judge.staying([a, b], 450, first=a),
        judge.staying([a, b], 399),
    )


def test_a_contest_is_open_until_a_side_leads_by_what_a_capture_costs():
    """One want each counts for the slot, every replay against it."""
    a = Stub(SlotKey("a", 4))
    contest, lost = Contest([a]), Contest([a])
    assert [True] * (EARNED - 1) + [False] == [contest.open() for _ in range(EARNED)]
    a.counts.rows[4] += EARNED + 1
    assert (False, -EARNED) == (lost.open(), lost.lead)


@pytest.mark.parametrize("words", [{"ranks": 2}, {"over_budget": "refuse"}, {"limit": None}])
def test_nothing_is_displaced_unasked(words):
    """With several ranks, without the policy, without a budget: the capture goes on, and is refused where it must."""
    judge, _, b = eviction(**words)
    b.graph, b.cause = None, Cause("OutOfBudget", "")
    assert (False, [], False) == (judge.unasked, judge.make_room(b, lambda: 450), judge.retries(b))


def test_what_has_room_displaces_nothing():
    """Nor does what could not fit even alone, which is refused at once."""
    roomy, _, b = eviction(limit=10_000)
    narrow, _, c = eviction(limit=450)
    narrow.budget.limit = 399
    b.graph = c.graph = None
    assert ([], [], False) == (roomy.make_room(b, lambda: 450), narrow.make_room(c, lambda: 399), narrow.retries(c))
