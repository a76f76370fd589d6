"""Small engines with something planted in them, verified: what tests of single faults share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from tsgraph.buffers.contract import Rows, as_buffers
from tsgraph.keys import Geometry
from tsgraph.replay.verification.findings import Finding
from tsgraph.replay.verification.report import VerifyReport
from tsgraph.runtime import GraphRuntime

IDS = Rows(torch.int64, pad=0)
EARLY = Rows(torch.int64, pad=0, read_by=("graph", "device"))
"""A buffer that a refresh reads, too."""

X = Rows(torch.float32, pad=0.0)


def captured(step: Callable[..., Any], *, inputs: Any = None, sizes: Any = (2, 4), **rest: Any) -> GraphRuntime:
    """A runtime of `step` with its slots captured."""
    policy = {"freeze_gc": False, **rest.pop("policy", {})}  # collections would take most of the time
    words = {"outputs": "request", "backend": "emulated", "observers": (), "policy": policy, **rest}
    runtime = GraphRuntime.for_step(step, inputs=inputs or {"ids": IDS}, sizes=sizes, **words)
    runtime.capture()
    assert {"replayable"} == {slot.state for slot in runtime.slots.values()}, runtime.table(200)
    return runtime


def ids(rows: int) -> dict[str, torch.Tensor]:
    """Row i has the id i + 1."""
    return {"ids": torch.arange(1, rows + 1)}


def failed(report: VerifyReport) -> set[tuple[str, str]]:
    """What failed which check."""
    return {(finding.check, finding.name) for finding in report.findings}


def found(report: VerifyReport, check: str, name: str = "") -> Finding:
    """The first finding of `check` (about `name`)."""
    assert not report.ok
    picked = [each for each in report.findings if each.check == check and each.name.startswith(name)]
    assert picked, "\n".join(map(str, report.findings))
    return picked[0]


def suspected(finding: Finding) -> list[str]:
    """The kinds of its suspects."""
    return [suspect.kind for suspect in finding.suspects]


def rows_of(finding: Finding) -> tuple[int, ...]:
    """The first rows that differ."""
    return () if finding.mismatch is None else finding.mismatch.rows


def floats(rows: int) -> dict[str, torch.Tensor]:
    """Row i holds i + 0.5."""
    return {"x": torch.arange(rows) + 0.5}


def grammatical(step: Any, backend: Any, grammar: Any, spec: Any) -> GraphRuntime:
    """A captured runtime of a step over batches, with a grammar."""
    law = attrs.evolve(spec, buffers=as_buffers({"ids": IDS}), outputs={})
    runtime = GraphRuntime(
        law,
        step,
        geometry=Geometry(rows=4),
        sizes=(2, 4),
        outputs="request",
        backend=backend,
        grammar=grammar,
        observers=(),
    )
    runtime.capture()
    return runtime
