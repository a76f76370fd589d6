"""How a recording says no: the operation, the user's own line, why, and what to do instead."""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path
from types import FrameType

import torch

from tsgraph.errors import CaptureUnsupported

ON_DEVICE = "keep the value on the device (torch.where, masked_fill, fixed sizes), or read it outside the recording"
PINNED = "copy from (or into) a pinned host tensor with non_blocking=True, or copy outside the recording"
ADOPT = "make it on the device (device=...), or adopt or allocate it before the recording"
FILL = "make the tensor before the recording; a constant one with torch.full or torch.arange and device=..."

# Where an operation passes through on its way here; "<" is made-up code, such as that of attrs.
_PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_NOT_THE_USERS = (*_PACKAGES, contextlib.__file__, copy.__file__, "<")


def refuse(operation: object, why: str, hint: str) -> CaptureUnsupported:
    """The error to raise. `operation` prints as the operator or function; its line is found on the stack."""
    line = user_line()
    return CaptureUnsupported(f"{operation} at {line}: {why}", hint=hint, operation=str(operation), line=line)


def user_line() -> str:
    """`file:line` of the innermost frame outside torch and the backends: the line of the step at work."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - public in all but name; traceback would read sources
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
