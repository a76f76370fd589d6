"""`torch.load(map_location="cuda")`: tensors that come to live on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tsgraph.backends.emulated.residence import Residence
from tsgraph.testing.cuda.places import place_of


def loading_to(residence: Residence, load: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.load` that understands a `map_location` on the device."""

    def onto_device(storage: Any, _: str) -> Any:
        residence.add(torch.empty(0, dtype=torch.uint8).set_(storage))
        return storage

    @functools.wraps(load)
    def load_there(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        named = map_location if isinstance(map_location, str | torch.device) else None
        return load(f, onto_device if place_of(named) == "device" else map_location, *args, **kwargs)

    return load_there
