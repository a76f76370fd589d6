r"""Regular expressions over text, read into automata over its UTF-8 bytes.

Literals, `.`, classes, `\d \w \s` and their opposites (of ASCII), groups, `|`, `* + ?` and `{m,n}`. The whole text
must match. No anchors, look-around, back-references or lazy quantifiers: masks do not depend on them, or cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NoReturn, Protocol

import attrs

from tsgraph.errors import BadGrammar

Span = tuple[int, int]
"""Code points, or bytes, from the first to the last, both included."""

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_WIDTHS = (0x7F, 0x7FF, 0xFFFF, LAST)
_DIGIT: tuple[Span, ...] = ((0x30, 0x39),)
_WORD: tuple[Span, ...] = (*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: tuple[Span, ...] = ((0x09, 0x0D), (0x20, 0x20))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_HEX = {"x": 2, "u": 4}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MOST_REPEATS = 1000


@attrs.define(eq=False)
class Nodes:
    """A nondeterministic automaton: from each node, bytes by span, and free moves."""

    by_byte: list[list[tuple[Span, int]]] = attrs.field(factory=list)
    free: list[list[int]] = attrs.field(factory=list)

    def add(self) -> int:
        """A new node."""
        self.by_byte.append([])
        self.free.append([])
        return len(self.free) - 1

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        """`nodes` and all that free moves reach."""
        seen, left = set(nodes), list(nodes)
        while left:
            fresh = [node for node in self.free[left.pop()] if node not in seen]
            seen.update(fresh)
            left.extend(fresh)
        return frozenset(seen)


class Pattern(Protocol):
    """A part of an expression: it grows an automaton from one node to another."""

    def grow(self, nodes: Nodes, start: int, end: int) -> None:
        """Let all that it matches lead from `start` to `end`."""

    def spans(self) -> Iterable[Span]:
        """The code points that it may match anywhere."""


@attrs.frozen
class Letters(Pattern):
    """One code point of some spans."""

    of: tuple[Span, ...]

    def spans(self) -> Iterable[Span]:
        """These."""
        return self.of

    def grow(self, nodes: Nodes, start: int, end: int) -> None:
        """One chain of bytes for each sequence of byte spans."""
        for sequence in (each for span in self.of for each in utf8_spans(*span)):
            here = start
            for span in sequence[:-1]:
                there = nodes.add()
                nodes.by_byte[here].append((span, there))
                here = there
            nodes.by_byte[here].append((sequence[-1], end))


@attrs.frozen
class Chain(Pattern):
    """Parts, one after the other."""

    parts: tuple[Pattern, ...]

    def spans(self) -> Iterable[Span]:
        """Those of its parts."""
        return (span for part in self.parts for span in part.spans())

    def grow(self, nodes: Nodes, start: int, end: int) -> None:
        """A node between any two."""
        here = start
        for part in self.parts:
            there = nodes.add()
            part.grow(nodes, here, there)
            here = there
        nodes.free[here].append(end)


@attrs.frozen
class Either(Pattern):
    """One of several ways."""

    ways: tuple[Pattern, ...]

    def spans(self) -> Iterable[Span]:
        """Those of its ways."""
        return (span for way in self.ways for span in way.spans())

    def grow(self, nodes: Nodes, start: int, end: int) -> None:
        """All from the same node to the same node."""
        for way in self.ways:
            first, last = nodes.add(), nodes.add()
            nodes.free[start].append(first)
            way.grow(nodes, first, last)
            nodes.free[last].append(end)


@attrs.frozen
class Repeat(Pattern):
    """A part, from `least` to `most` times (None: any number)."""

    part: Pattern
    least: int
    most: int | None

    def spans(self) -> Iterable[Span]:
        """Those of its part."""
        return self.part.spans()

    def grow(self, nodes: Nodes, start: int, end: int) -> None:
        """A copy for each time, and a loop if there is no end."""
        here = self._times(nodes, start, self.least, end=None)
        if self.most is None:
            loop = nodes.add()
            nodes.free[here].append(loop)
            self.part.grow(nodes, loop, loop)
            here = loop
        else:
            here = self._times(nodes, here, self.most - self.least, end=end)
        nodes.free[here].append(end)

    def _times(self, nodes: Nodes, here: int, times: int, end: int | None) -> int:
        for _ in range(times):
            if end is not None:
                nodes.free[here].append(end)
            there = nodes.add()
            self.part.grow(nodes, here, there)
            here = there
        return here


def utf8_spans(first: int, last: int) -> Iterator[tuple[Span, ...]]:
    """Sequences of byte spans that together are the UTF-8 of the code points from `first` to `last`, no surrogates."""
    bounds = [_SURROGATES[0] - 1, _SURROGATES[1], *_WIDTHS[:-1]]
    cuts = [first - 1, *sorted(bound for bound in bounds if first <= bound < last), last]
    for before, until in pairwise(cuts):
        if not _SURROGATES[0] <= until <= _SURROGATES[1]:
            yield from _same_width(before + 1, until)


def _same_width(first: int, last: int) -> Iterator[tuple[Span, ...]]:
    """The same within one width: split wherever trailing bytes would not run through their whole range."""
    for kept in (6, 12, 18):
        low = (1 << kept) - 1
        if first | low >= last:
            continue
        if first & low:
            yield from _same_width(first, first | low)
            yield from _same_width((first | low) + 1, last)
            return
        if last & low != low:
            yield from _same_width(first, (last & ~low) - 1)
            yield from _same_width(last & ~low, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def literal(text: str) -> str:
    """The expression that matches `text` alone."""
    return "".join(f"\\{char}" if char in r"\.[]{}()*+?|^$/-" else char for char in text)


def parse(expression: str) -> Pattern:
    """The pattern of an expression. Raises: BadGrammar with the place of what it cannot read."""
    reader = _Reader(expression)
    pattern = reader.either()
    if reader.rest:
        reader.refuse("a `)` that nothing opened")
    return pattern


@attrs.define
class _Reader:
    expression: str
    at: int = 0

    @property
    def rest(self) -> str:
        return self.expression[self.at :]

    def refuse(self, what: str) -> NoReturn:
        where = f"{self.expression[: self.at]}»{self.rest}"
        hint = "write it without; see tsgraph.grammar.regex for what is read"
        raise BadGrammar(f"regular expression, at {self.at}: {what}: {where}", hint=hint, at=self.at)

    def take(self) -> str:
        if not self.rest:
            self.refuse("it ends too early")
        self.at += 1
        return self.expression[self.at - 1]

    def skip(self, what: str) -> bool:
        found = self.rest.startswith(what)
        self.at += len(what) * found
        return found

    def either(self) -> Pattern:
        ways = [self.chain()]
        while self.skip("|"):
            ways.append(self.chain())
        return Either(tuple(ways)) if len(ways) > 1 else ways[0]

    def chain(self) -> Pattern:
        parts = []
        while self.rest and self.rest[0] not in "|)":
            parts.append(self.repeated(self.part()))
        return Chain(tuple(parts))

    def part(self) -> Pattern:
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return Letters(self.letters())
        if char == ".":
            return Letters(_others(((0x0A, 0x0A),)))
        if char == "\\":
            return Letters(self.escape())
        if char in "^$*+?{":
            self.at -= 1
            self.refuse(f"`{char}` is not read here")
        return Letters(((ord(char), ord(char)),))

    def group(self) -> Pattern:
        if not self.skip("?:") and self.rest.startswith("?"):
            self.refuse("groups with `?` other than `(?:` are not read")
        inner = self.either()
        if not self.skip(")"):
            self.refuse("a `(` is not closed")
        return inner

    def repeated(self, part: Pattern) -> Pattern:
        if not self.rest or self.rest[0] not in "*+?{":
            return part
        sign = self.take()
        least, most = self.bounds() if sign == "{" else _QUANTIFIERS[sign]
        if self.rest and self.rest[0] in "*+?{":
            self.refuse("a quantifier of a quantifier, or a lazy one")
        return Repeat(part, least, most)

    def bounds(self) -> tuple[int, int | None]:
        inner, closed, _ = self.rest.partition("}")
        least, comma, most = inner.partition(",")
        if not closed or not all(each.isascii() and each.isdigit() for each in (least, most or least)):
            self.refuse("bounds are `{m}`, `{m,}` or `{m,n}`")
        low, high = int(least), (int(most) if most else None) if comma else int(least)
        if max(low, high or 0) > _MOST_REPEATS or (high is not None and low > high):
            self.refuse(f"bounds are at most {_MOST_REPEATS}, the lower one first")
        self.at += len(inner) + 1
        return low, high

    def letters(self) -> tuple[Span, ...]:
        negated, spans = self.skip("^"), list(self.entry())
        while not self.skip("]"):
            spans.extend(self.entry())
        return _others(tuple(spans)) if negated else tuple(spans)

    def entry(self) -> tuple[Span, ...]:
        spans = self.letter()
        if not self.rest.startswith("-") or self.rest.startswith("-]"):
            return spans
        self.at += 1
        last = self.letter()
        if any(len(end) != 1 or end[0][0] != end[0][1] for end in (spans, last)) or spans[0][0] > last[0][0]:
            self.refuse("a range of letters goes from a letter to a later one")
        return ((spans[0][0], last[0][1]),)

    def letter(self) -> tuple[Span, ...]:
        char = self.take()
        return self.escape() if char == "\\" else ((ord(char), ord(char)),)

    def escape(self) -> tuple[Span, ...]:
        char = self.take()
        if char.lower() in _CLASSES:
            spans = _CLASSES[char.lower()]
            return spans if char.islower() else _others(spans)
        if char in _HEX:
            code = self.hexadecimal(_HEX[char])
            return ((code, code),)
        if char.isalnum() and char not in _CONTROLS:
            self.refuse(f"the escape `\\{char}` is not read")
        code = ord(_CONTROLS.get(char, char))
        return ((code, code),)

    def hexadecimal(self, digits: int) -> int:
        given = "".join(self.take() for _ in range(digits))
        if any(char not in "0123456789abcdefABCDEF" for char in given):
            self.refuse(f"`{given}` is not {digits} hexadecimal digits")
        return int(given, 16)


def _others(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """All code points but those of `spans`."""
    found, after = [], 0
    for first, last in sorted(spans):
        if first > after:
            found.append((after, first - 1))
        after = max(after, last + 1)
    return (*found, (after, LAST)) if after <= LAST else tuple(found)
