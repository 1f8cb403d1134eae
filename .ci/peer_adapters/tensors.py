"""Tensors in and out, for the adapters of torch's peers."""

import numpy as np
import torch


def tensor(x):
    """Return a matrix as a tensor of its type."""
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


def as_bytes(data, rows):
    """Return a tensor's bytes as [rows, bytes of a row]."""
    return data.contiguous().view(torch.uint8).numpy().reshape(rows, -1)
