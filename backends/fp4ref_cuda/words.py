"""The arguments of a launch in memory: words of 64 bits, behind the list by which the driver finds them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable

import numpy as np

from fp4ref_cuda.recording import Start

WORD = (1 << 64) - 1
END, BUFFER, SIZE = 0, 1, 2  # words of the driver's list that says where a launch's arguments are (CU_LAUNCH_PARAM_...)
HEADER = 6  # words before the arguments: that list, and their size in bytes
LARGEST = {"float32": 0x7F7FFFFF, "bfloat16": 0x7F7F0000, "float16": 0x477FE000}  # numbers, as bits of a float32
POINTERS = (1, HEADER), (3, HEADER - 1)  # words of the list, and those that they point to


def float_bits(number: float) -> int:
    """Return the bits of a number rounded to float32, as a kernel takes it for an argument."""
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32))


def packed(arguments: Iterable[int]) -> array[int]:
    """Return arguments as words of 64 bits behind what the driver reads first, whose POINTERS are still to be set."""
    words = [argument & WORD for argument in arguments]
    return array("Q", [BUFFER, 0, SIZE, 0, END, 8 * len(words), *words])


def arguments_at(at: int) -> list[int]:
    """Return the arguments of a start."""
    count = ctypes.c_uint64.from_address(at + 8 * (HEADER - 1)).value // 8
    return list((ctypes.c_uint64 * count).from_address(at + 8 * HEADER))


def start_once(start: Start, stream: int, arguments: Iterable[int]) -> None:
    """Start something on a stream with arguments that nothing else reads."""
    start_packed(start, stream, packed(arguments))


def start_packed(start: Start, stream: int, words: array[int]) -> None:
    """Start something on a stream with words that `packed` made, which nothing else reads."""
    at = words.buffer_info()[0]
    for position, of in POINTERS:
        words[position] = at + 8 * of
    start(stream, at)
