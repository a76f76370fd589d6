"""DeepEP's low-latency kernels in graphs: its mode and its workspace, as every replay needs to find them.

A graph that recorded low-latency dispatches replays their kernels, but not the Python around them. What that Python
did must be done before every replay: say that the low-latency mode is on, since eager steps may have used the normal
kernels in between, and clean the workspace, whose counters the kernels expect to be zero.

`deep_ep.Buffer` has no mode of its own and knows no process-wide buffer. Engines keep both in one class, which this
module calls a *home*: `DeepEPBuffer` of SGLang and TokenSpeed is one, and `PlainHome` makes one of a bare buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import attrs

from tsgraph.errors import ContractViolation, StaleSlot

MEMBERS = ("set_dispatch_mode_as_low_latency", "clean_buffer")


class Home(Protocol):
    """Where an engine keeps its one buffer, as `_buffer` (None until a layer has made it), and the mode of its use."""

    def set_dispatch_mode_as_low_latency(self) -> None:
        """Say that dispatches from now on are low-latency ones."""

    def clean_buffer(self) -> None:
        """Zero the part of the buffer that low-latency kernels expect to be zero, on the current stream."""


@attrs.define(eq=False)
class DeepEP:
    """A `Communication` collaborator for engines that dispatch with DeepEP.

    `home`: what keeps the buffer, or where it is, as `"module:Class"`. It is imported when a slot is first recorded;
    where its top package is not installed there is nothing to do. Cleaning may wait for the other ranks, as some
    versions of DeepEP do: every rank must replay, idle ones too (R26).
    """

    home: Home | str
    _armed: Any = attrs.field(default=None, init=False)

    @property
    def active(self) -> bool:
        """Whether a slot was recorded with a buffer."""
        return self._armed is not None

    def arm(self) -> None:
        """Before a recording: where there is a buffer, switch to the low-latency mode, and restore it from now on.

        Raises: ContractViolation where the home lacks a member.
        """
        home = self._found()
        if home is None or _buffer_of(home) is None:
            return
        self._armed = _buffer_of(home)
        home.set_dispatch_mode_as_low_latency()

    def restore(self) -> None:
        """Before a replay, if a slot was recorded with a buffer: set the mode again, and clean the buffer.

        Raises: StaleSlot where the buffer that was recorded is gone: a replay would write to its memory.
        """
        if self._armed is None:
            return
        home = self._found()
        if home is None or _buffer_of(home) is not self._armed:
            raise StaleSlot(
                "the DeepEP buffer that the slots have recorded is gone, or there is another one",
                hint="invalidate all slots and capture them again, on every rank",
            )
        home.set_dispatch_mode_as_low_latency()
        home.clean_buffer()

    def _found(self) -> Home | None:
        if isinstance(self.home, str):
            imported = _import_home(self.home)
            if imported is None:
                return None
            self.home = imported
        for member in MEMBERS:
            if not callable(getattr(self.home, member, None)):
                raise ContractViolation("DeepEP home", member, "a method", f"none on {self.home!r}")
        return self.home


@attrs.define(eq=False)
class PlainHome:
    """A home for engines that use `deep_ep.Buffer` without a class of their own.

    `find` gives the buffer, or None while there is none. Its layout is one for all slots, since they share the memory
    and each layout puts the counters elsewhere (fault E8): `tokens`, the most that one rank dispatches at once
    (`num_max_dispatch_tokens_per_rank`), `hidden`, the size of a token, and `experts`, their number over all ranks.
    `set_mode` tells the engine's layers that the low-latency mode is on, if they need to be told.
    """

    find: Callable[[], Any]
    tokens: int
    hidden: int
    experts: int
    set_mode: Callable[[], None] = attrs.field(default=lambda: None)

    @property
    def _buffer(self) -> Any:
        return self.find()

    def set_dispatch_mode_as_low_latency(self) -> None:
        """Tell the layers.

        Raises: ContractViolation where the buffer was made without the low-latency mode: it has no memory for it.
        """
        if not self.find().low_latency_mode:
            expected, hint = "a buffer in low-latency mode", "make it with low_latency_mode=True"
            raise ContractViolation("deep_ep.Buffer", "low_latency_mode", expected, "a normal one", hint=hint)
        self.set_mode()

    def clean_buffer(self) -> None:
        """Zero the counters of the layout."""
        self.find().clean_low_latency_buffer(self.tokens, self.hidden, self.experts)


def _buffer_of(home: Home) -> Any:
    return getattr(home, "_buffer", None)


def _import_home(path: str) -> Home | None:
    """The class at `module:Class`; None where its top package is not installed. What importing it raises goes on."""
    module, _, name = path.partition(":")
    if find_spec(module.partition(".")[0]) is None:
        return None
    home = getattr(import_module(module), name, None)
    if home is None:
        raise ContractViolation("DeepEP home", path, "a class there", f"no {name or 'name'} in {module}")
    found: Home = home
    return found
