"""`check_recurrent`: right state passes, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.testing.conformance.planting import assert_all_planted, assert_found
from tsgraph.testing.conformance import RECURRENT, check_recurrent
from tsgraph.testing.fakes import FakeRecurrent


class Slots:
    """Right state: request i has slot i + 1, and slot 0 is live too, somebody else's."""

    def __init__(self) -> None:
        self.state = torch.zeros(6, 2)

    def update(self, outputs: Any, live: int) -> None:
        self.state[1 : 1 + live].add_(outputs["accepted"][:live, None])


class WritesThePads(Slots):
    def update(self, outputs: Any, live: int) -> None:
        super().update(outputs, live)
        self.state[0] -= 1


class DoesNothing(Slots):
    def update(self, outputs: Any, live: int) -> None:
        """The fault."""


class Rebinds(Slots):
    def update(self, outputs: Any, live: int) -> None:
        self.state = self.state.clone()
        super().update(outputs, live)


class EatsItsInput(Slots):
    def update(self, outputs: Any, live: int) -> None:
        super().update(outputs, live)
        outputs["accepted"].zero_()


PLANTED: dict[str, Any] = {
    "update_writes_live_rows_only": WritesThePads,
    "update_advances": DoesNothing,
    "update_keeps_addresses": Rebinds,
    "update_leaves_outputs": EatsItsInput,
}


def check(make: Callable[[], Any]) -> None:
    """Check what `make` makes."""
    check_recurrent(
        make,
        outputs=lambda live: {"accepted": torch.arange(1.0, live + 1)},
        state=lambda part: [part.state],
        rows=lambda live: range(1, 1 + live),
    )


def test_right_state_passes():
    """It advances live rows in place."""
    check(Slots)


def test_the_fake_passes():
    """It has no state."""
    check_recurrent(FakeRecurrent, outputs=torch.zeros, state=lambda part: (), rows=range)


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(RECURRENT, PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found(name: str):
    """Planted, and named by protocol and member."""
    assert_found(RECURRENT, name, lambda: check(PLANTED[name]))
