"""Whether a device keeps its protocol. Its memory, streams and marks; `recordings` and `graphs` have the rest."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from tsgraph.errors import BadBatch
from tsgraph.protocols.backend import Backend
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import difference

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
PLANTED = "planted in the block"


@attrs.frozen(eq=False)
class BackendTrial:
    """One backend."""

    fresh: Callable[[], Backend]
    part: Backend = attrs.field(init=False)

    @part.default
    def _make(self) -> Backend:
        return self.fresh()

    def filled(self, value: float, entries: int = 4) -> torch.Tensor:
        """A static tensor of floats."""
        return self.part.allocate((entries,), torch.float32, value)


BACKEND: Promises[BackendTrial] = Promises(Backend)


def holding(value: float, tensor: torch.Tensor) -> str | None:
    """What `tensor` holds, unless `value` everywhere."""
    return difference(torch.full(tensor.shape, value, dtype=tensor.dtype), tensor)


@BACKEND.promise("name", "a name")
def has_a_name(trial: BackendTrial) -> str | None:
    """Logs and snapshots tell it."""
    name = trial.part.name
    return None if isinstance(name, str) and name else repr(name)


@BACKEND.promise("device", "the device of what it allocates")
def device_is_where_buffers_live(trial: BackendTrial) -> str | None:
    """Whoever makes a tensor there finds it beside the buffers."""
    found = trial.filled(0).device
    return None if found == trial.part.device else f"{trial.part.device} instead of {found}"


@BACKEND.promise("allocate", "the shape, dtype and fill that were asked for")
def allocate_fills(trial: BackendTrial) -> str | None:
    """Of every dtype, and of no elements."""
    for dtype in DTYPES:
        for shape in ((2, 3), (0, 3)):
            tensor = trial.part.allocate(shape, dtype, 1)
            if told := difference(torch.ones(shape, dtype=dtype), tensor):
                return told
    return None


@BACKEND.promise("allocate", "memory of its own at each call")
def allocate_shares_nothing(trial: BackendTrial) -> str | None:
    """What is written to one tensor is not seen in the next."""
    first, second = trial.filled(1), trial.filled(1)
    first.fill_(2)
    return holding(1, second)


@BACKEND.promise("allocate", "ordinary tensors in inference mode, too")
def allocate_is_no_inference(trial: BackendTrial) -> str | None:
    """Every mode may write buffers."""
    with torch.inference_mode():
        tensors = [trial.filled(1), trial.part.pin((2,), torch.float32)]
    return "an inference tensor" if any(tensor.is_inference() for tensor in tensors) else None


@BACKEND.promise("pin", "a zeroed host tensor")
def pin_gives_host_memory(trial: BackendTrial) -> str | None:
    """Of the shape and dtype asked for, and not on the device."""
    tensor = trial.part.pin((2, 3), torch.int32)
    told = difference(torch.zeros(2, 3, dtype=torch.int32), tensor)
    return told or ("a device tensor" if trial.part.holds(tensor) or not tensor.is_cpu else None)


@BACKEND.promise("adopt", "tensors of the device taken, also again")
def adopt_repeats(trial: BackendTrial) -> str | None:
    """Parameters are adopted by every runtime that uses them."""
    weight = torch.ones(3, device=trial.part.device)
    for _ in range(2):
        trial.part.adopt(iter([weight, weight[1:]]))
    return None if trial.part.holds(weight) and trial.part.holds(weight[1:]) else "a tensor that it does not hold then"


@BACKEND.promise("adopt", "BadBatch for a tensor that cannot live there")
def adopt_refuses(trial: BackendTrial) -> str | None:
    """One of another device."""
    try:
        trial.part.adopt([torch.empty(2, device="meta")])
    except BadBatch:
        return None
    return "no error for a tensor on meta"


@BACKEND.promise("holds", "true of its tensors and their views, false of the host's")
def holds_tells_place(trial: BackendTrial) -> str | None:
    """Views live where their memory does."""
    tensor, host = trial.part.allocate((2, 3), torch.float32, 0), torch.zeros(3)
    views = {"a tensor": tensor, "a slice": tensor[1:], "a transpose": tensor.t(), "a detached one": tensor.detach()}
    lost = [what for what, view in views.items() if not trial.part.holds(view)]
    lost += ["not a host tensor"] if trial.part.holds(host) else []
    return f"wrong about {', '.join(lost)}" if lost else None


@BACKEND.promise("pool", "a new, empty pool at each call")
def pool_is_new(trial: BackendTrial) -> str | None:
    """Runtimes share none."""
    first, second = trial.part.pool(), trial.part.pool()
    if first is second:
        return "the same one twice"
    return f"{first.bytes} bytes in it" if first.bytes else None


@BACKEND.promise("side_stream", "the block's work ordered after the caller's, and the caller's after it")
def side_stream_is_ordered(trial: BackendTrial) -> str | None:
    """What was queued before is there in the block, and what the block does is there afterwards."""
    x = trial.filled(0, 1 << 16)
    for _ in range(8):
        x.add_(1)
        with trial.part.side_stream():
            x.mul_(2)
    return holding(510, x)


@BACKEND.promise("side_stream", "an exception of the block to go on")
def side_stream_raises(trial: BackendTrial) -> str | None:
    """And the next block to run."""
    x, planted = trial.filled(1), ValueError(PLANTED)
    try:
        with trial.part.side_stream():
            raise planted
    except ValueError as error:
        with trial.part.side_stream():
            x.add_(1)
        return holding(2, x) if error is planted else f"{error!r}"
    return "none"


@BACKEND.promise("synchronize", "every mark of before done")
def synchronize_waits(trial: BackendTrial) -> str | None:
    """Also after work on the capture stream."""
    with trial.part.side_stream():
        trial.filled(1, 1 << 16).mul_(2)
    mark = trial.part.ready()
    trial.part.synchronize()
    return None if mark.done() else "a mark that is not done"


@BACKEND.promise("ready", "a mark that is done once it was waited for")
def ready_can_be_waited_for(trial: BackendTrial) -> str | None:
    """Twice is once."""
    x = trial.filled(1).mul_(2)
    mark = trial.part.ready()
    mark.wait()
    mark.wait()
    return holding(2, x) if mark.done() else "a mark that is not done after waiting"


@BACKEND.promise("trim", "what is in use left alone")
def trim_spares_what_is_used(trial: BackendTrial) -> str | None:
    """Buffers keep what they hold."""
    x = trial.filled(1)
    trial.part.trim()
    return holding(1, x)


@BACKEND.promise("memory", "figures that fit together: 0 ≤ free ≤ total, none below 0")
def memory_adds_up(trial: BackendTrial) -> str | None:
    """Free is part of the total."""
    memory = trial.part.memory()
    fits = 0 <= memory.free <= memory.total and memory.allocated >= 0 and memory.pooled >= 0
    return None if fits else str(memory)


@BACKEND.promise("memory", "allocated bytes that grow with what is allocated")
def memory_counts_allocations(trial: BackendTrial) -> str | None:
    """A mebibyte is at least a mebibyte."""
    before = trial.part.memory().allocated
    kept = trial.filled(0, 1 << 18)
    grown = trial.part.memory().allocated - before
    return None if grown >= kept.nbytes else f"{grown} bytes more after {kept.nbytes} were allocated"
