"""`scripts/faults`: plants each fault, prints what finds it, and fails where nothing does."""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence

import torch

from tests.faults.properties import PROPERTIES, Find
from tests.faults.stage import pasted, search_faults
from tsgraph.testing.faults import FAULTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage; its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="fault", help="faults to plant (default: all)")
    parser.add_argument("--errors", action="store_true", help="print how each find ended")
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # captures collect garbage: what is alive now need not be walked each time
    began = time.perf_counter()
    lost = _plant_all(parsed.names, errors=parsed.errors) + _control()
    print(f"{time.perf_counter() - began:.1f} s")
    return 1 if lost else 0


def _plant_all(names: Sequence[str], *, errors: bool) -> int:
    lost = 0
    for line in search_faults([FAULTS[name] for name in names or FAULTS]):
        print(line, flush=True)
        lost += line.find is None
        if errors and line.find is not None:
            print(f"    {type(line.find.error).__name__}: {line.find.error}".partition("\n")[0][:300])
    print(f"{lost} of {len(names or FAULTS)} faults were not found")
    return lost


def _control() -> int:
    """Without a fault no property may find anything."""
    finds = 0
    for prop in PROPERTIES:
        began, found = time.perf_counter(), prop.search()
        seconds = time.perf_counter() - began
        if isinstance(found, Find):
            finds += 1
            print(f"without a fault, {prop.name!r} found {type(found.error).__name__}: {found.error}")
            print(pasted(prop, found))
        else:
            print(f"{'no fault':<28} {prop.name:<28} {found:>3} clean    {seconds:>6.2f} s", flush=True)
    return finds


if __name__ == "__main__":
    raise SystemExit(main())
