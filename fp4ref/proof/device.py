"""Claims about the shared header once more, compiled for this machine's GPU: its instructions in place of the host's.

The checks are those of the header's claims. Their loops are distributed over the threads of the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fp4ref.proof import encoders, native, shortcuts
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.encoders import expected
from fp4ref.proof.steps import PATTERNS, shown

THREADS, BLOCKS = 256, 132 * 16
LOOP = """
#include <fp4ref/fp4ref.h>
#include <fp4ref/thresholds.h>
#define EXPORT extern "C" __global__ void
#define __builtin_ldexp ldexp
#define __builtin_ilogb ilogb
#define __builtin_popcount __popc
#define __builtin_rint rint
namespace proof_@ {
using namespace fp4ref;
template <class Bad> static void sweep(u64 from, u64 to, u64* found, Bad bad)
{
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = from + blockIdx.x * (u64)blockDim.x + threadIdx.x; i < to; i += step)
        if (bad(i)) {
            atomicAdd(found, 1ull);
            atomicMin(found + 1, i);
        }
}
"""
# Codes of a float in both places of a pair beside 1.5, if all agree on the neighbour.
PAIRED = """
template <class C> static unsigned paired(float x)
{
    constexpr unsigned bits = C::Format::bits, mask = (1u << bits) - 1u;
    const unsigned low = encode_pair<C>(x, 1.5f), high = encode_pair<C>(1.5f, x), other = C::encode(1.5f);
    return low >> bits == other && (high & mask) == other && high >> bits == (low & mask) ? low & mask : 0x1000u;
}
"""
CONVERTED = {"e2m1": "hardware_e2m1", "e4m3": "hardware_e4m3", "e5m2": "hardware_e5m2"}


def source(text: str) -> str:
    """Return the text of a check for the device's compiler."""
    ours = text.replace(native.HOST, LOOP)
    return ours.replace("@", hashlib.sha256(ours.encode()).hexdigest()[:16])


def sweep(text: str, name: str, size: int, tell: Tell, arguments: Sequence[int], start: int) -> native.Found:
    """Run a check of a text on the device over `size` numbers from `start` on; return how many fail, and the first.

    Errors: BackendError if it does not compile.
    """
    import torch
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    from fp4ref_cuda import launch
    from fp4ref_cuda.buffers import Library
    from fp4ref_cuda.compile import compile_cubin
    from fp4ref_cuda.recording import Launch, LoadedKernel, Shape
    from fp4ref_cuda.words import start_once

    found = torch.tensor([0, -1], dtype=torch.int64, device="cuda")  # the largest number, without a sign
    numbers = torch.tensor([n - (n >> 63 << 64) for n in arguments] or [0], dtype=torch.int64, device="cuda")
    ours, library = source(text), Library("torch", found.device.index)
    function = f"fp4ref_{name}_{ours.partition('namespace proof_')[2].partition(' ')[0]}"
    code = ObjectCode.from_cubin(compile_cubin(ours, launch.target(library.ordinal)))
    loaded = LoadedKernel(code, driver.CUkernel(int(code.get_kernel(function).handle)))
    pointers = (numbers.data_ptr(), found.data_ptr())
    kernel = Launch(function, loaded, Shape((BLOCKS,), THREADS, 0, early=False), (start, start + size, *pointers))
    run, stream = launch.starter(library, kernel), library.stream()
    step = max(-(-size // native.PARTS), 4096)
    for first in range(start, start + size, step):
        stop = min(first + step, start + size)
        start_once(run, stream, (first, stop, *pointers))
        torch.cuda.synchronize()
        tell((stop - start) / size)
    count, place = found.tolist()
    return count, None if place == -1 else place


def on_device(decide: Callable[[Tell], Replayed], tell: Tell) -> Replayed:
    """Decide a claim about the header with its checks run on the device."""
    with native.elsewhere(sweep):
        return decide(tell)


def converted(name: str, tell: Tell) -> Replayed:
    """Compare the codes of pairs with the steps, on every pattern in both places."""
    want = expected(name)
    numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
    text = native.step_text({"convert": f"paired<{CONVERTED[name]}>(float_of(bits))"}, PAIRED)
    wrong, first = sweep(text, "convert", PATTERNS, tell, numbers, 0)
    return Replayed(2 * PATTERNS, None if first is None else f"{shown(first)}; {wrong} inputs are wrong")


def _here(claim: ProofClaim, **more: Any) -> ProofClaim:
    """Return a claim about the header as one about the header on the device."""
    decide = more.pop("decide", claim.decide)
    return replace(
        claim,
        name=more.pop("name", claim.name.replace("/header", "/cuda")),
        subject=ClaimSubject.CUDA,
        decide=partial(on_device, decide),
        on_processor=None,
        covers=(claim.decider(), *claim.covers, "fp4ref_cuda.compile:options"),
        rests_on=tuple(name.replace("/header", "/cuda") for name in claim.rests_on),
        **more,
    )


def again(claims: Sequence[ProofClaim]) -> Iterator[ProofClaim]:
    """Yield those of all claims that are about the header, on the device, but where calls of it have that name."""
    names = {claim.name for claim in claims}
    for claim in claims:
        if claim.subject is not ClaimSubject.HEADER or claim.name.replace("/header", "/cuda") in names:
            continue
        if claim.name.replace("/header", "-all/header") not in names:  # a device needs no part of a domain
            yield _here(claim)
        if claim.name == "reciprocal/header":
            yield _here(
                claim,
                name="reciprocal-instruction/cuda",
                statement="The device's approximate reciprocal has the recorded bits, and the exponents, zeros and "
                "infinities follow the rule.",
                decide=partial(shortcuts.reciprocal, "approximate_reciprocal"),
            )


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the device's conversion instructions."""
    for name, codec in CONVERTED.items():
        yield ProofClaim(
            name=f"convert-{name}/cuda",
            rules=(*encoders.RULES[name], "PACK-1" if name == "e2m1" else "PACK-3"),
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.CUDA,
            statement=f"Both places of a pair get the {name} code that exact fractions give, by the device's "
            "conversion instruction where it has one.",
            domain=f"{encoders.ALL}, in both places",
            size=2 * PATTERNS,
            decide=partial(converted, name),
            covers=("codec.h:encode_pair", f"codec.h:{codec}", "fp4ref_cuda.compile:options"),
        )
