"""Jobs that come again: their words, of which only addresses change, and new arrays in as little time as there is."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fp4ref import arrays
from fp4ref_cpu import threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import exported

WORD = 8  # bytes
LARGE = 1 << 22  # bytes from which NumPy's memory is of large pages, which a call fills in a third of the time


class Ready(NamedTuple):
    """A job as words of 64 bits, which a call copies, and the tables that some of them point to."""

    words: array[int]
    kept: Any


def ready(job: ctypes.Structure, kept: Any) -> Ready:
    """Return a job, whose fields have 64 bits each. kept: what its pointers need."""
    return Ready(array("Q", bytes(job)), kept)


def place(kind: type[ctypes.Structure], name: str) -> int:
    """Return the number of the first word of a field of a job."""
    offset: int = getattr(kind, name).offset
    return offset // WORD


def runner(function: Any, elements: int) -> Callable[[array[int]], None]:
    """Return a function that runs a native one on the words of a job: on every thread where that is worth it."""
    if threads.is_for_one(elements):
        return lambda words: function(words.buffer_info()[0])
    return lambda words: threads.run_at(function, words.buffer_info()[0], elements)


def at_three(
    run: Callable[[array[int]], None], job: Ready, places: tuple[int, int, int], elements: int
) -> Callable[[int, int, int], None]:
    """Return a function of the three addresses that these words of a job hold; it runs where there are elements."""
    first, second, third = places  # a loop over them costs a tenth of a small call

    def at(one: int, two: int, three: int) -> None:
        if elements:
            words = job.words[:]
            words[first], words[second], words[third] = one, two, three
            run(words)

    return at


def sequence(elements: int, *steps: tuple[Any, Ready]) -> tuple[Ready, list[int], Callable[[array[int]], None]]:
    """Return several jobs as one, with the number of each one's first word, and what runs them one after the other.

    steps: native functions and their jobs; each runs on every thread where its elements are worth that.
    """
    head, words, places = array("Q", [len(steps)]), array("Q"), list[int]()
    for function, job in steps:
        places.append(1 + 2 * len(steps) + len(words))
        head.extend((ctypes.cast(function, ctypes.c_void_p).value or 0, WORD * places[-1]))
        words.extend(job.words)
    chain = without_specification()["chain"]

    def run_each(words: array[int]) -> None:
        start = words.buffer_info()[0]
        for (function, _), place in zip(steps, places, strict=True):
            threads.run_at(function, start + WORD * place, elements)

    at_once = threads.is_for_one(elements)
    return Ready(head + words, steps), places, (lambda words: chain(words.buffer_info()[0])) if at_once else run_each


ALWAYS = ("relayout.h", "Bytes", "relayout"), ("chain.h", "Chains", "chain")


@lru_cache
def without_specification() -> dict[str, Any]:
    """Return the functions by name that every specification shares, which are compiled together."""
    text, names = "".join(exported("", *each) for each in ALWAYS), [name for *_, name in ALWAYS]
    return dict(zip(names, functions(text, *names), strict=True))


def maker(like: Any, shape: Sequence[int], dtype: str) -> Callable[[], Any]:
    """Return a function that makes an array without values, of the library of another one: torch or NumPy."""
    sizes, of_numpy = tuple(shape), arrays.INPUT_DTYPES.get(dtype) or np.dtype(dtype)
    make = partial(np.empty, sizes, of_numpy)
    if not arrays.is_torch(like):
        return make
    if prod(sizes) * of_numpy.itemsize >= LARGE:
        restore = arrays.restorer(like)
        return lambda: restore(make())
    import torch

    kind = getattr(torch, dtype)
    strides = tuple(prod(max(size, 1) for size in sizes[at:]) for at in range(1, len(sizes) + 1))
    short = _torch_short()
    if short is not None:
        return partial(short, sizes, strides, kind)
    return partial(torch.empty_strided, sizes, strides, dtype=kind, device="cpu")


@lru_cache
def _torch_short() -> Callable[..., Any] | None:
    """Return the function by which torch's compiled graphs allocate, in a third of the time; None without it."""
    import torch

    return getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cpu", None)
