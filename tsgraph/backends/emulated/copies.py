"""How a recording says no to a copy between the device and the host, and who refuses it on a GPU: torch, or CUDA."""

from __future__ import annotations

from tsgraph.backends.emulated.refusal import PINNED, UNSUPPORTED, refuse
from tsgraph.backends.emulated.streams import current_stream
from tsgraph.errors import CaptureUnsupported


def refuse_pageable(operation: object, why: str, hint: str = PINNED) -> CaptureUnsupported:
    """The error to raise where the host's memory is not pinned.

    On a stream that is recorded torch itself refuses, before CUDA sees the copy, and the recording stays valid. Torch
    asks for the current stream alone: beside the recording, CUDA refuses.
    """
    if current_stream().capture is None:
        return refuse(operation, why, hint, cuda=UNSUPPORTED)
    return refuse(operation, why, hint)


def refuse_blocking(operation: object, why: str) -> CaptureUnsupported:
    """The error to raise where the host waits for a copy from or into pinned memory: CUDA refuses the wait."""
    return refuse(operation, why, PINNED, cuda=UNSUPPORTED)
