"""Matchers by xgrammar (extra `grammar`): any JSON schema, regular expressions, EBNF.

xgrammar is imported when the first grammar is compiled. One thread at a time uses a matcher, as the executors have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from tsgraph.errors import BadGrammar, CallerError
from tsgraph.grammar.dfa import Automaton, DfaMatcher

if TYPE_CHECKING:
    from tsgraph.protocols.matching import Words


@attrs.define(eq=False, slots=False)
class XGrammars:
    """Compiles grammars over `tokens`, the bytes of each (None or empty: none of a text), with one `stop` token.

    Each method gives a fresh matcher; a grammar is compiled once, however many ask for it.

    Raises: CallerError without xgrammar; BadGrammar for a grammar that it refuses.
    """

    tokens: Sequence[bytes | None]
    stop: int
    threads: int = 1

    def json_schema(self, schema: Any) -> XGrammarMatcher:
        """A matcher of compact JSON that validates against `schema`, properties in its order and no others."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        words = {"any_whitespace": False, "separators": (",", ":")}
        return self._matcher(lambda compiler: compiler.compile_json_schema(text, **words), self._writable)

    def regex(self, expression: str) -> XGrammarMatcher:
        """A matcher of the whole texts that a regular expression matches."""
        return self._matcher(lambda compiler: compiler.compile_regex(expression), self._textual)

    def ebnf(self, grammar: str) -> XGrammarMatcher:
        """A matcher of a grammar in EBNF, as xgrammar reads it, from its rule `root` on."""
        return self._matcher(lambda compiler: compiler.compile_grammar(grammar), self._textual)

    @cached_property
    def _compiler(self) -> Any:
        xgrammar = _xgrammar()
        texts = [text or b"" for text in self.tokens]
        info = xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, stop_token_ids=[self.stop])
        return xgrammar.GrammarCompiler(info, max_threads=self.threads)

    @cached_property
    def _textual(self) -> Automaton:
        """What is UTF-8: over byte tokens xgrammar lets surrogates pass, and codes that do not exist."""
        return Automaton.of("(?:.|\\n)*", self.tokens, self.stop)

    @cached_property
    def _writable(self) -> Automaton:
        """What has no control characters besides, as compact JSON: xgrammar lets bounded strings have them."""
        return Automaton.of(r"[^\x00-\x1f]*", self.tokens, self.stop)

    def _matcher(self, compiled: Callable[[Any], Any], guard: Automaton) -> XGrammarMatcher:
        compiler = self._compiler
        try:
            return XGrammarMatcher(_xgrammar().GrammarMatcher(compiled(compiler)), DfaMatcher(guard))
        except (RuntimeError, ValueError) as error:
            raise BadGrammar(f"xgrammar refuses it: {error}", hint="see its documentation of what it reads") from error


@attrs.define(eq=False)
class XGrammarMatcher:
    """One text under a compiled grammar, and under a `guard`. Implements `tsgraph.protocols.matching.Matcher`."""

    inner: Any
    guard: DfaMatcher

    @property
    def terminated(self) -> bool:
        """Whether the stop token was accepted."""
        return self.guard.terminated

    def fill(self, words: Words) -> None:
        """Write which tokens may come next: those that both allow."""
        guarded = np.empty_like(words)
        self.guard.fill(guarded)
        self.inner.fill_next_token_bitmask(words[None])
        words &= guarded

    def accept(self, token: int) -> bool:
        """Take `token` in. False where either does not allow it, or the stop token was accepted."""
        if not self.guard.accept(token):
            return False
        accepted = bool(self.inner.accept_token(token))
        if not accepted:
            self.guard.rollback(1)
        return accepted

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens, the stop token included. Raises: BadBatch for more than were accepted."""
        self.guard.rollback(count)
        self.inner.rollback(count)


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        what = f"xgrammar cannot be imported: {error}"
        raise CallerError(what, hint="pip install 'tsgraph[grammar]', or use the built-in matcher") from error
    return xgrammar
