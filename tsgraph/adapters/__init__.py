"""Collaborators made from what engines use: ranks over torch.distributed, DeepEP."""
