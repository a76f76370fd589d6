"""The progress bar."""

import io
from types import SimpleNamespace

from rich.console import Console

from tsgraph.capture.progress import track_capture
from tsgraph.keys import SlotKey
from tsgraph.protocols.backend import Memory

BACKEND = SimpleNamespace(memory=lambda: Memory(free=3 << 30, total=4 << 30, allocated=0, pooled=5 << 20))
SLOTS = [SimpleNamespace(key=SlotKey("default", size)) for size in (8, 4)]


def shown(**options):
    """What a capture of two slots prints on such a console."""
    console = Console(file=io.StringIO(), width=100, **options)
    assert SLOTS == list(track_capture(SLOTS, BACKEND, console))
    return console.file.getvalue()


def test_a_terminal_sees_slot_memory_and_count():
    """On a terminal the bar names the slot, the memory left and in graphs, and how many are done."""
    text = shown(force_terminal=True)
    assert all(word in text for word in ("default/4", "3.0 GiB free", "5 MiB in graphs", "/2"))


def test_nothing_is_shown_where_nobody_watches():
    """Without a terminal nothing is printed."""
    assert "" == shown(force_terminal=False)
