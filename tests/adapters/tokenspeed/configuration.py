"""What the drop-in's tests draw, as plain data: the engine's configuration, and the steps that it asks for."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Group:
    """One cache group of a pool."""

    group_id: str
    retention: str = "full_history"
    rows_per_page: int = 4
    entry_stride_tokens: int = 1
    sliding_window_tokens: int | None = None
    family: str = "attention"


FULL = Group(group_id="full")
WINDOW = Group(group_id="window", retention="sliding_window", sliding_window_tokens=8, entry_stride_tokens=2)
STATE = Group(group_id="state", family="state")


@attrs.frozen(kw_only=True)
class Flags:
    """What an attention backend says it uses. `narrow`: its state init names no extras."""

    paged: bool = False
    flat: bool = False
    mask: bool = False
    narrow: bool = False
    indices: str | None = None


@attrs.frozen(kw_only=True)
class Configuration:
    """One engine. `variants`: what its sampler declares (None: there is no sampler); `draft`: None for no backend."""

    ranks: int = 1
    spec_algo: str | None = None
    spec_num_tokens: int = 1
    drafter: bool = False
    target: Flags = Flags()
    draft: Flags | None = None
    v4: bool = False
    mamba: bool = False
    verifies: bool = False
    groups: tuple[Group, ...] = ()
    draft_groups: tuple[Group, ...] = ()
    variants: tuple[str, ...] | None = None
    grammar: str | None = None
    deepep: bool = False
    logprobs: bool = True
    runtime_states: bool = True
    sizes: tuple[int, ...] = (1, 2, 4)
    padding: bool = True
    enforce_eager: bool = False
    context_len: int = 30
    depth: int = 0

    @property
    def tokens_per_request(self) -> int:
        return self.spec_num_tokens if self.spec_algo is not None else 1


@attrs.frozen(kw_only=True)
class Step:
    """One call. `others`: rows of the other ranks; `known`: whether their counts are; `steady`: all decode or idle.

    `recurrent`: how many of the four index tensors are given; `tables`, `offsets`: whether they are.
    """

    mode: str = "DECODE"
    rows: int = 1
    others: int = 0
    known: bool = True
    steady: bool = True
    recurrent: int = 0
    tables: bool = True
    offsets: bool = False
    variant: str = "default"
