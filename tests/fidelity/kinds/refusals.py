"""Programs that a capture refuses: what the host reads, misuse of the interface, exceptions, other threads."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fidelity.builder import Builder
from tests.fidelity.choices import chance, pick
from tests.fidelity.kinds.scenes import capture, inputs, pool

HOST_SYNC = (
    "x0.sum().item()", "x0[0, 0].item()", "x0.tolist()", "x0.cpu()", "float(x0.sum())", "bool(b3.any())",
    "int(i2.max())",
    "x0.numpy()", "1 if x0.sum() > 0 else 2", "torch.cuda.synchronize()", "torch.cuda.current_stream().synchronize()",
    "torch.equal(x0, x1)", "torch.allclose(x0, x1)", 'x0.to("cpu")', "x0.sum().is_nonzero()", "list(x0[0])", "len(x0)",
    "range(i2.sum())", "i2.max().item()", "repr(x0)", "str(x0.sum())", "x0.storage()[0]",
    "x0.to(torch.device(\"cpu\"))",
    "x0.sum().__index__()", "round(x0.sum().item())", "torch.is_nonzero(x0[0, 0])", "x0 in [x1]", "2 in i2", "hash(x0)",
    "copy.deepcopy(x0)", "x0.type(\"torch.FloatTensor\")", "torch.cuda.default_stream().synchronize()",
    "[1, 2, 3][i2.min() % 2]",
    "[0.5] * b3.sum()", "x0.cpu().sum()", "math.sqrt(x0.abs().sum())", "x0.data_ptr()", "x0.element_size()",
    "torch.cuda.empty_cache()", "torch.cuda.memory_allocated()", "torch.cuda.is_current_stream_capturing()",
    "x0.shape[0] * 2", "torch.cuda.stream(torch.cuda.current_stream())", "x0.requires_grad", "torch.is_tensor(x0)",
    "x0.dim()",
)  # fmt: skip
PAGEABLE = (
    'torch.tensor([1.0, 2.0], device="cuda")', "x0.copy_(host)", 'host.to("cuda")', "host.cuda()",
    "x0.copy_(host, non_blocking=True)",
    "host.copy_(x0)", "page.copy_(x0)", "x0.copy_(page)", 'torch.as_tensor([1.0], device="cuda")', "x0.add_(host)",
    "x0[0] = host[0]", "x0[[0, 1]]", "x0[places]", "x0[torch.tensor([0, 1])]", "x0[:, [0, 2]] = 1.0", "x0 + host",
    "x0[0] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])", "torch.where(x0 > 0, x0, host)", 'page.to("cuda")',
    "x0.index_select(0, places)",
    'host.to("cuda", non_blocking=True)', "x0.new_tensor([1.0, 2.0])", "torch.cat([x0, host])",
    "host.copy_(x0, non_blocking=True)",
    "x0[0, 0] = 2.0", "x0[0] = 1.5", "host + 1", "host.add_(1)", 'torch.full((2,), 1.0, device="cuda")',
    "x0.mul_(torch.tensor(2.0))",
    "x0[torch.tensor(1)]", "x0[np.array([0, 1])]", 'torch.from_numpy(np.ones(3)).to("cuda")', "x0.to(torch.float64)",
    "x0 @ host.t()",
    "torch.stack([x0, x1])", "x0[0] = page[0]", 'torch.arange(3).to("cuda")', 'torch.tensor(1.0, device="cuda")',
    "host[0] = x0[0]",
    'torch.tensor([1.0, 2.0]).pin_memory()', "torch.zeros(4).pin_memory()", "torch.empty(3, pin_memory=True)",
    "x0.pin_memory()",
    'torch.asarray([1.0], device="cuda")', "page[:, 0].copy_(x0[:, 0], non_blocking=True)",
    "x0[:, 0].copy_(page[:, 0], non_blocking=True)",
    "x0.copy_(page.double(), non_blocking=True)", "x0.t().copy_(page.t(), non_blocking=True)",
    "x0.float().copy_(page, non_blocking=True)",
)  # fmt: skip
DATA_DEPENDENT = (
    "x0.nonzero()", "x0[b3]", "x0[x0 > 0]", "b3.nonzero()", "torch.unique(i2)", "x0.masked_select(b3)",
    "torch.where(b3)",
    "i2.unique_consecutive()", "torch.bincount(i2.flatten().abs())", "x0.repeat_interleave(i2.flatten()[:4].abs(), 0)",
    "x0[b3] = x1[b3]", "torch.argwhere(b3)", "x0.histc()", "torch.histc(x0, 4, -3, 3)", "torch.linalg.inv(x0 @ x0.t())",
    "torch.multinomial(x0.abs() + 1, 2)", 'torch.randperm(4, device="cuda")', "x0[b3] = 1.0",
    "x0.masked_fill_(b3, 2.0)",
    "torch.nonzero_static(b3, size=3)", "x0.masked_scatter(b3, x1)", "x0.tensor_split(rows.cpu())", "F.one_hot(rows)",
    "x0[b3[:, 0]]", "x0[:, b3[0]]", "torch.combinations(rows, 2)", "x0.to_sparse()", "F.one_hot(rows, 4)", "x0[rows]",
    "torch.split(x0, rows.tolist())", "x0[i2[0, 0] % 4]", "x0[rows[0]]", "x0[rows[0]:]", "x0.narrow(0, rows[0] * 0, 1)",
    "torch.linalg.solve(x0 @ x0.t(), x0)", "torch.linalg.svd(x0)", "torch.linalg.cholesky(x0 @ x0.t())",
    "torch.normal(x0, x1.abs())",
    "torch.quantile(x0, 0.5)", "x0.mode()", "x0.kthvalue(2)", "torch.isin(i2, rows)",
    "F.ctc_loss(x0[:, None].log_softmax(-1), rows[None, :2] + 1, rows[:1] * 0 + 4, rows[:1] * 0 + 2)",
    "F.cross_entropy(x0, distinct)", "F.nll_loss(x0, distinct)", "x0.cumsum(0)", "torch.median(x0)", "x0.sort(1)",
    "torch.trapezoid(x0)", "torch.cov(x0)", "torch.corrcoef(x0)", "torch.bucketize(x0, x1[0].sort().values)",
    "x0.index_put_((b3,), x1.sum())",
)  # fmt: skip


def host_sync(builder: Builder) -> None:
    """One line by which the host would read the device, or wait for it; and some that only look as if."""
    _refused(builder, HOST_SYNC)


def pageable(builder: Builder) -> None:
    """One line that copies between the device and memory of the host, openly or hidden."""
    _refused(builder, PAGEABLE)


def data_dependent(builder: Builder) -> None:
    """One line whose result has a shape that only the device knows, or that checks values on the host; and others."""
    _refused(builder, DATA_DEPENDENT)


def caught(builder: Builder) -> None:
    """A refusal that the captured code swallows: CUDA's own loses the capture all the same, torch's does not."""
    _scene(builder)
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("out = x0 + 1")
        with builder.block("try:"):
            builder.line(
                pick(builder.choices, [*HOST_SYNC[:12], *DATA_DEPENDENT[:6], *PAGEABLE[:4], 'raise Planted("planted")'])
            )
        with builder.block("except Exception:"):
            builder.line("pass")
        builder.line("out = out * 2")
    _afterwards(builder)


def exceptions(builder: Builder) -> None:
    """The captured code raises: what was captured until then, and what works afterwards."""
    _scene(builder)
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("out = x0 + 1")
        if chance(builder.choices, 30):
            builder.line('noise = torch.rand(3, device="cuda")')
        builder.line(
            pick(
                builder.choices,
                ['raise Planted("planted")', "x0 @ x0", "x0.view(5, 5)", "[][1]", "x0 + i2[:3]", "torch.cat([])"],
            )
        )
        builder.line("out = out * 2")
    _afterwards(builder)
    builder.line('fact("random", lambda: len(set(torch.rand(4, device="cuda").tolist())))')


# Programs of their own, after the scene that `misuse` sets.
MISUSE = [
    block.splitlines()
    for block in """\
torch.cuda.CUDAGraph().replay()

torch.cuda.CUDAGraph().reset()

torch.cuda.CUDAGraph().pool()

g0.capture_begin()

with torch.cuda.graph(g0, pool=p0, stream=torch.cuda.default_stream()):
    out = x0 + 1

with torch.cuda.graph(g0, pool=p0):
    g1.replay()

with torch.cuda.graph(g0, pool=p0):
    out = x0 + 1
    g1.replay()
    out = out + 1

with torch.cuda.graph(g0, pool=p0):
    with torch.cuda.graph(g2, pool=p1):
        out = x0 + 1

with torch.cuda.graph(g0, pool=p0):
    g2.capture_begin(pool=p1)

with torch.cuda.graph(g0, pool=p0):
    with torch.cuda.stream(s1):
        g2.capture_begin(pool=p1)
        out = x0 + 1
        g2.capture_end()

with torch.cuda.graph(g0, pool=p0):
    pass

with torch.cuda.graph(g1, pool=p0):
    out = x0 + 1

g1.reset()
with torch.cuda.graph(g0, pool=p2):
    out = x0 + 1

g1.reset()
g1.replay()

g1.reset()
g1.reset()

g1.reset()
with torch.cuda.graph(g1, pool=p0):
    out = x0 + 1

with torch.cuda.graph(g0, pool=p0, capture_error_mode="strict"):
    out = x0 + 1

with torch.cuda.stream(s1):
    g0.capture_begin(pool=p0)
    out = x0 + 1
    g0.capture_end()

with torch.cuda.stream(s1):
    g0.capture_begin(pool=p0)
    out = x0 + 1
    g0.capture_end()
g0.replay()

with torch.cuda.stream(s1):
    torch.cuda.synchronize()
    g0.capture_begin(pool=p0)
    out = x0 + 1
    g0.replay()

with torch.cuda.graph(g0, pool=p0):
    g0.replay()

with torch.cuda.graph(g0, pool=p0):
    g0.reset()

with torch.cuda.graph(g0, pool=p0):
    g1.reset()

with torch.cuda.graph(g0, pool=p0):
    g1.pool()
    out = x0 + 1

with torch.cuda.graph(g0, pool=p0):
    torch.cuda.manual_seed(3)

with torch.cuda.graph(g0, pool=p0):
    torch.cuda.get_rng_state()

with torch.cuda.graph(g0, pool=p0):
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())

with torch.cuda.graph(g0, pool=p0):
    out = torch.rand(3, device="cuda", generator=mine)

with torch.cuda.graph(g0, pool=p0):
    torch.cuda.initial_seed()

with torch.cuda.graph(g0, pool=p0):
    torch.manual_seed(3)

with torch.cuda.graph(g0, pool=p0):
    torch.rand(3)
    out = x0 + 1

g0.register_generator_state(mine)
with torch.cuda.graph(g0, pool=p0):
    out = torch.rand(3, device="cuda", generator=mine)
g0.replay()

with torch.cuda.graph(g0, pool=p0):
    out = x0 + 1
    torch.cuda.set_stream(s1)

with torch.cuda.graph(g0, pool=p0):
    s1.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(s1)
    out = x0 + 1

with torch.cuda.stream(s1):
    with torch.cuda.graph(g0, pool=p0):
        out = x0 + 1
    g0.replay()
torch.cuda.current_stream().wait_stream(s1)
""".strip().split("\n\n")
]


def misuse(builder: Builder) -> None:
    """The interface used as it must not be, and at its edges."""
    _scene(builder)
    builder.line(
        "g0, g1, g2, s1 = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), torch.cuda.Stream()"
    )
    builder.line('mine = torch.Generator("cuda").manual_seed(5)')
    for name in ("p0", "p1", "p2"):
        pool(builder, name)
    with capture(builder, "g1", ", pool=p2", new=False):
        builder.line("one = x1 + 1")
    with builder.block('with attempt("misuse") as at:'):
        for line in pick(builder.choices, MISUSE):
            builder.line(line)
    _aftermath(builder)
    with builder.block('with attempt("other") as at:'):
        builder.line("g1.replay()")
    builder.line('see("one", "exact")')


def threads(builder: Builder) -> None:
    """Another thread calls CUDA during a capture, in each of the error modes."""
    _scene(builder)
    mode = pick(builder.choices, ["global", "thread_local", "relaxed"])
    work = pick(builder.choices, [
        "x1 + 1", "x1.sum().item()", "x1.cpu()", "torch.cuda.synchronize()", 'torch.zeros(3, device="cuda")',
        "s1.synchronize()",
        "torch.cuda.Event().record()", "torch.zeros(9).pin_memory()", 'torch.empty(4_000_000, device="cuda")',
        "torch.cuda.empty_cache()",
        "torch.cuda.current_stream().query()", "torch.cuda.is_current_stream_capturing()", "x1.copy_(host)",
        "x1.add_(1)",
    ])  # fmt: skip
    builder.line("s1 = torch.cuda.Stream()")
    here = chance(builder.choices, 30)
    with capture(builder, "g0", f'{pool(builder, "p0")}, capture_error_mode="{mode}"'):
        builder.line("out = x0 + 1")
        builder.line(work if here else f'fact("elsewhere", lambda: elsewhere(lambda: {work}))')
        builder.line("out = out * 2")
    _afterwards(builder)
    builder.line('see("x1", "exact")')


def gradients(builder: Builder) -> None:
    """Operators on tensors that ask for gradients, in a capture."""
    inputs(builder, ("x", "x"))
    builder.line("w.requires_grad_(True)")
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line(
            pick(
                builder.choices,
                [
                    "out = (x0 @ w).relu()",
                    "out = (x0 @ w.detach()).relu()",
                    "out = torch.autograd.grad((x0 @ w).sum(), w)[0]",
                ],
            )
        )
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
    builder.line('see("out", "exact")')


def _scene(builder: Builder) -> None:
    inputs(builder, ("x", "x", "i", "b"))
    builder.line("import copy, math, numpy as np")
    builder.line("host, page, places = torch.ones(4, 6), torch.ones(4, 6).pin_memory(), torch.tensor([0, 1])")


def _refused(builder: Builder, lines: Sequence[str]) -> None:
    _scene(builder)
    line = pick(builder.choices, lines)
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line("out = x0 + 1")
        builder.line(line if " = " in line else f"got = {line}")
        builder.line("out = out * 2")
    _afterwards(builder)


def _afterwards(builder: Builder) -> None:
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
        builder.line('at("replayed")')
    builder.line('see("out", "exact")')
    _aftermath(builder)


def _aftermath(builder: Builder) -> None:
    """Eager work goes on, and another capture succeeds."""
    builder.line('fact("capturing", torch.cuda.is_current_stream_capturing)')
    builder.line("eager = x1 * 3")
    builder.line('see("eager", "exact")')
    builder.line("after = torch.cuda.graph_pool_handle()")
    with capture(builder, "later", ", pool=after"):
        builder.line("fresh = x1 - 1")
    with builder.block('with attempt("later replay") as at:'):
        builder.line("later.replay()")
    builder.line('see("fresh", "exact")')
