"""Tensors that tests of the emulation quantize, and the results of processes that work together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp


def sample(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def of_two_processes(member: Callable[..., None], folder: Path) -> dict[Any, Any]:
    """Run a function of a rank, a file and the common results in two processes; return the results."""
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(member, args=(str(folder / "store"), results), nprocs=2)
        return dict(results)
