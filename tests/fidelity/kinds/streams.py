"""Programs on several streams: forks and joins, right and missing; events; work beside a capture."""

from __future__ import annotations

from tests.fidelity.builder import Builder, Value
from tests.fidelity.choices import chance, pick
from tests.fidelity.filling import compute
from tests.fidelity.kinds.scenes import capture, chain, inputs, look, pool, replay_with_updates, update, without

FAMILIES = ("elementwise", "reductions", "products", "norms", "shapes", "factories", "integers")
HERE = "torch.cuda.current_stream()"


def joined(builder: Builder) -> None:
    """Work on one or two side streams, forked and joined as it should be; sometimes replayed on a stream."""
    fed = inputs(builder, ("x", "x", "i"))
    _streams(builder)
    with capture(builder, "g0"):
        made = chain(builder, builder.choices.number(0, 2), FAMILIES, 0)
        side = _beside(builder, "s1")
        made += without(builder, side, lambda: chain(builder, builder.choices.number(0, 2), FAMILIES, 0))
        if chance(builder.choices, 40):
            other = without(builder, side, lambda: _beside(builder, "s2"))
            _join(builder, "s2")
            made += other
        _join(builder, "s1")
        made += side
        made += chain(builder, builder.choices.number(1, 3), FAMILIES, 0)
    replay_with_updates(builder, "g0", fed, made, 1)
    update(builder, fed)
    if chance(builder.choices, 50):
        builder.line(f"s1.wait_stream({HERE})")
        with builder.block("with torch.cuda.stream(s1):"):
            builder.line("g0.replay()")
        builder.line(f"{HERE}.wait_stream(s1)")
    else:
        builder.line("g0.replay()")
    look(builder, made)


def unjoined(builder: Builder) -> None:
    """Work on a side stream that nobody waits for at the end, or that goes on after the join."""
    inputs(builder, ("x", "x"))
    _streams(builder)
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("before = x0 + 1")
        _fork(builder, "s1")
        late = chance(builder.choices, 50)
        with builder.block("with torch.cuda.stream(s1):"):
            builder.line("side = x1 * 2")
        if late:
            builder.line(f"{HERE}.wait_stream(s1)")
            with builder.block("with torch.cuda.stream(s1):"):
                builder.line(pick(builder.choices, ["more = x1 * 3", "x1.add_(1)", "more = side + 1"]))
        builder.line("after = x0 - 1")
    _aftermath(builder)


def aside(builder: Builder) -> None:
    """Work on a stream that does not take part in the capture runs at once."""
    inputs(builder, ("x", "x"))
    _streams(builder)
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("out = x0 + 1")
        stream = pick(builder.choices, ["s1", "torch.cuda.default_stream()"])
        with builder.block(f"with torch.cuda.stream({stream}):"):
            builder.line(pick(builder.choices, ["done = x1 * 2", "x1.mul_(2)", 'done = torch.ones(3, device="cuda")']))
            if chance(builder.choices, 50):
                builder.line('fact("capturing", torch.cuda.is_current_stream_capturing)')
        builder.line("out = out * 2")
    for name in ("done", "x1"):
        builder.line(f'see("{name}", "exact")')
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
    for name in ("out", "x1", "done"):
        builder.line(f'see("{name}", "exact")')


def events(builder: Builder) -> None:
    """Waits for events: of the capture, from before it, and what the host may ask of one."""
    inputs(builder, ("x", "x"))
    _streams(builder)
    builder.line("old, event = torch.cuda.Event(), torch.cuda.Event()")
    builder.line("old.record()")
    wrong = pick(builder.choices, [
        f"{HERE}.wait_event(old)", "s1.wait_event(old)", "event.synchronize()", "event.query()", "old.synchronize()",
        "old.query()", "s1.wait_stream(torch.cuda.default_stream())", f"{HERE}.wait_stream(s2)", "old.record(s2)",
        "s2.synchronize()", "s2.query()", f"{HERE}.query()", "old.record()", "torch.cuda.Event().record()",
    ])  # fmt: skip
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("out = x0 + x1")
        builder.line("event.record()")
        if chance(builder.choices, 60):
            builder.line(wrong)
        builder.line("s1.wait_event(event)")
        with builder.block("with torch.cuda.stream(s1):"):
            builder.line("side = out * 2")
            builder.line("event.record()" if chance(builder.choices, 50) else "event = s1.record_event()")
        builder.line(f"{HERE}.wait_event(event)")
        builder.line("out = side + 1")
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
    builder.line('see("out", "exact")')
    with builder.block('with attempt("event") as at:'):
        builder.line(
            pick(builder.choices, ["event.synchronize()", "event.query()", "old.synchronize()", "old.record()"])
        )
    _aftermath(builder)


def missing_wait(builder: Builder) -> None:
    """Two streams use one tensor and neither waits: either order is legal on a GPU, and a fault everywhere."""
    inputs(builder, ("x", "x"))
    _streams(builder)
    with capture(builder, "g0", pool(builder, "p0")):
        _fork(builder, "s1")
        builder.line("x0.add_(1)")
        with builder.block("with torch.cuda.stream(s1):"):
            builder.line(pick(builder.choices, ["side = x0 * 2", "x0.mul_(2)", "side = x0.sum()"]))
        builder.line(f"{HERE}.wait_stream(s1)")
        builder.line("out = x1 + 1")
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
    builder.line('see("out", "exact")')


def warm_up(builder: Builder) -> None:
    """The documented warm-up on a side stream, then a capture of the same lines."""
    fed = inputs(builder, ("x", "x"))
    builder.line("s1 = torch.cuda.Stream()")
    builder.line(f"s1.wait_stream({HERE})")
    with builder.block("with torch.cuda.stream(s1):"), builder.block("for turn in range(2):"):
        builder.line("x2 = (x0 @ w).relu()")
    builder.line(f"{HERE}.wait_stream(s1)")
    with capture(builder, "g0", pick(builder.choices, ["", ", stream=s1"])):
        builder.line("out = (x0 @ w).relu()")
        if chance(builder.choices, 50):
            builder.line("out += x2")
    for _ in range(2):
        builder.line("g0.replay()")
        builder.line('see("out", "exact")')
        update(builder, fed)


def _streams(builder: Builder) -> None:
    builder.line("s1, s2 = torch.cuda.Stream(), torch.cuda.Stream()")


def _fork(builder: Builder, stream: str) -> None:
    if chance(builder.choices, 40):
        event = builder.name("e")
        builder.line(f"{event} = torch.cuda.Event()")
        builder.line(f"{event}.record()")
        builder.line(f"{stream}.wait_event({event})")
    else:
        builder.line(f"{stream}.wait_stream({HERE})")


def _join(builder: Builder, stream: str) -> None:
    if chance(builder.choices, 40):
        event = builder.name("e")
        builder.line(f"{event} = torch.cuda.Event()")
        builder.line(f"{event}.record({stream})")
        builder.line(f"{event}.wait()")
    else:
        builder.line(f"{HERE}.wait_stream({stream})")


def _beside(builder: Builder, stream: str) -> list[Value]:
    _fork(builder, stream)
    with builder.block(f"with torch.cuda.stream({stream}):"):
        return [value for _ in range(builder.choices.number(1, 3)) for value in compute(builder, FAMILIES)]


def _aftermath(builder: Builder) -> None:
    builder.line('fact("capturing", torch.cuda.is_current_stream_capturing)')
    builder.line("eager = x0 * 3")
    builder.line('see("eager", "exact")')
