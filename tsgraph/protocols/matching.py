"""What says which tokens may come next in one request: a grammar with its state. Matchers live in `tsgraph.grammar`.

A bitmask row is 32 tokens a word, the lowest bit first: token t is allowed where bit t % 32 of word t // 32 is set.
What bits beyond the vocabulary say does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int32]
else:
    Words = Any


@runtime_checkable
class Matcher(Protocol):
    """One request's grammar. One thread at a time uses it; a graph's host function is a thread of its own.

    The executor calls `fill` and `accept` only while it is not terminated, and `rollback` only for tokens that it
    accepted since. A request that is retracted and comes back brings the same matcher, as it is.
    """

    @property
    def terminated(self) -> bool:
        """Whether a stop token was accepted: nothing may follow, and nothing is asked any more."""

    def fill(self, words: Words) -> None:
        """Write which tokens may come next into `words` [words] int32. Changes no state."""

    def accept(self, token: int) -> bool:
        """Take `token` in. False, with the state unchanged, where the grammar does not allow it."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were accepted, a stop token included."""
