"""What a planted fault is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import attrs

Change = Callable[[Any], Any]
"""From what is there to what takes its place."""


@attrs.frozen
class Patch:
    """One attribute of the library, and what takes its place. `owner`: the class or module that the attribute is of."""

    owner: Any
    attribute: str
    change: Change

    def applied(self) -> AbstractContextManager[Any]:
        """The attribute changed for the block; afterwards it is the object that it was, on every exit."""
        there = vars(self.owner)[self.attribute]
        return mock.patch.object(self.owner, self.attribute, self.change(there))


@attrs.frozen
class Fault:
    """One small thing that the library does wrong while it is planted.

    `says`: what it does then. `breaks`: numbers of the rules that no longer hold (`R23` stands for R23a and R23b).
    `keeping`: around the block, for a fault that leaves something behind in the process.
    """

    name: str
    says: str
    breaks: tuple[str, ...]
    patches: tuple[Patch, ...]
    keeping: Callable[[], AbstractContextManager[None]] = nullcontext

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Do it wrong in the block, in the whole process. Runtimes that are built inside stay wrong."""
        with ExitStack() as exits:
            exits.enter_context(self.keeping())
            for patch in self.patches:
                exits.enter_context(patch.applied())
            yield


def replaced(by: Any) -> Change:
    """A change that puts `by` in the place of whatever is there."""
    return lambda _: by


def nothing(*_args: Any, **_words: Any) -> None:
    """Does nothing, whatever it is given."""
