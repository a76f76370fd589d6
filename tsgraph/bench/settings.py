"""The settings that host time is measured in: which buffers a decode step has, who takes part, and what is passed.

All four are of the shipped spec `decode`. The step is as small as can be while it reads every row of every buffer, so
that the host's work is nearly all there is, and what it returns shows whether all were staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.buffers.contract import Field, resolve_fields
from tsgraph.keys import Geometry
from tsgraph.protocols.backend import Backend
from tsgraph.protocols.collaborators import Capabilities
from tsgraph.protocols.null import NullAttention, NullDrafter, NullRecurrent
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec

SIZES = (8, 16)
LIVE = {"exact": 16, "padded": 13}
"""Live rows of a step that a slot fits exactly, and of one that is padded. Both go to the slot of 16."""

COLUMNS, DRAFTS = 64, 3
MARKS = {"tokens": "token", "accept_lengths": "request", "narrow": "whole", "wide": "whole"}
Sources = dict[str, Any]


@attrs.frozen(kw_only=True)
class Setting:
    """A decode step with these cache `groups`, with the four recurrent index buffers or without, drafting or not."""

    name: str
    groups: tuple[str, ...] = ()
    recurrent: bool = False
    drafter: bool = False

    @property
    def geometry(self) -> Geometry:
        """The numbers that the spec leaves open."""
        return Geometry(
            rows=SIZES[-1],
            tokens_per_request=1 + DRAFTS * self.drafter,
            extents={"pages": dict.fromkeys(self.groups, COLUMNS)},
            sinks={"dummy_cache_slot": 0, "sentinel": SIZES[-1] + 1},
            conventions=("paged_groups",) if self.groups else (),
        )

    @property
    def parts(self) -> dict[str, Any]:
        """Collaborators that do nothing: what is measured is the way to them."""
        parts: dict[str, Any] = {"attention": _Metadata(bool(self.groups))}
        if self.recurrent:
            parts["recurrent"] = NullRecurrent()
        if self.drafter:
            parts["drafter"] = NullDrafter()
        return parts

    def spec(self, *, device_reads: bool) -> Spec:
        """The spec `decode`. Without `device_reads` its buffers are read by the graph alone."""
        spec = load_spec("decode")
        if device_reads:
            return spec
        buffers = {name: attrs.evolve(buffer, read_by=("graph",)) for name, buffer in spec.buffers.items()}
        return attrs.evolve(spec, buffers=buffers)

    def fields(self) -> tuple[Field, ...]:
        """The buffers of this setting, every number filled in."""
        law = self.spec(device_reads=True).restricted_to(frozenset(self.parts) | frozenset(self.geometry.conventions))
        return resolve_fields(law.buffers, self.geometry)

    def runtime(self, backend: Backend, *, device_reads: bool) -> GraphRuntime:
        """The runtime of this setting, captured."""
        runtime = GraphRuntime(
            self.spec(device_reads=device_reads),
            step_on(backend),
            geometry=self.geometry,
            sizes=SIZES,
            outputs=None if is_emulated(backend) else MARKS,
            backend=backend,
            **self.parts,
        )
        runtime.capture()
        return runtime


SETTINGS = (
    Setting(name="plain"),
    Setting(name="two paged groups", groups=("full", "window")),
    Setting(name="… and four recurrent indices", groups=("full", "window"), recurrent=True),
    Setting(name="… and a drafter", groups=("full", "window"), recurrent=True, drafter=True),
)


class _Metadata(NullAttention):
    def __init__(self, grouped: bool) -> None:
        self.capabilities = Capabilities(paged_groups=grouped)


# -- the step ---------------------------------------------------------------------------------------------------------


def is_emulated(backend: Backend) -> bool:
    """Whether `backend` only emulates a device: each node of its replays is Python."""
    return isinstance(backend, EmulatedBackend)


def read_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Four kernels: the next tokens, lengths, and all there is in any buffer, one row of 32 and one of 64 bits."""
    ordered = [tensors[label] for label in sorted(tensors)]
    narrow, wide = ([t.flatten() for t in ordered if t.dtype is dtype] for dtype in (torch.int32, torch.int64))
    tokens, lengths = tensors["input_ids"] + 1, tensors["seq_lens"] + 1
    return {"tokens": tokens, "accept_lengths": lengths, "narrow": torch.cat(narrow), "wide": torch.cat(wide)}


def read_nothing(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No kernel: a replay is then what it costs to say that there is one."""
    return {"tokens": tensors["input_ids"], "accept_lengths": tensors["seq_lens"]}


def step_on(backend: Backend) -> Any:
    """The step for a runtime on `backend`: the emulation has an empty one."""
    step = read_nothing if is_emulated(backend) else read_all
    return lambda batch: step(flat(batch.buffers))


def flat(buffers: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors by name, or a dict of them by group, as tensors by label."""
    tensors: dict[str, Tensor] = {}
    for name, held in buffers.items():
        tensors |= {name: held} if isinstance(held, Tensor) else {f"{name}[{group}]": t for group, t in held.items()}
    return tensors


# -- what is passed ---------------------------------------------------------------------------------------------------


def sources_of(fields: Iterable[Field], rows: int, backend: Backend, *, host: bool, seed: int = 0) -> Sources:
    """Random rows for every buffer that a call passes, on the (pinned) host or on the device."""
    generator, sources = torch.Generator().manual_seed(seed), Sources()
    for field in fields:
        if field.source != "call" or field.mirrors is not None:
            continue
        tensor = backend.pin((rows * field.rows_per_request, *field.shape), field.dtype)
        tensor.copy_(torch.randint(2, SIZES[-1], tensor.shape, generator=generator))
        placed = tensor if host else _on_device(tensor, backend)
        if field.group is None:
            sources[field.name] = placed
        else:
            sources.setdefault(field.name, {})[field.group] = placed
    return sources


def _on_device(tensor: Tensor, backend: Backend) -> Tensor:
    placed = backend.allocate(tensor.shape, tensor.dtype, 0)
    placed.copy_(tensor)
    return placed


def static_tensors(runtime: GraphRuntime) -> dict[str, Tensor]:
    """What the largest slot of `runtime` reads, by label."""
    return flat(runtime.slots["default", runtime.sizes[-1]].batch.buffers)


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """The labels under which not both have the same numbers: where there are any, two ways do not do the same work."""
    return sorted(label for label in one.keys() | other.keys() if not torch.equal(one[label].cpu(), other[label].cpu()))
