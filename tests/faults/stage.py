"""The planted-fault stage: each fault must be found by a property that holds the library to a rule it breaks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator

import attrs

from tests.faults.properties import PROPERTIES, Find, Property
from tsgraph.testing.faults import FAULTS, Fault, plant

PASTE = """\
from tests.faults.properties import *
from {module} import {check}

{check}({example})
"""


@attrs.frozen
class Line:
    """What came of one fault: the find, and the name of the property that made it; None where none did."""

    fault: str
    found_by: str | None
    find: Find | None
    seconds: float

    def __str__(self) -> str:
        if self.find is None:
            return f"{self.fault:<28} NOT FOUND {self.seconds:>25.2f} s"
        many = "example" if self.find.examples == 1 else "examples"
        return f"{self.fault:<28} {self.found_by:<28} {self.find.examples:>3} {many:<8} {self.seconds:>6.2f} s"


def search_faults(faults: Iterable[Fault] = FAULTS.values()) -> Iterator[Line]:
    """Plant each of `faults` and search until a property finds it."""
    for fault in faults:
        began = time.perf_counter()
        found_by, find = _search(fault)
        yield Line(fault.name, found_by, find, time.perf_counter() - began)


def _search(fault: Fault) -> tuple[str | None, Find | None]:
    for prop in concerned(fault):
        with plant(fault.name):
            found = prop.search()
        if isinstance(found, Find):
            return prop.name, found
    return None, None


def concerned(fault: Fault) -> list[Property]:  # type: ignore[type-arg]
    """The properties that should find `fault`, in the order in which they are tried."""
    return [prop for prop in PROPERTIES if prop.concerns(fault)]


def pasted(prop: Property, find: Find) -> str:  # type: ignore[type-arg]
    """A find as a program to paste."""
    example = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", repr(find.example))  # an enum's repr is no expression
    return PASTE.format(module=prop.check.__module__, check=prop.check.__qualname__, example=example)
