"""Arrays where a backend can use them, and its results back in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays, registry
from fp4ref.errors import BackendError
from fp4ref.quantized import DirectionData, Quantized


def device_of(backend: str) -> str | None:
    """Return the device that a backend's arrays must be on; None if it takes those of the CPU. Rules: CNF-5."""
    devices = registry.backends()[backend].devices
    return None if "cpu" in devices else devices[0]


def placed(value: Any, backend: str) -> Any:
    """Return a NumPy array as it is, or as a torch tensor if a backend takes no other; None stays None.

    Errors: BackendError without torch.
    """
    device = device_of(backend)
    if value is None or device is None:
        return value
    try:
        import torch
    except ImportError:
        raise BackendError(f"backend {backend}", "no torch to move arrays", f"torch, for {device}", "CNF-5") from None
    array = np.array(value)  # torch warns of arrays that cannot be written
    words = array.view(np.uint16) if array.dtype == arrays.INPUT_DTYPES["bfloat16"] else array
    tensor = torch.from_numpy(words).to(device)
    return tensor.view(torch.bfloat16) if words is not array else tensor


def placed_result(q: Quantized, backend: str) -> Quantized:
    """Return the same bytes where a backend can use them."""
    row, column = (
        None if data is None else DirectionData(*(placed(part, backend) for part in data)) for data in (q.row, q.column)
    )
    return dataclasses.replace(q, row=row, column=column)


def fetched(value: Any) -> NDArray[Any]:
    """Return an array of any library and device as NumPy."""
    if arrays.is_torch(value):
        value = value.cpu()
    return arrays.to_numpy("verify", value)
