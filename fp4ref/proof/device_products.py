"""Claims about operations that the cuda backend alone has: values of 8-bit codes, and the last steps of products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.formats import F, Floats
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import VALUES, patterns_of
from fp4ref.proof.finishing import times
from fp4ref.proof.steps import shown
from fp4ref.registry import Call

FORMATS = {"e4m3": "mxfp8-e4m3", "e5m2": "mxfp8-e5m2"}
TYPES = ("bfloat16", "float16")
WORDS = 1 << 32  # of four codes, or float32 patterns
PART = 1 << 24  # of them in a call
UPPER, LOWER = 1 << 16, (0, 0xA5C3)  # halves of a scale's pattern: how many there are, and those tried
SCALES = 1 << 10  # of one comparison
TAIL = 3  # codes that a run without vectors is shorter
FACTORS = (1.1, -0.3, 3e-20, 7e18)  # that give other bits in other orders
FACTOR = 1.6015625
BIASES = np.array([0.0, -0.0, 1.0, -3.1, 1e-30, 65504.0, 3e38, -(2.0**-126)], F)  # of eight columns in turn
ODD = 7  # columns of a call whose rows are no whole vectors
LENGTHS = (0, 1, 7, 8, 9, 17, 39)  # of arrays of codes: no vector, parts of one, and several


def _operations(name: str) -> Any:
    """Return an operation of the backend."""
    from fp4ref_cuda import operations

    return getattr(operations, name)


def values(name: str, to: str, tell: Tell, device: str = "cuda", part: int = PART, every: int = 1) -> Replayed:
    """Decode every word of four codes twice in a vector of eight, and short arrays, and compare each value.

    part: words of a call. every: the distance of the calls that are made.
    """
    import torch

    spec, decode = resolve(FORMATS[name]), _operations("tensor_values")
    table = torch.from_numpy(patterns_of(name).view(F)).to(device).to(getattr(torch, to)).view(torch.int16)
    nan = torch.from_numpy(np.isnan(patterns_of(name).view(F))).to(device)

    def wrong(codes: Any) -> Any:
        call = Call("tensor_values", spec, to=to, device=device, shape=(codes.shape[0], codes.shape[1]))
        got = decode(call, codes)
        index = codes.long()
        return torch.where(nan[index], ~got.isnan(), got.view(torch.int16) != table[index])

    for start in range(0, WORDS, part * every):
        words = torch.arange(start, start + part, dtype=torch.int64, device=device)
        words = torch.where(words >= 1 << 31, words - WORDS, words).to(torch.int32)
        codes = words.repeat_interleave(2).view(torch.uint8).view(-1, 8)
        found = wrong(codes).any(-1).nonzero()
        if len(found):
            return Replayed(start, f"{to} of the codes {codes[found[0, 0]].tolist()}")
        tell((start + part) / WORDS)
    for length, first in product(LENGTHS, range(256)):
        codes = ((torch.arange(length, device=device) * 7 + first) % 256).to(torch.uint8).view(1, length)
        apart = torch.empty(1, length + 1, dtype=torch.uint8, device=device)[:, 1:]  # at no multiple of 16 bytes
        if wrong(codes).any() or wrong(apart.copy_(codes)).any():
            return Replayed(WORDS, f"{to} of {length} codes from {first:02X} on")
    return Replayed(WORDS)


def decoded(name: str, to: str, tell: Tell, device: str = "cuda", every: int = 1) -> Replayed:
    """Decode every code under scales with every upper half and two lower halves, and compare each product.

    The codes are tried in whole vectors of eight finite ones, in whole vectors with one that is not finite, and at
    another address where no vectors are read. every: the distance of the upper halves that are tried.
    """
    import torch

    spec, decode, dtype = resolve(FORMATS[name]), _operations("tensor_decode"), getattr(torch, to)
    meant, codes = patterns_of(name).view(F), arranged(name)
    whole_ones = torch.from_numpy(codes).to(device).view(1, -1)
    odd = torch.empty(1, codes.size + 1 - TAIL, dtype=torch.uint8, device=device)[:, 1:]
    runs = [whole_ones, odd.copy_(whole_ones[:, : codes.size - TAIL])]
    word = torch.int32 if to == "float32" else torch.int16
    for start in range(0, UPPER, SCALES * every):
        upper = torch.arange(start, start + SCALES, dtype=torch.int64, device=device) << 16
        for lower, run in product(LOWER, runs):
            bits, table = upper + lower, torch.from_numpy(meant[codes[: run.numel()]]).to(device)
            scales = torch.where(bits >= 1 << 31, bits - WORDS, bits).to(torch.int32).view(torch.float32)
            call = Call("tensor_decode", spec, to=to, device=device, shape=(1, run.numel()))
            got = torch.cat([decode(call, run, scales[i : i + 1]) for i in range(SCALES)])
            want = (table * scales.view(-1, 1)).to(dtype)
            wrong = torch.where(want.isnan(), ~got.isnan(), got.view(word) != want.view(word)).nonzero()
            if len(wrong):
                row, column = wrong[0].tolist()
                return Replayed(start, f"{to} of {codes[column]:02X} under {int(bits[row]):08X}")
        tell((start + SCALES) / UPPER)
    return Replayed(UPPER * len(LOWER) * (2 * codes.size - TAIL))


def arranged(name: str) -> NDArray[np.uint8]:
    """Return every finite code in vectors of eight such, then every code in vectors with one that is not finite."""
    usual = np.isfinite(patterns_of(name).view(F))
    finite, beside = np.flatnonzero(usual), np.resize(np.flatnonzero(~usual), -(-256 // 7))
    rest = np.resize(np.arange(256), beside.size * 7).reshape(-1, 7)
    mixed = np.insert(rest, 3, beside, axis=1)
    return np.concatenate([np.resize(finite, 256), mixed.ravel()]).astype(np.uint8)


def finished(to: str, tell: Tell, device: str = "cuda", part: int = PART, every: int = 1) -> Replayed:
    """Finish every float32 with a factor and a bias, in whole vectors and in others, and compare."""
    import torch

    bias = torch.from_numpy(BIASES).to(device)
    for start in range(0, WORDS, part * every):
        patterns = torch.arange(start, start + part, dtype=torch.int64, device=device)
        sums = torch.where(patterns >= 1 << 31, patterns - WORDS, patterns).to(torch.int32).view(torch.float32)
        for columns in (len(BIASES), ODD):
            given = torch.nn.functional.pad(sums, (0, -part % columns)).view(-1, columns)
            for added in (None, bias[:columns].contiguous()):
                want = _rounded(given, FACTOR, added, to)
                call = Call("finish_product", to=to, device=device, shape=(given.shape[0], given.shape[1]))
                got = _operations("finish_product")(call, given, [FACTOR], added)
                unlike = torch.where(want.isnan(), ~got.isnan(), got.view(torch.int16) != want.view(torch.int16))
                found = unlike.nonzero()
                if len(found):
                    row, column = found[0].tolist()
                    pattern = int(given[row, column].view(torch.int32)) & 0xFFFFFFFF
                    added_to = "without a bias" if added is None else f"with the bias {float(added[column])}"
                    said = f"{shown(pattern)} times {FACTOR} {added_to} to {to}, rows of {columns}"
                    return Replayed(start, f"{said}: {float(got[row, column])}, needs {float(want[row, column])}")
        tell((start + part) / WORDS)
    return Replayed(WORDS)


def _rounded(sums: Any, factor: float, bias: Any, to: str) -> Any:
    """Return sums times a factor, plus a bias, each rounded once to float32, and the result once more."""
    import torch

    y = (sums.double() * float(F(factor))).float()
    if bias is not None:
        y = (y.double() + bias.double()).float()
    return y.to(getattr(torch, to))


def factors(tell: Tell, device: str = "cuda") -> Replayed:
    """Multiply up to four numbers in every order, each as a number or as an array, and compare the bits."""
    import torch

    cases = [
        (numbers, read)
        for count in range(1, len(FACTORS) + 1)
        for numbers in product(FACTORS, repeat=count)
        for read in range(1 << count)
    ]
    unlike = False
    for count, (numbers, read) in enumerate(cases):
        want, other = np.asarray(F(numbers[0])), np.asarray(F(numbers[-1]))
        for number, back in zip(numbers[1:], numbers[-2::-1], strict=True):
            want, other = times(want, F(number)), times(F(back), other)
        unlike |= want.tobytes() != other.tobytes()
        given = [
            torch.tensor([number], dtype=torch.float32, device=device) if read >> place & 1 else float(number)
            for place, number in enumerate(numbers)
        ]
        got = _factor(given, device)
        if got.tobytes() != np.array([want, 0], F).tobytes():
            return Replayed(count, f"{numbers}, arrays by the bits of {read:X}: {got[0]!s}, needs {want!s}")
        tell((count + 1) / len(cases))
    return Replayed(len(cases), None if unlike else "the other order gives the same bits")


def _factor(numbers: Sequence[Any], device: str) -> Floats:
    """Return the two numbers that the factor's kernel leaves for a product."""
    import torch

    from fp4ref_cuda import multiply
    from fp4ref_cuda.buffers import Library

    found: Floats = multiply._factor(Library("torch", torch.device(device).index or 0), numbers).cpu().numpy()
    return found


def _cases() -> int:
    return sum((2 * len(FACTORS)) ** count for count in range(1, len(FACTORS) + 1))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about these operations."""
    options = "fp4ref_cuda.compile:options"
    for name, to in product(FORMATS, TYPES):
        yield ProofClaim(
            name=f"tensor-values-{name}-{to}/cuda",
            rules=VALUES[name].rules,
            method=Method.EXHAUSTIVE,
            statement=f"Every code of {name} under a tensor's scale has the {to} value that its rule states, whatever "
            "the codes beside it are.",
            domain=f"all words of four codes, and arrays of up to {LENGTHS[-1]} codes at other addresses",
            size=WORDS,
            decide=partial(values, name, to),
            covers=(
                f"{whole.CUDA}/tensor_values.cu",
                f"lowered:{FORMATS[name]}",
                "fp4ref_cuda.per_tensor:values_of",
                options,
            ),
            subject=ClaimSubject.CUDA,
        )
    for name, to in product(FORMATS, (*TYPES, "float32")):
        yield ProofClaim(
            name=f"tensor-decoded-{name}-{to}/cuda",
            rules=("DEQ-2", "DEQ-3", "TEL-8"),
            method=Method.EXHAUSTIVE,
            statement=f"A code of {name} times a tensor's scale, a float32 product, is rounded once to {to}.",
            domain="all codes beside finite ones, beside others, and where no vectors are read, under all scales whose "
            f"lower half is one of {len(LOWER)}",
            size=UPPER * len(LOWER) * (2 * arranged(name).size - TAIL),
            decide=partial(decoded, name, to),
            covers=(
                f"{whole.CUDA}/tensor_values.cu",
                f"lowered:{FORMATS[name]}",
                "fp4ref_cuda.per_tensor:values_of",
                options,
            ),
            subject=ClaimSubject.CUDA,
        )
    for to in TYPES:
        yield ProofClaim(
            name=f"product-finished-{to}/cuda",
            rules=("GEM-5", "GEM-8", "TEL-32"),
            method=Method.EXHAUSTIVE,
            statement="A sum is multiplied by the factor, then the bias is added, each in float32; then it is rounded "
            f"once to {to}.",
            domain=f"all float32 sums with one factor, each with one of {len(BIASES)} biases and without, in rows of "
            "whole vectors and of seven",
            size=WORDS,
            decide=partial(finished, to),
            covers=(f"{whole.CUDA}/finish_product.cu", "fp4ref_cuda.products:_finished", options),
            subject=ClaimSubject.CUDA,
        )
    yield ProofClaim(
        name="product-factor/cuda",
        rules=("GEM-5", "TEL-12"),
        method=Method.ARGUMENT,
        statement="The numbers of a factor are multiplied from the left, each product rounded to float32.",
        domain="all lists of up to four of four numbers, each an argument or read from memory",
        size=_cases(),
        decide=factors,
        covers=(
            f"{whole.CUDA}/product_factor.cu",
            "fp4ref_cuda.products:arguments_of",
            "fp4ref_cuda.multiply:_factor",
            options,
        ),
        reduction="the steps are the same for all values, so values on which the other order gives other bits decide",
        subject=ClaimSubject.CUDA,
    )
