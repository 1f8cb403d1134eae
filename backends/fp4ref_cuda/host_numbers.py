"""Maxima that are numbers in the host's memory: arguments of a launch, so that nothing is copied for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fp4ref_cuda import buffers, recording
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import ANY, prelude
from fp4ref_cuda.recording import Address


def is_number(amax: Any) -> bool:
    """Return True for a maximum that is one number in the host's memory, a float32 array as calls are given it."""
    return type(amax) is np.ndarray and amax.size == 1


def bits_of(maxima: Iterable[Any]) -> tuple[int, ...]:
    """Return the bits of those maxima that are numbers of the host."""
    return tuple([int(amax.view(np.uint32).item()) for amax in maxima if type(amax) is np.ndarray and amax.size == 1])


def others(maxima: Iterable[Any]) -> list[Any]:
    """Return the maxima that are arrays; None in the places of the others."""
    return [None if is_number(amax) else amax for amax in maxima]


def kind_of(maxima: Sequence[Any]) -> Hashable:
    """Return for each direction if its maximum is a number of the host, which programs take for a word."""
    return tuple([is_number(amax) for amax in maxima])


def placed(x: Any, amax: Mapping[str, Any], words: Sequence[int]) -> dict[str, Any]:
    """Return maxima as arrays beside x, where numbers of the host have these bits."""
    if any(type(word) is not Address for word in words):
        recording.forbid()  # what several calls do as one has no word for them: other ones have other numbers
    bits = iter(words)
    return {name: _stored(x, next(bits)) if is_number(value) else value for name, value in amax.items()}


def _stored(x: Any, bits: int) -> Any:
    """Return a number in new memory of the device: the product of one factor."""
    _, library = buffers.adopt("quantize", x)
    with library.current():
        out = library.empty((2,), "float32")
        text = prelude(ANY, "float32", "linear", "float32", FACTORS=1, READ=0)
        launch(library, "product_factor", text, (1,), (bits, 0, 0, 0, buffers.pointer(out)), block=1)
    return out[:1]
