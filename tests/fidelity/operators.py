"""What programs compute: lines with places to fill in.

`{x}` is a float tensor, `{y}` another of its shape and dtype, `{i}` an integer tensor, `{j}` another of its shape,
`{b}` a mask, `{m}` a mask of the shape of `{x}`, `{a}` any tensor; `{rows}` and `{distinct}` are indices into its first
dimension, the second without repeats, `{cells}` an index of the shape of `{x}`; `{s}` a number, `{h}` a
zero-dimensional host tensor, `{d}` a dimension, `{w}` a weight for its last dimension.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Operator:
    """A line; whether it keeps exact numbers exact; whether it needs them; how many tensors it gives."""

    line: str
    exact: bool = False
    firm: bool = False
    count: int = 1


def _exact(*lines: str) -> list[Operator]:
    return [Operator(line, exact=True) for line in lines]


def _rounding(*lines: str) -> list[Operator]:
    return [Operator(line) for line in lines]


def _firm(*lines: str) -> list[Operator]:
    return [Operator(line, exact=True, firm=True) for line in lines]


def _several(*lines: tuple[str, int], exact: bool = True, firm: bool = False) -> list[Operator]:
    return [Operator(line, exact=exact, firm=firm, count=count) for line, count in lines]


PURE: dict[str, list[Operator]] = {
    "elementwise": [
        *_exact(
            "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} + {s}", "{x} * {s}", "{s} - {x}", "-{x}", "{x}.abs()",
            "torch.relu({x})", "{x}.clamp(-2, 2)", "{x}.clamp(min=0.5)", "torch.maximum({x}, {y})",
            "torch.minimum({x}, {y})", "torch.lerp({x}, {y}, 0.5)", "torch.addcmul({x}, {x}, {y}, value=0.5)",
            "F.leaky_relu({x}, 0.5)", "F.hardtanh({x})", "F.threshold({x}, 0.5, 0.0)", "{x}.nan_to_num(nan=0.25)",
            "torch.add({x}, {y}, alpha=2)", "{x}.square()", "torch.rsub({x}, {s})", "{x} * {h}", "{h} + {x}",
            "({x} + 1) * ({y} - 1)", "(({x} * 2 + {y}) - {x}).abs()", "torch.hypot({x}, {x} * 0)",
            "torch.where({m}, {x}, {y})", "torch.where({m}, {x}, 0.5)", "{x}.masked_fill({m}, -1.5)",
            "torch.copysign({x}, {y})", "torch.heaviside({x}, {y})", "{x}.fmod(2)", "F.relu6({x})",
        ),
        *_rounding(
            "{x}.tanh()", "torch.sigmoid({x})", "{x}.sin()", "{x}.cos()", "{x}.clamp(max=3).exp()", "F.gelu({x})",
            "F.silu({x})", "{x}.abs().add(0.5).log()", "{x}.abs().sqrt()", "({x} * {x} + 1).rsqrt()", "F.softplus({x})",
            "{x} / ({y} * {y} + 1)", "torch.atan2({x}, {y}.abs() + 1)", "torch.erf({x})", "F.elu({x})", "F.mish({x})",
            "torch.logaddexp({x}, {y})", "{x}.abs().add(1).reciprocal()", "{x}.expm1().clamp(max=9)", "{x} / 3",
            "F.logsigmoid({x})", "torch.sinc({x})", "{x}.abs().pow(1.5)", "torch.addcdiv({x}, {y}, {y}.abs() + 1)",
            'F.gelu({x}, approximate="tanh")', "F.hardswish({x})", "F.glu(torch.cat([{x}, {x}], -1))",
        ),
        *_firm(
            "{x}.floor()", "{x}.round()", "{x}.sign()", "{x} // 2", "{x}.ceil()", "{x}.trunc()", "{x}.frac()",
            "torch.div({x}, 2, rounding_mode=\"trunc\")", "{x} % 2",
        ),
    ],
    "comparisons": _firm(
        "{x} > {y}", "{x} <= 0.5", "{x} == {y}", "torch.isnan({x})", "{x}.isfinite()", "({x} > 0) & ({y} > 0)",
        "torch.logical_xor({x} > 0, {y} > 0)", "~({x} > {s})", "torch.signbit({x})", "{x}.bool()", "{x} != {y}",
        "({x} > 0).any({d})", "({x} > -9).all()", "torch.isclose({x}, {y})", "{x}.ne(0).any({d}, keepdim=True)",
        "torch.isin({i}, {j})", "{b}.logical_not()", "{i} >= {j}",
        "torch.searchsorted({x}.flatten().sort().values, {x})",
        "torch.bucketize({x}, torch.arange(-3.0, 3.0, device=\"cuda\"))",
    ),
    "integers": _exact(
        "{i} + {j}", "{i} * 3", "{i} // 3", "{i} % 5", "{i} - {j}", "{i}.abs()", "-{i}", "{i} & 3", "{i} | {j}",
        "{i} ^ 1", "{i} << 1", "{i} >> 1", "{i}.clamp(0, 5)", "torch.maximum({i}, {j})", "{i}.sum({d})", "{i}.sum()",
        "{i}.cumsum({d})", "{i}.prod({d}) % 7", "{i}.float()", "{i}.to(torch.int32)", "{i}.to(torch.int64)",
        "{i}.to(torch.uint8)", "({i} % 4).bool()", "{b}.sum()", "{b}.to(torch.int64)", "{b}.int() * 2",
        "{b}.cumsum(0)", "{b}.float()", "torch.where({b}, 1, 0)", "{i}.amax({d})", "{i}.amin()", "{i}.float() * 0.5",
        "torch.bitwise_not({i})", "torch.where({i} > 1, {i}, -1)", "{i}.sort({d}).values", "{i}.eq(1).int()",
        "torch.div({i}, 2, rounding_mode=\"floor\")", "torch.gcd({i}, {j})", "{i}.to(torch.int16)",
        "{i}.cummax(0).values",
        "torch.remainder({i}, 3)", "{i}.diff(dim=-1)", "F.one_hot({i} % 4, 4)", "torch.bitwise_and({i}, {j})",
    ),
    "reductions": [
        *_exact(
            "{x}.sum()", "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.amax({d})", "{x}.amin({d}, keepdim=True)",
            "{x}.max()", "{x}.min()", "{x}.cumsum({d})", "{x}.max({d}).values", "{x}.nansum({d})",
            "{x}.cummax({d}).values", "{x}.sum(dtype=torch.float64)", "torch.count_nonzero({x}, {d})", "{x}.diff()",
            "{x}.trace()", "{x}.sum((0, 1))",
        ),
        *_rounding(
            "{x}.mean()", "{x}.mean({d})", "{x}.var({d}, correction=0)", "{x}.std(correction=0)", "{x}.norm()",
            "{x}.logsumexp({d})", "torch.linalg.vector_norm({x}, dim={d})", "{x}.clamp(-1.5, 1.5).prod({d})",
            "{x}.mean({d}, keepdim=True).expand_as({x})", "F.mse_loss({x}, {y})", "F.l1_loss({x}, {y})",
            "F.cosine_similarity({x} + 9, {y} + 9, dim=0)", "{x}.logcumsumexp({d})", "{x}.sub({x}.mean())",
            "torch.linalg.vector_norm({x}, ord=1)", "torch.cdist({x}, {y})", "F.smooth_l1_loss({x}, {y})",
            "F.normalize({x} + 4, dim={d})", "{x}.clamp(-1.5, 1.5).cumprod({d})",
        ),
        *_firm(
            "{x}.gather({d}, {x}.argmax({d}, keepdim=True))", "{x}.median({d}).values",
            "{x}.sort({d}, stable=True).indices",
            "{x}.gather({d}, {x}.sort({d}, stable=True).indices)", "{x}.argsort({d}, stable=True)",
            "{x}.kthvalue(1, {d}).values",
            "{x}.gather({d}, {x}.argmin({d}, keepdim=True))", "{x}.quantile(0.5)", "{x}.mode({d}).values",
            "{x}.msort()", "{x}.flatten().sort(descending=True).values",
        ),
    ],
    "products": [
        *_exact(
            "{x} @ {w}", "F.linear({x}, {w}.t())", "torch.matmul({x}, {x}.mT)", "{x}.mv({x}[0])",
            "torch.outer({x}[0], {y}[0])",
            "torch.einsum(\"ij,kj->ik\", {x}, {y})", "torch.bmm({x}[None], {w}[None])[0]", "torch.dot({x}[0], {y}[0])",
            "torch.addmm({x}, {x}, {w})", "torch.baddbmm({x}[None], {x}[None], {w}[None])", "{x}.t() @ {y}",
            "torch.kron({x}[:1, :2], {y}[:2, :1])", "torch.addmv({x}[:, 0], {x}, {y}[0])",
            "torch.inner({x}[0], {y}[0])",
            "F.linear({x}, {w}.t(), {x}[0])", "torch.tensordot({x}, {y}, dims=2)", "torch.mm({x}, {w})",
            "torch.einsum(\"ij->j\", {x})", "torch.linalg.multi_dot([{x}, {w}, {w}])",
        ),
        *_rounding(
            "{x} @ {w} / 7", "({x} / 3) @ {w}", "torch.addmm({x}, {x}, {w}, beta=0.3, alpha=0.7)",
            "F.scaled_dot_product_attention({x}[None, None], {y}[None, None], {y}[None, None])[0, 0]",
            "F.scaled_dot_product_attention({x}[None, None], {x}[None, None], {y}[None, None], is_causal=True)[0, 0]",
        ),
    ],
    "norms": _rounding(
        "{x}.softmax({d})", "F.log_softmax({x}, dim={d})", "F.layer_norm({x}, {x}.shape[-1:], eps=0.1)",
        "F.layer_norm({x}, {x}.shape[-1:], {x}[0], {y}[0], eps=0.1)",
        "F.rms_norm({x}, {x}.shape[-1:], {y}[0], eps=0.1)",
        "{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 0.1)", "F.group_norm({x}, 2, eps=0.1)",
        "F.softmin({x}, dim={d})", "{x}.softmax(-1, dtype=torch.float64)",
    ),
    "indexing": [
        *_exact(
            "{x}[{rows}]", "{x}.index_select(0, {rows})", "F.embedding({rows}, {x})", "{x}.gather(0, {cells})",
            "torch.take_along_dim({x}, {cells}, 0)", "{x}.scatter(0, {cells} * 0 + {distinct}[:, None], {y})",
            "torch.zeros_like({x}).scatter_add(0, {cells}, {y})", "{x}.index_add(0, {distinct}, {y})",
            "{x}.index_copy(0, {distinct}, {y})", "{x}.index_fill(0, {rows}, 0.5)", "{x}.take({rows})",
            "torch.index_put({x}, ({distinct},), {y})", "torch.index_put({x}, ({rows},), {y}, accumulate=True)",
            "{x}[{rows}, {rows}]", "{x}[:, {rows}]", "{x}[{rows}[:, None], {rows}]", "{x}[1]", "{x}[-1:]",
            "{x}[..., 0]",
            "{x}.scatter_reduce(0, {cells}, {y}, reduce=\"amax\")", "{i}[{rows}]", "{b}[{rows}]",
            "F.embedding_bag({rows}[None], {x}, mode=\"sum\")", "{x}[{rows}, 1:3]", "{x}[None, {rows}]",
            "{i}.gather(0, {i}.abs() % {i}.shape[0])",
        ),
        *_firm("{x}[{rows}].argmax(1)[:, None] * 0"),
    ],
    "shapes": _exact(
        "{a}.t()", "{a}.reshape(-1)", "{a}.flatten()", "{a}.unsqueeze(0)", "{a}[1:]", "{a}[:, ::2]",
        "{a}.transpose(0, -1)",
        "{a}.expand(2, *{a}.shape)", "{a}.contiguous()", "{a}.squeeze()", "{a}.view(-1)", "{a}.narrow(0, 0, 1)",
        "{a}.select(0, 0)", "{a}.diagonal()", "{a}.unfold(0, 2, 1)", "{a}.movedim(0, -1)", "{a}.view_as({a})",
        "{a}.detach()", "{a}.clone()", "{a}.repeat(2, 1)", "{a}.roll(1, 0)", "{a}.flip(0)", "{a}.tril()", "{a}.triu(1)",
        "torch.cat([{a}, {a}], 0)", "torch.stack([{a}, {a}])", "torch.cat([{x}[:1], {y}[1:]])",
        "torch.hstack([{a}, {a}])",
        "{a}.repeat_interleave(2, 0)", "torch.rot90({a})", "F.pad({x}, (1, 0))", "{a}.unflatten(-1, (2, -1))",
        "{a}.swapaxes(0, 1).contiguous()", "torch.broadcast_to({a}, (2, *{a}.shape))", "{a}.as_strided((2, 2), (1, 2))",
        "torch.atleast_3d({a})", "torch.block_diag({x}[:1], {y}[:1])", "{a}.permute(1, 0)", "{x}.view(torch.int32)",
        "torch.tile({a}, (2,))", "torch.vstack([{a}[:1], {a}[1:]])", "{a}.masked_fill({a} == {a}, 1)",
    ),
    "dtypes": [
        *_exact("{x}.to(torch.float64)", "{x}.double().float()", "{x}.to({x}.dtype)", "{x}.type_as({y})"),
        *_rounding(
            "{x}.to(torch.float16)", "{x}.to(torch.bfloat16)", "{x}.half().float()", "{x}.to(torch.bfloat16).float()",
            "({x}.to(torch.bfloat16) @ {w}.to(torch.bfloat16)).float()", "{x}.float()",
            "({x}.half() + {y}.half()).float()", "{x}.to(torch.bfloat16).softmax(-1).float()",
        ),
        *_firm(
            "{x}.nan_to_num().clamp(-9, 9).to(torch.int64)", "({x}.nan_to_num() * 4).clamp(-99, 99).int()",
            "({x}.nan_to_num() * 4).clamp(-9, 9).char()",
        ),
    ],
    "factories": _exact(
        'torch.zeros({x}.shape, device="cuda") + {x}', 'torch.ones(3, device="cuda")',
        'torch.full((2, 3), 1.5, device="cuda")',
        'torch.arange(4, device="cuda")', 'torch.eye(3, device="cuda")', "torch.zeros_like({a})",
        "torch.ones_like({x}) - {y}",
        "{x}.new_zeros(2, 3)", "{x}.new_full((2,), 0.5)", "torch.full_like({x}, 2.5)",
        "torch.empty_like({x}).copy_({y})",
        'torch.empty({x}.shape, device="cuda").fill_(3)', 'torch.arange(0.0, 2.0, 0.5, device="cuda")',
        'torch.linspace(0, 1, 5, device="cuda")', 'torch.tril_indices(3, 3, device="cuda")', "{a}.new_ones(3)",
        'torch.scalar_tensor(2.5, device="cuda")', "{x}.new_empty({x}.shape).zero_()",
        'torch.ones((), device="cuda") * {x}',
        'torch.zeros(2, 3, dtype=torch.int64, device="cuda")', 'torch.empty((2, 2), device="cuda").fill_({s})',
    ),
    "out": _exact(
        "torch.add({x}, {y}, out=torch.empty_like({x}))", 'torch.mul({x}, {y}, out=torch.empty(0, device="cuda"))',
        "torch.matmul({x}, {w}, out=torch.empty_like({x}))", "torch.cat([{x}, {y}], out={x}.new_empty(0))",
        "torch.sum({x}, 0, out={x}.new_empty(0))", "torch.where({m}, {x}, {y}, out=torch.empty_like({x}))",
        "torch.index_select({x}, 0, {rows}, out={x}.new_empty(0))", "torch.stack([{x}, {y}], out={x}.new_empty(0))",
        'torch.arange(3, out=torch.empty(0, dtype=torch.int64, device="cuda"))',
        "torch.cumsum({x}, 0, out=torch.empty_like({x}))",
    ),
}  # fmt: skip

SEVERAL: list[Operator] = [
    *_several(
        ("{x}.split([1, {x}.shape[0] - 1])", 2), ("{a}.chunk(2, dim=-1)", 2), ("{a}.unbind(0)[:2]", 2),
        ("{x}.max({d})[:1] * 2", 2), ("torch.aminmax({x})", 2), ("torch.tensor_split({a}, 2)", 2), ("{a}.hsplit(2)", 2),
        ("torch.broadcast_tensors({x}, {x}[:1])", 2), ("torch.meshgrid({x}[0], {y}[0], indexing=\"ij\")", 2),
        ("{a}.view(2, -1).unbind()", 2), ("[{x} + 1, {y} - 1]", 2), ("torch.frexp({x}.nan_to_num().clamp(-9, 9))", 2),
    ),
    *_several(
        ("torch.var_mean({x}, {d}, correction=0)", 2), ("torch.std_mean({x}, correction=0)", 2),
        ("torch.native_layer_norm({x}, {x}.shape[-1:], None, None, 0.1)", 3), exact=False,
    ),
    *_several(
        ("{x}.sort({d}, stable=True)", 2), ("torch.sort({x}, descending=True, stable=True)", 2),
        ("({x} > 0).max({d})[:1] * 2", 2),
        firm=True,
    ),
]  # fmt: skip

IN_PLACE: list[Operator] = [
    *_exact(
        "{x}.add_({y})", "{x}.mul_(0.5)", "{x}.copy_({y})", "{x}.sub_({s})", "{x}.neg_()", "{x}.clamp_(-2, 2)",
        "{x}.zero_()",
        "{x}[1] = {y}[0]", "{x}[:, 1] = 0.5", "{x}[{m}] = -1.0", "{x}[{distinct}] = {y}", "{x}[1:] += 1",
        "{x}.fill_({s})",
        "{x}.index_put_(({rows},), {y}, accumulate=True)", "{x}.index_copy_(0, {distinct}, {y})", "{x}.relu_()",
        "{x}.index_add_(0, {rows}, {y})", "{x}.index_fill_(0, {rows}, 3.0)", "{x}.masked_fill_({m}, 0.25)",
        "{x} += {y}",
        "{x}.scatter_(0, {cells} * 0, 1.5)", "{x}.scatter_add_(0, {cells}, {y})", "{x}.addcmul_({y}, {y}, value=0.5)",
        "{x}.t().add_(1)", "{x}[0].copy_({y}[1])", "{x}.view(-1)[0].fill_(2)", "{x}.lerp_({y}, 0.5)", "{i}.add_(1)",
        "{i} *= 2",
        "{i}.clamp_(0, 9)", "{b}.logical_not_()", "{x}.mul_({h})", "torch.add({y}, {s}, out={x})",
        "torch.mul({x}, {y}, out={x})",
        "torch._foreach_add_([{x}, {y}.clone()], 1.0)", "{x}.select(0, 1).mul_(2)", "{i}.bitwise_and_(7)",
        "{x}[..., 0] -= {y}[..., 0]",
        "{x}.data.add_(0.5)", "{i}[0] = 2", "{x}.copy_({y}[:1])", "{x}.fill_({y}.sum())", "{i}.copy_({j})",
        "{x}.abs_()",
        "{x}.fill_diagonal_(1.0)", "{x}.triu_()", "torch._foreach_mul_([{x}], 0.5)",
    ),
    *_rounding(
        "{x}.tanh_()", "{x}.sigmoid_()", "{x}.div_(3)", "{x}.addmm_({x}.clone(), {w}, beta=0.5, alpha=0.25)",
        "{x}.copy_({y}.softmax(-1))",
    ),
]  # fmt: skip
