"""Scales that share a place, where a digit of their layout is repeated: they have to agree before they are stored.

They are read back to compare them: these calls wait for the device, and cannot be captured into a graph. Reading such
a layout takes none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.errors import BackendError
from fp4ref.layout import LINEAR, Layout
from fp4ref.quantized import Direction, DirectionData
from fp4ref.registry import Call
from fp4ref_cuda import buffers, checks, recording
from fp4ref_cuda.buffers import Library

OPERATION = "quantize"


@lru_cache(maxsize=256)
def in_linear(call: Call) -> Call:
    """Return the call that leaves linear scales, in new buffers: one for all of a kind, as programs know theirs."""
    if call.target is not None:
        return replace(call, target=LINEAR)
    return replace(call, layout=LINEAR, flag=False, out=False)


def stored(
    call: Call,
    x: Any,
    out: Mapping[str, DirectionData | None],
    noop: Any,
    quantize: Callable[[], dict[Direction, DirectionData]],
) -> dict[Direction, DirectionData]:
    """Quantize with linear scales, then store them. quantize: serves the call that `in_linear` says. Rules: LAY-20.

    Errors: LayoutError for scales that differ and share a place; nothing is written then.
    """
    _, library = buffers.adopt(OPERATION, x)
    _require_no_capture(OPERATION, call.layout, library)
    with library.current():
        given = {name: data for name in call.directions if (data := out.get(name)) is not None}
        for name, target in given.items():
            checks.target(call, library, name, target, x)
        flag = checks.noop_flag(noop, library)
        if flag is not None and _on_host(flag).view(np.uint32).any():
            return given
        made = {
            name: data._replace(scales=placed(OPERATION, data.scales, call.layout)) for name, data in quantize().items()
        }
        for name, target in given.items():
            for buffer, value in zip(target, made[name], strict=True):
                if value is not None:
                    buffer[...] = value
    return given or made


def placed(operation: str, linear: Any, form: Layout) -> Any:
    """Return linear scales in a layout with a repeated digit, on their device; they are checked on the host.

    Errors: LayoutError for scales that differ and share a place, BackendError in a capture.
    """
    recording.forbid()
    _, library = buffers.adopt(operation, linear)
    _require_no_capture(operation, form, library)
    scales = form.from_linear(_on_host(linear))
    with library.current():
        return arrays.device_restorer(linear)(library.upload(scales))


def _require_no_capture(operation: str, form: Layout, library: Library) -> None:
    if library.captures():
        got = f"layout {form.name}, whose scales are compared on the host, in a capture"
        raise BackendError(operation, got, "a call outside of it", "LAY-20")


def _on_host(x: Any) -> np.ndarray[Any, Any]:
    x, _ = buffers.adopt(OPERATION, x)
    held: np.ndarray[Any, Any] = x.cpu().numpy() if arrays.is_torch(x) else x.get()
    return held
