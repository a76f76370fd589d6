"""How a recording says no: the operation, the user's own line, why, and what to do instead."""

from __future__ import annotations

from typing import Any

from tsgraph.backends.blame import user_line
from tsgraph.errors import CaptureUnsupported

ON_DEVICE = "keep the value on the device (torch.where, masked_fill, fixed sizes), or read it outside the recording"
PINNED = "copy from (or into) a pinned host tensor with non_blocking=True, or copy outside the recording"
ADOPT = "make it on the device (device=...), or adopt or allocate it before the recording"
FILL = "make the tensor before the recording; a constant one with torch.full or torch.arange and device=..."

UNSUPPORTED = "cudaErrorStreamCaptureUnsupported"


def refuse(operation: object, why: str, hint: str, **context: Any) -> CaptureUnsupported:
    """The error to raise. `operation` prints as the operator or function; its line is found on the stack.

    `cuda` in the context names CUDA's own error, where it is CUDA that refuses and not torch: then the recording is
    invalid from here on.
    """
    line = user_line()
    if hint == ON_DEVICE:  # the host would wait for the device
        context.setdefault("cuda", UNSUPPORTED)
    context |= {"operation": str(operation), "line": line}
    return CaptureUnsupported(f"{operation} at {line}: {why}", hint=hint, **context)
