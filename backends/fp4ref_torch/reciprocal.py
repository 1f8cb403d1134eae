"""rcp.approx.ftz.f32 as recorded on SM90, on any device: the nearest reciprocal of a significand, moved by a table.

Rules: APX-1.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import as_file, files

import numpy as np
import torch
from torch import Tensor

from fp4ref_torch.exact import INFINITY, NAN, SIGN, SMALLEST_NORMAL, bits, floats, magnitude

MANTISSA = 0x7F_FFFF
ONE = 0x3F80_0000


@lru_cache
def _distances(device: torch.device) -> Tensor:
    """int8 [2^23], in ulp, by mantissa."""
    with as_file(files("fp4ref") / "data" / "rcp_approx_ftz_sm90.npz") as path, np.load(path) as archive:
        return torch.from_numpy(archive["d"]).to(device)


@torch.library.custom_op("fp4ref::reciprocal", mutates_args=())
def reciprocal(v: Tensor) -> Tensor:
    """1 / v, approximately; zeros and subnormals of either side count as zeros of their sign.

    Rules: APX-1. Certificates: reciprocal.
    """
    word = magnitude(v)
    mantissa = word & MANTISSA
    significand = torch.div(torch.ones_like(v), floats(mantissa | ONE))
    moved = bits(significand) + _distances(v.device)[mantissa.long()]
    result = moved + (ONE - (word & INFINITY))  # the exponent's distance from 0, in places of the exponent field
    result = torch.where(result < SMALLEST_NORMAL, 0, result)
    result = torch.where(word < SMALLEST_NORMAL, INFINITY, result)
    result = torch.where(word > INFINITY, NAN, result)
    return floats((result | bits(v) & SIGN).to(torch.int32))


@reciprocal.register_fake
def _(v: Tensor) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)
