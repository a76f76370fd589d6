"""What becomes of a call when it is recorded on the emulated device and replayed on other inputs."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.fidelity.op_samples import Sample
from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.backends.emulated.kernels import KERNELS
from tsgraph.errors import BadBatch, CaptureUnsupported, ReplayFailed

# Nothing is said of what their outputs hold.
HOLD_NOTHING = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# The CPU kernel follows its inputs in memory format where the fake kernel, as the GPU's, does not.
OTHER_STRIDES = {"nn_functional_max_unpool2d", "nn_functional_max_unpool2d_grad"}

# They return something else on CUDA, and so in a recording: `kernels.py` says what.
OTHER_ON_CUDA = {"native_batch_norm", "_native_batch_norm_legit"}

# Which words of a refusal give which reason. `op_refusals.toml` says what the reasons mean.
_REASONS = {
    "no fake kernel says": "no_fake_kernel",
    "its fake kernel promised": "wrong_fake_kernel",
    "cannot live on the emulated device": "layout",
    "the host reads": "host_sync",
    "it checks a value on the host": "host_sync",
    "it returns a number to the host": "host_sync",
    "copies from pageable host memory": "host_copy",
    "a hidden copy from the host": "host_copy",
    "a host tensor": "host_copy",
    "a mask selects": "data_dependent",
    "depends on values": "data_dependent",
}


@attrs.frozen
class Outcome:
    """`equal` to eager, `refused` for a reason, or `no call`: the CPU itself refuses it."""

    kind: str
    reason: str = ""


def refusals() -> Mapping[str, frozenset[str]]:
    """For each entry that is refused, at least with some inputs, the reasons that it may be refused for."""
    listed = tomllib.loads(Path(__file__).with_name("op_refusals.toml").read_text(encoding="utf-8"))
    operators = {operator for each in listed.values() for operator in each["operators"]}
    return {
        operator: frozenset(reason for reason, each in listed.items() if operator in each["operators"])
        for operator in operators
    }


def check(sample: Sample, fresh: Sample | None, inference: bool) -> Outcome:
    """Record `sample`, then replay it on its own inputs and on those of `fresh`, twice each.

    Raises: AssertionError where a recording changes its inputs, or a replay gives other bits than eager code.
    """
    with warnings.catch_warnings(), torch.inference_mode(inference), torch.no_grad():
        warnings.simplefilter("ignore")
        inputs = [sample, fresh] if fresh is not None and _same_form(sample, fresh) else [sample]
        try:
            wanted = [_run_eagerly(each) for each in inputs]
        except (RuntimeError, AssertionError, TypeError):
            return Outcome("no call")
        try:
            _record_and_compare(inputs, wanted)
        except (CaptureUnsupported, ReplayFailed, BadBatch) as error:
            return Outcome("refused", _reason_of(error))
        return Outcome("equal")


def _record_and_compare(inputs: list[Sample], wanted: list[Any]) -> None:
    static = copied((inputs[-1].args, inputs[-1].kwargs))
    backend = EmulatedBackend()
    backend.adopt(_tensors(static))
    with backend.record(backend.pool()) as graph:
        made = inputs[0].function(*static[0], **static[1])
    before, after = _memory(_sources(inputs[-1])), _memory(_tensors(static))
    kept = [each if was else b"" for was, each in zip(before, after, strict=True)]  # an empty output may grow
    assert before == kept, "the recording changed its inputs"
    for source, expected in [*zip(inputs, wanted, strict=True)] * 2:
        for target, value in zip(_tensors(static), _sources(source), strict=True):
            if value.untyped_storage().nbytes():  # one that had none has grown
                target.untyped_storage().copy_(value.untyped_storage())
        torch.default_generator.manual_seed(7)
        graph.replay()
        assert_equal(expected, (made, static), source.entry)


def _run_eagerly(sample: Sample) -> Any:
    args, kwargs = copied((sample.args, sample.kwargs))
    torch.default_generator.manual_seed(7)
    with _AsTheDevice() if sample.entry in OTHER_ON_CUDA else nullcontext():
        return sample.function(*args, **kwargs), (args, kwargs)


class _AsTheDevice(TorchDispatchMode):
    """Runs operators at once, as a recording replays them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return KERNELS.get(func, func)(*args, **(kwargs or {}))


def copied(value: Any) -> Any:
    """`value` with each tensor's memory copied whole: strides, offsets and overlaps stay."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor.clone()
        memory = tensor.untyped_storage().clone()
        return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())

    return tree_map_only(torch.Tensor, copy, value)


def assert_equal(expected: Any, actual: Any, entry: str) -> None:
    """Equal leaves: tensors of equal dtype, shape, strides and bits, as far as these are settled for the entry."""
    for place, (one, other) in enumerate(zip(tree_leaves(expected), tree_leaves(actual), strict=True)):
        if isinstance(one, torch.Tensor):
            settled = 2 if entry in OTHER_STRIDES or not one.numel() else 3
            assert _form(one)[:settled] == _form(other)[:settled], f"leaf {place}: {_form(one)} != {_form(other)}"
            assert entry in HOLD_NOTHING or _bits(one) == _bits(other), f"leaf {place}: {one} != {other}"
        else:
            assert one is other or one == other or isinstance(one, torch.nn.Module), f"leaf {place}: {one} != {other}"


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _memory(tensors: Iterable[torch.Tensor]) -> list[bytes]:
    whole = (torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()) for tensor in tensors)
    return [memory.numpy().tobytes() for memory in whole]


def _sources(sample: Sample) -> list[torch.Tensor]:
    return _tensors((sample.args, sample.kwargs))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _same_form(one: Sample, other: Sample) -> bool:
    """Whether both calls differ in the values of tensors alone: then one recording serves both."""
    return list(_facts(one)) == list(_facts(other))


def _facts(sample: Sample) -> Iterator[object]:
    for leaf in tree_leaves((sample.args, sample.kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield *_form(leaf), leaf.storage_offset(), leaf.untyped_storage().nbytes()
        else:
            yield str(leaf)


def _reason_of(error: CaptureUnsupported | ReplayFailed | BadBatch) -> str:
    if isinstance(error.__cause__, DataDependentOutputException):
        return "host_sync"  # a number for the host, whose shape nobody asks for
    if isinstance(error.__cause__, CaptureUnsupported):
        return _reason_of(error.__cause__)  # torch's own Python code swallowed it, but the recording was lost
    return next((reason for words, reason in _REASONS.items() if words in error.what), f"unexplained: {error.what}")
