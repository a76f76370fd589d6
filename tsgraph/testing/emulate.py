"""`emulate()`: code written for CUDA graphs runs on a machine without CUDA, under their semantics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._subclasses import fake_tensor

from tsgraph.backends import driver, hostfunc, kernels
from tsgraph.backends.emulated import current, streams
from tsgraph.testing.cuda import api
from tsgraph.testing.cuda.autocast import casting, put_autocast
from tsgraph.testing.cuda.generators import Generator
from tsgraph.testing.cuda.host_functions import enqueuing
from tsgraph.testing.cuda.loading import loading_to
from tsgraph.testing.cuda.machine import Machine, is_on, switch_off, switch_on
from tsgraph.testing.cuda.patches import Patches
from tsgraph.testing.cuda.staging import staging_kernel
from tsgraph.testing.cuda.streams import default_stream_as_torchs
from tsgraph.testing.cuda.surface import put_surface
from tsgraph.testing.cuda.threads import on_this_thread, starting_with

_LOCK = threading.Lock()


@contextmanager
def emulate(*, checked: bool = True) -> Iterator[None]:
    """Put an emulated CUDA device in the place of `torch.cuda` for the block, in the whole process.

    Enter it before the code under test is imported: names that it imports from `torch.cuda` then are the emulated ones.
    Afterwards everything is as before, and what was made on the device are ordinary CPU tensors. Inside another
    emulation it changes nothing.

    `checked`: faults that a GPU answers with wrong numbers (a dropped input, a missing wait) are errors.

    Raises: NotEmulated (where it is used) for what the emulation cannot do; CaptureUnsupported within a recording.
    """
    current.refuse_inside("tsgraph.testing.emulate", "enter it before the recording")
    with ExitStack() as exits:
        with _LOCK:
            if not is_on():
                exits.enter_context(_installed(Machine(checked)))
        yield


@contextmanager
def _installed(machine: Machine) -> Iterator[None]:
    patches = Patches()
    with ExitStack() as exits:
        exits.callback(switch_off, machine)
        switch_on(machine)
        exits.enter_context(default_stream_as_torchs())
        exits.callback(patches.undo)
        _put(patches, machine)
        exits.enter_context(casting(machine.residence))
        exits.enter_context(torch.compiler.set_stance("force_eager"))
        exits.enter_context(on_this_thread(machine.layers))
        exits.callback(machine.abort)
        yield


def _put(patches: Patches, machine: Machine) -> None:
    put_surface(patches)
    put_autocast(patches)
    patches.put(torch.cuda.graph, "default_capture_stream", None)
    patches.put(torch, "Generator", Generator)
    patches.put(
        torch.Tensor, "record_stream", streams.record_stream
    )  # torch judges its argument before any mode sees it
    patches.put(torch, "load", loading_to(machine.residence, torch.load))
    patches.put(torch, "set_default_device", api.set_default_device)
    patches.put(torch, "get_default_device", api.get_default_device)
    patches.put(torch.backends.cuda, "is_built", api.yes)
    patches.put(torch.backends.cudnn, "is_acceptable", api.no)  # modules ask, and would warn that it is not there
    patches.put(fake_tensor, "init_gpu_context", api.nothing)  # fake tensors would ask the CUDA that is not there
    patches.put(fake_tensor.FakeTensorMode, "avoid_device_init", True)
    patches.put(torch._C, "_host_emptyCache", api.nothing)  # noqa: SLF001 - torch.cuda.graph calls it
    patches.put(hostfunc, "enqueue", enqueuing(machine.residence))
    patches.put(kernels, "load", staging_kernel)
    patches.put(driver, "list_nodes", api.nothing)  # a driver that is there knows nothing of these streams
    patches.put(threading.Thread, "start", starting_with(machine.layers))
