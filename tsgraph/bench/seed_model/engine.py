"""The model of the engine, put together for one setting on any backend, its graphs recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from tsgraph.bench.recording import Recorded, record_step
from tsgraph.bench.seed_model.buffers import InputBuffers
from tsgraph.bench.seed_model.collaborators import Context, Drafter, DraftMetadata, Metadata
from tsgraph.bench.seed_model.wrapper import Key, Wrapper
from tsgraph.bench.settings import SIZES, Setting, Sources, is_emulated, read_all, read_nothing
from tsgraph.protocols.backend import Backend

PERSISTENT = ("paged_tables", "paged_offsets", "recurrent_")
"""What metadata keep buffers of their own for; everything else is an input buffer."""


@attrs.frozen(eq=False)
class SeedEngine:
    """An engine that serves `setting` through the wrapper. `recorded` keeps what is replayed alive."""

    wrapper: Wrapper
    recorded: tuple[Recorded, ...]

    @classmethod
    def of(cls, setting: Setting, backend: Backend) -> SeedEngine:
        """Allocate the buffers, and record a graph for each size."""
        buffers = InputBuffers.of(setting.fields(), SIZES[-1], backend, setting.geometry.tokens_per_request)
        pool = backend.pool()
        step = read_nothing if is_emulated(backend) else read_all
        recorded: dict[Key, Recorded] = {
            ("default", size): record_step(partial(step, buffers.heads(size)), backend, pool) for size in SIZES
        }
        paged = bool(setting.groups)
        held = {label: tensor for label, tensor in buffers.tensors.items() if label.startswith(PERSISTENT)}
        draft = Drafter(DraftMetadata(paged), buffers["draft_seq_lens"]) if setting.drafter else None
        wrapper = Wrapper(
            buffers=buffers,
            metadata=Metadata(held, paged),
            sizes=SIZES,
            replays={key: each.replay for key, each in recorded.items()},
            outputs={key: each.returned for key, each in recorded.items()},
            drafter=draft,
        )
        return cls(wrapper, tuple(recorded.values()))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All static tensors, by label."""
        return self.wrapper.buffers.tensors

    def raw(self, size: int) -> Callable[[], None]:
        """The replay of the graph of `size` rows, and nothing around it."""
        key: Key = ("default", size)
        return self.wrapper.replays[key]

    def call(self, live: int, sources: Sources) -> Any:
        """The wrapper's own call, for rows that are filled in: grouped and recurrent tensors are its arguments."""
        context = Context(live, live * self.wrapper.buffers.tokens_per_request)
        recurrent = {name: rows for name, rows in sources.items() if name.startswith("recurrent_")}
        tables, offsets = sources.get("paged_tables"), sources.get("paged_offsets")
        return self.wrapper(live, context, tables=tables, offsets=offsets, recurrent=recurrent)

    def serve(self, live: int, sources: Sources) -> Any:
        """Fill the input buffers, then call the wrapper: the same work as one call of a runtime."""
        padded = self.wrapper.padded_size(live, Context(live, live * self.wrapper.buffers.tokens_per_request))
        self.wrapper.buffers.fill(live, padded, sources)
        return self.call(live, sources)

    def serve_from_host(self, live: int, sources: Sources) -> Any:
        """As `serve`, from host tensors: what is no input buffer is copied to the device first, a tensor at a time."""
        device = self.wrapper.buffers["seq_lens"].device
        return self.serve(live, {name: _placed(held, device, name) for name, held in sources.items()})


def _placed(held: Any, device: torch.device, name: str) -> Any:
    if not name.startswith(PERSISTENT):
        return held
    if isinstance(held, Tensor):
        return held.to(device, non_blocking=True)
    return {group: tensor.to(device, non_blocking=True) for group, tensor in held.items()}
