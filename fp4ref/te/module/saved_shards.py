"""Operands between the forward and the backward pass: their buffers, and codes of which each process keeps a part.

Scales are small, and stay whole everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

CODES = ("_rowwise_data", "_columnwise_data", "_data")
Shapes = dict[str, torch.Size]


def scatter_codes(quantized: Any, group: Any) -> Shapes:
    """Keep this process's part of each buffer of codes; returns the shapes of the whole. Rules: TEM-12."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    shapes: Shapes = {}
    for name in CODES:
        codes = getattr(quantized, name, None)
        if codes is not None:
            shapes[name] = codes.shape
            each = -(-codes.numel() // size)
            flat = torch.nn.functional.pad(codes.flatten(), (0, each * size - codes.numel()))
            setattr(quantized, name, flat[rank * each : (rank + 1) * each].clone())
    return shapes


def gather_codes(quantized: Any, shapes: Shapes, group: Any) -> None:
    """Put the parts of all processes together again. Rules: TEM-12, TEM-27."""
    size = dist.get_world_size(group)
    for name, shape in shapes.items():
        part = getattr(quantized, name)
        whole = part.new_empty(size * part.numel())
        dist.all_gather(list(whole.chunk(size)), part, group=group)
        setattr(quantized, name, whole[: shape.numel()].view(shape))
