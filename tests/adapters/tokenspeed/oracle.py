"""The calls that the engine's parts must see, in plain Python: written from the contract, with nothing of tsgraph.

A tensor is (memory, dtype, values): memory by the name that the fakes give it, "fresh" for new, "empty" without rows.
"""

from __future__ import annotations

from typing import Any

import attrs

from tests.adapters.tokenspeed.configuration import Configuration, Group, Step

SENTINEL = 20
WARM_UPS = 4
RECURRENT = (
    "mamba_pool_indices",
    "mamba_cow_src_indices",
    "mamba_branching_seqlens",
    "mamba_track_pool_indices",
)
PAGED, OFFSETS, FLAT = "paged_cache_block_tables", "paged_cache_block_table_base_offsets", "flat_block_tables"
Events = list[tuple[Any, ...]]


def tensor(place: str, dtype: str, values: list[Any]) -> tuple[str, str, list[Any]]:
    """A tensor as the trace tells it."""
    return (place if values else "empty", dtype, values)


def width(group: Group, context: int, tokens: int, depth: int) -> int:
    """Columns of a recorded table."""
    page, ahead = group.rows_per_page * group.entry_stride_tokens, (depth + 1) * tokens
    if group.retention == "full_history":
        return -(-(context + ahead) // page)
    return -(-(min(group.sliding_window_tokens or context, context) + ahead) // page) + 1


def _waits_merged(events: Events) -> Events:
    """The device is told once to finish, where nothing happens in between."""
    waits = [event[0] == "device" for event in events]
    return [event for place, event in enumerate(events) if not (waits[place] and place and waits[place - 1])]


@attrs.frozen
class Oracle:
    """What one engine's parts see."""

    c: Configuration

    # -- construction -------------------------------------------------------------------------------------------------

    def construction(self) -> Events:
        """State of target and draft, variants once, and again for the captures, unless these are not wanted."""
        c = self.c
        events = [self._init("target", c.target, c.groups, "seq_lens", [1] * 8)]
        if c.draft is not None:
            events.append(self._init("draft", c.draft, c.draft_groups, "draft_lens", [77] * 8))
        events += self._variants_asked()
        return events if c.enforce_eager else events + self.capture()

    def capture(self) -> Events:
        """All slots: variants outer, sizes inner, increasing."""
        variants = dict.fromkeys(("default", *(self.c.variants or ())))
        slots = [self._slot(variant, size) for variant in variants for size in self.c.sizes]
        return self._variants_asked() + _waits_merged([event for slot in slots for event in slot])

    def aliased(self) -> bool:
        """Whether the draft reads the target's indices."""
        c = self.c
        return c.draft is not None and c.target.indices is not None and c.target.indices == c.draft.indices

    def _variants_asked(self) -> Events:
        return [("sampler", "variants", self.c.tokens_per_request, {})] if self.c.variants is not None else []

    def _init(self, who: str, flags: Any, groups: Any, place: str, values: list[int]) -> tuple[Any, ...]:
        extras: dict[str, Any] = {"max_tokens_per_req": self.c.tokens_per_request}
        if not flags.narrow or (who == "target" and self.c.verifies):
            extras |= {"paged_cache_group_specs": list(groups), "overlap_schedule_depth": self.c.depth}
        return (who, "init_state", max(self.c.sizes), tensor(place, "int32", values), extras)

    def _slot(self, variant: str, size: int) -> Events:
        c, forwards = self.c, self._forward(size, capturing=False)
        met: Events = [("device", "synchronize", {}), ("ranks", "barrier", {})]
        prepare = self._prepare(variant, size)
        events = [self._mask(size)]
        for _ in range(WARM_UPS):
            events += [*met, *prepare, *self._bind(size), *forwards]
            events += met[:1]  # deviation: a warm-up is waited for, so the sampler is reset after its kernels
        events += [("sampler", "reset", {})] if c.variants is not None else []
        events += [*met, *self._bind(size), *prepare, *self._bind(size)]
        events += [("deepep", "set_mode", {})] if c.deepep else []
        events += [*self._forward(size, capturing=True), *met]
        if c.grammar == "capturable":
            events += [("queue", "get_nowait", True, {}), ("queue", "get_nowait", False, {})]
            events += [("grammar", "reset_state", {})]
        return events

    def _prepare(self, variant: str, size: int) -> Events:
        if self.c.variants is None:
            return []
        words = {"bs": size, "num_tokens_per_req": self.c.tokens_per_request, "variant": variant}
        return [("sampler", "prepare", words)]

    def _mask(self, size: int) -> tuple[Any, ...]:
        words = {
            "spec": self.c.drafter,
            "capturable": "capturable" if self.c.grammar == "capturable" else None,
            "grammar_backend": "a grammar",
        }
        return ("mask", "bind", "eager buffers" if self.c.grammar == "eager" else None, size, words)

    def _forward(self, size: int, *, capturing: bool) -> Events:
        c, tokens = self.c, size * self.c.tokens_per_request
        pushed = ("grammar", "add_batch", {"grammars": [None] * size, "bs": size, "has_candidates": False})
        words = {
            "steady": True,  # deviation: the recorded context says that all ranks decode
            "bs": size,
            "num_extends": 0,
            "input_num_tokens": tokens,
            "forward_mode": "DECODE",
            "capture_hidden_mode": "FULL" if c.drafter else "NULL",
            "global_num_tokens": [tokens] * c.ranks if c.ranks > 1 else None,
            "global_bs": [size] * c.ranks if c.ranks > 1 else None,
        }
        forward = ("engine", "forward", size, capturing, False, words)
        return [pushed, forward] if c.grammar == "capturable" else [forward]

    def _bind(self, size: int) -> Events:
        c, rows, lengths = self.c, [0] * size, [self.c.tokens_per_request] * size
        words: dict[str, Any] = {}
        if c.mamba:
            words["mamba_pool_indices"] = tensor("mamba", "int32", [-1] * size)
        if c.target.paged and c.groups:
            words[PAGED] = self._recorded(size, c.groups)
            words |= {"num_tokens": size * c.tokens_per_request} if c.drafter else {}
        if c.target.flat and c.groups:
            words["flat_cache_group_ids"] = [group.group_id for group in c.groups]
        pool = tensor("pool_rows", "int64", rows)
        events = [("target", "bind", size, pool, tensor("seq_lens", "int32", lengths), "DECODE", words)]
        if c.draft is not None:
            # deviation: the draft is bound to the lengths that replays refresh
            lens = tensor("draft_lens", "int32", lengths)
            events.append(("draft", "bind", size, pool, lens, "DECODE", self._draft_bound(size)))
        return events

    def _draft_bound(self, size: int) -> dict[str, Any]:
        c, words = self.c, dict[str, Any]()
        if c.draft is not None and c.draft.paged and c.draft_groups:
            words = {PAGED: self._recorded(size, c.draft_groups), "num_tokens": size * c.tokens_per_request}
        groups = self._draft_flat()
        return words | ({"flat_cache_group_ids": groups} if groups else {})

    def _draft_flat(self) -> list[str]:
        if self.c.draft is None or not self.c.draft.flat:
            return []
        return [g.group_id for g in self.c.groups if g.family != "state" and g.retention == "full_history"]

    def _recorded(self, size: int, groups: tuple[Group, ...]) -> dict[str, Any]:
        c, tokens = self.c, self.c.tokens_per_request
        context = c.context_len if c.context_len > 0 else tokens * max(c.sizes)
        widths = {group.group_id: width(group, context, tokens, c.depth) for group in groups}
        return {group: tensor("fresh", "int32", [[0] * columns] * size) for group, columns in widths.items()}

    # -- calls --------------------------------------------------------------------------------------------------------

    def size(self, step: Step) -> int | None:
        """The size of the graph that serves a step; None for an eager one."""
        c, wanted = self.c, step.rows
        if c.enforce_eager or step.mode != "DECODE":
            return None
        if c.ranks > 1:
            if not step.steady or not step.known:
                return None
            wanted = max(step.rows, step.others)
            if wanted == 0:
                return None
        if not c.padding:
            return wanted if wanted in c.sizes else None
        return next((size for size in c.sizes if size >= wanted), None)

    def refused(self, step: Step) -> bool:
        """Whether tables are missing that the graph reads, or that no single table could stand in for."""
        c = self.c
        if step.rows == 0 or step.tables:
            return False
        if self.size(step) is None:
            return c.target.flat and len(c.groups) > 1 and step.mode != "IDLE"
        paged = (c.target.paged and c.groups) or (c.draft is not None and c.draft.paged and c.draft_groups)
        return bool(paged or (c.target.flat and c.groups))

    def call(self, step: Step) -> Events:
        """What a step's call does."""
        size = self.size(step)
        return self._eager(step) if size is None else self._replay(step, size)

    def result(self, step: Step) -> tuple[Any, ...]:
        """What a graph's step returns: lengths as tokens, rows that are written to as accept lengths."""
        tokens = [10 + row for row in range(step.rows) for _ in range(self.c.tokens_per_request)]
        return tokens, list(range(1, step.rows + 1)), [float(t) for t in tokens] if self.c.logprobs else None

    def _replay(self, step: Step, size: int) -> Events:
        c, idle = self.c, step.rows == 0
        paged, offsets, flat = (self._given(step, name) for name in (PAGED, OFFSETS, FLAT))
        if idle and paged is None and c.target.paged:
            paged = self._recorded(size, c.groups) or None
        if idle and not flat and c.target.flat:
            flat = {group.group_id: tensor("fresh", "int32", [[0]] * size) for group in c.groups} or None
        paged, offsets, flat = (
            self._pad(paged, size, [-1, -1]),
            self._pad(offsets, size, 0),
            self._pad(flat, size, [0, 0]),
        )
        tables = {PAGED: paged} | ({OFFSETS: offsets} if offsets is not None else {}) if paged is not None else {}
        tokens: dict[str, Any] = {"num_tokens": size * c.tokens_per_request}
        words: dict[str, Any] = {
            "req_to_page": self._pages("pages"),
            "forward_mode": step.mode,
            "num_padding": size - step.rows,
        }
        words |= self._recurrent(step, size)
        words |= {"actual_bs": step.rows} if c.target.mask else {}
        words |= (tables | (tokens if c.drafter else {})) if c.target.paged else {}
        words |= {FLAT: flat} if c.target.flat and flat is not None else {}
        rows, lens = self._rows(step, size), self._lens(step, size)
        place = "fresh" if size != step.rows else None
        pool = tensor(place or "pool_rows", "int64", rows)
        events: Events = [("target", "refresh", size, pool, tensor(place or "seq_lens", "int32", lens), words)]
        if c.draft is not None:
            words = {"req_to_page": self._pages("draft_pages"), "forward_mode": "DECODE"}
            words |= (tables | tokens) if c.draft.paged else {}
            words |= {"actual_bs": step.rows} if c.draft.mask else {}
            words |= self._narrowed(flat) if c.target.flat else {}
            events.append(("draft", "refresh", size, pool, tensor("draft_lens", "int32", lens), words))
        events += [("deepep", "set_mode", {}), ("deepep", "clean", {})] if c.deepep else []
        if c.variants is not None and not idle:  # deviation: without rows the default's graph is replayed, unasked
            events.append(("sampler", "replay_variant", c.tokens_per_request, {}))
        return events + self._verified(step)

    def _verified(self, step: Step, accepted: Any = None) -> Events:
        if not (self.c.drafter and self.c.verifies and step.mode == "DECODE"):
            return []
        accepted = tensor("fresh", "int64", list(range(1, step.rows + 1))) if accepted is None else accepted
        return [("target", "verified", accepted, None, {"rows": step.rows})]

    def _eager(self, step: Step) -> Events:
        c, ctx = self.c, self._context(step)
        live = [10 + row for row in range(step.rows)]
        pool = tensor("pool_rows", "int64", list(range(1, step.rows + 1)))
        lens, own = tensor("seq_lens", "int32", live), tensor("draft_lens", "int32", live)
        given = {name: self._given(step, name) for name in (PAGED, OFFSETS, FLAT)}
        words = {
            "extend_with_prefix": step.mode == "EXTEND",
            **dict.fromkeys(("extend_prefix_lens", "extend_prefix_lens_cpu", "extend_seq_lens", "extend_seq_lens_cpu")),
            **dict.fromkeys(("positions", "out_cache_loc")),
            "spec_info": "spec info",
            "global_num_tokens": ctx["global_num_tokens"],
            "all_decode_or_idle": step.steady,
            "capture_hidden_mode": "FULL",
            PAGED: given[PAGED] if c.target.paged else None,
            OFFSETS: given[OFFSETS] if c.target.paged else None,
            FLAT: given[FLAT] if c.target.flat else None,
            **({"num_tokens": step.rows * c.tokens_per_request} if c.target.paged else {}),
            **self._recurrent(step, step.rows),
        }
        extends = {"num_extends": step.rows if step.mode == "EXTEND" else 0, "forward_mode": step.mode}
        batch = {"bs": step.rows, "req_pool_indices": pool}
        target = {**batch, "seq_lens": lens, "req_to_page": self._pages("pages"), **extends, **words}
        events: Events = [("target", "eager", target)]
        if c.draft is not None:
            batch |= {"req_to_page": self._pages("draft_pages")}
            decoding = {"num_extends": 0, "forward_mode": "DECODE", **self._narrowed(words[FLAT])}
            if c.draft.paged:
                decoding |= {name: words[name] for name in (PAGED, OFFSETS) if words[name] is not None}
            if step.mode in ("EXTEND", "MIXED"):
                flat = {} if words[FLAT] is None else {FLAT: self._narrowed(words[FLAT]).get(FLAT)}
                first = {**batch, "seq_lens": lens if c.v4 else own, **extends, **words, **flat}
                events.append(("draft", "eager", first))
                events += [("draft", "eager", {**batch, "seq_lens": own, **decoding})] if c.v4 else []
            else:
                decoding |= {"num_tokens": step.rows * c.tokens_per_request} if c.draft.paged else {}
                events.append(("draft", "eager", {**batch, "seq_lens": lens if c.v4 else own, **decoding}))
        told = {**ctx, "capture_hidden_mode": "FULL", "global_bs": None, "forward_mode": step.mode}
        told |= {"steady": step.steady, "num_extends": extends["num_extends"]}
        events.append(("engine", "forward", step.rows, False, None, told))
        return events

    def _context(self, step: Step) -> dict[str, Any]:
        tokens, c = step.rows * self.c.tokens_per_request, self.c
        known = [tokens, step.others * c.tokens_per_request] if c.ranks > 1 and step.known else None
        return {"bs": step.rows, "input_num_tokens": tokens, "global_num_tokens": known}

    def _pages(self, name: str) -> tuple[str, str, list[Any]]:
        return tensor(name, "int32", [[0] * 4] * (SENTINEL + 1))

    def _rows(self, step: Step, size: int) -> list[int]:
        pad = SENTINEL if self.c.spec_algo == "DFLASH" else 0
        return [*range(1, step.rows + 1), *[pad] * (size - step.rows)]

    def _lens(self, step: Step, size: int) -> list[int]:
        return [*range(10, 10 + step.rows), *[1] * (size - step.rows)]

    def _recurrent(self, step: Step, size: int) -> dict[str, Any]:
        pads = [-1] * (size - step.rows)
        return {
            name: tensor("fresh" if pads else name, "int32", [place + 3] * step.rows + pads)
            for place, name in enumerate(RECURRENT[: step.recurrent])
        }

    def _given(self, step: Step, name: str) -> dict[str, Any] | None:
        c = self.c
        if not step.tables or (name == OFFSETS and not step.offsets):
            return None
        row: Any = {PAGED: [5, 5], OFFSETS: 7, FLAT: [6, 6]}[name]
        groups = dict.fromkeys(g.group_id for g in (*c.groups, *(c.draft_groups if c.draft is not None else ())))
        return {group: tensor(f"{name}[{group}]", "int32", [row] * step.rows) for group in groups}

    def _pad(self, tables: dict[str, Any] | None, size: int, pad: Any) -> dict[str, Any] | None:
        if tables is None:
            return None
        return {
            group: (place, dtype, rows) if len(rows) == size else ("fresh", dtype, rows + [pad] * (size - len(rows)))
            for group, (place, dtype, rows) in tables.items()
        }

    def _narrowed(self, flat: dict[str, Any] | None) -> dict[str, Any]:
        tables = {group: flat[group] for group in self._draft_flat() if group in flat} if flat else {}
        return {FLAT: tables} if tables else {}
