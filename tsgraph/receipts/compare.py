"""What differs between two receipts: by names and lines, not by addresses, which no two processes share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from tsgraph.receipts.receipt import CaptureReceipt, External, Kernel, Output

ABSENT = "—"


@attrs.frozen
class Difference:
    """One thing that is not the same: which part of the receipt, what, and how it was first and is second.

    Either is `—` where it is not there.
    """

    part: str
    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.part}: {self.what}: {self.first} → {self.second}"


def compare(first: CaptureReceipt, second: CaptureReceipt, *, addresses: bool = False) -> tuple[Difference, ...]:
    """What `second` has otherwise than `first`; nothing where they tell of the same recording.

    `addresses`: also which external tensors moved, which makes sense within one process. Seconds never count, and of
    slots of different sizes shapes differ, of course.
    """
    return tuple(_differences(first, second, addresses=addresses))


def _differences(first: CaptureReceipt, second: CaptureReceipt, *, addresses: bool) -> Iterator[Difference]:
    for part, one, other in _parts(first, second):
        yield from _between(part, one, other)
    if addresses:
        moved = ({each.label: f"{each.address:#x}" for each in receipt.externals} for receipt in (first, second))
        yield from (each for each in _between("moved", *moved) if ABSENT not in (each.first, each.second))


Named = dict[str, str]


def _parts(first: CaptureReceipt, second: CaptureReceipt) -> Iterator[tuple[str, Named, Named]]:
    for part, tell in _TOLD.items():
        yield part, _numbered(tell(first)), _numbered(tell(second))


def _between(part: str, first: Named, second: Named) -> Iterator[Difference]:
    for what in dict.fromkeys((*first, *second)):
        one, other = first.get(what, ABSENT), second.get(what, ABSENT)
        if one != other:
            yield Difference(part, what, one, other)


def _numbered(pairs: Iterable[tuple[str, str]]) -> Named:
    """Things by name; those of one name are told apart by their order."""
    named: Named = {}
    for name, text in pairs:
        number, unique = 2, name
        while unique in named:
            unique, number = f"{name} ({number})", number + 1
        named[unique] = text
    return named


# -- the parts of a receipt as names and texts ------------------------------------------------------------------------


def _external(each: External) -> tuple[str, str]:
    where = "" if each.place == "device" else " on the host"
    standing = "" if each.declared else ", undeclared"
    return each.label, f"{each.form} stride {each.stride}{where}, {each.access}{standing}"


def _output(each: Output) -> tuple[str, str]:
    memory = f", memory of {each.alias}" if each.alias else ""
    return f"output{each.name}", f"{each.form} stride {each.stride}{memory}"


def _kernel(each: Kernel) -> tuple[str, str]:
    return f"{each.name or 'a kernel'}{'' if each.grid is None else f' grid {each.grid}'}", f"×{each.times}"


_TOLD: dict[str, Any] = {
    "memory": lambda receipt: map(_external, receipt.externals),
    "outputs": lambda receipt: map(_output, receipt.outputs),
    "baked": lambda receipt: ((f"{b.operator} {b.argument} at {b.line}", str(b)) for b in receipt.baked),
    "once": lambda receipt: ((f"{o.operator} at {o.line}", f"×{o.times}") for o in receipt.once),
    "draws": lambda receipt: ((f"{d.operator} at {d.line}", f"{d.generator} ×{d.times}") for d in receipt.draws),
    "host functions": lambda receipt: ((f.name, f"at {f.line}") for f in receipt.functions),
    "opaque": lambda receipt: ((f"{o.kind} {o.name} at {o.line}", f"×{o.times}") for o in receipt.opaque),
    "escaped": lambda receipt: ((f"{e.operator} at {e.line}", f"{e.form} {e.holder}") for e in receipt.escapes),
    "not touched": lambda receipt: ((f"buffer {name}", "declared") for name in receipt.unread),
    "nodes": lambda receipt: ((kind, f"×{number}") for kind, number in (receipt.nodes or {}).items()),
    "kernels": lambda receipt: map(_kernel, receipt.kernels),
}
