"""Claims about scales: each float32 operation of the standard's NVFP4 path, over all inputs that decide it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fp4ref.proof import golden_scales, host
from fp4ref.proof.claims import ClaimSubject, Method, ProcessorCheck, ProofClaim, Replayed, Tell
from fp4ref.proof.header_scales import BFLOAT16, BYTES, CHECKS, ONE_MAXIMUM, SIGNIFICANDS, header
from fp4ref.proof.steps import INFINITY

TOPS = (448, 256)
BINADES = (
    "without a subnormal or an overflow, a power of two in s or in the maximum passes through every operation, so the "
    "significands decide those; all bfloat16 maxima are computed under every byte"
)
QUOTIENT = (
    "a quotient of normal numbers depends on the significands alone but for a power of two; all bfloat16 maxima and "
    "the ends of the subnormal and of the finite numbers are computed too"
)
DOUBLE = "the same operations in double precision, each rounded once to float32"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about scales."""
    yield from _of_maxima()
    yield from _of_blocks()


def _of_maxima() -> Iterator[ProofClaim]:
    for top in TOPS:
        shared: dict[str, Any] = {
            "rules": ("GLB-2", "GLB-3", *(("FOS-2",) if top != TOPS[0] else ())),
            "method": Method.EXHAUSTIVE,
            "statement": f"S_enc for scale_max {top} is {DOUBLE}, held within the floats; 1 for 0 and infinity.",
            "domain": "all float32 maxima from 0 to infinity",
            "size": INFINITY + 1,
        }
        yield ProofClaim(
            name=f"encoding-{top}/header",
            subject=ClaimSubject.HEADER,
            decide=partial(header, f"encoding_{top}", ()),
            covers=("arithmetic.h:arithmetic::te::global_scale", "block.h:global_scale"),
            **shared,
        )
        golden: dict[str, Any] = {
            **shared,
            "subject": ClaimSubject.GOLDEN,
            "covers": ("fp4ref.arithmetic:encoding_te",),
        }
        yield ProofClaim(
            name=f"encoding-{top}-all/golden", decide=partial(golden_scales.encoding, top, True), long=True, **golden
        )
        golden |= {"method": Method.ARGUMENT, "decide": partial(golden_scales.encoding, top, False)}
        yield ProofClaim(name=f"encoding-{top}/golden", reduction=QUOTIENT, **golden)
    pairs: dict[str, Any] = {
        "rules": ("BLK-3",),
        "method": Method.EXHAUSTIVE,
        "statement": f"A block's scale before its codec is {DOUBLE}: the product with S_enc / 6, if finite.",
        "domain": "all pairs of a block maximum and a global maximum, both bfloat16",
        "size": BFLOAT16**2,
    }
    yield ProofClaim(
        name="block-scale/header",
        subject=ClaimSubject.HEADER,
        decide=partial(header, "block_scale", ()),
        covers=("arithmetic.h:arithmetic::te::block_scale", "block.h:block_scale"),
        rests_on=("encoding-448/header",),
        **pairs,
    )
    yield ProofClaim(
        name="block-scale/golden",
        subject=ClaimSubject.GOLDEN,
        decide=golden_scales.block_scale,
        covers=("fp4ref.arithmetic:block_scale_te",),
        rests_on=("encoding-448/golden",),
        **pairs,
    )


def _of_blocks() -> Iterator[ProofClaim]:
    operations: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...], Callable[[Tell], Replayed], str], ...] = (
        (
            "factor",
            ("BLK-4", "BLK-6"),
            f"The encode scale of a stored scale is {DOUBLE}, at most the largest float.",
            ("arithmetic.h:arithmetic::te::factor",),
            golden_scales.factor,
            "fp4ref.arithmetic:scaled_te",
        ),
        (
            "decode",
            ("DEQ-1",),
            f"The factor of dequantization is {DOUBLE}.",
            ("arithmetic.h:arithmetic::te::decode",),
            golden_scales.decode,
            "fp4ref.arithmetic:dequantized_te",
        ),
    )
    for name, rules, statement, covers, golden, python in operations:
        shared: dict[str, Any] = {"rules": rules, "statement": statement}
        for suffix, size, domain in (
            ("", BYTES * BFLOAT16, "all scale bytes under all bfloat16 maxima"),
            ("_significands", SIGNIFICANDS, "all significands of a scale and of a float32 maximum, in one binade each"),
        ):
            yield ProofClaim(
                name=f"{name}{suffix.replace('_', '-')}/header",
                method=Method.EXHAUSTIVE,
                subject=ClaimSubject.HEADER,
                domain=domain,
                size=size,
                decide=partial(header, f"{name}{suffix}", ()),
                covers=covers,
                **shared,
            )
        yield ProofClaim(
            name=f"{name}/golden",
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            domain="all scale bytes under all float32 maxima between 2^-100 and 2^100, and under all bfloat16 maxima",
            size=BYTES * (200 << 23),
            decide=golden,
            covers=(python,),
            reduction=BINADES,
            **shared,
        )
    block: dict[str, Any] = {
        "rules": ("BLK-5", "BLK-6", "E2M1-3"),
        "method": Method.EXHAUSTIVE,
        "statement": "The code of an element is that of the product with the encode scale, rounded once.",
    }
    covers = ("block.h:encode", "arithmetic.h:arithmetic::te::apply", "codec.h:Codec::encode")
    yield ProofClaim(
        name="block/header",
        subject=ClaimSubject.HEADER,
        domain="all bfloat16 magnitudes under all scale bytes and 128 bfloat16 maxima of one binade",
        size=CHECKS["block"][0],
        decide=partial(header, "block", ()),
        covers=(*covers, "arithmetic.h:arithmetic::te::factor"),
        rests_on=("factor/header", "encoding-448/header"),
        **block,
    )
    yield ProofClaim(
        name="block-all/header",
        subject=ClaimSubject.HEADER,
        domain="all float32 under all scale bytes and the maximum 1.6015625",
        size=CHECKS["block_all"][0],
        decide=partial(header, "block_all", (ONE_MAXIMUM,)),
        on_processor=ProcessorCheck(host.block, reduction=""),
        covers=(*covers, "arithmetic.h:arithmetic::te::factor"),
        rests_on=("factor/header", "encoding-448/header"),
        long=True,
        **block,
    )
    yield ProofClaim(
        name="block/golden",
        subject=ClaimSubject.GOLDEN,
        domain="all bfloat16 magnitudes under all scale bytes and the maximum 1.6015625",
        size=BYTES * BFLOAT16,
        decide=golden_scales.block,
        covers=("fp4ref.arithmetic:scaled_te", "fp4ref.formats.codec:Codec.encode"),
        rests_on=("factor/golden", "encoding-448/golden"),
        **block,
    )
