"""Claims about parts of the shared header: maxima, powers of two, offsets, random words, packed codes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from fp4ref.proof.claims import ClaimSubject, Decide, Method, ProcessorCheck, ProofClaim
from fp4ref.proof.header_parts import (
    BFLOAT16,
    BYTES,
    CODECS,
    FORMULAS,
    HIGH,
    LARGEST,
    LAYOUTS,
    NAN_STAYS,
    OFFSET,
    QUICK,
    RANDOM,
    RUNNING,
    SIGNED,
    SOME_BYTE,
    WIDE,
    blocks_of_bytes,
    no_numbers,
    one_byte,
    one_byte_on_processor,
    packed,
    random_numbers,
    rounded_up,
    swept,
    unscaled,
)
from fp4ref.proof.mx_scales import ELEMENTS, MAXIMA
from fp4ref.proof.steps import PATTERNS, SIGN
from fp4ref.proof.transforms import SIGNINGS, TIES


class HeaderPart(NamedTuple):
    """A claim about a part of the header. argument: the reduction of one that is not exhaustive.

    on_processor: the check that a processor runs instead, about the same inputs.
    """

    name: str
    rules: tuple[str, ...]
    statement: str
    domain: str
    size: int
    decide: Decide
    covers: tuple[str, ...]
    argument: str = ""
    on_processor: Decide | None = None


def parts() -> Iterator[HeaderPart]:
    """Yield the parts of the header that have a claim here."""
    yield HeaderPart(
        "running-amax",
        ("BLK-2",),
        "A running maximum keeps the larger magnitude; a NaN is ignored, or wins.",
        "all float32 magnitudes beside four maxima, and beside a NaN",
        SIGN,
        partial(swept, "running", SIGN, RUNNING, NAN_STAYS, no_numbers),
        ("block.h:running_amax",),
    )
    yield HeaderPart(
        "mx-rceil",
        ("MXS-1",),
        "A block maximum has the byte of its quotient by E, rounded once, then up.",
        "all float32 maxima, NaN included, of blocks of E2M1, E4M3 and E5M2",
        len(ELEMENTS) * MAXIMA,
        rounded_up,
        ("arithmetic.h:arithmetic::rceil::block_scale", "block.h:block_scale", "codec.h:Codec::encode"),
    )
    yield HeaderPart(
        "unscaled",
        ("GLB-6", "BLK-10", "DEQ-2"),
        "Without a global scale g is 1, an element is divided by its scale, and a code is multiplied by it.",
        "all bfloat16 under all finite E8M0 bytes",
        BYTES * BFLOAT16,
        unscaled,
        tuple(f"block.h:{name}" for name in ("global_scale", "value_of", "decoded_scale")),
    )
    yield HeaderPart(
        "block-one-byte",
        ("BLK-5", "BLK-6"),
        "A code is that of the nearest value to the product with the encode scale, rounded once.",
        f"all float32 under the scale byte {SOME_BYTE:02X} and the maximum 1.6015625",
        PATTERNS,
        one_byte,
        ("arithmetic.h:arithmetic::te::apply", "block.h:encode"),
        on_processor=one_byte_on_processor,
    )
    yield HeaderPart(
        "signed-nan",
        ("NUM-2",),
        "A NaN has the sign of the first operand that is NaN; one that an operation made has its sign bit set.",
        "NaN of either sign, two numbers and an infinity in the places of three operands and of the result",
        5**4,
        partial(swept, "signed", 5**4, SIGNED, "", no_numbers),
        ("bits.h:signed_nan",),
        "what an operand is, beside the sign of a NaN, does not matter",
    )
    yield HeaderPart(
        "quick-range",
        ("FOS-3",),
        "Where a division may be quick, every product that is divided is 0 or in [2^-60, 2^120].",
        "all float32 global maxima",
        PATTERNS,
        partial(swept, "quick", PATTERNS, QUICK, "", no_numbers),
        ("block.h:quick_over_constant",),
    )
    blocks = len(blocks_of_bytes())
    yield HeaderPart(
        "random-block",
        ("SR-6", "SR-7"),
        "A block's words are those of its counter and key, by the definition of Philox.",
        "block numbers, seeds and upper halves with one bit, with all, and at the end of a word",
        blocks,
        partial(swept, "random", blocks, RANDOM, "", random_numbers),
        ("philox.h:random_block", "philox.h:philox4x32"),
        "each bit of a number has one place in a counter or a key; one bit, and numbers that carry, find all",
    )
    yield HeaderPart(
        "packed-codes",
        ("PACK-1", "PACK-3", "PACK-4"),
        "The first code of two, and of eight, has the low bits.",
        "all pairs of finite codes of five formats, and each code of E2M1 in each of eight places beside each",
        sum(1 << 2 * bits for bits in CODECS.values()) + (1 << 11),
        packed,
        ("codec.h:encode_pair", "codec.h:packed_narrow"),
    )
    yield HeaderPart(
        "hadamard-amax",
        ("HAD-4", "BLK-2"),
        "A maximum of transformed values is that of a quarter of the sums.",
        "all vectors of 16 signs, and all of one or two elements whose sums are ties of bfloat16",
        SIGNINGS + TIES,
        partial(swept, "largest", SIGNINGS + TIES, LARGEST, "", no_numbers),
        ("hadamard.h:hadamard_amax",),
        "sums are linear but for their roundings, and the vectors find each sign and each tie",
    )
    for name, (rule, function) in LAYOUTS.items():
        body = OFFSET.replace("LAYOUT", name).replace("FORMULA", FORMULAS[name])
        yield HeaderPart(
            f"offset-{name}",
            (rule,),
            f"A scale of {name} is stored where the formula of its rule says.",
            f"all scales of matrices of up to {HIGH} rows and {WIDE} columns",
            WIDE * WIDE * HIGH,
            partial(swept, "offset", WIDE * WIDE * HIGH, body, "#include <fp4ref/layout.h>\n", no_numbers),
            (f"layout.h:layout::{function}",),
            "an offset is a sum of digits times strides, and a stride is a constant times a count of tiles",
        )


def claims() -> Iterator[ProofClaim]:
    """Yield the claims of this module."""
    for part in parts():
        yield ProofClaim(
            name=f"{part.name}/header",
            rules=part.rules,
            method=Method.ARGUMENT if part.argument else Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            statement=part.statement,
            domain=part.domain,
            size=part.size,
            decide=part.decide,
            on_processor=ProcessorCheck(part.on_processor, part.argument) if part.on_processor else None,
            covers=part.covers,
            reduction=part.argument,
        )
