"""What must stand between calls: recorded memory is where it was, outputs are as they were, one call is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.faults.rig import require
from tsgraph.backends.choice import choose_backend
from tsgraph.buffers.contract import Rows
from tsgraph.errors import CaptureUnsupported, LeaseExpired, TsgraphError, WrongThread
from tsgraph.keys import Batch
from tsgraph.protocols.null import NullAttention, NullSampler
from tsgraph.runtime import GraphRuntime

WEIGHTS, SWEEP = 4, 2
IDS = torch.tensor([1.0, 2.0, 3.0])


class Metadata(NullAttention):
    """A number, refreshed in place, or `anew`."""

    def __init__(self, number: Tensor) -> None:
        self.number, self.anew = number, False

    def refresh(self, batch: Batch, live: int) -> None:
        if self.anew:
            self.number = self.number.clone()


class Sampler(NullSampler):
    """A number of its own."""

    def __init__(self, number: Tensor) -> None:
        self.number = number


class Engine:
    """A step that sums what its model and its parts hold."""

    def __init__(self, **policy: Any) -> None:
        self.backend = choose_backend("emulated", [], "cpu")
        self.model = nn.ParameterList(self.parameter(at) for at in range(WEIGHTS))
        self.attention, self.sampler = Metadata(self.number(1)), Sampler(self.number(2))
        self.enters: Callable[[], Any] = lambda: None
        self.runtime = GraphRuntime.for_step(
            self.step,
            inputs={"ids": Rows(torch.float32, pad=0)},
            sizes=(4,),
            outputs="request",
            modules=[self.model],
            attention=self.attention,
            sampler=self.sampler,
            backend=self.backend,
            observers=(),
            policy={"sweep": SWEEP, "freeze_gc": False, **policy},
        )

    def number(self, value: float) -> Tensor:
        """One on the device."""
        tensor = torch.tensor([float(value)])
        self.backend.adopt([tensor])
        return tensor

    def parameter(self, value: float) -> nn.Parameter:
        """The same, as a weight."""
        return nn.Parameter(self.number(value), requires_grad=False)

    def step(self, ids: Tensor) -> Tensor:
        """Ids plus all numbers."""
        self.enters()
        return ids + sum(self.model) + self.attention.number + self.sampler.number

    def serves_right(self) -> bool:
        """Whether a step of now gives what the step itself does."""
        served = self.runtime(ids=IDS, clone=True)
        return torch.equal(served, self.step(IDS))


# -- recorded memory ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Move:
    """Something that is replaced after `replays`: a weight, by its number, or what a part holds."""

    what: int | Literal["sampler", "attention", "refresh"]
    replays: int = 1


def moves() -> st.SearchStrategy[Move]:
    """Any of them, at any turn of the sweep."""
    what = st.one_of(st.integers(0, WEIGHTS - 1), st.sampled_from(["sampler", "attention", "refresh"]))
    return st.builds(Move, what, st.integers(1, 3))


def check_move(move: Move) -> None:
    """It is found in its bound: at once for a part's memory, else in WEIGHTS / SWEEP replays. Then steps are right."""
    engine = Engine()
    engine.runtime.capture()
    for _ in range(move.replays):
        require(engine.serves_right(), "a step is wrong although nothing has moved")
    if isinstance(move.what, int):
        engine.model[move.what].data = engine.number(40)
        for _ in range(WEIGHTS // SWEEP - 1):
            engine.runtime(ids=IDS)
    elif move.what == "refresh":
        engine.attention.anew = True
    else:
        part = getattr(engine, move.what)
        part.number = engine.number(40)
    require(engine.serves_right(), f"{move} was not found in time")
    require(engine.runtime.slots["default", 4].state == "stale", f"{move} was not told")


# -- outputs that are kept ---------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Tensor], Any]] = {
    "whole": lambda out: out.sum(),
    "view": lambda out: out[:1].detach().tolist(),
    "printed": repr,
}


def check_kept(use: str) -> None:
    """An output serves until the next replay, and no longer; what was taken of it before that, as a view, no longer."""
    engine = Engine(outputs="leased")
    engine.runtime.capture()
    out = engine.runtime(ids=IDS)
    USES[use](out)
    kept = out[:2] if use == "view" else out
    engine.runtime(ids=IDS + 1)
    _requires(LeaseExpired, lambda: USES[use](kept))


# -- one call at a time ------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Engine], Any]] = {
    "eager": lambda engine: engine.runtime.eager(ids=IDS),
    "wake": lambda engine: engine.runtime.wake(),
    "invalidate": lambda engine: engine.runtime.invalidate("a check"),
}


def check_alone(name: str) -> None:
    """A call from inside of a step is refused, and so is a replay inside of a recording; the next call is served."""
    engine = Engine()
    engine.runtime.capture()
    engine.enters = lambda: CALLS[name](engine)
    _requires(WrongThread, lambda: engine.runtime.eager(ids=IDS))
    engine.enters = lambda: None
    require(engine.runtime.eager(ids=IDS).tolist() == engine.step(IDS).tolist(), "the next call is wrong")
    with engine.backend.record(engine.backend.pool()):
        refusal = _requires(CaptureUnsupported, lambda: engine.runtime(ids=IDS))
    require(refusal.context.get("asked") == "a step", "the replay was refused by the device, when it had begun")
    require(engine.serves_right(), "a refused replay has left something")


def _requires(kind: type[TsgraphError], call: Callable[[], Any]) -> TsgraphError:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"this should have raised {kind.__name__}")
