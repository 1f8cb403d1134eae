"""Write a page for each rule: text, figures, functions, tests, vectors, certificates and profiles; and a list of all.

python docs/generate/rule_pages.py FOLDER
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fp4ref
from fp4ref import rules
from fp4ref.arithmetic import Constants
from fp4ref.conformance.explain import codec_notes
from fp4ref.conformance.explain.formulas import cited as cited_by
from fp4ref.diagrams import catalogue
from fp4ref.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, Codec, Rounding
from fp4ref.model.quantize import constants, global_scale
from fp4ref.proof.catalogue import claims_of
from fp4ref.rules import Citation, Index, Rule
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, NVFP4

MOST = 3  # figures on a page
PLACES = {
    "golden model": "fp4ref/",
    "C++ header": "backends/fp4ref_numerics/",
    "cpu backend": "backends/fp4ref_cpu/",
    "torch backend": "backends/fp4ref_torch/",
    "CUDA backend": "backends/fp4ref_cuda/",
}
OF_ALL = ("overview", "cheat-sheet")  # figures of the whole, not of a rule
OF_ARITHMETIC = ("GLB-2", "GLB-3", "BLK-3", "BLK-4", "BLK-5", "BLK-6", "BLK-10", "E8M0-5", "MXS-1", "DEQ-1", "DEQ-2")
SIGN = {E2M1: "E2M1-2", E4M3: "E4M3-6", E5M2: "E5M2-6", E2M3: "E2M3-5", E3M2: "E3M2-5"}
CHOICES = {E2M1: ("E2M1-6", 0), E4M3: ("E4M3-5", 1), E5M2: ("E5M2-5", 1)}  # and how many of RULES it is not about
OF_CODECS = {
    *SIGN.values(),
    *(rule for rule, _ in CHOICES.values()),
    *(r for of in codec_notes.RULES.values() for r in of),
}
OPERATIONS = ("global_scale", "block_scale", "scaled", "dequantized")
APART = ("fp4ref/diagrams/", "fp4ref/explorer/", "fp4ref/conformance/", "fp4ref/proof/", "fp4ref/cli/")


def main(folder: Path) -> None:
    """Write a page for each rule, and the list of all."""
    folder.mkdir(parents=True)
    index = rules.read()
    names = [name for name in catalogue.FIGURES if name not in OF_ALL]
    names += [variant for variant, _, _ in catalogue.VARIANTS]
    cited = {name: catalogue.cited(name) for name in names}
    for rule in index.rules.values():
        # A rule's own figures are those that show it most of all, else the one that shows the fewest others.
        shown = sorted((name for name in names if rule.id in cited[name]), key=lambda name: len(cited[name]))
        own = [name for name in names if cited[name][:1] == (rule.id,)] or shown[:1]
        text = "\n".join(page(index, rule, own[:MOST]))
        (folder / f"{rule.id.lower()}.md").write_text(text + "\n", "utf-8")
    (folder / "index.md").write_text("\n".join(listed(index)) + "\n", "utf-8")


def page(index: Index, rule: Rule, figures: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a rule's page. The index entry makes the search find it under its ID."""
    yield f"---\norphan: true\n---\n\n```{{index}} ! {rule.id}\n```\n\n# {rule.id} · {rule.title}\n"
    yield f"Kind: {rule.kind.value}. In chapter {titles()[rule.chapter]}: {rule.id}."
    yield f"In a terminal: `fp4ref rules {rule.id}`.\n"
    yield rule.text + "\n"
    for name in figures:
        yield f"```{{drawn}} {name}\n```\n"
    citing = index.citing(rule.id)
    functions = [found for found in citing["functions"] if not found.place.startswith(APART)] + citing["backends"]
    kit = [found for found in citing["functions"] if found.place.startswith("fp4ref/conformance/")]
    yield "## Functions\n"
    for title, place in PLACES.items():
        yield from places(title, [found for found in functions if found.place.startswith(place)])
    yield from places("conformance kit", kit)
    yield "\n## Tests and vectors\n"
    yield from places("tests", citing["tests"])
    yield from places("vectors", citing["vectors"])
    named: dict[str, list[str]] = defaultdict(list)
    for claim in claims_of(rule.id):
        named[claim.statement].append(f"`{claim.name}`")
    if named:
        yield "\n## Certificates\n"
        yield from (f"* {', '.join(names)}: {statement}" for statement, names in named.items())
    if others := departing().get(rule.id):
        yield "\n## Profiles that do otherwise\n"
        yield f"{', '.join(f'`{name}`' for name in others)}; see"
        yield "[how the public implementations differ](../differences.md)."
        if rule.id in OF_ARITHMETIC:
            numbers = "zero, infinity and tiny maxima" if rule.id == "GLB-3" else "a hundred thousand numbers"
            yield f"Their arithmetic was run on {numbers}, and gave other results than the rule."
        elif rule.id in OF_CODECS:
            yield "Their encoders were run on every bfloat16 number, and gave other codes than the standard's own."


@cache
def titles() -> dict[str, str]:
    """Return the number and title of each chapter by the stem of its file, without the prefixes of its rules."""
    heads = {path.stem: path.read_text("utf-8").partition("\n")[0] for path in rules.here().spec.rglob("*.md")}
    return {stem: head.removeprefix("# ").partition(" (")[0] for stem, head in heads.items()}


def places(title: str, found: Sequence[Citation]) -> Iterator[str]:
    """Yield one line of a list: the names in each file."""
    files: dict[str, list[str]] = defaultdict(list)
    for one in found:
        files[one.place.rpartition(":")[0]].append(one.name)
    if files:
        yield f"* {title}: " + "; ".join(f"{together(names)} in `{file}`" for file, names in files.items())


def together(names: Sequence[str]) -> str:
    """Return the names of a file; groups of vectors by their numbers, and many in a row as a range."""
    numbers = [name.removeprefix("group ") for name in dict.fromkeys(names)]
    if not all(number.isdigit() for number in numbers):
        return ", ".join(f"`{name}`" for name in dict.fromkeys(names))
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) > 2 and [int(number) for number in numbers] == list(range(first, last + 1)):
        return f"groups {first} to {last}"
    return f"group{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


@cache
def departing() -> dict[str, list[str]]:
    """Return, by rule, the profiles whose operation, codec or amax is another than the one the rule states."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, spec in fp4ref.profiles.items():
        if "." in name:
            for rule in dict.fromkeys(departures(spec)):
                found[rule].append(name)
    return found


def departures(spec: Spec) -> Iterator[str]:
    """Yield the rules of `nvfp4` or `mxfp4` that a profile with scales of the same format does otherwise.

    An operation that does not cite a rule does otherwise if it gives another number for one of `inputs`.
    """
    base = {E4M3: NVFP4 if spec.element.format == E2M1 else None, E8M0: MXFP4}.get(spec.scale.format)
    if base is not None:
        for operation in OPERATIONS:
            own, other = getattr(base.arithmetic, operation), getattr(spec.arithmetic, operation)
            rules = [rule for rule in cited_by(own, "") if rule and rule not in cited_by(other)]
            yield from (rule for rule in rules if own is not other and differ(spec, base, operation, rule))
        if spec.amax is not base.amax:
            yield from ("BLK-2", *(("GLB-1",) if base.global_scale is spec.global_scale is NVFP4.global_scale else ()))
    yield from (rule for codec in (spec.element, spec.scale) for rule in encoded_otherwise(codec))


@cache
def encoded_otherwise(codec: Codec) -> tuple[str, ...]:
    """Return the rules of a format that a codec does otherwise for one of all bfloat16 numbers, and its choice.

    Values of a format and ties between them are such numbers (SPC-6), so no departure is left out.
    """
    form, standard = codec.format, codec_notes.STANDARD.get(codec.format)
    if standard is None or form not in codec_notes.RULES:
        return ()
    x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    x = x if form.signed else x[~np.signbit(x)]
    bits = np.full(x.shape, 128, np.uint8) if codec.rounding is Rounding.STOCHASTIC else None
    differs = codec.encode(x, bits) ^ standard.encode(x)
    nan, past = np.isnan(x), np.abs(x) > form.max
    of_sign = 0 if form.complement else form.sign_bit
    rounding, overflow, of_nan = codec_notes.RULES[form]
    found = [
        *([rounding] if (differs & (0xFF ^ of_sign))[~nan & ~past].any() else []),
        *([overflow] if (differs & (0xFF ^ of_sign))[past].any() else []),
        *([of_nan] if differs[nan].any() else []),
        *([SIGN[form]] if form in SIGN and (differs & of_sign)[~nan].any() else []),
    ]
    choice, of = CHOICES.get(form, ("", len(codec_notes.RULES[form])))
    picked = choice and set(found) - set(codec_notes.RULES[form][:of])
    return (*dict.fromkeys(found), *([choice] if picked else []))


def differ(spec: Spec, base: Spec, operation: str, rule: str) -> bool:
    """Return True if two operations differ on an input; S_enc is 1 / g where g is a decode scale."""
    if base.global_scale != "none" and spec.global_scale == "none" and operation in ("global_scale", "dequantized"):
        return False  # the rule is about a number that the profile does not have
    k = constants(spec, np.dtype(np.float32))
    with np.errstate(all="ignore"):
        given = inputs(spec, k, operation, rule)
        one, other = (getattr(each.arithmetic, operation)(*given, k) for each in (spec, base))
        if operation == "global_scale" and spec.arithmetic.global_scale(np.float32([6]), k)[0] < 1:
            one = np.float32(1) / one
    return not np.array_equal(one.view(np.uint32)[~np.isnan(other)], other.view(np.uint32)[~np.isnan(other)])


def inputs(spec: Spec, k: Constants, operation: str, rule: str) -> tuple[NDArray[np.float32], ...]:
    """Return 100,000 inputs of an operation of a profile, drawn and special ones; of GLB-3 its special maxima."""
    drawn = np.random.default_rng(19)
    special = np.float32([0, 1e-45, 1e-38, 7.8e-36, np.inf])
    amax = np.concatenate([special, drawn.lognormal(0, 9, 100_000).astype(np.float32)]).reshape(-1, 1, 1, 1)
    of_tensor = special if rule == "GLB-3" else np.maximum(amax, drawn.permutation(amax))
    if operation == "global_scale":
        return (of_tensor,)
    g = global_scale(None if spec.global_scale == "none" else of_tensor, spec, k)
    g = np.broadcast_to(g, amax.shape)
    if operation == "block_scale":
        return amax, g
    s = spec.scale.decode(spec.scale.encode(spec.arithmetic.block_scale(amax, g, k)))
    if operation == "scaled":
        return amax * drawn.uniform(-1, 1, amax.shape).astype(np.float32), s, g
    return drawn.choice(np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6]), amax.shape), s, of_tensor


def listed(index: Index) -> Iterator[str]:
    """Yield a list of all rules, chapter by chapter."""
    yield "# All rules\n\nEach rule has a page: its text, figures, functions, tests and certificates.\n"
    chapter = ""
    for rule in index.rules.values():
        if rule.chapter != chapter:
            chapter = rule.chapter
            yield f"\n## {titles()[chapter]}\n"
        yield f"* [{rule.id}]({rule.id.lower()}.md) · {rule.title}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
