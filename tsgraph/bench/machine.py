"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from tsgraph import __version__

_CPUS = Path("/proc/cpuinfo")


def describe_machine() -> str:
    """Processor, cores, threads that torch uses, the GPU if there is one, and versions, in one line."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, tsgraph {__version__}"
    return f"{_gpu()}{processor()}, {cores} cores, torch on {threads}; {versions}"


def _gpu() -> str:
    if not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda}), "


def processor(listing: Path = _CPUS) -> str:
    """The processor's name, from Linux' own listing where there is one."""
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
