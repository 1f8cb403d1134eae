"""Claims about the Hadamard transform, random bits, stochastic codes, layouts and thresholds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard, layout, philox
from fp4ref.formats import STOCHASTIC_E2M1, F, Floats
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Replayed, Tell
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.solver import refuted
from fp4ref.proof.steps import shown

MASK = 0xD7E8
SIGNINGS = 1 << 16  # of 16 elements
LARGE, SMALL = 1 + 2.0**-7, 2.0**-8  # two bfloat16 whose sum and difference are ties of bfloat16
TIES = 1 << 10  # pairs of places with pairs of signs
E2M1_VALUES = (0.5, 1, 1.5, 2, 3, 4, 6)  # those above 0
VECTORS = SIGNINGS + TIES - (TIES >> 4)  # two different places
PRIMES = ((2, 3), (5, 7), (11, 13))  # counts of tiles
SCALE_LAYOUTS = {"linear": "LAY-1", "tiled_128x4": "LAY-3", "tiled_8x4": "LAY-4"}  # by name: the rule

# Input i below 2^16: element j is bit j of i, as +-1. Above: two elements, whose sums are ties. A result is a quarter
# of the exact sum, rounded to the 2^-9 that bfloat16 has there.
HADAMARD = f"""
    const unsigned n = (unsigned)i - 0x10000u, p = n & 15u, q = n >> 4 & 15u;
    if (i >> 16 && p == q) return false;
    double x[16] = {{}};
    for (int j = 0; j < 16; ++j) if (!(i >> 16)) x[j] = (i >> j & 1) ? -1.0 : 1.0;
    if (i >> 16) x[p] = (n >> 8 & 1u) ? -0x1.02p0 : 0x1.02p0;
    if (i >> 16) x[q] = (n >> 9 & 1u) ? -0x1p-8 : 0x1p-8;
    float y[16][1];
    for (int j = 0; j < 16; ++j) y[j][0] = (float)x[j];
    hadamard<0x{MASK:X}u>(y);
    for (int k = 0; k < 16; ++k) {{
        double sum = 0.0;
        for (int j = 0; j < 16; ++j)
            sum += ((0x{MASK:X}u >> j ^ (unsigned)__builtin_popcount(j & k)) & 1u) ? -x[j] : x[j];
        if (bits_of(y[k][0]) != bits_of((float)(__builtin_rint(sum * 128.0) / 512.0) + 0.0f)) return true;
    }}
    return false;
"""


def signings() -> tuple[Floats, Floats]:
    """Return all vectors of 16 signs, and those of two elements whose sums are ties; and their transforms.

    A result is a quarter of the exact sum with signs and Sylvester's matrix, rounded to even multiples of 2^-9.
    """
    element = np.arange(16)
    n = np.arange(TIES)
    pairs = np.zeros((TIES, 16))
    pairs[n, n >> 4 & 15] = np.where(n >> 9 & 1, -SMALL, SMALL)
    pairs[n, n & 15] = np.where(n >> 8 & 1, -LARGE, LARGE)
    signs = np.where(np.arange(SIGNINGS)[:, None] >> element & 1, -1, 1)
    x = np.concatenate([signs, pairs[(n & 15) != (n >> 4 & 15)]])
    odd = np.array([[int(j & k).bit_count() & 1 for k in element] for j in element])
    sums = x * np.where(MASK >> element & 1, -1, 1) @ np.where(odd, -1, 1)
    return x.astype(F), (np.rint(sums * 128) / 512 + 0.0).astype(F)


def transform(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Transform all vectors, and compare with exact sums."""
    x, want = signings()
    if subject is ClaimSubject.GOLDEN:
        got = hadamard.transform(x, MASK)
    else:
        import torch

        from fp4ref_torch import hadamard as torch_hadamard

        got = torch_hadamard.transform(torch.from_numpy(x), MASK).to(torch.float32).numpy()
    (row, column) = np.nonzero(got.view(np.uint32) != want.view(np.uint32))
    if not len(row):
        return Replayed(VECTORS)
    at = int(row[0]), int(column[0])
    return Replayed(VECTORS, f"element {at[1]} of the transform of {x[at[0]].tolist()} is {got[at]}, needs {want[at]}")


def header_transform(tell: Tell) -> Replayed:
    """Transform all vectors in the header, and compare with exact sums."""
    wrong, first = native.sweep(native.text({"hadamard": HADAMARD}), "hadamard", SIGNINGS + TIES, tell)
    return Replayed(VECTORS, None if first is None else f"vector {first:05X}; {wrong} vectors are wrong")


def drawn(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare stochastic codes of all bfloat16 under every random byte with the values that SR-2's sum reaches."""
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    y = patterns.view(F)
    with np.errstate(all="ignore"):
        a = np.abs(y).astype(np.float64)
    step = np.select([a >= 4, a >= 2], [2.0, 1.0], 0.5)
    encode = _golden_encode if subject is ClaimSubject.GOLDEN else _torch_encode
    for byte in range(256):
        with np.errstate(all="ignore"):
            total = _once(a + byte / 256 * step)
        index = sum((total >= value).astype(np.uint8) for value in E2M1_VALUES)
        index = np.where(a >= E2M1_VALUES[-1], 7, index) | np.signbit(y).astype(np.uint8) << 3
        want = np.where(np.isnan(y), 7, index)
        got = encode(y, byte)
        (wrong,) = np.nonzero(got != want)
        if len(wrong):
            at = int(wrong[0])
            where = f"{shown(int(patterns[at]))} with the random byte {byte}"
            return Replayed(byte << 16, f"{where} has code {got[at]:X}, needs {want[at]:X}")
        tell((byte + 1) / 256)
    return Replayed(256 << 16)


def _golden_encode(y: Floats, byte: int) -> NDArray[np.uint8]:
    return STOCHASTIC_E2M1.encode(y, np.full(y.shape, byte, np.uint8))


def _torch_encode(y: Floats, byte: int) -> NDArray[np.uint8]:
    import torch

    from fp4ref_torch import codecs

    bits = torch.full(y.shape, byte, dtype=torch.uint8)
    found: NDArray[np.uint8] = codecs.encode(torch.from_numpy(y), STOCHASTIC_E2M1, bits).numpy()
    return found


def places(name: str, tell: Tell) -> Replayed:
    """Compare a layout's offsets with a system of digits: each stride is the product of all smaller digits.

    The strides of tiles are products of counts, so their values at primes identify them.
    """
    order, computed = layout.layout(name), 0
    for rows, columns in PRIMES:
        high, wide = order.tile
        numbers = np.arange(rows * high * columns * wide)
        shape = rows * high, columns * wide
        stored = np.zeros(order.padded_shape(*shape), np.int64).reshape(-1)
        for shift in (0, 8, 16):
            plane = (numbers >> shift & 0xFF).astype(np.uint8).reshape(shape)
            stored += order.from_linear(plane).reshape(-1).astype(np.int64) << shift
        computed += len(numbers)
        if len(stored) != len(numbers) or len(np.unique(stored)) != len(numbers):
            return Replayed(computed, f"{name} of {rows} x {columns} tiles: two scales at one offset")
        tile = np.sort(stored[: high * wide])
        row, column = divmod(tile, shape[1])
        if row.max() >= high or column.max() >= wide:
            where = f"{name} of {rows} x {columns} tiles"
            return Replayed(
                computed, f"{where}: the first tile holds a scale of row {row.max()}, column {column.max()}"
            )
    return Replayed(computed)


def inverted(tell: Tell) -> Replayed:
    """Recover counters from the outputs of a round of Philox, under every key: a round loses nothing.

    A lower half times its multiplier's inverse is the word that was multiplied, so that its upper half is known; the
    other words follow by exclusive or, whatever the upper halves are.
    """
    import z3

    word = z3.BitVec("word", 32)
    for multiplier in philox.MULTIPLIERS:
        inverse = _inverse(multiplier)
        if inverse is None:
            return Replayed(0, f"the multiplier {multiplier:X} has no inverse modulo 2^32")
        lower = z3.Extract(31, 0, z3.ZeroExt(32, word) * multiplier)
        for goal in (lower == word * multiplier, word * multiplier * inverse == word):
            found = refuted(z3.BoolVal(True), goal, (word,), 1 << 32)
            if found.witness is not None:
                return found
    upper, other, key = (z3.BitVec(name, 32) for name in ("upper", "other", "key"))
    goal = (upper ^ other ^ key) ^ upper ^ key == other
    return refuted(z3.BoolVal(True), goal, (upper, other, key), 1 << 192)


def _inverse(multiplier: int) -> int | None:
    """Return the inverse of a number modulo 2^32, None for an even one."""
    return pow(multiplier, -1, 1 << 32) if multiplier & 1 else None


def rounds(tell: Tell) -> Replayed:
    """Compare Philox with its definition in whole numbers, on counters and keys of one bit, and chained ones."""
    counters = [1 << bit for bit in range(128)] + [0, (1 << 128) - 1]
    keys = [1 << bit for bit in range(64)] + [0, (1 << 64) - 1]
    cases = [(counter, key) for counter in counters for key in keys]
    for count in (1, 7, 10):
        split = np.array([[counter >> 32 * i & 0xFFFFFFFF for i in range(4)] for counter, _ in cases], np.uint64)
        key_words = np.array([[key >> 32 * i & 0xFFFFFFFF for i in range(2)] for _, key in cases], np.uint64)
        got = philox.philox4x32(split, key_words, count)
        for number, (counter, key) in enumerate(cases):
            want = _defined(counter, key, count)
            if [int(word) for word in got[number]] != want:
                return Replayed(number, f"counter {counter:032x}, key {key:016x}, {count} rounds")
    return Replayed(3 * len(cases))


def _defined(counter: int, key: int, count: int) -> list[int]:
    """Return four words of Philox4x32, as Salmon and others (2011) define it."""
    words = [counter >> 32 * i & 0xFFFFFFFF for i in range(4)]
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(count):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [b >> 32 ^ words[1] ^ low, b & 0xFFFFFFFF, a >> 32 ^ words[3] ^ high, a & 0xFFFFFFFF]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return words


# thresholds.h: entries whose factor is the number itself; the code of every threshold and of the pattern before it.
FACTORED = """
struct FactorItself : arithmetic::te {
    template <class S, class In> static float factor(float, float g) { return g; }
};
struct Factored : Plain<448> { using Arithmetic = FactorItself; };
static unsigned plain(unsigned p, float f) { return nearest_code(once((double)float_of(p << 16) * (double)f)); }
"""
THRESHOLDS = """
    const float f = float_of((unsigned)i);
    const thresholds::Entry t = thresholds::entry<Factored>(0x38, f);
    if (!t.ramp) return false;
    const unsigned t3 = (0x10040u - t.threes) & 0xffffu, t4 = (0x10040u - t.fours) & 0xffffu;
    const unsigned last = thresholds::COVERED, most = (0x0800u + plain(last, f)) * 0x10001u;
    if (thresholds::codes(0u, t) != 0x08000800u || thresholds::codes(last * 0x10001u, t) != most) return true;
    unsigned guesses[7] = {0, 0, t3, t4, t3 + 128, t4 + 128, t3 + 256};
    for (unsigned k = 1; k <= 2; ++k) {
        const float unit = 1.0f / f;
        unsigned p = (bits_of((k == 1 ? 0.25f : 0.75f) * unit) >> 16) - 2;
        for (int n = 0; n < 5 && plain(p, f) < k; ++n) ++p;
        guesses[k - 1] = p;
    }
    for (unsigned k = 1; k <= 7; ++k) {
        const unsigned at = guesses[k - 1];
        if (at > last) break;
        const unsigned pair = thresholds::codes((at - 1) | at << 16, t);
        if (plain(at - 1, f) != k - 1 || plain(at, f) != k) return true;
        if ((pair & 0xffffu) != 0x0800u + k - 1 || pair >> 16 != 0x0800u + k) return true;
    }
    return false;
"""
ENTRIES = "return thresholds::entry<Factored>(0x38, float_of((unsigned)i)).ramp == 0;"


def factors(start: int, size: int, tell: Tell) -> Replayed:
    """Compare codes by thresholds with those of rounded products, at and before every threshold."""
    from fp4ref.proof.header_scales import HELPERS

    source = native.text({"thresholds": THRESHOLDS, "entries": ENTRIES}, HELPERS + FACTORED)
    without, _ = native.sweep(source, "entries", size, lambda done: tell(done / 2), (), start)
    if without == size:
        return Replayed(size, "no factor has an entry")
    wrong, first = native.sweep(source, "thresholds", size, lambda done: tell(0.5 + done / 2), (), start)
    return Replayed(size, None if first is None else f"the factor {shown(first)}; {wrong} factors are wrong")
