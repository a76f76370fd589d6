"""The function that takes the sources of a steady call: what it finds, what it refuses, and whose code is shared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tsgraph.backends.ring import bytes_at
from tsgraph.buffers.steady import Found, maker, text_of

IDS, TRAY = Found("ids", None, 0, "dense"), 7
FULL, WINDOW = (Found("it's", group, 2, "device") for group in ('a "full" one', "window\n"))


def taking(*found, asks=False, alike=True, asked=True):
    """What takes sources found so, the memory for the first, and the words for the others."""
    target, words = torch.zeros(3, dtype=torch.int64), [0] * len(found)
    pattern = SimpleNamespace(
        alike=lambda *_: alike, alike_in_this_mode=lambda *_: False, asked=lambda *_: asked
    )  # fmt: skip
    rooms = [bytes_at(24)(target.data_ptr())]
    parts = [bytes_at(24) if each.place == "dense" else at for at, each in enumerate(found)]
    return maker(found, asks=asks)(pattern, lambda: TRAY, {TRAY: rooms}, words, parts), target, words


def sources(**others):
    """Sources of all three."""
    groups = {FULL.group: torch.ones(1), WINDOW.group: torch.ones(1)}
    return {"ids": torch.arange(3), "it's": groups, **others}


def test_takes_each_source_where_it_is():
    """Rows of the host are copied, those of the device are told; whatever buffers and groups are called."""
    take, target, words = taking(IDS, FULL, WINDOW)
    given = sources()
    assert take(given)
    addresses = [given["it's"][each.group].data_ptr() for each in (FULL, WINDOW)]
    assert ([0, 1, 2], addresses) == (target.tolist(), words[1:])


@pytest.mark.parametrize(
    "wrong",
    [
        {"more": None},
        {"it's": {FULL.group: torch.ones(1)}},
        {"it's": {FULL.group: torch.ones(1), "another": torch.ones(1)}},
        {"it's": {**sources()["it's"], "more": torch.ones(1)}},
        {"it's": torch.ones(2)},
        {"it's": None},
    ],
)
def test_what_is_not_found_alike_is_left(wrong):
    """A buffer or a group too many, one that is missing, and what is no dict of groups: nothing is copied."""
    take, target, _ = taking(IDS, FULL, WINDOW)
    assert not take(sources(**wrong))
    assert not take({"it's": sources()["it's"]})
    assert [0, 0, 0] == target.tolist()


@pytest.mark.parametrize("words", [{"alike": False}, {"asks": True, "asked": False}])
def test_what_looks_otherwise_is_left(words):
    """Whether guards say so, or what is asked where they do not see all."""
    take, target, _ = taking(IDS, **words)
    assert not take({"ids": torch.arange(3)})
    assert [0, 0, 0] == target.tolist()
    assert not taking(IDS, asks=True, asked=False)[0]({"ids": torch.arange(3)})


def test_nothing_to_take_is_a_pattern_too():
    """A step of which the engine has written everything in place."""
    take, _, _ = taking()
    assert (True, False) == (take({}), take(sources()))


def test_calls_found_and_placed_alike_share_the_code():
    """It is put together once, whatever the numbers of each pattern."""
    one, other = (taking(IDS, FULL, WINDOW)[0] for _ in range(2))
    assert one.__code__ is other.__code__
    assert one.__code__ is not taking(IDS)[0].__code__


def test_the_text_has_no_more_than_the_buffers_need():
    """No loop, and nothing of places that no source has."""
    text = text_of([IDS], asks=False)
    assert "r0.raw = p0(s0.data_ptr())" in text
    assert not any(word in text for word in ("for ", "asked", "words[", "copy("))
