"""Memory that a step frees stays with the process, so that the next step does not have to fault it in again."""

from __future__ import annotations

import torch

# glibc takes the largest block that a process freed, up to 32 MiB, and returns free memory at the end of its heap to
# the system from twice that size on. A layer of 2 MiB tensors frees 10 MiB in a step, so that the system would map
# 2,500 pages of zeros for it in each. A block that is never touched costs nothing.
LARGEST = (32 << 20) - (64 << 10)


def keep_freed_memory() -> None:
    """Allocate one block of almost 32 MiB, and free it, so that glibc keeps up to 64 MiB of freed memory."""
    torch.empty(LARGEST, dtype=torch.uint8, device="cpu")
