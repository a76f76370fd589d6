"""The directive `lifecycle`: a spec's states and transitions as a picture, drawn while the docs are built.

The picture is what Mermaid makes of `draw_spec(load_spec(name))`, as SVG in the page: reading it takes no script and no
network.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import mermaidx
from docutils import nodes
from docutils.parsers.rst.directives import flag
from sphinx.util.docutils import SphinxDirective

from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx

MERMAID_ID = "my-svg"
"""The id that Mermaid gives every picture and scopes its styles with; each picture needs one of its own."""

_numbers = itertools.count()


class Lifecycle(SphinxDirective):
    """Draws the lifecycle of the spec that is its argument; with `:source:`, shows the Mermaid text below."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {"source": flag}

    def run(self) -> list[nodes.Node]:
        """Returns the picture and, if asked for, its text."""
        spec = load_spec(self.arguments[0])
        self.env.note_dependency(spec.source)
        drawn = draw_spec(spec)
        svg = mermaidx.render(drawn).svg().replace(MERMAID_ID, f"lifecycle-{next(_numbers)}")
        picture = nodes.raw("", f'<div style="background: white; padding: 1em">{svg}</div>', format="html")
        return [picture, nodes.literal_block(drawn, drawn, language="text")] if "source" in self.options else [picture]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("lifecycle", Lifecycle)
    return {"parallel_read_safe": True}
