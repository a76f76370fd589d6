"""The function that takes the sources of a steady call: written out for buffers found and placed as the call before.

A loop over sources, with a look-up of what each needs, takes as long as the copies that it makes. So the text of the
function is put together, source by source, as attrs and dataclasses do: what is the same for all calls is not asked
again. Calls of as many buffers, passed and placed alike, share the code; only the numbers are each pattern's own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal

import attrs

Place = Literal["dense", "ragged", "device", "strided"]
Taking = Callable[[Any], bool]
"""Takes the sources of a call, a mapping by name; whether they were alike."""


@attrs.frozen
class Found:
    """Where the source of one lane is found among those of a call: the buffer has so many `groups` (0: none).

    `place`: on the host, dense; or dense with any number of columns; or on the device; or on the host, with strides.
    """

    name: str
    group: Any
    groups: int
    place: Place


TEXT = """\
def make(pattern, tray_of, rooms_of, words, parts):
    {parts} = parts
    def take(sources):
        tray = tray_of()
        if len(sources) != {names}:
            return False
        try:
{finds}
        except KeyError:
            return False
        if not (pattern.alike({sources}) or pattern.alike_in_this_mode({sources})):
            return False
{moves}
        return True
    return take
"""
"""`parts`: for each source what its place needs, see `MOVES`; `rooms_of`: by tray, the memory for each source in it."""

ASKED = """\
if not pattern.asked({sources}):
    return False
"""

MOVES: dict[Place, str] = {
    "dense": """\
        r{at}.raw = p{at}(s{at}.data_ptr())
        """,
    "ragged": """\
        if s{at}.nbytes != p{at}.bytes and not p{at}.tell(s{at}):
            return False
        if s{at}.is_contiguous():
            r{at}.raw = p{at}.bytes_at(s{at}.data_ptr())
        else:
            p{at}.copy(s{at}, tray)
        """,
    "device": """\
        words[p{at}] = s{at}.data_ptr()
        """,
    "strided": """\
        p{at}.copy(s{at}, tray)
        """,
}
"""How source `s` goes to its room `r` in the tray, or its address to the launch. `p`: by place, what gives the bytes
at an address; a table of any width; the number of a word; what has strides."""


@cache
def maker(found: tuple[Found, ...], *, asks: bool) -> Callable[..., Taking]:
    """What makes the function for sources `found` so. `asks`: whether more must be asked than guards compare."""
    names: dict[str, Any] = {}
    exec(compile(text_of(found, asks=asks), "<a steady call's sources>", "exec"), names)  # noqa: S102
    made: Callable[..., Taking] = names["make"]
    return made


def text_of(found: Sequence[Found], *, asks: bool) -> str:
    """The text of the function that makes it."""
    sources = _listed("s", range(len(found)))
    moves = [ASKED.format(sources=sources)] * asks + [*_moves(found)]
    return TEXT.format(
        parts=f"[{_listed('p', range(len(found)))}]",
        names=len({each.name for each in found}),
        finds=_indented(_finds(found), 12),
        sources=sources,
        moves=_indented(moves, 8),
    )


def _finds(found: Sequence[Found]) -> Iterator[str]:
    """The lines that find each source; groups of a buffer all, and no others, in one dict."""
    yield "pass"
    for name in dict.fromkeys(each.name for each in found):
        here = [(at, each) for at, each in enumerate(found) if each.name == name]
        at, first = here[0]
        if not first.groups:
            yield f"s{at} = sources[{name!r}]"
            continue
        yield f"groups = sources[{name!r}]"
        yield f"if groups.__class__ is not dict or len(groups) != {first.groups}:\n    return False"
        yield from (f"s{at} = groups[{each.group!r}]" for at, each in here)


def _moves(found: Sequence[Found]) -> Iterator[str]:
    packed = [at for at, each in enumerate(found) if each.place in ("dense", "ragged")]
    if packed:
        yield f"[{_listed('r', packed)}] = rooms_of[tray]"
    yield from (textwrap.dedent(MOVES[each.place].format(at=at)) for at, each in enumerate(found))


def _listed(letter: str, numbers: Sequence[int]) -> str:
    return ", ".join(f"{letter}{number}" for number in numbers)


def _indented(lines: Iterator[str] | Sequence[str], by: int) -> str:
    return textwrap.indent("\n".join(line.rstrip() for line in lines), " " * by)
