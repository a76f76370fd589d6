"""The functions of `torch.cuda`, answered by the machine that is on. Signatures and meaning are torch's.

Where one takes a device, it must name the one there is: another is an invalid device ordinal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from tsgraph.backends.emulated import current, streams
from tsgraph.backends.emulated.memory import machine_bytes
from tsgraph.testing.cuda.generators import Generator
from tsgraph.testing.cuda.machine import layers_here, machine_now
from tsgraph.testing.cuda.places import DEVICE, check_index, place_of
from tsgraph.testing.cuda.properties import CAPABILITY, NAME, DeviceProperties
from tsgraph.testing.cuda.streams import StreamContext

Named = Any  # a device by index, word or object, or None for the current one

# -- the device -------------------------------------------------------------------------------------------------------


def yes(*_: Any, **__: Any) -> bool:
    """True."""
    return True


def no(*_: Any, **__: Any) -> bool:
    """False."""
    return False


def nothing(*_: Any, **__: Any) -> None:
    """Done already, or of no effect here."""


def device_count() -> int:
    """One."""
    return 1


def current_device() -> int:
    """The only one."""
    layers_here()
    return 0


def current_accelerator(check_available: bool = False) -> torch.device:
    """A CUDA device."""
    return torch.device(DEVICE.type)


def set_device(device: Named) -> None:
    """Choose the only one."""
    check_index(device)


def get_device_index(device: Named = None, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index that `device` names; -1 for the host, where that is allowed."""
    if allow_cpu and device is not None and not isinstance(device, int) and torch.device(device).type == "cpu":
        return -1
    if device is None and not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
    check_index(device)
    return 0


class device:  # noqa: N801 - torch's name
    """A block in which `device` is the current one."""

    def __init__(self, device: Named) -> None:
        check_index(device)
        self.idx, self.prev_idx = 0, -1

    def __enter__(self) -> None:
        """The device is the current one as it is."""

    def __exit__(self, *_: object) -> None:
        """So it was before."""


class device_of(device):  # noqa: N801 - torch's name
    """A block in which the device of a tensor is the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0)


def get_device_name(device: Named = None) -> str:
    """A name that no GPU has."""
    check_index(device)
    return NAME


def get_device_capability(device: Named = None) -> tuple[int, int]:
    """That of the oldest GPU with bfloat16."""
    check_index(device)
    return CAPABILITY


def get_device_properties(device: Named = None) -> DeviceProperties:
    """What the device says it is."""
    check_index(device)
    return DeviceProperties()


def get_arch_list() -> list[str]:
    """No kernels are compiled for any."""
    return []


def lazy_call(call: Callable[[], object], **_: Any) -> None:
    """Call now: the device is there."""
    call()


# -- streams ----------------------------------------------------------------------------------------------------------


def synchronize(device: Named = None) -> None:
    """Nothing to wait for. Raises: CaptureUnsupported while anything is captured."""
    check_index(device)
    current.refuse_on_device("torch.cuda.synchronize", "synchronise before or after the recording")


def stream(stream: streams.Stream | None) -> StreamContext:
    """Put the work of a block on `stream`; None changes nothing."""
    layers_here()
    return StreamContext(stream)


def current_stream(device: Named = None) -> streams.Stream:
    """The stream on which this thread puts its work."""
    check_index(device)
    layers_here()
    return streams.current_stream()


def default_stream(device: Named = None) -> streams.Stream:
    """The stream that every thread begins with."""
    check_index(device)
    return streams.default_stream()


def set_stream(stream: streams.Stream | None) -> None:
    """Put the work of this thread on `stream` from now on; None changes nothing."""
    layers_here()
    if stream is not None:
        streams.set_stream(stream)


# -- memory -----------------------------------------------------------------------------------------------------------


def mem_get_info(device: Named = None) -> tuple[int, int]:
    """Free and total bytes of this machine's own memory."""
    check_index(device)
    return machine_bytes()


def memory_allocated(device: Named = None) -> int:
    """Bytes of live device tensors."""
    check_index(device)
    return machine_now().meter.now()["allocated"]


def memory_reserved(device: Named = None) -> int:
    """Those, and what graph pools hold beside them."""
    check_index(device)
    return machine_now().meter.now()["reserved"]


def max_memory_allocated(device: Named = None) -> int:
    """The most bytes of live device tensors since the last reset."""
    check_index(device)
    return machine_now().meter.most()["allocated"]


def max_memory_reserved(device: Named = None) -> int:
    """The most that was reserved since the last reset."""
    check_index(device)
    return machine_now().meter.most()["reserved"]


def reset_peak_memory_stats(device: Named = None) -> None:
    """Begin to look for the most anew."""
    check_index(device)
    machine_now().meter.restart()


def memory_stats(device: Named = None) -> dict[str, int]:
    """Allocated and reserved bytes, by torch's names; none of the other figures."""
    check_index(device)
    meter = machine_now().meter
    now, most = meter.now(), meter.most()
    figures = {"current": now, "peak": most}
    return {f"{kind}_bytes.all.{name}": each[kind] for kind in now for name, each in figures.items()}


def memory_stats_as_nested_dict(device: Named = None) -> dict[str, dict[str, dict[str, int]]]:
    """The same figures, a dict for each word of a name."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for name, figure in memory_stats(device).items():
        kind, scope, when = name.split(".")
        nested.setdefault(kind, {}).setdefault(scope, {})[when] = figure
    return nested


def empty_cache() -> None:
    """Give back what streams and pools without graphs hold unused.

    Raises: CaptureUnsupported where there is any, and a capture forbids it.
    """
    machine = machine_now()
    machine.residence.eager.give_back()
    machine.pools.trim()


# -- random numbers ---------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the device's default generator. Raises: CaptureUnsupported in a capture for another seed than it has."""
    machine_now().generator.manual_seed(int(seed))


def seed() -> None:
    """Seed it with a number that nobody knows. Raises: CaptureUnsupported in a capture."""
    machine_now().generator.seed()


def initial_seed() -> int:
    """The number that it was seeded with."""
    return machine_now().generator.initial_seed()


def get_rng_state(device: Named = "cuda") -> torch.Tensor:
    """The state of the device's default generator: a CPU generator's, longer than CUDA's."""
    check_index(device)
    return machine_now().generator.get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """That of each device."""
    return [get_rng_state()]


def set_rng_state(new_state: torch.Tensor, device: Named = "cuda") -> None:
    """Go on from `new_state`. Raises: CaptureUnsupported in a capture for a state of another seed."""
    check_index(device)
    machine_now().generator.set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """The same for each device."""
    for state in new_states:
        set_rng_state(state)


class DefaultGenerators:
    """`torch.cuda.default_generators`: that of the one device."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Generator:
        check_index(index)
        return machine_now().generator


# -- the rest ---------------------------------------------------------------------------------------------------------


@contextmanager
def nvtx_range(*_: Any, **__: Any) -> Iterator[None]:
    """A block that no profiler sees."""
    yield


def depth(*_: Any, **__: Any) -> int:
    """How deep nvtx ranges are nested: nobody counts."""
    return 0


_TORCHS_DEFAULT = torch.get_default_device


def get_default_device() -> torch.device:
    """Where factories make tensors in this thread: a block of `torch.device` comes before what was set."""
    default = layers_here().functions.default
    blocks = any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
    return _TORCHS_DEFAULT() if blocks or default is None else default


def set_default_device(device: Named) -> None:
    """Where factories make tensors in this thread from now on, until the emulation ends. None: as before it."""
    named = None if device is None else torch.device(device)
    layers_here().functions.default = DEVICE if place_of(named) == "device" else named
