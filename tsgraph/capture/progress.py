"""A progress bar for captures: slot, memory and time left; quiet where nobody watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tsgraph.protocols.backend import Backend
from tsgraph.slots.slot import Slot


def track_capture(slots: Sequence[Slot], backend: Backend, console: Console | None = None) -> Iterator[Slot]:
    """The slots, one by one, with a bar on standard error where that is a terminal."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("capturing {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[memory]}"),
        TimeRemainingColumn(),
    )
    if not console.is_terminal:
        yield from slots  # asking for memory walks the allocator: not for nobody
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(slots), memory="")
        for slot in slots:
            progress.update(task, description=str(slot.key), memory=_memory(backend))
            yield slot
            progress.advance(task)


def _memory(backend: Backend) -> str:
    memory = backend.memory()
    return f"{memory.free / 2**30:.1f} GiB free, {memory.pooled / 2**20:.0f} MiB in graphs"
