"""Which backend serves a runtime: the one where its modules and states live."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tsgraph.errors import BadBatch
from tsgraph.protocols.backend import Backend

NAMES = ("auto", "cuda", "emulated")


def choose_backend(
    backend: str | Backend, tensors: Iterable[torch.Tensor], device: str | torch.device | None
) -> Backend:
    """The backend called `backend`; "auto" follows `device`, or else where `tensors` live.

    Raises: BadBatch for an unknown name, tensors on several devices, or CUDA where there is none.
    """
    if not isinstance(backend, str):
        return backend
    if backend not in NAMES:
        raise BadBatch(f"there is no backend {backend!r}", hint=f"the backends are {', '.join(NAMES)}")
    place = _place(tensors, device)
    if backend == "cuda" or (backend == "auto" and place.type == "cuda"):
        return _cuda(place)
    if place.type != "cpu":
        raise BadBatch(f"the emulated backend works on CPU tensors, but these live on {place}")
    from tsgraph.backends.emulated import EmulatedBackend

    return EmulatedBackend()


def _place(tensors: Iterable[torch.Tensor], device: str | torch.device | None) -> torch.device:
    places = {tensor.device for tensor in tensors}
    if device is not None and not any(_same(torch.device(device), place) for place in places):
        places.add(torch.device(device))
    if len(places) > 1:
        raise BadBatch(f"modules, states and device are on several devices: {', '.join(sorted(map(str, places)))}")
    return places.pop() if places else torch.get_default_device()


def _same(asked: torch.device, place: torch.device) -> bool:
    return asked.type == place.type and asked.index in (None, place.index)


def _cuda(place: torch.device) -> Backend:
    if not torch.cuda.is_available():
        what = "the cuda backend needs a CUDA device, and torch sees none"
        raise BadBatch(what, hint='backend="emulated" runs anywhere')
    if place.type != "cuda":
        raise BadBatch(f"the cuda backend needs modules and states on a CUDA device, but they are on {place}")
    from tsgraph.backends.cuda import CudaBackend

    return CudaBackend(place)
