"""Capture mode: on exactly while a runtime records (rule R20). Layers ask it to choose their capturable path."""

from __future__ import annotations

_capturing = False


def is_capturing() -> bool:
    """Whether a tsgraph runtime of this process is recording right now."""
    return _capturing


def set_capturing(on: bool) -> None:
    """Switch capture mode. Only the pipeline's steps call it."""
    global _capturing
    _capturing = on
