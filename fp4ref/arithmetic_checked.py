"""The check of an arithmetic that a third party registers: each function takes its arguments, and returns float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fp4ref.arithmetic import Arithmetic, Constants
from fp4ref.errors import DomainError, DTypeError, Fp4Error
from fp4ref.formats import CUDA_E4M3, E2M1, E4M3, F


def require_float32(arithmetic: Arithmetic) -> None:
    """Call each function once, on ones; refuse one that cannot be called so, or returns another type.

    An Fp4Error is no reason: the function may serve other formats than those tried, E2M1 under E4M3.

    Rules: NUM-1.
    """
    one = np.ones((1, 1, 1, 1), F)
    k = Constants(E2M1, CUDA_E4M3, F(E2M1.max), F(E4M3.max), lambda values: values)
    calls: dict[str, Callable[[], Any]] = {
        "global_scale(amax, k)": lambda: arithmetic.global_scale(one, k),
        "block_scale(amax, g, k)": lambda: arithmetic.block_scale(one, one, k),
        "working_scale(t, s)": lambda: arithmetic.working_scale(one, one),
        "scaled(x, s, g, k)": lambda: arithmetic.scaled(one, one, one, k),
        "dequantized(q, s, amax, k)": lambda: arithmetic.dequantized(one, one, one, k),
    }
    operation = f"register arithmetic {arithmetic.name}"
    for call, made in calls.items():
        try:
            with np.errstate(all="ignore"):
                found = getattr(made(), "dtype", None)
        except Fp4Error:
            continue
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            needed = "a function of these float32 arrays and constants; an Fp4Error where it does not serve k's formats"
            raise DomainError(operation, f"{call} raises {why}", needed, "NUM-1") from error
        if found != F:
            got = f"{call} returns {'no array' if found is None else found}"
            raise DTypeError(operation, got, "float32, the type of every operation", "NUM-1")
