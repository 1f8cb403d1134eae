"""Claims about the kernels of the cuda backend: every value under every scale byte, made and compared on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.errors import BackendError
from fp4ref.proof import blocks, sources
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.device_tensors import (
    ACROSS,
    BLOCK,
    BYTES,
    INFINITY,
    PATTERNS,
    Bfloat16,
    Numerics,
    largest_pattern,
    packed,
    reached,
    signed,
    tiled,
)
from fp4ref.proof.steps import shown
from fp4ref.proof.transforms import E2M1_VALUES
from fp4ref.proof.whole import CUDA, RULES, SIZES, TILED
from fp4ref.quantized import Directions

ONE = 0x3FCD  # 1.6015625
# Both ends of each binade, and a binade's significands.
SOME = sorted({0, INFINITY, *range(0x3F80, 0x4000), *(0x80 * k + m for k in range(255) for m in (0, 1, 0x7F))})
WIDE_SIZE = 257277385398  # float32 up to the largest maximum of each byte, of either sign, and NaN
FULL = 1 << 26  # elements of a part of a sweep of float32
NAN, SIGN = 0x7F800001, 1 << 31  # of float32


@dataclass(frozen=True)
class KernelCase:
    """A path of the cuda backend: a specification, the direction whose bytes are compared, and the call's others.

    path: the name that the backend's plan has. maxima: patterns of bfloat16.
    """

    spec: str
    directions: str
    layout: str
    path: str
    kernels: tuple[str, ...]
    maxima: tuple[int, ...]
    turned: bool = False  # the sweep lies in columns
    repeated: int = 1  # times that each of its rows is there, one below the other


EVERY = tuple(range(INFINITY + 1))
THRESHOLDS, SQUARES = "rows and columns by thresholds", "rows of squares by thresholds"
IN_BOTH = ("amax", "amax_finish", "fused_amax", "fused")
CASES = {
    "rows": KernelCase("nvfp4", "row", "linear", "rows by thresholds", ("amax", "amax_finish", "rows"), EVERY),
    "row-blocks": KernelCase(
        *("nvfp4-row-scaled", "row", "tiled_128x4", "rows by blocks", ("amax", "amax_finish", "row_blocks")),
        tuple(SOME),
    ),
    "tiles": KernelCase("nvfp4", "column", "linear", "tiles", ("amax", "amax_finish", "quantize"), tuple(SOME), True),
    "fused": KernelCase("nvfp4", "both", TILED, THRESHOLDS, IN_BOTH, tuple(SOME)),
    "fused-columns": KernelCase("nvfp4", "both", TILED, THRESHOLDS, IN_BOTH, tuple(SOME), True),
    "fused-linear": KernelCase("nvfp4", "both", "linear", THRESHOLDS, IN_BOTH, tuple(SOME)),
    "fused-linear-columns": KernelCase("nvfp4", "both", "linear", THRESHOLDS, IN_BOTH, tuple(SOME), True),
    "squares": KernelCase("nvfp4-2d", "both", TILED, THRESHOLDS, IN_BOTH, tuple(SOME), False, 16),
    "squares-columns": KernelCase("nvfp4-2d", "both", TILED, THRESHOLDS, IN_BOTH, tuple(SOME), True, 16),
    "squares-rows": KernelCase("nvfp4-2d", "row", TILED, SQUARES, IN_BOTH, tuple(SOME), False, 16),
}
DRAWN = {
    "drawn-rows": KernelCase(
        "nvfp4-sr", "row", "linear", "rows by blocks", ("amax", "amax_finish", "row_blocks"), (ONE,)
    ),
    "drawn-fused": KernelCase("nvfp4-sr", "both", TILED, "rows and columns by random bytes", IN_BOTH, (ONE,)),
}
BOTH = {  # paths and kernels of both directions without a global maximum
    "mxfp8-e4m3": ("rows and columns of bytes", ("bytes",)),
    "mxfp8-e5m2": ("rows and columns of bytes", ("bytes",)),
    "mxfp4": (THRESHOLDS, ("fused",)),
}
WIDE = KernelCase("nvfp4", "row", "linear", "tiles", ("amax", "amax_finish", "quantize"), (ONE,))


def _difference(case: KernelCase, x: Any, data: Any, scales: Any, backend: str, bits: Any = None) -> Any:
    """Return the number of bytes in which a call's result differs from what it must be, on the device.

    Errors: BackendError where the backend takes another path.
    """
    if case.repeated > 1:
        x, data, scales = (each.repeat_interleave(case.repeated, 0) for each in (x, data, scales))
    turned = x.t().contiguous() if case.turned else x
    direction = "column" if case.turned else "row"
    drawn_by: Any = bits if bits is None or case.directions != "both" else Directions(bits, bits.t().contiguous())
    quantize: Any = api.quantize
    q = quantize(turned, case.spec, case.directions, case.layout, random_bits=drawn_by, backend=backend)
    _require_path(case, backend)
    got = getattr(q, direction)
    stored = scales.reshape(-1) if case.layout == "linear" else tiled(scales)
    return (got.data.view(data.shape) != data).sum() + (got.scales.reshape(-1) != stored).sum()


def _require_path(case: KernelCase, backend: str) -> None:
    if backend == "cuda":
        from fp4ref_cuda.plan import last_plan

        plan = last_plan()
        if plan is None or plan.path != case.path:
            raise BackendError("prove", f"the path {plan and plan.path}", case.path)


def bfloat16(name: str, tell: Tell, device: str = "cuda", backend: str = "cuda") -> Replayed:
    """Quantize all bfloat16 in blocks of every byte under the case's maxima, and compare."""
    import torch

    case = CASES[name]
    sweep, numerics = Bfloat16(device), Numerics(case.maxima, device)
    wrong = torch.zeros(len(case.maxima), dtype=torch.int64, device=device)
    for at, top in enumerate(case.maxima):
        x, factors, scales = sweep.of(numerics, at, top)
        data = packed(signed(numerics.codes(x, factors), x))
        wrong[at] = _difference(case, x, data, scales, backend)
        if at % 256 == 255:
            tell(at / len(case.maxima))
            if wrong.any():
                break
    found = wrong.nonzero().flatten().tolist()
    count = sweep.swept * len(case.maxima)
    if not found:
        return Replayed(count)
    return Replayed(count, f"{int(wrong[found[0]])} bytes under the maximum {shown(case.maxima[found[0]] << 16)}")


def drawn(name: str, tell: Tell, device: str = "cuda", backend: str = "cuda", every: int = 1) -> Replayed:
    """Quantize all bfloat16 in blocks of every byte with all random bytes under one maximum, and compare."""
    import torch

    case = DRAWN[name]
    sweep, numerics = Bfloat16(device), Numerics(case.maxima, device)
    x, factors, scales = sweep.of(numerics, 0, case.maxima[0])
    scaled = (x.double() * factors).float()
    y = scaled.abs()
    step = torch.where(y >= 4, 2.0, torch.where(y >= 2, 1.0, 0.5)).double()
    places = torch.arange(x.numel(), device=device, dtype=torch.int32).view(x.shape)
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=device)
    for byte in range(0, 256, every):
        bits = (places * 37 + (places >> 8) + byte).to(torch.uint8)  # each element gets each byte in the end
        total = (y.double() + bits.double() / 256 * step).float()
        codes = torch.where(y >= 6, 7, reached(values, total))
        wrong = int(_difference(case, x, packed(signed(codes, x)), scales, backend, bits))
        if wrong:
            return Replayed((byte + 1) * sweep.swept, f"{wrong} bytes in the call number {byte}")
        tell((byte + 1) / 256)
    return Replayed(256 * sweep.swept)


def float32(tell: Tell, device: str = "cuda", backend: str = "cuda", part: int = FULL, every: int = 1) -> Replayed:
    """Quantize all float32 in blocks of every byte under one maximum, and compare.

    part: elements of one call. every: the distance of the parts that are taken.
    """
    import torch

    numerics, count, top = Numerics(WIDE.maxima, device), 0, ONE << 16
    lane = torch.arange(BLOCK, device=device)
    block = torch.arange(part // BLOCK, device=device).view(-1, ACROSS, 1) * (BLOCK - 1)
    scales = torch.empty(block.shape[:2], dtype=torch.uint8, device=device)
    scales[:, -1] = BYTES - 1
    for byte in range(BYTES):
        limit = largest_pattern(numerics, byte, top)
        scales[:, :-1] = byte
        factors = numerics.factors[0][scales.long()][..., None]
        is_limit = lane == byte % BLOCK
        offsets = block + lane - (lane > byte % BLOCK).long()
        for first, last in ((0, limit), (NAN, SIGN - 1)):
            for start in range(first, last + 1, every * (len(block) * (ACROSS - 1) * (BLOCK - 1))):
                patterns = (offsets + start).clamp(max=last).int()
                for sign in (0, -SIGN):
                    placed = torch.where(is_limit, limit, patterns | sign)
                    placed[:, -1] = 0
                    placed[:, -1, 3] = top
                    x = placed.view(torch.float32)
                    data = packed(signed(numerics.codes(x, factors), x).view(len(x), -1))
                    wrong = int(_difference(WIDE, x.view(len(x), -1), data, scales, backend))
                    if wrong:
                        where = f"the part from {shown(start)} under the byte {byte:02X}"
                        return Replayed(count, f"{wrong} bytes of {where}")
            count += 2 * (last + 1 - first)
        tell((byte + 1) / BYTES)
    return Replayed(count)


def both(spec: str, tell: Tell, device: str = "cuda", backend: str = "cuda") -> Replayed:
    """Quantize all bfloat16 in blocks of every byte in both directions at once, and compare either one."""
    import torch

    wanted = blocks.tensor(spec, "bfloat16")
    more = -len(wanted.x) % 128
    bits, data, scales = (
        torch.from_numpy(np.concatenate([part, np.repeat(part[-1:], more, 0)])).to(device)
        for part in (wanted.x.view(np.int16), wanted.data, wanted.scales)
    )
    for turned in (False, True):
        case = KernelCase(spec, "both", TILED, *BOTH[spec], (), turned)
        wrong = int(_difference(case, bits.view(torch.bfloat16), data, scales, backend))
        if wrong:
            return Replayed(wanted.swept, f"{wrong} bytes of the {'columns' if turned else 'rows'}")
        tell(0.5 + turned / 2)
    return Replayed(2 * wanted.swept)


STATEMENT = "The kernels of the path `{path}` give the data and scales of the rules{how}."
UP_TO = "all bfloat16 up to the largest maximum of each scale byte, and all block maxima"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the kernels."""
    for name, case in CASES.items():
        every = case.maxima == EVERY
        what = "every bfloat16" if every else f"{len(case.maxima)} bfloat16 of all binades and of all significands"
        yield _claim(
            f"{name}-bfloat16/cuda",
            case,
            domain=f"{UP_TO}, under {what} as the global maximum",
            size=(BYTES * PATTERNS + INFINITY + 1) * len(case.maxima),
            decide=partial(bfloat16, name),
        )
    for name, case in DRAWN.items():
        yield _claim(
            f"{name}-bfloat16/cuda",
            case,
            domain=f"{UP_TO}, each with every random byte, under one global maximum",
            size=(BYTES * PATTERNS + INFINITY + 1) * 256,
            decide=partial(drawn, name),
        )
    yield _claim(
        "tiles-float32/cuda",
        WIDE,
        domain="all float32 up to the largest maximum of each scale byte, and all NaN, under one global maximum",
        size=WIDE_SIZE,
        decide=float32,
    )
    for spec, path in BOTH.items():
        yield _claim(
            f"both-{spec}-bfloat16/cuda",
            KernelCase(spec, "both", TILED, *path, ()),
            domain="all bfloat16 in blocks of every scale byte, and all block maxima, by rows and by columns",
            size=2 * SIZES[spec, "bfloat16"],
            decide=partial(both, spec),
        )


def _claim(name: str, case: KernelCase, **more: Any) -> ProofClaim:
    rules = RULES[case.spec if case.spec in RULES else "nvfp4"]  # the others are NVFP4 too
    how = f"{' in columns' if case.turned else ''}, scales {case.layout}"
    return ProofClaim(
        name=name,
        rules=(*rules, "SR-2", "SR-3") if resolve(case.spec).stochastic else rules,
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.CUDA,
        statement=STATEMENT.format(path=case.path, how=how),
        covers=(
            *(f"{CUDA}/{kernel}.cu" for kernel in case.kernels),
            f"{sources.LOWERED}{case.spec}",
            "fp4ref_cuda.compile:options",
        ),
        **more,
    )
