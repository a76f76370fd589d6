"""The planted-fault stage: each fault must be found by a property that holds the library to a rule it breaks."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import torch

from tests import economy
from tests.faults.properties import PROPERTIES, Find, Property
from tests.faults.rig import Rig
from tests.faults.shape import Shape
from tsgraph.testing import faults as planted
from tsgraph.testing.faults import FAULTS, Fault, plant

_PLANTED = Path(planted.__file__).parent
_MISTAKES = (AttributeError, NameError, TypeError, ImportError)

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


# -- tasks, for any process --------------------------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """What came of a task: a line to print, whether all is as it should be, and what else there is to tell."""

    line: str
    ok: bool
    details: str = ""


def settle() -> None:
    """Freeze what there is after a capture."""
    torch.set_num_threads(1)
    Rig.build(Shape())
    economy.freeze()


def plant_one(name: str) -> Outcome:
    """A fault that is planted must be found; the details are how the find ended."""
    (line,) = search_faults([FAULTS[name]])
    if line.find is None:
        return Outcome(str(line), ok=False)
    error = f"{type(line.find.error).__name__}: {line.find.error}"
    ok = not is_broken(line.find.error)
    told = str(line) if ok else f"{name:<28} IS BROKEN ITSELF: it does not fit what it is planted in"
    return Outcome(told, ok=ok, details=f"    {error}".partition("\n")[0][:300])


def is_broken(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is the planted fault's own mistake: then nothing is found that it names."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, _MISTAKES) and frames and Path(frames[-1].filename).parent == _PLANTED:
            return True
        error = error.__cause__ or error.__context__
    return False


def property_names() -> list[str]:
    """The properties that there are."""
    return [prop.name for prop in PROPERTIES]


def control(name: str) -> Outcome:
    """Without a fault no property may find anything; the details are a find as a program to paste."""
    (prop,) = (prop for prop in PROPERTIES if prop.name == name)
    began, found = time.perf_counter(), prop.search()
    if isinstance(found, Find):
        error = f"{type(found.error).__name__}: {found.error}"
        return Outcome(f"without a fault, {name!r} found {error}", ok=False, details=pasted(prop, found))
    seconds = time.perf_counter() - began
    return Outcome(f"{'no fault':<28} {name:<28} {found:>3} clean    {seconds:>6.2f} s", ok=True)
