"""The known mistakes, as a user looks them up: what each does, at which stage, and which rules it breaks.

They are those that a diagnosis tries, so that a mistake that a user registered is among them. For example, two mistakes
may make the same bytes under one specification: `effect` runs both on aimed cases, and a diagnosis names both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis import operations, products
from fp4ref.conformance.diagnosis.placed_operations import KnownOperation
from fp4ref.conformance.diagnosis.placed_results import KnownResult
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.families import cases
from fp4ref.conformance.mistakes import DATA_READERS, MISTAKES, Exhibit, Kernel, Mistake, kernel_of, scale_readers
from fp4ref.conformance.mistakes.data_readers import DataReader
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.readers import ScaleReader
from fp4ref.conformance.mistakes.record import Cause
from fp4ref.conformance.mistakes.sides import code_side, scale_side
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.conformance.verdict.violated import rules_of
from fp4ref.errors import DomainError
from fp4ref.kernels import INPUTS, OUTPUTS
from fp4ref.layout import LINEAR, layout
from fp4ref.quantized import DIRECTIONS
from fp4ref.spec import Spec
from fp4ref.specs import NVFP4, OWN

QUANTIZE = "quantize"
SMALL = 4096  # elements of a case on which mistakes are compared


class KnownMistake(NamedTuple):
    """A mistake in words.

    rules: those that it may break, or their prefixes; none where the results tell. spec: a specification under which it
    means something; empty if none is registered. source: who registered it; empty for one of this project.
    """

    name: str
    stage: str
    text: str
    rules: tuple[str, ...] = ()
    spec: str = ""
    source: str = ""


def known_mistakes(
    operation: str = QUANTIZE, spec: Spec | None = None, scale_layout: str = LINEAR.name
) -> Iterator[KnownMistake]:
    """Yield the mistakes that a diagnosis of an operation tries alone, in its order.

    spec: only those that mean something under it; None for all. scale_layout: the declared one, where bytes are stored
    elsewhere.

    Rules: CNF-26, SPC-21.
    """
    if operation == QUANTIZE:
        yield from _of_quantizers(spec, scale_layout)
        return
    chosen = NVFP4 if spec is None else spec
    declared = Declaration(
        operation=operation, inputs=INPUTS[operation], outputs=OUTPUTS[operation], scale_layout=scale_layout
    )
    singles: Iterator[KnownResult | KnownOperation]
    if operation == "gemm":
        singles = products.single_mistakes(declared, chosen)
    else:
        singles = operations.single_mistakes(declared, chosen)
    listed = set()  # a mistake may be computed in two ways, which are tried one after the other
    for known in singles:
        breaks = tuple(rule for cause in known.causes for rule in cause.breaks)
        each = KnownMistake(" and ".join(known.names), str(known.stage), known.text, breaks, chosen.name)
        if each not in listed:
            yield each
        listed.add(each)


def _of_quantizers(spec: Spec | None, scale_layout: str) -> Iterator[KnownMistake]:
    kernels = [kernel_of(each) for each in (dict.fromkeys([*OWN, *PROFILES.values()]) if spec is None else [spec])]
    for mistake in MISTAKES:
        home = next((kernel.spec for kernel in kernels if _applied(mistake, kernel) is not None), None)
        if home is not None or spec is None:
            rules = mistake.breaks if home is None else rules_of(mistake.cause, home)
            name = "" if home is None else home.name
            yield KnownMistake(mistake.name, mistake.stage, mistake.text, rules, name, MISTAKES.source(mistake.name))
    chosen = NVFP4 if spec is None else spec
    readers: list[DataReader | ScaleReader] = [*DATA_READERS, *scale_readers(layout(scale_layout))]
    for reader in readers:
        yield KnownMistake(
            reader.name, reader.stage, reader.text, rules_of(Cause(reader.name, reader.stage), chosen), chosen.name
        )


def _applied(mistake: Mistake, kernel: Kernel) -> Kernel | None:
    """Return the kernel with a mistake, which a user may have registered with a function that fails."""
    try:
        return mistake.apply(kernel)
    except Exception as error:
        got = f"{mistake.name} raises {type(error).__name__} under {kernel.spec.name}: {error}"
        raise DomainError("mistakes", got, "a function that returns a kernel or None", "SPC-21") from error


@dataclass(frozen=True)
class Effect:
    """The bytes of a mistake on small aimed cases.

    changes: how many cases of a family have other bytes than the specification's; cases: all that were tried. alike:
    other mistakes that make the same bytes in each of them. failures: how many cases it makes no bytes of, because it
    raises an error; error: the first one.
    """

    spec: str
    cases: int
    changes: dict[str, int]
    alike: tuple[str, ...]
    failures: int = 0
    error: str = ""


def mistake_named(name: str) -> Mistake | None:
    """Return the mistake of a quantizer; None if no mistake in its arithmetic has the name."""
    return next((mistake for mistake in MISTAKES if mistake.name == name), None)


def effect(mistake: Mistake, spec: Spec) -> Effect:
    """Run a mistake, and all others, on the small cases that are aimed at a specification.

    Errors: DomainError if it means nothing under the specification.

    Rules: CNF-26.
    """
    right = kernel_of(spec)
    wrong = _applied(mistake, right)
    if wrong is None:
        raise DomainError(
            "mistakes", f"{mistake.name} under {spec.name}", "a specification that it applies to", "CNF-26"
        )
    directions = DIRECTIONS if spec.hadamard else DIRECTIONS[:1]
    tried = [case for case in cases(spec, directions=directions) if 0 < case.x.size <= SMALL]
    every = [(case, exhibit := Exhibit(case), _made(wrong, exhibit), _made(right, exhibit)) for case in tried]
    errors = [found for *_, own, expected in every if (found := _failure(own, expected))]
    failed = len(errors), errors[0] if errors else ""
    whole = [each for each in every if not _failure(*each[2:])]
    made = [(exhibit, own) for _, exhibit, own, _ in whole]
    differs = [own != expected for *_, own, expected in whole]
    changes = Counter(case.family for case, *_ in compress(whole, differs))
    if not changes:
        return Effect(spec.name, len(tried), {}, (), *failed)
    ordered = [*compress(made, differs), *compress(made, map(not_, differs))]  # a wrong one is refuted soon
    others = ((other.name, _applied(other, right)) for other in MISTAKES if other is not mistake)
    alike = [
        name
        for name, kernel in others
        if kernel is not None and all(_made(kernel, exhibit) == own for exhibit, own in ordered)
    ]
    return Effect(spec.name, len(tried), dict(changes), tuple(alike), *failed)


def _failure(own: Any, expected: Any) -> str:
    """Return why a mistake's bytes are no result: an error in their place, or another number; empty if they are one."""
    if isinstance(own, Exception):
        return f"{type(own).__name__}: {own}"
    sizes = [[len(part) for part in parts if part is not None] for parts in (own, expected)]
    return "" if sizes[0] == sizes[1] else f"{sum(sizes[0])} bytes, not {sum(sizes[1])}"


def _made(kernel: Kernel, exhibit: Exhibit) -> Any:
    """Return the bytes that a kernel makes, or the error that it raises."""
    try:
        side = scale_side(kernel, exhibit, EVERY)
        amax = None if side.amax is None else side.amax.tobytes()
        return amax, side.scales.tobytes(), code_side(kernel, side).tobytes()
    except FAILURES as error:
        return error
