"""The engine's own types where it is installed, and small equivalents where it is not, as in tests."""

from __future__ import annotations

import enum
import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import attrs

ENGINE = "tokenspeed"


class ForwardMode(enum.Enum):
    """What kind of forward a step is, with the questions that the engine asks of its own."""

    EXTEND = enum.auto()
    DECODE = enum.auto()
    MIXED = enum.auto()
    IDLE = enum.auto()

    def is_decode(self) -> bool:
        """Whether every row decodes."""
        return self is ForwardMode.DECODE

    def is_idle(self) -> bool:
        """Whether there is no row."""
        return self is ForwardMode.IDLE

    def is_extend_or_mixed(self) -> bool:
        """Whether some row prefills."""
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


class CaptureHiddenMode(enum.Enum):
    """Which hidden states a forward keeps."""

    NULL = enum.auto()
    LAST = enum.auto()
    FULL = enum.auto()


@attrs.define(eq=False, kw_only=True)
class ForwardContext:
    """What a forward is told besides its buffers."""

    attn_backend: Any
    token_to_kv_pool: Any
    bs: int
    num_extends: int
    input_num_tokens: int
    forward_mode: Any
    capture_hidden_mode: Any = CaptureHiddenMode.NULL
    global_num_tokens: list[int] | None = None
    global_bs: list[int] | None = None
    all_decode_or_idle: bool = False


@attrs.define(eq=False, kw_only=True)
class SamplingBatchInfo:
    """What the sampler is told of a batch: views, no copies."""

    req_pool_indices: Any
    valid_cache_lengths: Any = None
    is_all_greedy: bool = False
    vocab_size: int = 0
    device: Any = None
    vocab_mask: Any = None
    apply_vocab_mask: Any = None


def bind_grammar_mask_buf(
    info: Any, eager_buffers: Any, bs: int, *, spec: bool, capturable: Any, grammar_backend: Any
) -> None:
    """Give `info` the rows of the grammar mask that replays refill (R18); how it is applied is the engine's affair."""
    del grammar_backend
    holder = capturable if capturable is not None else eager_buffers
    if holder is None:
        return
    wide = spec and holder.max_tokens_per_req > 1
    rows = bs * holder.max_tokens_per_req if wide else bs
    if holder is capturable:
        info.vocab_mask = holder.bitmask[:rows]
    else:
        info.vocab_mask = (holder.vocab_mask_spec_buf if wide else holder.vocab_mask_buf)[:rows]


def init_backend_cuda_graph_state(backend: Any, max_bs: int, seq_lens: Any, **extras: Any) -> None:
    """Make the graph state of `backend`, which gets those extras that its signature names.

    The signature is asked, not tried: a TypeError of its body is a fault of its own and goes on.
    """
    accepted = inspect.signature(backend.init_cuda_graph_state).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        extras = {name: value for name, value in extras.items() if name in accepted}
    backend.init_cuda_graph_state(max_bs, seq_lens, **extras)


@attrs.frozen(kw_only=True)
class EngineTypes:
    """The types and functions of the engine that its wrapper uses."""

    context: Any = ForwardContext
    mode: Any = ForwardMode
    hidden: Any = CaptureHiddenMode
    sampling: Any = SamplingBatchInfo
    bind_mask: Any = bind_grammar_mask_buf
    init_state: Any = init_backend_cuda_graph_state


HOMES = {
    "context": ("execution.context", "ForwardContext"),
    "mode": ("execution.forward_batch_info", "ForwardMode"),
    "hidden": ("execution.forward_batch_info", "CaptureHiddenMode"),
    "sampling": ("sampling.sampling_batch_info", "SamplingBatchInfo"),
    "bind_mask": ("grammar.capturable_grammar", "bind_grammar_mask_buf"),
    "init_state": ("layers.attention.backends.base", "init_backend_cuda_graph_state"),
}


def find_types() -> EngineTypes:
    """The engine's own, or the equivalents. Raises ImportError where an installed engine has one elsewhere."""
    if find_spec(ENGINE) is None:
        return EngineTypes()
    modules = {name: import_module(f"{ENGINE}.runtime.{module}") for name, (module, _) in HOMES.items()}
    return EngineTypes(**{name: getattr(modules[name], member) for name, (_, member) in HOMES.items()})
