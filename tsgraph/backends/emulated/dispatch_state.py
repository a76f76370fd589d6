"""The state of torch under which an operation was recorded, put back while it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import attrs
import torch

from tsgraph.backends.emulated.dispatcher import inference_mode, unseen_by_functions, unseen_by_operators

Autocasts = tuple[tuple[str, torch.dtype], ...]
_KINDS = ("cpu", "cuda")


@attrs.frozen
class DispatchState:
    """Inference and grad mode, the default dtype, and autocast as `autocasts` has it."""

    inference: bool
    grad: bool
    default: torch.dtype
    autocast: Autocasts

    @classmethod
    def now(cls, autocast: Autocasts) -> DispatchState:
        """The state of this thread. Autocast is told, since inside a dispatch mode it reads as off."""
        return cls(torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.get_default_dtype(), autocast)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block in this state, without any mode of the user's."""
        with (
            unseen_by_functions(),
            unseen_by_operators(),
            inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            self._rest(),
        ):
            yield

    def _rest(self) -> AbstractContextManager[object]:
        """What seldom differs from the state of the caller."""
        if self.autocast == autocasts() and self.default == torch.get_default_dtype():
            return nullcontext()
        rest = ExitStack()
        for kind in dict([*autocasts(), *self.autocast]):
            rest.enter_context(_autocast(kind, dict(self.autocast).get(kind)))
        rest.enter_context(_default_dtype(self.default))
        return rest


def autocasts() -> Autocasts:
    """The devices that autocast is on for, each with the dtype that it casts to."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind))


def _autocast(kind: str, dtype: torch.dtype | None) -> AbstractContextManager[None]:
    return torch.autocast(kind, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
