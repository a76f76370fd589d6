"""Whose line did it: the innermost frame that is neither torch's nor the library's machinery nor generated code."""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from pathlib import Path

import torch

_HOME = Path(__file__).parents[1]
_MACHINERY = (
    str(Path(torch.__file__).parent),
    str(_HOME / "backends"),
    str(_HOME / "buffers"),
    str(_HOME / "testing" / "cuda"),
    contextlib.__file__,
    copy.__file__,
    "<",  # generated code, such as that of attrs
)


def user_line() -> str:
    """`file:line` of the step at work, from the stack as it is now."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def failing_line(error: BaseException) -> str:
    """`file:line` of the step that raised `error`, from its traceback."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
    return next((line for line in reversed(lines) if not line.startswith(_MACHINERY)), "an unknown line")
