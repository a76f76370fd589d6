"""Devices behind the `Backend` protocol: CUDA graphs, and the same semantics on plain CPU tensors."""
