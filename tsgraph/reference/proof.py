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

from tsgraph.buffers.contract import State
from tsgraph.keys import Mode, Step
from tsgraph.reference.engine import Completion
from tsgraph.reference.parts import Parts, sampling_of
from tsgraph.reference.sampler import margins
from tsgraph.reference.sources import Sources

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
    """A hook for `generate` that checks every replayed step against eager runs of the same step from the same state.

    It must see every step: what one step leaves behind is what the next begins from.
    """

    runtime: Any
    parts: Parts
    steps: int = 0
    furthest: float = 0.0
    flips: list[Flip] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)
    _before: Outputs = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._before = self._kept()

    @property
    def holds(self) -> bool:
        """Whether nothing differed beyond rounding."""
        return not self.faults and all(flip.excused for flip in self.flips)

    def __call__(self, rows: int, mode: Mode, sources: Sources, done: Step) -> None:
        """Check one step; steps that were not replayed prove nothing and are passed over.

        Caches, recurrent states and counts are put back before each run, and to what the replay left after the last, so
        that all that follows is the replays' own.
        """
        if done.decision.key is not None:
            replayed, left = _cloned(done.outputs), self._kept()
            words = {"rows": rows, "mode": mode, "variant": done.decision.key.variant, **sources}
            self._compare_live(rows, replayed, self._again(words), sources)
            padded = self._again(words, padded_to=done.decision.padded_to)
            self._compare_padded(replayed, padded, left, f"{done.decision}")
            self._put_back(left)
            self.steps += 1
        self._before = self._kept()

    def _again(self, words: dict[str, Any], padded_to: int | None = None) -> Outputs:
        """The outputs of an eager run from where the step began."""
        self._put_back(self._before)
        if self.parts.constraints is not None:
            self.runtime.push(words["rows"], by=self.parts.constraints.executor.push_repeat)
        outputs: Outputs = self.runtime.eager(padded_to=padded_to, **words)
        return _cloned(outputs)

    def _kept(self) -> Outputs:
        return {name: state.tensor.clone() for name, state in self.parts.states.items()}

    def _put_back(self, kept: Outputs) -> None:
        for name, state in self.parts.states.items():
            state.tensor.copy_(kept[name])

    def _compare_live(self, rows: int, replayed: Outputs, live: Outputs, sources: Sources) -> None:
        off = float((replayed["logits"] - live["logits"]).abs().max())
        self.furthest = off if math.isnan(off) else max(self.furthest, off)
        if not off <= ROUNDING:
            self.faults.append(f"logits are {off:.1e} off eager at the live shape, beyond {ROUNDING:.0e}")
        won_by = _margins(live["logits"], sources)
        expected, actual = live["tokens"].tolist(), replayed["tokens"].tolist()
        drawn = zip(_draws(len(expected) // rows, sources), expected, actual, won_by, strict=True)
        self.flips.extend(Flip(*each) for each in drawn if each[1] != each[2])
        self._compare_gains(rows, replayed, live)

    def _compare_gains(self, rows: int, replayed: Outputs, live: Outputs) -> None:
        """Rows that drew the same tokens must gain equally many."""
        if "accept_lengths" in live:
            alike = (live["tokens"] == replayed["tokens"]).view(rows, -1).all(1)
            if not torch.equal(live["accept_lengths"][alike], replayed["accept_lengths"][alike]):
                self.faults.append("accepted tokens differ from eager at the live shape")

    def _compare_padded(self, replayed: Outputs, padded: Outputs, left: Outputs, where: str) -> None:
        for name, leaf in padded.items():
            if not torch.equal(leaf, replayed[name]):
                self.faults.append(f"{name} differ from eager at the padded shape ({where})")
        for name, state in self.parts.states.items():
            if state.sink is not None and not torch.equal(_live(state, left[name]), _live(state, state.tensor)):
                self.faults.append(f"the {name} differ from what eager at the padded shape leaves ({where})")


def _cloned(outputs: Outputs) -> Outputs:
    return {name: leaf.clone() for name, leaf in outputs.items()}


def _live(state: State, tensor: Tensor) -> Tensor:
    """The rows of `tensor` that may be a request's."""
    sinks = state.sink or ()
    return tensor[[row for row in range(len(tensor)) if row not in sinks]]


@attrs.define
class MarginLog:
    """A hook for `generate` that keeps the margin of every draw, so that a whole run can be compared with this one."""

    margins: dict[Draw, float] = attrs.field(factory=dict)

    def __call__(self, rows: int, mode: Mode, sources: Sources, done: Step) -> None:  # noqa: ARG002 -- a hook's words
        """Note the margins of one step. A place that was drawn after a wrong draft is drawn again by a later one."""
        logits = done.outputs["logits"]
        self.margins.update(zip(_draws(len(logits) // rows, sources), _margins(logits, sources), strict=True))

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


def _draws(each: int, sources: Sources) -> list[Draw]:
    """What the draws of a step are known by, of `each` per row."""
    how = sampling_of(sources, each)
    return list(zip(how.seed.tolist(), how.position.tolist(), strict=True))


def _margins(logits: Tensor, sources: Sources) -> list[float]:
    each = len(logits) // len(sources["seq_lens"])
    won_by: list[float] = margins(logits.cpu(), sampling_of(sources, each)).tolist()
    return won_by
