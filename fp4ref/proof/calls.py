"""Claims about calls: which are refused, and what a flag and the lack of a global scale change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import resolve
from fp4ref.errors import Fp4Error
from fp4ref.formats import F
from fp4ref.model.quantize import constants, global_scale
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.whole import BACKENDS, _array, _host
from fp4ref.quantized import Quantized

DIRECTIONS = ("row", "column", "both")
HEIGHTS, WIDTHS = range(34), (0, 1, 17)
WITHOUT_GLOBAL_SCALE = (
    "mxfp4",
    "mxfp4-2d",
    "mxfp6-e2m3",
    "mxfp6-e3m2",
    "mxfp8-2d",
    "mxfp8-e4m3",
    "mxfp8-e5m2",
    "mxint8",
)
AMAXES = (0.0, 1.0, 2688.0, float("inf"))
ON_CPU = (ClaimSubject.GOLDEN, ClaimSubject.CPU, ClaimSubject.TORCH)
FLAG_TYPES = {"uint8": range(256), "int32": (0, *(1 << bit for bit in range(32)), 0xFFFFFFFF)}
FLAG_TYPES["float32"] = (*FLAG_TYPES["int32"], 0x3F800000, 0x7FC00000)

LAYOUT_NAMES = ("linear", "linear_padded", "tiled_128x4", "tiled_8x4")
FLAGGED = 2 * (sum(map(len, FLAG_TYPES.values())) + (len(LAYOUT_NAMES) - 1) * 2 * len(FLAG_TYPES))


def _quantized(x: Any, spec: str, subject: ClaimSubject, *given: Any, **named: Any) -> Quantized:
    quantize: Callable[..., Quantized] = api.quantize
    return quantize(_array(x, subject), spec, *given, backend=BACKENDS[subject], **named)


def transformed(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize matrices of all heights up to two groups, with a transform, and compare what is refused."""
    count = 0
    for rows, columns in product(HEIGHTS, WIDTHS):
        for name, directions in product(INPUT_DTYPES, DIRECTIONS):
            count += 1
            by_columns = directions != "row"
            refused = by_columns and (name != "bfloat16" or (rows % 16 != 0 and columns > 0))
            said = f"{name} [{rows}, {columns}], {directions}"
            try:
                q = _quantized(np.ones((rows, columns), INPUT_DTYPES[name]), "nvfp4-rht", subject, directions)
            except Fp4Error as error:
                if not refused or error.rule != "HAD-5":
                    return Replayed(count, f"{said} is refused: {error}")
                continue
            if refused:
                return Replayed(count, f"{said} is quantized")
            if [q.row is not None, q.column is not None] != [directions != "column", by_columns]:
                return Replayed(count, f"{said} has other directions")
        tell(count / _calls())
    return Replayed(count)


def _calls() -> int:
    return len(HEIGHTS) * len(WIDTHS) * len(INPUT_DTYPES) * len(DIRECTIONS)


def without_global_scale(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize by specifications without a global scale; g is 1 in the model."""
    count = 0
    x = np.linspace(-9, 9, 32 * 64, dtype=F).reshape(32, 64)
    for name in WITHOUT_GLOBAL_SCALE:
        spec = resolve(name)
        for dtype, directions in product(INPUT_DTYPES, DIRECTIONS):
            given = x.astype(INPUT_DTYPES[dtype])
            count += 1
            q = _quantized(given, name, subject, directions)
            if any(part is not None and part.amax is not None for part in (q.row, q.column)):
                return Replayed(count, f"{name} stores an amax")
            for amax in AMAXES:
                count += 1
                try:
                    _quantized(given, name, subject, directions, amax=amax)
                except Fp4Error as error:
                    if error.rule != "GLB-6":
                        return Replayed(count, f"{name} with amax {amax}: {error}")
                else:
                    return Replayed(count, f"{name} takes the amax {amax}")
            if subject is ClaimSubject.GOLDEN:
                g = global_scale(None, spec, constants(spec, INPUT_DTYPES[dtype]))
                if g.dtype != F or (g != 1).any():
                    return Replayed(count, f"g of {name} is {g.ravel()[0]!s}")
        tell(count / (len(WITHOUT_GLOBAL_SCALE) * 9 * 5))
    return Replayed(count)


def flags(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Call with every flag, and compare all buffers with what they held, or with a call that has no flag."""
    x = np.linspace(-9, 9, 16 * 32, dtype=F).reshape(16, 32)
    count = 0
    for layout, (name, words) in product(LAYOUT_NAMES, FLAG_TYPES.items()):
        want = _quantized(x, "nvfp4", subject, "both", layout)
        out = _quantized(x[::-1].copy() * F(3), "nvfp4", subject, "both", layout)
        held = _bytes(out)
        kind = np.dtype(name)
        for word, shape in product(words if layout == "linear" else words[:2], ((), (1,))):
            count += 1
            flag = np.array([word], f"u{kind.itemsize}").view(kind).reshape(shape)
            _quantized(x, "nvfp4", subject, "both", layout, out=out, noop=_array(flag, subject))
            if _bytes(out) != (held if word else _bytes(want)) or out.scale_layout != layout:
                return Replayed(count, f"{layout}: the {name} flag {word:0{2 * kind.itemsize}X} is read otherwise")
            if not word:
                _quantized(x[::-1].copy() * F(3), "nvfp4", subject, "both", layout, out=out)
        tell(count / FLAGGED)
    return Replayed(count)


def _bytes(q: Quantized) -> list[bytes]:
    return [_host(part).tobytes() for direction in (q.row, q.column) for part in direction or ()]


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about calls."""
    for subject in ON_CPU:
        shared: dict[str, Any] = {"method": Method.EXHAUSTIVE, "subject": subject}
        yield ProofClaim(
            name=f"transformed-shapes/{subject}",
            rules=("HAD-5",),
            statement="With a transform, the column direction needs bfloat16 and a multiple of 16 rows, unless there "
            "is no column; nothing else is refused.",
            domain="matrices of up to 33 rows and of 0, 1 and 17 columns, three types, all directions",
            size=_calls(),
            decide=partial(transformed, subject),
            covers=("fp4ref.arguments:require_hadamard",),
            **shared,
        )
        yield ProofClaim(
            name=f"no-global-scale/{subject}",
            rules=("GLB-6",),
            statement="A specification without a global scale stores no amax and refuses the caller's.",
            domain=f"the {len(WITHOUT_GLOBAL_SCALE)} specifications of the standard without one, three types, all "
            f"directions, without an amax and with {len(AMAXES)}",
            size=len(WITHOUT_GLOBAL_SCALE) * len(INPUT_DTYPES) * len(DIRECTIONS) * (1 + len(AMAXES)),
            decide=partial(without_global_scale, subject),
            covers=("fp4ref.arguments:given_amax",)
            + (("fp4ref.model.quantize:global_scale",) if subject is ClaimSubject.GOLDEN else ()),
            **shared,
        )
        yield ProofClaim(
            name=f"flags/{subject}",
            rules=("LAY-12",),
            statement="A flag leaves data, scales and amax as they are; one whose bits are all zero does not.",
            domain="all uint8, and the int32 and float32 with at most one bit and some more, of both shapes; two "
            f"in each of {len(LAYOUT_NAMES)} layouts",
            size=FLAGGED,
            decide=partial(flags, subject),
            covers=("fp4ref.arguments:read_flag",),
            **shared,
        )
