"""The table of planted faults, made from the registry while the docs are built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sphinx.util.docutils import SphinxDirective

from tsgraph.testing.faults import FAULTS

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


class PlantedFaults(SphinxDirective):
    """Every planted fault: what the library does while it is there, and the rules that this breaks."""

    def run(self) -> list[nodes.Node]:
        """Returns the table."""
        lines = [f"| `{fault.name}` | {fault.says} | {', '.join(fault.breaks)} |" for fault in FAULTS.values()]
        header = ["| fault | what the library does then | breaks |", "| --- | --- | --- |"]
        return self.parse_text_to_nodes("\n".join([*header, *lines]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("planted-faults", PlantedFaults)
    return {"parallel_read_safe": True}
