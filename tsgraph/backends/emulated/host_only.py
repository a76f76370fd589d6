"""What a host function may do with the emulated device: nothing. On a GPU it would wait for what waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tsgraph.backends.emulated import current
from tsgraph.backends.emulated.calls import HOST_READS
from tsgraph.backends.emulated.dispatcher import Operator, is_operator, is_view, seen_by_functions
from tsgraph.backends.emulated.operation import Function, name_of
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.trees import tensors_in


@contextmanager
def on_the_host(residence: Residence) -> Iterator[None]:
    """Refuse what would call the device in the block.

    Raises: CaptureUnsupported in the block.
    """
    with current.in_host_function(), seen_by_functions(), _Reads(residence), _Work(residence):
        yield


class _Reads(TorchFunctionMode):
    """Refuses to read a device tensor by calls that no operator sees."""

    def __init__(self, residence: Residence) -> None:
        super().__init__()
        self._residence = residence

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, or refuse it."""
        if func in HOST_READS and any(map(self._residence.holds, tensors_in([args]))):
            current.refuse_in_host_function(name_of(func))
        return func(*args, **(kwargs or {}))


class _Work(TorchDispatchMode):
    """Refuses operators on device tensors, but for views."""

    def __init__(self, residence: Residence) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._residence = residence

    def __torch_dispatch__(
        self, func: Operator, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, or refuse it."""
        options = dict(kwargs or {})
        touches = any(map(self._residence.holds, tensors_in([args, options])))
        if touches and not (is_operator(func) and is_view(func)):
            current.refuse_in_host_function(str(func))
        return func(*args, **options)
