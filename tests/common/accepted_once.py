"""The accepted results of products, computed once for all kernels: many are put on trial with equal cases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fp4ref.conformance.judge import products


def digest(case: Any) -> bytes:
    """Return a digest of all arrays of a case, with their types and shapes."""
    found = hashlib.blake2b(digest_size=16)
    directions = [getattr(q, name) for q in (case.a, case.b) for name in ("row", "column")]
    for part in (*(part for each in directions for part in each or ()), case.bias, case.accumulate):
        if part is None:
            found.update(b"none")
            continue
        found.update(f"{part.dtype} {part.shape}".encode())
        found.update(np.ascontiguousarray(part).tobytes())
    return found.digest()


def accepted_once() -> Any:
    """Return a fixture of a module, in which equal cases have the results that were computed first."""
    computed: dict[Any, Any] = {}

    @pytest.fixture(autouse=True, scope="module")
    def once() -> Iterator[None]:
        compute = products.accepted

        def accepted(case: Any, to: str, rule: Any) -> Any:
            specs = [(q.spec, q.shape, q.dtype, q.scale_layout) for q in (case.a, case.b)]
            key = *specs, case.directions, case.aimed, to, rule, digest(case)
            if key not in computed:
                computed[key] = compute(case, to, rule)
            return computed[key]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(products, "accepted", accepted)
            yield

    return once
