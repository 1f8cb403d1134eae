"""The Hadamard transform's matrix and signs by the names that scripts use."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref.hadamard import POINTS
from fp4ref.spec import Hadamard

SIGNS = Hadamard().signs


def get_wgrad_sign_vector(device: Any = None) -> Tensor:
    """Return the signs as float32 [16]: -1 where the mask has a bit. Rules: HAD-1."""
    return torch.tensor([1.0 - 2.0 * (SIGNS >> i & 1) for i in range(POINTS)], device=device)


def get_sign_from_vector(vector: Tensor) -> int:
    """Return the mask of a vector of signs: bit i is set where element i is -1. Rules: HAD-1."""
    return sum(1 << i for i, sign in enumerate(vector.tolist()) if sign == -1)


def get_random_sign_mask_for_rht(with_random_sign_mask: bool, device: Any = None) -> int:
    """Return the mask of the transform: 0xD7E8, or 0 without signs. Rules: HAD-1."""
    return SIGNS if with_random_sign_mask else 0


def get_hadamard_matrix(hadamard_dimension: int = POINTS, device: Any = None) -> Tensor:
    """Return H / 4 as float32 [16, 16], H[i, j] = (-1)^popcount(i & j). Rules: HAD-1."""
    assert hadamard_dimension == POINTS, f"hadamard of {hadamard_dimension} points, need {POINTS}"
    entries = [[0.25 * (-1) ** (i & j).bit_count() for j in range(POINTS)] for i in range(POINTS)]
    return torch.tensor(entries, device=device)


@lru_cache
def get_rht_matrix(with_random_sign_mask: bool, device: Any = None) -> Tensor:
    """Return the matrix that a group of 16 is multiplied with from the right, bfloat16 [16, 16]. Rules: HAD-1."""
    matrix = get_hadamard_matrix(device=device)
    if with_random_sign_mask:
        matrix = get_wgrad_sign_vector(device).unsqueeze(1) * matrix
    return matrix.to(torch.bfloat16)
