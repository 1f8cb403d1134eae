"""Claims about whole calls once more, served by the cuda backend: the same tensors, on this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fp4ref.proof.claims import ClaimSubject, ProofClaim
from fp4ref.proof.whole import CUDA, DECODED, QUANTIZED

DECODES = DECODED[ClaimSubject.CUDA]
MOVES = (f"{CUDA}/layout.cu", "fp4ref_cuda.operations:to_layout", "fp4ref_cuda.reading:convert_layout")
QUANTIZES = (
    *QUANTIZED[ClaimSubject.CUDA],
    *(f"{CUDA}/{name}.cu" for name in ("fused", "fused_amax", "transform")),
    "fp4ref_cuda.operations:_by_path",
    "fp4ref_cuda.maxima:fill",
)
DRAWS = (f"{CUDA}/random_bits.cu", "fp4ref_cuda.compile:options", "fp4ref_cuda.randoms:random_bits")
MULTIPLIES = (
    *(f"{CUDA}/{name}.cu" for name in ("gemm", "gemm_finish")),
    "fp4ref_cuda.gemm:_product",
    "fp4ref_cuda.gemm:_text",
    "fp4ref_cuda.compile:options",
)
CODE = {  # of the cuda backend, by the function that decides a claim
    "fp4ref.proof.cuts:cut": (*QUANTIZES, *DECODES),
    "fp4ref.proof.parts:parts": QUANTIZES,
    "fp4ref.proof.offsets:moved": (*MOVES, "fp4ref_cuda.compile:options"),
    "fp4ref.proof.paddings:written": (*QUANTIZES, *MOVES),
    "fp4ref.proof.draws:counted": DRAWS,
    "fp4ref.proof.draws:cut": DRAWS,
    "fp4ref.proof.drawn_rows:rows": QUANTIZES,
    "fp4ref.proof.maxima:by_row": QUANTIZES,
    "fp4ref.proof.given_maxima:kept": (*QUANTIZES, "fp4ref_cuda.maxima:given_amax"),
    "fp4ref.proof.transformed_columns:codes": QUANTIZES,
    "fp4ref.proof.transformed_columns:largest": QUANTIZES,
    "fp4ref.proof.large_tensors:pieces": QUANTIZES,
    "fp4ref.proof.decoded_rows:by_row": (*DECODES, "fp4ref_cuda.reading:dequantized"),
    "fp4ref.proof.decoded_rows:inverted": (*DECODES, "fp4ref_cuda.reading:dequantized"),
    "fp4ref.proof.special_blocks:blocks_of": QUANTIZES,
    "fp4ref.proof.past_largest:alone": QUANTIZES,
    "fp4ref.proof.nan_signs:signs": QUANTIZES,
    "fp4ref.proof.theorems_ordered:turned": QUANTIZES,
    "fp4ref.proof.calls:transformed": QUANTIZES,
    "fp4ref.proof.calls:without_global_scale": QUANTIZES,
    **dict.fromkeys(
        (
            *("fp4ref.proof.products:pairs", "fp4ref.proof.products:longest", "fp4ref.proof.product_sums:ordered"),
            *(f"fp4ref.proof.product_sums:{name}" for name in ("long_sums", "spread", "tied")),
            *(f"fp4ref.proof.finishing:{name}" for name in ("amaxes", "alphas", "additions", "groups")),
        ),
        MULTIPLIES,
    ),
    "fp4ref.proof.calls:flags": (*QUANTIZES, "fp4ref_cuda.checks:noop_flag"),
}


def again(claims: Sequence[ProofClaim]) -> Iterator[ProofClaim]:
    """Yield those of all claims that are about calls of the cpu backend which the cuda backend serves, too."""
    for claim in claims:
        if claim.subject is ClaimSubject.CPU and claim.decider() in CODE:
            yield _here(claim, CODE[claim.decider()])


def _here(claim: ProofClaim, code: tuple[str, ...]) -> ProofClaim:
    """Return a claim about calls of the cpu backend as one about the cuda backend."""
    decide: Any = claim.decide
    arguments = [ClaimSubject.CUDA if each is ClaimSubject.CPU else each for each in decide.args]
    return replace(
        claim,
        name=claim.name.replace("/cpu", "/cuda"),
        subject=ClaimSubject.CUDA,
        decide=partial(decide.func, *arguments),
        covers=(*code, *(each for each in claim.covers if not each.startswith("fp4ref_cpu"))),
        rests_on=tuple(name.replace("/cpu", "/cuda") for name in claim.rests_on),
    )
