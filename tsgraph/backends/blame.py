"""Whose line did it: the innermost frame that is neither torch's nor the library's machinery nor generated code."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import traceback
import types
from pathlib import Path

import torch

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


def user_line() -> str:
    """`file:line` of the step at work, from the stack as it is now."""
    frame = inspect.currentframe()
    while frame is not None and not _is_users(frame.f_code):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def failing_line(error: BaseException) -> str:
    """`file:line` of the step that raised `error`, from its traceback."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [f"{code.co_filename}:{line}" for code, line in frames if _is_users(code)]
    return lines[-1] if lines else "an unknown line"


@functools.lru_cache(maxsize=4096)  # a recording asks of the same few frames for every operator
def _is_users(code: types.CodeType) -> bool:
    """What was given to `exec`, `python -c` or a prompt is. Methods in a string are generated, as by dataclasses."""
    generated = code.co_filename == "<string>" and code.co_name.startswith("__")
    return not generated and not code.co_filename.startswith(_MACHINERY)
