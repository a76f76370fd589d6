"""What a slot must show that is recorded without warm-ups of its own: that no lazy work is left for its recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.faults.rig import require
from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.contract import Rows
from tsgraph.capture.laziness import SMALL_CHANGE
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import parse_spec
from tsgraph.spec.model import Spec

LARGEST = 4
Deed = Literal["none", "touches", "keeps", "keeps much"]


@attrs.frozen
class Lazy:
    """A step that does `deed` at size `at` alone; `receipts` is the policy's word for which recordings are watched."""

    deed: Deed
    at: int = 2
    receipts: Literal["each", "warmed"] = "each"

    @property
    def wrong(self) -> bool:
        """Whether anybody may notice: the largest size is warmed up; unwatched, few bytes of a pool do not show."""
        unseen = self.receipts == "warmed" and self.deed == "keeps"
        return self.deed != "none" and self.at < LARGEST and not unseen


lazy_steps = st.builds(
    Lazy,
    st.sampled_from(("none", "touches", "keeps", "keeps much")),
    st.sampled_from((2, LARGEST)),
    st.sampled_from(("each", "warmed")),
)


@attrs.define(eq=False)
class Step:
    """Ids plus one. `elsewhere` is a tensor that nobody declared, `kept` what it made at first use."""

    lazy: Lazy
    elsewhere: Tensor = attrs.field(factory=lambda: torch.zeros(1))
    kept: list[Tensor] = attrs.field(factory=list)

    def __call__(self, ids: Tensor) -> Tensor:
        """One step."""
        if len(ids) == self.lazy.at:
            _DEEDS[self.lazy.deed](self, ids)
        return ids + 1

    def keep(self, ids: Tensor, count: int) -> None:
        """Make so many numbers on the device, once."""
        if not self.kept:
            self.kept.append(ids.new_zeros(count))


_DEEDS: dict[Deed, Callable[[Step, Tensor], Any]] = {
    "none": lambda step, ids: None,
    "touches": lambda step, ids: ids + step.elsewhere,
    "keeps": lambda step, ids: step.keep(ids, 8),
    "keeps much": lambda step, ids: step.keep(ids, SMALL_CHANGE),
}


@cache
def _law() -> Spec:
    told = {"extends": "decode", "name": "decode", "version": 1}
    return parse_spec({**told, "warmup": {"forwards": 1, "per": "variant"}})


def check_lazy(lazy: Lazy) -> None:
    """A slot whose recording does what no warm-up did for it serves nothing; all others serve."""
    backend, step = choose_backend("emulated", [], "cpu"), Step(lazy)
    backend.adopt([step.elsewhere])
    runtime = GraphRuntime.for_step(
        step,
        inputs={"ids": Rows(torch.float32, pad=0)},
        sizes=(2, LARGEST),
        outputs="request",
        spec=_law(),
        backend=backend,
        observers=(),
        policy={"receipts": lazy.receipts, "undeclared_reads": "allow", "freeze_gc": False},
    )
    runtime.capture()
    failed = [size for _, size in runtime.slots if runtime.slots["default", size].state == "failed"]
    require(failed == ([lazy.at] if lazy.wrong else []), f"{lazy}: slots of {failed} rows were refused")
    for rows in (1, 2, 3):
        require(runtime(ids=torch.zeros(rows)).tolist() == [1.0] * rows, f"{lazy}: a step of {rows} rows is wrong")
