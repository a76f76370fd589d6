"""`check_sampler`: a right sampler passes, and each planted fault is named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

from tests.testing.conformance.planting import assert_all_planted, assert_found
from tsgraph.buffers.contract import Rows
from tsgraph.errors import CaptureUnsupported
from tsgraph.keys import Batch
from tsgraph.protocols.backend import Backend
from tsgraph.testing.conformance import SAMPLER, Ground, check_sampler
from tsgraph.testing.fakes import FakeSampler

INPUTS = {"seq_lens": Rows(torch.int32, pad=1)}


class Seeded:
    """A right sampler: coins from a generator of its own, counts that a forward adds to."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.generator = torch.Generator().manual_seed(3)
        self.coins = backend.allocate((4,), torch.float32, 0)
        self.counts = backend.allocate((4,), torch.int32, 0)

    def variants(self, tokens_per_request: int) -> Any:
        return ["default", "greedy"]

    def prepare(self, batch: Batch) -> None:
        self.coins[: batch.rows].copy_(torch.rand(batch.rows, generator=self.generator))

    def reset(self) -> None:
        self.counts.zero_()

    def warm(self, batch: Batch) -> None:
        self.counts[: batch.rows].add_(1)


class NamesAWord(Seeded):
    def variants(self, tokens_per_request: int) -> Any:
        return "greedy" if tokens_per_request == 1 else ()


class NamesTwice(Seeded):
    def variants(self, tokens_per_request: int) -> Any:
        return ["greedy", "greedy"]


class KnowsNoDefault(Seeded):
    def prepare(self, batch: Batch) -> None:
        {"greedy": super().prepare}[batch.variant](batch)


class DrawsElsewhere(Seeded):
    def prepare(self, batch: Batch) -> None:
        self.coins = self.backend.allocate((4,), torch.float32, 0)
        super().prepare(batch)


class IsSeededByTime(Seeded):
    seeds = count()

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.generator.manual_seed(next(self.seeds))


class DrawsOnTheDevice(Seeded):
    def prepare(self, batch: Batch) -> None:
        self.coins.uniform_(generator=self.generator)


class BreaksInARecording(Seeded):
    def prepare(self, batch: Batch) -> None:
        try:
            super().prepare(batch)
        except CaptureUnsupported:
            self.generator = None  # type: ignore[assignment]
            self.coins = self.coins.new_zeros(9)
            raise


class NeverResets(Seeded):
    def reset(self) -> None:
        self.counts[0] = 0


class ResetsElsewhere(Seeded):
    def reset(self) -> None:
        self.counts = torch.zeros_like(self.counts)


PLANTED: dict[str, Any] = {
    "variants_are_names": NamesAWord,
    "prepare_serves_every_slot": KnowsNoDefault,
    "prepare_keeps_addresses": DrawsElsewhere,
    "prepare_is_deterministic": IsSeededByTime,
    "prepare_is_not_recorded": DrawsOnTheDevice,
    "prepare_recovers": BreaksInARecording,
    "reset_clears_counts": NeverResets,
    "reset_keeps_addresses": ResetsElsewhere,
}


def check(make: Callable[[Backend], Any], ground: Ground) -> None:
    """Check what `make` makes."""
    check_sampler(
        lambda: make(ground.backend),
        ground=ground,
        coins=lambda part: part.coins,
        counts=lambda part: part.counts,
        warm=lambda part, batch: part.warm(batch),
    )


def test_a_right_sampler_passes(backend: Backend):
    """On every backend, also where forwards carry several tokens a request."""
    for tokens in (1, 3):
        check(Seeded, Ground.of(INPUTS, backend=backend, tokens_per_request=tokens))


def test_the_fake_passes():
    """It has neither coins nor counts."""
    for names in ((), ("greedy",)):
        check_sampler(
            lambda names=names: FakeSampler(names=names),
            ground=Ground.of(INPUTS),
            coins=lambda part: (),
            counts=lambda part: (),
            warm=lambda part, batch: None,
        )


def test_every_promise_has_a_planted_fault():
    """None of the checks is idle."""
    assert_all_planted(SAMPLER, PLANTED)


@pytest.mark.parametrize(("name", "faulty"), [*PLANTED.items(), ("variants_are_names", NamesTwice)])
def test_a_fault_is_found(name: str, faulty: Any):
    """Planted, and named by protocol and member."""
    assert_found(SAMPLER, name, lambda: check(faulty, Ground.of(INPUTS)))
