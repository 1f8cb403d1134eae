"""A conforming subject: the golden model's own bytes."""

from typing import Any

import fp4ref


def quantize(x: Any) -> tuple[Any, Any, Any]:
    """[M, K] to packed codes, scales and the amax."""
    q = fp4ref.quantize(x, "nvfp4")
    return q.row.data, q.row.scales, q.row.amax
