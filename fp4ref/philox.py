"""Philox4x32-R: a counter and a key to 128 random bits, without a state."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, DTypeError, ShapeError

# A round moves no two counters to one. Certificates: philox-bijection/formula.
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85  # added to the key between rounds
MOST_ROUNDS = 16
WORD = np.uint64(0xFFFFFFFF)


def philox4x32(counter: Any, key: Any, rounds: int = 10) -> NDArray[np.uint32]:
    """Compute the four output words of each counter under its key.

    counter: integers [..., 4], key: integers [..., 2], words of 32 bits, the low one first; leading axes broadcast.
    rounds: 1 to 16. Result: uint32 [..., 4].

    Errors: ShapeError, DTypeError, DomainError.

    >>> import fp4ref
    >>> [f"{word:08x}" for word in fp4ref.philox4x32([0, 0, 0, 0], [0, 0])]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']

    Rules: SR-6. Certificates: philox-bits.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or not 1 <= rounds <= MOST_ROUNDS:
        raise DomainError("philox4x32", f"{rounds!r} rounds", f"an integer from 1 to {MOST_ROUNDS}", "SR-6")
    words, keys = _words("counter", counter, 4), _words("key", key, 2)
    try:
        leading = np.broadcast_shapes(words.shape[:-1], keys.shape[:-1])
    except ValueError:
        got = f"counter {list(words.shape)} with key {list(keys.shape)}"
        raise ShapeError("philox4x32", got, "leading axes that broadcast", "SR-6") from None
    x0, x1, x2, x3 = np.moveaxis(np.broadcast_to(words, (*leading, 4)), -1, 0)
    k0, k1 = np.moveaxis(keys, -1, 0)
    for _ in range(rounds):
        a, b = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1, x2, x3 = b >> np.uint64(32) ^ x1 ^ k0, b & WORD, a >> np.uint64(32) ^ x3 ^ k1, a & WORD
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & WORD, (k1 + np.uint64(KEY_STEPS[1])) & WORD
    return np.stack([x0, x1, x2, x3], axis=-1).astype(np.uint32)


def _words(name: str, value: Any, count: int) -> NDArray[np.uint64]:
    """Words of 32 bits, [..., count], held in 64."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise DTypeError("philox4x32", f"{name} of dtype {array.dtype}", "integers", "SR-6")
    if array.ndim == 0 or array.shape[-1] != count:
        raise ShapeError("philox4x32", f"{name} {list(array.shape)}", f"[..., {count}]", "SR-6")
    if array.size and (array.min() < 0 or array.max() > int(WORD)):
        raise DomainError("philox4x32", f"{name} past 32 bits", "words from 0 to 2^32 - 1", "SR-6")
    return array.astype(np.uint64)
