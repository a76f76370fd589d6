"""Constrained decoding: requests whose texts keep a grammar, in the same steps as free ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from tsgraph.errors import BadGrammar, CallerError, InternalError
from tsgraph.grammar.bitmask import apply_mask
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.eager import EagerGrammar
from tsgraph.grammar.schema import expression_of
from tsgraph.keys import Batch
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.matching import Matcher
from tsgraph.reference.text import BOS, EOS, VOCABULARY, decode

TOKENS: tuple[bytes | None, ...] = tuple(bytes([token]) if token < BOS else None for token in range(VOCABULARY))
"""What each token stands for: a byte; the specials for none."""

UNKNOWN_LEAST = 160
"""A budget for texts whose shortest way to the end nobody knows."""


@attrs.define(eq=False, kw_only=True)
class Constraints:
    """An engine's grammar executor, from when a runtime says where its memory lies; and what a step does with it.

    `rows`, `draws` and `vocabulary` are of the largest step. A step whose masks failed can draw only `stop`. `make` is
    the kind of executor: with `EagerGrammar` whoever serves prepares each step, and delivers what it drew.
    """

    rows: int
    draws: int
    vocabulary: int
    stop: int
    make: type[CapturableGrammar | EagerGrammar] = CapturableGrammar
    _executor: CapturableGrammar | EagerGrammar | None = None

    def install(self, backend: Backend) -> CapturableGrammar | EagerGrammar:
        """A new executor on `backend`."""
        self._executor = self.make(
            backend, rows=self.rows, vocabulary=self.vocabulary, draws=self.draws, closed=(self.stop,)
        )
        return self._executor

    @property
    def executor(self) -> CapturableGrammar | EagerGrammar:
        """The executor. Raises: InternalError before one is installed."""
        if self._executor is None:
            raise InternalError("a constrained engine has no executor", hint="make its runtime with graph_runtime")
        return self._executor

    def begin(self, batch: Batch, read: Tensor, draws: int) -> None:
        """At the start of a step: `read` [rows, n] are its tokens, the last `draws - 1` of each row drafts."""
        self.executor.fork(batch, read[:, 1 - draws :] if draws > 1 else None)

    def masked(self, batch: Batch, logits: Tensor) -> Tensor:
        """`logits` [rows * draws, vocabulary] where every row's grammar has its say."""
        return apply_mask(logits, self.executor.mask(batch))

    def end(self, tokens: Tensor, gained: Tensor, draws: int) -> None:
        """At the end of a step: what it drew, and how much of it each row gains."""
        self.executor.finish(tokens, gained if draws > 1 else None)


@attrs.frozen(kw_only=True)
class JsonGrammar:
    """A grammar of JSON texts. `matcher(most)` makes one for a text of at most `most` tokens, the last one EOS.

    `least`: tokens of its shortest text. `by`: which matcher it is, "built-in" or "xgrammar", which knows no `most`.
    """

    matcher: Callable[[int], Matcher]
    least: int
    by: str

    @classmethod
    def of(cls, schema: Any) -> JsonGrammar:
        """The grammar of a JSON schema: by the built-in matcher where it understands it, else by xgrammar.

        Raises: BadGrammar where neither does; CallerError where xgrammar would be needed and is not there.
        """
        try:
            automaton = Automaton.of(expression_of(schema), TOKENS, EOS)
        except BadGrammar as refusal:
            return cls._by_xgrammar(schema, refusal)
        least = int(automaton.distance[0])
        return cls(matcher=partial(DfaMatcher, automaton), least=least, by="built-in")

    @classmethod
    def _by_xgrammar(cls, schema: Any, refusal: BadGrammar) -> JsonGrammar:
        from tsgraph.adapters.xgrammar import XGrammars

        grammars = XGrammars(TOKENS, EOS)
        try:
            grammars.json_schema(schema)
        except CallerError as error:
            error.add_note(f"the built-in matcher refuses it, too: {refusal.what}")
            raise
        return cls(matcher=lambda most: grammars.json_schema(schema), least=UNKNOWN_LEAST, by="xgrammar")  # noqa: ARG005

    def fault(self, tokens: Sequence[int], ended: str) -> str:
        """What is wrong with a text that was to keep the grammar; empty where nothing is."""
        if ended != "eos":
            return f"it has no end within {len(tokens)} tokens: bound the strings and arrays of the schema"
        matcher = self.matcher(max(self.least, len(tokens)))
        if not all(matcher.accept(token) for token in tokens) or not matcher.terminated:
            return "it does not keep the grammar"
        try:
            json.loads(decode(tokens))
        except ValueError as error:
            return f"it is not JSON: {error}"
        return ""


def load_schema(path: str | Path) -> Any:
    """The JSON schema in a file. Raises: CallerError where it cannot be read, or is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        what, hint = f"{path} cannot be read: {error.strerror or error}", "give the path of a JSON schema"
    except ValueError as error:
        what, hint = f"{path} is not JSON: {error}", "give a JSON schema, in UTF-8"
    raise CallerError(what, hint=hint, path=str(path))
