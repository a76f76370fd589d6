"""Code that launches kernels past the dispatcher: regions compiled by Inductor, and Triton kernels called by hand.

What happens inside is not seen by anybody. That it happens, and what it was handed, is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

RunRegion = Callable[[Any, Callable[[], Any], Any], Any]
TellLaunch = Callable[[str, Mapping[str, Any]], None]


@contextmanager
def compiled_regions(run: RunRegion) -> Iterator[None]:
    """Route what this thread calls of code that Inductor compiled through `run(region, call, inputs)`.

    Such code allocates without the dispatcher, so its buffers and outputs would look older than the block.
    """
    from torch._inductor.output_code import CompiledFxGraph

    original, thread = CompiledFxGraph.__call__, threading.get_ident()

    def routed(region: Any, inputs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(region, inputs)
        return run(region, lambda: original(region, inputs), inputs)

    CompiledFxGraph.__call__ = routed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]


@contextmanager
def triton_launches(tell: TellLaunch) -> Iterator[None]:
    """Tell the name and the named arguments of each Triton kernel that this thread launches by hand, before it does.

    Where Triton is not loaded there are none. Launchers that Inductor made go another way.
    """
    kernels = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    original = getattr(kernels, "run", None)
    if kernels is None or original is None:
        yield
        return
    thread = threading.get_ident()

    def routed(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not kwargs.get("warmup"):
            told = {key: value for key, value in kwargs.items() if key != "warmup"}
            tell(getattr(kernel, "__name__", "a kernel"), {**_named(kernel, args), **told})
        return original(kernel, *args, **kwargs)

    kernels.run = routed
    try:
        yield
    finally:
        kernels.run = original


def _named(kernel: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    names = tuple(getattr(kernel, "arg_names", ()))
    return {names[at] if at < len(names) else f"argument {at}": value for at, value in enumerate(args)}
