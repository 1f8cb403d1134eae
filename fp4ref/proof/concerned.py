"""The subjects that a rule concerns, those whose code cites it; and why some of them have no certificate for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fp4ref.proof.catalogue import claims, claims_of
from fp4ref.proof.claims import ClaimSubject
from fp4ref.proof.python_sources import imported
from fp4ref.rules import Index

GOLDEN = ("fp4ref", "fp4ref.model.backend")  # with what they import
FOLDERS = {  # of the code of a backend, below the folder of the packages
    ClaimSubject.HEADER: ("fp4ref_numerics/",),
    ClaimSubject.CPU: ("fp4ref_cpu/",),
    ClaimSubject.TORCH: ("fp4ref_torch/",),
    ClaimSubject.CUDA: ("fp4ref_cuda/",),
}


class WithoutCertificate(NamedTuple):
    """Rules for which a subject has no certificate although others have one, and why."""

    subject: ClaimSubject
    rules: tuple[str, ...]
    why: str


REASONS = (
    WithoutCertificate(
        ClaimSubject.TORCH, ("CNF-4",), "a state of the process, which a test sets; no value decides it"
    ),
    WithoutCertificate(ClaimSubject.GOLDEN, ("E8M0-5",), "power-of-two/formula is about the function that cites it"),
    WithoutCertificate(ClaimSubject.HEADER, ("FOS-7",), "such a specification is refused before it is lowered"),
    WithoutCertificate(ClaimSubject.HEADER, ("GLB-5",), "only the setting is there; row-scaled/cpu is about the loops"),
    WithoutCertificate(
        ClaimSubject.HEADER, ("NUM-5",), "a type is there; small-inputs/cpu is about calls that read it"
    ),
    WithoutCertificate(
        ClaimSubject.HEADER,
        ("GEM-3", "GEM-5", "GEM-7", "GEM-8", "PACK-5"),
        "only the parts of products are there; gemm-* and product-* of cpu and cuda are about what is made of them",
    ),
    WithoutCertificate(ClaimSubject.CUDA, ("GEM-11",), "cuBLASLt multiplies what dequantize-*/cuda is about"),
    WithoutCertificate(ClaimSubject.CPU, ("GEM-11",), "NumPy's library multiplies what dequantize-*/cpu is about"),
)


def places() -> dict[ClaimSubject, tuple[str, ...]]:
    """Return files and folders of each subject's code; the golden model computes bytes without a backend."""
    paths = [module.replace(".", "/") for module in imported(GOLDEN)]
    files = (f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
    return {ClaimSubject.GOLDEN: tuple(files), **FOLDERS}


def lacking(index: Index) -> Iterator[tuple[str, ClaimSubject]]:
    """Yield rules with a certificate, and subjects that such a rule concerns without one."""
    parts = places()
    cited = {
        (found.rule, subject)
        for found in (*index.functions, *index.backends)
        for subject, starts in parts.items()
        if any(start in found.place for start in starts)
    }
    for rule in sorted({rule for claim in claims().values() for rule in claim.rules}):
        having = {claim.subject for claim in claims_of(rule)}
        yield from ((rule, subject) for subject in parts if (rule, subject) in cited and subject not in having)


def reasons() -> dict[tuple[str, ClaimSubject], str]:
    """Return why, by rule and subject."""
    return {(rule, reason.subject): reason.why for reason in REASONS for rule in reason.rules}


def gaps(index: Index) -> list[str]:
    """Return one line for each subject without a certificate and without a reason, and each reason without need."""
    found, given = {*lacking(index)}, reasons()
    lines = [
        f"rule {rule}: no certificate for {subject}, whose code cites it; add a claim, or a reason to REASONS"
        for rule, subject in sorted(found - given.keys())
    ]
    return lines + [
        f"rule {rule}: the reason for no certificate for {subject} is not needed"
        for rule, subject in sorted(given.keys() - found)
        if rule in index.rules and index.backends  # else this is no tree of all rules and backends
    ]
