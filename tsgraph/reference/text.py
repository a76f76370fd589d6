"""Text as tokens: one token a byte, and two specials. No vocabulary file, every text is representable."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from tsgraph.errors import CallerError

BOS = 256
EOS = 257
VOCABULARY = 258


def encode(text: str) -> tuple[int, ...]:
    """The tokens of `text`: BOS, then its UTF-8 bytes."""
    return (BOS, *text.encode("utf-8"))


def decode(tokens: Iterable[int]) -> str:
    """The text of `tokens` without specials. Bytes that are not UTF-8 become U+FFFD: a model may emit any."""
    return bytes(token for token in tokens if token < BOS).decode("utf-8", errors="replace")


def load_prompts(path: str | Path | None = None) -> tuple[str, ...]:
    """The non-blank lines of a UTF-8 file, stripped; without `path`, the prompts that ship with tsgraph.

    Raises: CallerError if the file cannot be read, is not UTF-8, or holds no prompt.
    """
    name = str(path) if path is not None else "the shipped prompts"
    text = _as_utf8(_read(path, name), name)
    prompts = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not prompts:
        raise CallerError(f"{name} holds no prompt", hint="write one prompt per line", path=name)
    return prompts


def _read(path: str | Path | None, name: str) -> bytes:
    source = Path(path) if path is not None else files("tsgraph.reference") / "prompts.txt"
    try:
        return source.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise CallerError(f"{name} cannot be read: {reason}", hint="give the path of a text file", path=name) from error


def _as_utf8(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"{name} is not UTF-8 text: byte {error.start} is {raw[error.start]:#04x}"
        raise CallerError(what, hint="save the file as UTF-8", path=name, byte=error.start) from error
