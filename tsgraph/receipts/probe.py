"""What is baked in that should not be: two recordings of one step, made under different circumstances, held together.

What changes with the circumstances changes from step to step, too, and a replay keeps what it was (faults C3, C7,
C10). That nothing differs proves little: it shows what these two circumstances could show. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tsgraph.receipts.compare import ABSENT, Difference, compare
from tsgraph.receipts.receipt import Baked, CaptureReceipt
from tsgraph.receipts.tables import short
from tsgraph.spec.table import as_text, plain_table


@attrs.frozen
class Constant:
    """An argument that is baked, and was another in each recording; `—` where a recording did not come by that line."""

    operator: str
    argument: str
    first: str
    second: str
    line: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.line}: {self.argument} is baked: {self.first}, and then {self.second}"


@attrs.frozen(eq=False)
class Probe:
    """What two recordings of one slot differ in: baked `constants`, and all else that does (kernels, grids, memory).

    `first` and `second` are their receipts.
    """

    constants: tuple[Constant, ...]
    others: tuple[Difference, ...]
    first: CaptureReceipt
    second: CaptureReceipt

    @classmethod
    def of(cls, first: CaptureReceipt, second: CaptureReceipt) -> Probe:
        """What these two differ in."""
        others = tuple(each for each in compare(first, second) if each.part != "baked")
        return cls(tuple(differing_constants(first, second)), others, first, second)

    @property
    def clean(self) -> bool:
        """Whether nothing differs: these circumstances bake nothing in."""
        return not self.constants and not self.others

    def table(self, width: int = 120) -> str:
        """What differs, as text of `width` columns."""
        if self.clean:
            return f"slot {self.first.slot} of {self.first.spec}: both recordings are the same\n"
        columns = ("operator", "argument", "first", "second", "line")
        constants = [(*attrs.astuple(each)[:4], short(each.line)) for each in self.constants]
        others = [attrs.astuple(each) for each in self.others]
        tables = [
            plain_table(title, names, rows)
            for title, names, rows in (
                ("baked, and not the same", columns, constants),
                ("besides", ("part", "what", "first", "second"), others),
            )
            if rows
        ]
        return f"{as_text(tables, width)}\n"


def differing_constants(first: CaptureReceipt, second: CaptureReceipt) -> Iterator[Constant]:
    """Each baked argument that is not the same in both, in the order of the first recording."""
    values = [{_place(baked): str(baked) for baked in receipt.baked} for receipt in (first, second)]
    for place in dict.fromkeys((*values[0], *values[1])):
        one, other = (known.get(place, ABSENT) for known in values)
        if one != other:
            operator, argument, line = place
            yield Constant(operator, argument, one, other, line)


def _place(baked: Baked) -> tuple[str, str, str]:
    return baked.operator, baked.argument, baked.line
