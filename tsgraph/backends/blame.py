"""Whose line did it: the innermost frame that is neither torch's nor the library's machinery nor generated code."""

from __future__ import annotations

import contextlib
import copy
import sys
import traceback
import types
from pathlib import Path

import torch

UNKNOWN = "an unknown line"

_HOME = Path(__file__).parents[1]
_MACHINERY = (
    str(Path(torch.__file__).parent),
    str(_HOME / "backends"),
    str(_HOME / "buffers"),
    str(_HOME / "receipts"),
    str(_HOME / "testing" / "cuda"),
    contextlib.__file__,
    copy.__file__,
    "<attrs generated",
    "<frozen ",
    "<eval_with_key>",  # torch.fx
)

Lines = dict[int, str]
"""Instruction of a code → `file:line`, of those that were asked for."""

_MOST_CODES = 4096
_known: dict[int, tuple[types.CodeType, Lines | None]] = {}
"""A recording asks of the same few codes for every operator. By identity, for to hash a code is to hash all that is in
it, and a line is counted from the code's beginning. An entry keeps its code, so that no other has its identity."""


def user_line() -> str:
    """`file:line` of the step at work, from the stack as it is now. Where that was asked before it costs little."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect.currentframe` calls
    while frame is not None:
        code = frame.f_code
        _, lines = _known.get(id(code)) or _learn(code)
        if lines is not None:
            return lines.get(frame.f_lasti) or _read(frame, lines)
        frame = frame.f_back
    return UNKNOWN


def failing_line(error: BaseException) -> str:
    """`file:line` of the step that raised `error`, from its traceback."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [f"{code.co_filename}:{line}" for code, line in frames if _is_users(code)]
    return lines[-1] if lines else UNKNOWN


def _learn(code: types.CodeType) -> tuple[types.CodeType, Lines | None]:
    if len(_known) >= _MOST_CODES:
        _known.clear()
    lines: Lines | None = {} if _is_users(code) else None
    _known[id(code)] = (code, lines)
    return code, lines


def _read(frame: types.FrameType, lines: Lines) -> str:
    lines[frame.f_lasti] = line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return line


def _is_users(code: types.CodeType) -> bool:
    """What was given to `exec`, `python -c` or a prompt is. Methods in a string are generated, as by dataclasses."""
    generated = code.co_filename == "<string>" and code.co_name.startswith("__")
    return not generated and not code.co_filename.startswith(_MACHINERY)
