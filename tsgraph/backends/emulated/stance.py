"""Whether torch compiles, which is one answer for all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stance:
    """The first who wants torch to stay eager tells it, and the last puts it back as it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._forced: Any = None

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Nothing compiles in the block: the kernels of a compiled callable would run unseen."""
        with self._lock:
            if self._users == 0:
                self._forced = torch.compiler.set_stance("force_eager")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._forced.__exit__(None, None, None)


STANCE = Stance()
