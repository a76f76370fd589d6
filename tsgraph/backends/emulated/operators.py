"""ATen operators that a recording treats apart, by role; packets, with all their overloads, unless said otherwise.

Where the role is CUDA's doing, it was measured on a GPU (torch 2.11).
"""

# ruff: noqa: SLF001 - an underscore is part of many an operator's name

from __future__ import annotations

import torch

aten = torch.ops.aten

COPY_INTO = aten.copy_
COPY_OUT = {aten.clone, aten._to_copy}

INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}

# They take the value of a zero-dimensional host tensor, as elementwise operators do, without being elementwise.
TAKE_A_SCALAR = {aten.fill, aten.fill_, aten.masked_fill, aten.masked_fill_, aten.index_fill, aten.index_fill_}

# Elementwise, but their GPU kernels want every tensor on the device.
TAKE_NO_SCALAR = {
    aten.where, aten.clamp, aten.clamp_, aten.clamp_min, aten.clamp_min_, aten.clamp_max, aten.clamp_max_,
}  # fmt: skip

# What `torch.tensor` ends with: a tensor that numbers were written into.
LIFT = aten.lift_fresh.default

# They read the value of tensors that say where they begin and end, on the host.
BOUNDS = ("start", "end")
BOUNDED_BY_TENSORS = {
    getattr(packet, name) for packet in (aten.linspace, aten.logspace) for name in packet.overloads()
    if name.startswith(("Tensor_", "Scalar_"))
}  # fmt: skip

# Views in all but their schema.
UNMARKED_VIEWS = {aten._unsafe_view}

# They take memory and run no kernel: a replay leaves that memory as it is.
TAKE_MEMORY = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty, aten.new_empty_strided,
}  # fmt: skip

# They write all of their first argument and read none of it.
OVERWRITE = {
    aten.copy_, aten.fill_, aten.zero_, aten.normal_, aten.uniform_, aten.random_, aten.exponential_, aten.log_normal_,
    aten.cauchy_, aten.geometric_, aten.bernoulli_,
}  # fmt: skip

# Their overloads for given outputs are of no use: one fails where an output is left out, one errs if its strides differ
# from those of the input, the losses resize what they are given.
FILL_NOTHING = {
    aten.mkldnn_rnn_layer, aten.max_unpool2d, aten.binary_cross_entropy, aten.huber_loss, aten.smooth_l1_loss,
    aten.mse_loss, aten.soft_margin_loss,
}  # fmt: skip
