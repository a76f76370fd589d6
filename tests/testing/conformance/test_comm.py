"""`check_comm`: a right adapter passes, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.testing.conformance.planting import assert_all_planted, assert_found
from tsgraph.testing.conformance import COMM, check_comm
from tsgraph.testing.fakes import FakeCommunication


@attrs.define(eq=False)
class Adapter:
    """A right adapter of a library with one mode and one buffer."""

    armed: bool = False
    mode: str = "normal"
    dirt: int = 0

    def arm(self) -> None:
        self.armed, self.mode = True, "low latency"

    def restore(self) -> None:
        if self.armed:
            self.mode, self.dirt = "low latency", 0

    def disturb(self) -> None:
        self.mode, self.dirt = "normal", self.dirt + 1


class CountsArms(Adapter):
    def arm(self) -> None:
        super().arm()
        self.mode += "!" * self.dirt
        self.dirt += 1


class ArmsOnce(Adapter):
    def arm(self) -> None:
        if not self.armed:
            super().arm()


class Toggles(Adapter):
    def restore(self) -> None:
        self.mode = "normal" if self.mode != "normal" else "low latency"


class ForgetsTheMode(Adapter):
    def restore(self) -> None:
        self.dirt = 0


class ForgetsTheBuffer(Adapter):
    def restore(self) -> None:
        self.arm()


class RestoresAlways(Adapter):
    def restore(self) -> None:
        self.armed = True
        super().restore()


PLANTED: dict[str, Any] = {
    "arm_is_idempotent": CountsArms,
    "arm_ignores_history": ArmsOnce,
    "restore_is_idempotent": Toggles,
    "restore_brings_back": ForgetsTheMode,
    "restore_waits_for_arm": RestoresAlways,
}


def check(make: Callable[[], Any]) -> None:
    """Check what `make` makes."""
    check_comm(make, state=lambda part: (part.mode, part.dirt * part.armed), disturb=lambda part: part.disturb())


def test_a_right_adapter_passes():
    """It sets the mode and cleans the buffer."""
    check_comm(Adapter, state=lambda part: part.mode, disturb=Adapter.disturb)


def test_the_fake_passes():
    """It has no mode."""
    check_comm(FakeCommunication, state=lambda part: (), disturb=lambda part: None)


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(COMM, PLANTED)


@pytest.mark.parametrize(("name", "faulty"), [*PLANTED.items(), ("restore_brings_back", ForgetsTheBuffer)])
def test_a_fault_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    assert_found(COMM, name, lambda: check(faulty))
