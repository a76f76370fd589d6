"""CUDA-graph semantics on plain CPU tensors."""

from __future__ import annotations

from tsgraph.backends.emulated.backend import EmulatedBackend

__all__ = ["EmulatedBackend"]
