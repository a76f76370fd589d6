"""What the emulated GPU says it is: plausible, and clearly none that exists."""

from __future__ import annotations

import os

import attrs

from tsgraph.backends.emulated.memory import machine_bytes

NAME = "Emulated CUDA device (tsgraph)"
CAPABILITY = (8, 0)  # the least with bfloat16: code for newer GPUs looks for kernels that are not here


@attrs.frozen(kw_only=True)
class DeviceProperties:
    """Stands in for what `torch.cuda.get_device_properties` returns. Memory is this machine's, in bytes."""

    name: str = NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = attrs.field(factory=lambda: machine_bytes()[1])
    multi_processor_count: int = attrs.field(factory=lambda: os.cpu_count() or 1)
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 160 << 10
    shared_memory_per_multiprocessor: int = 160 << 10
    L2_cache_size: int = 40 << 20
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    gcnArchName: str = NAME  # noqa: N815 - torch's word
    uuid: str = "emulated"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
