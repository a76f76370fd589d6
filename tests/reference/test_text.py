"""Bytes as tokens, and prompts from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.errors import CallerError
from tsgraph.reference import decode, encode, load_prompts
from tsgraph.reference.text import BOS, EOS, VOCABULARY


@given(st.text(st.characters(codec="utf-8")))
def test_text_survives_encoding(text: str):
    """Every text that UTF-8 can hold comes back unchanged, behind one BOS, in tokens of the vocabulary."""
    tokens = encode(text)
    assert BOS == tokens[0]
    assert all(0 <= token < VOCABULARY for token in tokens)
    assert text == decode(tokens)


@given(st.lists(st.integers(0, VOCABULARY - 1)))
def test_any_tokens_decode(tokens: list[int]):
    """Whatever a model emits decodes without an error, and specials leave no trace."""
    assert decode([token for token in tokens if token not in (BOS, EOS)]) == decode(tokens)


def test_shipped_prompts():
    """The shipped prompts are about two dozen, all different, and of lengths that differ much."""
    prompts = load_prompts()
    assert 24 == len(set(prompts)) == len(prompts)
    lengths = sorted(len(encode(prompt)) for prompt in prompts)
    assert lengths[0] * 10 < lengths[-1] < 160


def test_prompts_from_a_file(tmp_path: Path):
    """One prompt per line, stripped; blank lines, CRLF and a byte-order mark do no harm."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbffirst \r\n\r\n  \n second\n")
    assert ("first", "second") == load_prompts(path)


def test_missing_file_is_named(tmp_path: Path):
    """A file that is not there is an error of the caller that names it and the reason."""
    with pytest.raises(CallerError, match=r"nowhere\.txt cannot be read: No such file") as caught:
        load_prompts(tmp_path / "nowhere.txt")
    assert caught.value.hint


def test_directory_is_refused(tmp_path: Path):
    """A directory is no prompt file."""
    with pytest.raises(CallerError, match="cannot be read: Is a directory"):
        load_prompts(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n  \n\t\n"])
def test_file_without_prompts_is_refused(tmp_path: Path, content: bytes):
    """An empty or blank file is refused instead of giving nothing to do."""
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(CallerError, match="holds no prompt"):
        load_prompts(path)


def test_other_encoding_is_refused(tmp_path: Path):
    """A file in another encoding is refused with the first byte that is not UTF-8."""
    path = tmp_path / "latin.txt"
    path.write_bytes("ein Gruß".encode("latin-1"))
    with pytest.raises(CallerError, match="not UTF-8 text: byte 7 is 0xdf") as caught:
        load_prompts(path)
    assert 7 == caught.value.context["byte"]
