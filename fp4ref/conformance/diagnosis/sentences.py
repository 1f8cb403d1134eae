"""A hypothesis in words, and the first byte that differs in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.explanations import Explanation
from fp4ref.conformance.diagnosis.hypotheses import ORDER, Hypothesis
from fp4ref.conformance.diagnosis.padding import padding_text, spare_text
from fp4ref.conformance.diagnosis.profile_words import differences
from fp4ref.conformance.diagnosis.special_input import Special
from fp4ref.conformance.families.rules import SPARE as SPARE_RULES
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Cause, Mistake, Slot
from fp4ref.conformance.mistakes.sides import code_side
from fp4ref.spec import Spec

PADDING = ("padding", "padding bytes of the scales are not zero")
SPARE = {4: ("spare-nibble", "spare nibbles are not zero"), 6: ("spare-bits", "spare bits of rows are not zero")}
OF_SPARE = {bits: (rule,) for bits, rule in SPARE_RULES.items()}


def told(
    spec: Spec, items: Sequence[Item], hypothesis: Hypothesis, except_on: tuple[str, ...], *, in_padding: bool
) -> Explanation:
    """Return a hypothesis in words. in_padding: padding of the scales is not zero, where it has them stored.

    A class of special input that it would change, and of which no byte differs, is left out of the cause.

    Rules: CNF-50.
    """
    differs = ""
    said = [(mistake.cause, _located(mistake)) for mistake in hypothesis.mistakes]
    main = [part for part, mistake in zip(said, hypothesis.mistakes, strict=True) if not mistake.special]
    rest = [part for part, mistake in zip(said, hypothesis.mistakes, strict=True) if mistake.special]
    readers = [(Cause(r.name, r.stage), r.text) for r in (hypothesis.data, hypothesis.scales) if r.name]
    parts = [*main, *readers, *rest]
    if hypothesis.profile:
        differs = differences(spec, PROFILES[hypothesis.profile])
        own = Cause(f"profile {hypothesis.profile}", Slot.SCALE, profile=hypothesis.profile)
        parts.insert(0, (own, f"it is {hypothesis.profile} ({differs})"))
    if in_padding:
        held = padding_text([item for item in items if item.size]) if hypothesis.scales is DECLARED else ""
        parts.append((Cause(PADDING[0], Slot.PADDING), f"{PADDING[1]}: {held}" if held else PADDING[1]))
    filled = hypothesis.data.fills or any(mistake.fills for mistake in hypothesis.mistakes)
    if not filled and any(item.spare() for item in items):
        name, text = SPARE[spec.element.format.bits]
        odd = [item for item in items if item.size and item.columns % 2]
        held = spare_text(odd) if spec.element.format.bits == 4 and hypothesis.data is LOW_FIRST else ""
        spare = Cause(name, Slot.PACKING, OF_SPARE[spec.element.format.bits])
        parts.append((spare, f"{text}: {held}" if held else text))
    causes, texts = zip(*parts, strict=True) if parts else ((), ())
    stage = min((cause.stage for cause in causes), key=ORDER.index, default="")
    place = "; ".join(dict.fromkeys(mistake.place for mistake in hypothesis.mistakes if mistake.place))
    spared = [kind for kind in except_on if not any(item.differs_on(Special(kind)) for item in items)]
    text = "; ".join(texts)
    text += f", but not on {', '.join(spared)}, where no byte differs" if text and spared else ""
    left = tuple(kind for kind in except_on if kind not in spared)
    names = tuple(cause.name for cause in causes)
    return Explanation(names, str(stage), text, left, hypothesis.profile, place, differs, bool(text and spared), causes)


def _located(mistake: Mistake) -> str:
    return f"{mistake.text}, {mistake.place}" if mistake.place else mistake.text


def first_difference(items: Sequence[Item]) -> str:
    """Return the number of blocks that differ, and the first one: case, row, block, and its first byte or code."""
    counts = [int(np.count_nonzero(item.wrong)) for item in items]
    found = next((item for item, count in zip(items, counts, strict=True) if count), None)
    if found is None:
        return ""
    row, block = (int(index) for index in np.argwhere(found.wrong)[0])
    name = getattr(found.exhibit.case, "id", "")
    total, wrong = sum(item.wrong.size for item in items), sum(counts)
    said = f"in {wrong:,} of {total:,} blocks, first {f'in {name} ' if name else ''}at row {row}, block {block}"
    got, codes = found.scales(DECLARED), found.codes(LOW_FIRST)
    if got is None or codes is None:
        return said
    if got[row, block] != found.base.scales[row, block]:
        return f"{said}: scale byte {got[row, block]:#04x} instead of {found.base.scales[row, block]:#04x}"
    wanted, start = code_side(kernel_of(found.spec), found.base), block * found.spec.block.columns
    columns = np.flatnonzero(codes[row] != wanted[row])
    column = int(columns[columns >= start][0])
    return f"{said}, element {column - start}: code {codes[row, column]:#x} instead of {wanted[row, column]:#x}"
