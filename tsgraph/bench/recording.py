"""One recording of a step, and its replay with nothing of tsgraph's around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from tsgraph.backends.cuda import CudaGraph
from tsgraph.protocols.backend import Backend, Graph, Pool


@attrs.frozen(eq=False)
class Recorded:
    """A graph, and what the step returned while it was recorded."""

    graph: Graph
    returned: Any

    @property
    def replay(self) -> Callable[[], None]:
        """What launches the graph: torch's own method, where there is such a thing."""
        if isinstance(self.graph, CudaGraph):
            bare: Callable[[], None] = self.graph.graph.replay
            return bare
        return self.graph.replay


def record_step(step: Callable[[], Any], backend: Backend, pool: Pool | None = None) -> Recorded:
    """Warm `step` up, and record it."""
    with torch.inference_mode():
        with backend.side_stream():
            step()
        backend.synchronize()
        with backend.record(pool or backend.pool()) as graph:
            returned = step()
    return Recorded(graph, returned)
