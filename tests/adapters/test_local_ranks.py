"""One rank."""

from tsgraph.adapters.local_ranks import LocalRanks
from tsgraph.testing.conformance import check_ranks


def test_it_keeps_every_promise_of_the_protocol():
    """It counts one, never waits, and agrees with itself."""
    check_ranks(lambda count: [LocalRanks() for _ in range(count)], world=1)
