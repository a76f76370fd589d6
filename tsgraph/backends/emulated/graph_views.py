"""A recorded graph for people and machines: a table, a Mermaid chart, plain data. None of it takes part in a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tsgraph.backends.emulated.trace import Node, Storage
from tsgraph.errors import CallerError

DRAWN_NODES = 60


def storages_of(nodes: Sequence[Node]) -> tuple[Storage, ...]:
    """The storages that `nodes` touch, by number."""
    met = {operand.storage for node in nodes for operand in (*node.inputs, *node.outputs)}
    return tuple(sorted(met, key=lambda storage: storage.id))


def describe_graph(nodes: Sequence[Node], pool_bytes: int) -> dict[str, Any]:
    """Everything as plain JSON data; `bytes` is by how much the recording grew its pool."""
    storages = [{"id": each.id, "place": each.place, "bytes": each.bytes} for each in storages_of(nodes)]
    return {"bytes": pool_bytes, "nodes": [node.describe() for node in nodes], "storages": storages}


def graph_table(nodes: Sequence[Node], width: int) -> str:
    """One row for each node: operator, what it reads and writes, and the step's line.

    An operand starts with its storage: E for external memory, P for the pool's, H for the host's, and a number.
    """
    streams = any(node.stream for node in nodes)
    table = Table("#", *["stream"] * streams, "operator", "reads", "writes", "line", box=None)
    for number, node in enumerate(nodes):
        stream = [str(node.stream or 0)] * streams
        table.add_row(str(number), *stream, *map(_plain, (node.operator, *_columns(node))))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _columns(node: Node) -> tuple[str, str, str]:
    reads, writes = ("\n".join(map(str, operands)) for operands in (node.inputs, node.outputs))
    return reads, writes, _short(node.line)


def _short(line: str) -> str:
    return Path(line).name


def graph_mermaid(nodes: Sequence[Node], limit: int) -> str:
    """A flowchart: nodes in order, an arrow from who wrote a storage last to who reads it, storages from outside round.

    Raises: CallerError for more than `limit` nodes.
    """
    if len(nodes) > limit:
        what = f"a graph of {len(nodes)} nodes makes no readable picture; the limit is {limit}"
        raise CallerError(what, hint="read table(), or pass a higher limit=", nodes=len(nodes), limit=limit)
    return "\n".join(["flowchart TD", *_sources(nodes), *_boxes(nodes), *_arrows(nodes)]) + "\n"


def _sources(nodes: Sequence[Node]) -> Iterator[str]:
    for storage in storages_of(nodes):
        if storage.place != "pool":
            yield f'    {storage}(["{storage.place} {storage.id}: {storage.bytes} bytes"])'


def _boxes(nodes: Sequence[Node]) -> Iterator[str]:
    for number, node in enumerate(nodes):
        yield f'    n{number}["{number}: {node.operator}<br/>{_escaped(_short(node.line))}"]'


def _arrows(nodes: Sequence[Node]) -> Iterator[str]:
    writers: dict[Storage, str] = {}
    for number, node in enumerate(nodes):
        for operand in node.inputs:
            source = writers.get(operand.storage, None if operand.storage.place == "pool" else str(operand.storage))
            if source is not None:  # else it reads what no node wrote, such as the memory that `empty` took
                yield f"    {source} -->|{_escaped(str(operand))}| n{number}"
        writers |= {operand.storage: f"n{number}" for operand in node.outputs}
    for storage, writer in writers.items():
        if storage.place != "pool":
            yield f"    {writer} -.-> {storage}"


def _plain(text: str) -> str:
    return text.replace("[", "\\[")  # no markup of rich


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
