"""The built-in matcher: a regular expression as an automaton over tokens, given as the bytes that each stands for.

It knows from every state how many tokens the shortest way to the end takes. So a matcher with a budget never lets a
text begin what it cannot finish: every output is whole, however the model draws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import numpy as np

from tsgraph.errors import BadBatch, BadGrammar
from tsgraph.grammar.bitmask import pack
from tsgraph.grammar.regex import Nodes, parse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tsgraph.protocols.matching import Words

REFUSED = -1
MOST_STATES = 20_000
NEVER = np.iinfo(np.int32).max
_ENDED = -1


@attrs.frozen(eq=False)
class Automaton:
    """What may follow what. `moves` [states, tokens] int32: the state after a token, REFUSED where it may not come.

    `distance` [states] int32: the fewest tokens to the end of the text, the `stop` token included. State 0 starts.
    """

    moves: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    distance: NDArray[np.int32]
    stop: int

    @classmethod
    def of(cls, expression: str, tokens: Sequence[bytes | None], stop: int) -> Automaton:
        """The automaton of a regular expression. `tokens`: what each stands for; None or empty for none of a text.

        Raises: BadGrammar for an expression that cannot be read, that takes too many states, or that `tokens` cannot
        spell; BadBatch for a `stop` that is no token.
        """
        if stop not in range(len(tokens)):
            raise BadBatch(f"stop token {stop}: there are {len(tokens)} tokens")
        table, accepting = _by_byte(expression)
        moves = _by_token(table, tokens)
        distance = _distances(moves, accepting)
        if distance[0] == NEVER:
            raise BadGrammar(
                f"no text of these tokens matches {expression!r}", hint="give a token for each byte it needs"
            )
        alive = np.append(distance != NEVER, False)  # REFUSED, the last
        return cls(np.where(alive[moves], moves, REFUSED).astype(np.int32), accepting, distance, stop)

    @cached_property
    def masks(self) -> Words:
        """The bitmask row of each state, [states, words] int32."""
        allowed = self.moves != REFUSED
        allowed[:, self.stop] |= self.accepting
        return pack(allowed)

    @cached_property
    def _distance_or_never(self) -> NDArray[np.int32]:
        """The distances, and NEVER for REFUSED, which indexes the last one."""
        return np.append(self.distance, np.int32(NEVER))

    @cached_property
    def farthest(self) -> int:
        """The longest of all shortest ways to the end."""
        return int(self.distance[self.distance != NEVER].max())

    def within(self, state: int, left: int) -> NDArray[np.bool_]:
        """Which tokens may come in `state` so that the text ends within `left` tokens, [tokens] bool."""
        allowed: NDArray[np.bool_] = self._distance_or_never[self.moves[state]] <= left - 1
        allowed[self.stop] |= self.accepting[state]
        return allowed


@attrs.define(eq=False)
class DfaMatcher:
    """One text over `automaton`, of at most `most` tokens, the stop token included (None: of any length).

    Implements `tsgraph.protocols.matching.Matcher`.

    Raises: BadGrammar where no text is that short.
    """

    automaton: Automaton
    most: int | None = None
    _path: list[int] = attrs.field(factory=lambda: [0], init=False)

    def __attrs_post_init__(self) -> None:
        least = int(self.automaton.distance[0])
        if self.most is not None and self.most < least:
            hint = f"give it at least {least}"
            raise BadGrammar(
                f"the shortest text takes {least} tokens, the budget is {self.most}", hint=hint, least=least
            )

    @property
    def terminated(self) -> bool:
        """Whether the stop token was accepted."""
        return self._path[-1] == _ENDED

    @property
    def accepted(self) -> int:
        """How many tokens it has accepted."""
        return len(self._path) - 1

    def fill(self, words: Words) -> None:
        """Write which tokens may come next. After the stop token none may."""
        state, left = self._path[-1], self._left()
        if state == _ENDED:
            words[:] = 0
        elif left is None or left > self.automaton.farthest:
            words[:] = self.automaton.masks[state]
        else:
            words[:] = pack(self.automaton.within(state, left))

    def accept(self, token: int) -> bool:
        """Take `token` in. False where the expression or the budget does not allow it."""
        if self.terminated or token not in range(self.automaton.moves.shape[1]):
            return False
        after = self._after(token)
        if after is not None:
            self._path.append(after)
        return after is not None

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises: BadBatch for more than were accepted."""
        if count not in range(self.accepted + 1):
            raise BadBatch(f"a rollback of {count} tokens, of {self.accepted} that were accepted")
        del self._path[len(self._path) - count :]

    def _left(self) -> int | None:
        return None if self.most is None else self.most - self.accepted

    def _after(self, token: int) -> int | None:
        state, left = self._path[-1], self._left()
        if token == self.automaton.stop:
            return _ENDED if self.automaton.accepting[state] else None
        after = int(self.automaton.moves[state, token])
        too_far = left is not None and int(self.automaton.distance[after]) > left - 1
        return None if after == REFUSED or too_far else after


# -- building ---------------------------------------------------------------------------------------------------------


def _by_byte(expression: str) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The moves of the deterministic automaton by byte, [states + 1, 256], the last row REFUSED; what accepts."""
    nodes = Nodes()
    start, end = nodes.add(), nodes.add()
    parse(expression).grow(nodes, start, end)
    first = nodes.closure([start])
    states, rows, left = {first: 0}, [], deque([first])
    while left:
        row = np.full(256, REFUSED, dtype=np.int32)
        for low, high, after in _steps(nodes, left.popleft()):
            if after not in states:
                _refuse_too_many(states, expression)
                states[after] = len(states)
                left.append(after)
            row[low : high + 1] = states[after]
        rows.append(row)
    table = np.stack([*rows, np.full(256, REFUSED, dtype=np.int32)])
    return table, np.array([end in state for state in states], dtype=np.bool_)


def _refuse_too_many(states: dict[frozenset[int], int], expression: str) -> None:
    if len(states) >= MOST_STATES:
        hint = "bound it more tightly, or use the xgrammar adapter"
        raise BadGrammar(f"{expression[:60]!r} takes more than {MOST_STATES} states", hint=hint)


def _steps(nodes: Nodes, state: frozenset[int]) -> Iterator[tuple[int, int, frozenset[int]]]:
    """The spans of bytes that lead on from a state, each with the state after it."""
    moves = [move for node in state for move in nodes.by_byte[node]]
    cuts = sorted({low for (low, _), _ in moves} | {high + 1 for (_, high), _ in moves})
    for low, beyond in pairwise(cuts):
        after = frozenset(node for (first, last), node in moves if first <= low <= last)
        if after:
            yield low, beyond - 1, nodes.closure(after)


def _by_token(table: NDArray[np.int32], tokens: Sequence[bytes | None]) -> NDArray[np.int32]:
    """The moves by token, [states, tokens]. A state REFUSED indexes the last row, and so stays REFUSED."""
    moves = np.full((len(table) - 1, len(tokens)), REFUSED, dtype=np.int32)
    for token, text in enumerate(tokens):
        if text:
            after = np.arange(len(table) - 1, dtype=np.int32)
            for byte in text:
                after = table[after, byte]
            moves[:, token] = after
    return moves


def _distances(moves: NDArray[np.int32], accepting: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The fewest tokens from each state to the end, the stop token included; NEVER where there is no way."""
    before: list[list[int]] = [[] for _ in accepting]
    for state, row in enumerate(moves):
        for after in np.unique(row[row != REFUSED]):
            before[after].append(state)
    distance = np.full(len(accepting), NEVER, dtype=np.int32)
    distance[accepting] = 1
    left = deque(np.flatnonzero(accepting).tolist())
    while left:
        state = left.popleft()
        for earlier in before[state]:
            if distance[earlier] == NEVER:
                distance[earlier] = distance[state] + 1
                left.append(earlier)
    return distance
