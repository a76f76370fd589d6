"""Programs as data: what they are, how they are stored, and the Python that they stand for.

A statement is a line of Python, or a header and the statements under it. What a program may call besides torch is told
in `interpreter`: `see`, `fact`, `attempt`, `elsewhere`. Nothing is chosen at run time: the same program does the same
wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

Statement = str | list[Any]  # a line, or [header, [statement, ...]]

PRELUDE = '''\
from contextlib import contextmanager
import threading
import torch
from torch.nn import functional as F

class Planted(Exception):
    """What a program raises on purpose."""

@contextmanager
def attempt(label):
    try:
        yield lambda stage: None
    except Exception as error:
        print(label, "->", type(error).__name__, str(error).splitlines()[0])

def see(name, tolerance="exact"):
    torch.cuda.synchronize()
    print(name, "=", globals()[name].tolist() if name in globals() else "unbound")

def fact(label, tell):
    print(label, "=", tell())

def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
'''


@attrs.frozen
class Program:
    """A program, what it is about, and the seed that it was made from."""

    kind: str
    seed: int
    body: list[Statement]

    def source(self) -> str:
        """The program in Python, line by line; observations name these lines."""
        return "\n".join(_lines(self.body, "")) + "\n"

    def standalone(self) -> str:
        """The program to paste into a file of its own and run."""
        return f"# {self.kind}, seed {self.seed}\n{PRELUDE}\n{self.source()}"

    def to_json(self) -> dict[str, Any]:
        """The program as data."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        """The program that `to_json` gave `data` for."""
        return cls(**data)


def _lines(body: Sequence[Statement], indent: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, str):
            yield indent + statement
        else:
            header, inner = statement
            yield indent + header
            yield from _lines(inner or ["pass"], indent + "    ")
