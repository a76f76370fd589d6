"""Which name of `torch.cuda` is emulated, which is left as it is, and which is refused: all that are not listed.

So a function that a later torch adds is refused too, rather than asking the CUDA that is not there.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping

import torch

from tsgraph.backends.emulated import streams as emulated
from tsgraph.testing.cuda import api, streams
from tsgraph.testing.cuda.graphs import CUDAGraph
from tsgraph.testing.cuda.patches import Patches
from tsgraph.testing.cuda.pools import new_handle
from tsgraph.testing.cuda.refusals import refusing

EMULATED: Mapping[str, object] = {
    # the device
    "is_available": api.yes, "is_initialized": api.yes, "_is_compiled": api.yes, "init": api.nothing,
    "_lazy_init": api.nothing, "_lazy_call": api.lazy_call, "_is_in_bad_fork": api.no, "device_count": api.device_count,
    "current_device": api.current_device, "set_device": api.set_device, "device": api.device,
    "device_of": api.device_of, "get_device_name": api.get_device_name, "_get_device_index": api.get_device_index,
    "get_device_capability": api.get_device_capability, "get_device_properties": api.get_device_properties,
    "get_arch_list": api.get_arch_list, "is_bf16_supported": api.yes, "is_tf32_supported": api.no,
    "_initialized": True,
    # streams and graphs
    "synchronize": api.synchronize, "Stream": streams.Stream, "Event": streams.Event,
    "StreamContext": streams.StreamContext, "stream": api.stream, "current_stream": api.current_stream,
    "default_stream": api.default_stream, "set_stream": api.set_stream, "CUDAGraph": CUDAGraph,
    "graph_pool_handle": new_handle, "is_current_stream_capturing": emulated.is_current_stream_capturing,
    "_sleep": api.nothing,
    # memory
    "mem_get_info": api.mem_get_info, "memory_allocated": api.memory_allocated, "memory_reserved": api.memory_reserved,
    "max_memory_allocated": api.max_memory_allocated, "max_memory_reserved": api.max_memory_reserved,
    "reset_peak_memory_stats": api.reset_peak_memory_stats, "reset_max_memory_allocated": api.reset_peak_memory_stats,
    "memory_stats": api.memory_stats, "memory_stats_as_nested_dict": api.memory_stats_as_nested_dict,
    "empty_cache": api.empty_cache, "ipc_collect": api.nothing,
    # random numbers
    "manual_seed": api.manual_seed, "manual_seed_all": api.manual_seed, "seed": api.seed, "seed_all": api.seed,
    "initial_seed": api.initial_seed, "get_rng_state": api.get_rng_state, "set_rng_state": api.set_rng_state,
    "get_rng_state_all": api.get_rng_state_all, "set_rng_state_all": api.set_rng_state_all,
    "default_generators": api.DefaultGenerators(),
}  # fmt: skip

# Written by torch in terms of the others, or without any effect on a device.
LEFT = {
    "graph", "make_graphed_callables", "AcceleratorError", "OutOfMemoryError", "CudaError", "cudaStatus",
    "DeferredCudaCallError",
}  # fmt: skip

ACCELERATOR: Mapping[str, object] = {
    "is_available": api.yes, "current_accelerator": api.current_accelerator, "device_count": api.device_count,
    "current_device_index": api.current_device, "current_device_idx": api.current_device,
    "set_device_index": api.set_device, "set_device_idx": api.set_device, "synchronize": api.synchronize,
    "current_stream": api.current_stream, "set_stream": api.set_stream,
}  # fmt: skip

NVTX: Mapping[str, object] = {
    "range": api.nvtx_range, "range_push": api.depth, "range_pop": api.depth, "range_start": api.depth,
    "range_end": api.nothing, "mark": api.nothing,
}  # fmt: skip

_OF_MODULE = {"torch.cuda.nvtx": NVTX, "torch.accelerator": ACCELERATOR}

_WHY = {
    "memory_snapshot": "torch's allocator is not behind it",
    "memory_summary": "torch's allocator is not behind it",
    "MemPool": "graph pools are emulated, torch's allocator is not",
    "use_mem_pool": "graph pools are emulated, torch's allocator is not",
    "ExternalStream": "there is no driver whose stream it could be",
    "jiterator": "kernels cannot be compiled for a device that is not there",
    "cudart": "there is no CUDA runtime",
}
_UNKNOWN = "there is no GPU, and nothing here stands in for this part"
_PRIVATE = {"_record_memory_history", "_snapshot", "_dump_snapshot", "_set_allocator_settings", "_compile_kernel"}
_CLASSES = {"type", "pybind11_type"}  # what classes are that torch defines: the latter with C++ behind them
_APART = {torch.cuda.amp, torch.cuda.sparse}


def put_surface(patches: Patches) -> None:
    """Replace what `torch.cuda` and its modules define: by what stands in for it, or by a refusal."""
    for module in modules():
        for name, value in list(vars(module).items()):
            replacement = stand_in(module, name, value)
            if replacement is not value:
                patches.put(module, name, replacement)


def modules() -> Iterator[types.ModuleType]:
    """`torch.cuda`, its modules, and the names that mean any accelerator."""
    yield torch.cuda
    yield torch.accelerator
    for value in vars(torch.cuda).values():
        if isinstance(value, types.ModuleType) and value.__name__.startswith("torch.cuda.") and value not in _APART:
            yield value


def stand_in(module: types.ModuleType, name: str, value: object) -> object:
    """What takes the place of `value`, which is `name` in `module`: itself, if it stays."""
    stand_ins = _OF_MODULE.get(module.__name__, EMULATED)
    if name in stand_ins:
        return stand_ins[name]
    if name in LEFT or not _is_refused(name, value):
        return value
    return refusing(f"{module.__name__}.{name}", _WHY.get(name, _UNKNOWN), type(value))


def _is_refused(name: str, value: object) -> bool:
    """Functions and classes that the module offers. Legacy tensor and storage types refuse on their own."""
    offered = not name.startswith("_") or name in _PRIVATE
    is_own = str(getattr(value, "__module__", "")).startswith(("torch.cuda", "torch.accelerator"))
    return offered and is_own and (isinstance(value, types.FunctionType) or type(value).__name__ in _CLASSES)
