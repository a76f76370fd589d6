"""Proof that replaying changes nothing: every replayed step run again eagerly, and whole runs compared.

At the padded shape a replay must equal eager bit by bit. At the live shape a matrix product of another row count rounds
differently, so logits may differ by ROUNDING there, and a token may only where its margin is within twice that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import attrs
import torch
from torch import Tensor

from tsgraph.keys import Mode, Step
from tsgraph.reference.cache import DUMMY_PAGE, PagedCache
from tsgraph.reference.engine import Completion, Sources, sampling_of
from tsgraph.reference.sampler import margins

ROUNDING = 1e-4
"""How far a float32 logit may move with the shape of a step; the reference decoder's are of the order of 1."""

NO_TOKEN = -1

Outputs = dict[str, Tensor]
Draw = tuple[int, int]
"""What makes a draw unlike any other: the request's seed and the position it was drawn after."""


@attrs.frozen
class Flip:
    """A draw that came out differently, and the margin in logits by which the expected token had won."""

    draw: Draw
    expected: int
    actual: int
    margin: float

    @property
    def excused(self) -> bool:
        """Whether rounding explains it: two logits that each move by ROUNDING can swap places within this margin."""
        return self.margin <= 2 * ROUNDING

    def __str__(self) -> str:
        seed, position = self.draw
        verdict = "within rounding" if self.excused else "NOT explained by rounding"
        where = f"seed {seed}, position {position}"
        return f"{where}: token {self.actual} instead of {self.expected}, margin {self.margin:.1e}: {verdict}"


@attrs.define
class ReplayProof:
    """A hook for `generate` that checks every replayed step against eager runs of the same step from the same state."""

    runtime: Any
    cache: PagedCache
    steps: int = 0
    furthest: float = 0.0
    flips: list[Flip] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing differed beyond rounding."""
        return not self.faults and all(flip.excused for flip in self.flips)

    def __call__(self, rows: int, mode: Mode, sources: Sources, done: Step) -> None:
        """Check one step; steps that were not replayed prove nothing and are passed over.

        Running a step again is idempotent: it reads keys and values of earlier positions only, which it never writes,
        and those of its own position, which it writes first, from the same tokens. The padded run comes last: it
        must leave the cache bitwise as the replay did, whatever the live shape rounded otherwise.
        """
        if done.decision.eager:
            return
        replayed = {name: leaf.clone() for name, leaf in done.outputs.items()}
        left = self.cache.keys.clone(), self.cache.values.clone()
        live = self.runtime.eager(rows=rows, mode=mode, **sources)
        self._compare_live(replayed, live, sources)
        padded = self.runtime.eager(rows=rows, mode=mode, padded_to=done.decision.padded_to, **sources)
        self._compare_padded(replayed, padded, left, f"{done.decision}")
        self.steps += 1

    def _compare_live(self, replayed: Outputs, live: Outputs, sources: Sources) -> None:
        off = float((replayed["logits"] - live["logits"]).abs().max())
        self.furthest = off if math.isnan(off) else max(self.furthest, off)
        if not off <= ROUNDING:
            self.faults.append(f"logits are {off:.1e} off eager at the live shape, beyond {ROUNDING:.0e}")
        won_by = _margins(live["logits"], sources)
        expected, actual = live["tokens"].tolist(), replayed["tokens"].tolist()
        drawn = zip(_draws(sources), expected, actual, won_by, strict=True)
        self.flips.extend(Flip(*each) for each in drawn if each[1] != each[2])

    def _compare_padded(self, replayed: Outputs, padded: Outputs, left: tuple[Tensor, Tensor], where: str) -> None:
        for name in ("logits", "tokens", "logprobs"):
            if not torch.equal(padded[name], replayed[name]):
                self.faults.append(f"{name} differ from eager at the padded shape ({where})")
        for name, before, after in zip(("keys", "values"), left, (self.cache.keys, self.cache.values), strict=True):
            if not torch.equal(before[DUMMY_PAGE + 1 :], after[DUMMY_PAGE + 1 :]):
                self.faults.append(f"the cache's {name} differ from what eager at the padded shape writes ({where})")


@attrs.define
class MarginLog:
    """A hook for `generate` that keeps the margin of every draw, so that a whole run can be compared with this one."""

    margins: dict[Draw, float] = attrs.field(factory=dict)

    def __call__(self, rows: int, mode: Mode, sources: Sources, done: Step) -> None:  # noqa: ARG002 -- a hook's words
        """Note the margins of one step."""
        self.margins.update(zip(_draws(sources), _margins(done.outputs["logits"], sources), strict=True))

    def flips(self, expected: Iterable[Completion], actual: Iterable[Completion]) -> list[Flip]:
        """Where completions first differ from the expected ones. What follows a first difference is another text."""
        pairs = zip(expected, actual, strict=True)
        return [flip for pair in pairs if (flip := self._first_flip(*pair)) is not None]

    def _first_flip(self, expected: Completion, actual: Completion) -> Flip | None:
        for index, (one, other) in enumerate(zip_longest(expected.tokens, actual.tokens, fillvalue=NO_TOKEN)):
            if one != other:
                draw = expected.request.sampling.seed, len(expected.request.prompt) + index - 1
                return Flip(draw, one, other, self.margins.get(draw, math.inf))
        return None


def _draws(sources: Sources) -> list[Draw]:
    return list(zip(sources["seed"].tolist(), (sources["seq_lens"] - 1).tolist(), strict=True))


def _margins(logits: Tensor, sources: Sources) -> list[float]:
    won_by: list[float] = margins(logits.cpu(), sampling_of(sources)).tolist()
    return won_by
