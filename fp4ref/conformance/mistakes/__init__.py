"""The library of known mistakes: small changes of a quantizer's stages, or of where its bytes are stored."""

from __future__ import annotations

from fp4ref.conformance.mistakes import block_maxima, scale_codecs, scales
from fp4ref.conformance.mistakes.block_choices import BLOCK_CHOICES
from fp4ref.conformance.mistakes.block_maxima import BLOCK_MAXIMA
from fp4ref.conformance.mistakes.choices import CHOICES
from fp4ref.conformance.mistakes.data_readers import DATA_READERS
from fp4ref.conformance.mistakes.directed import directed, limited_quotients
from fp4ref.conformance.mistakes.directions import directions
from fp4ref.conformance.mistakes.divisions import DIVISIONS
from fp4ref.conformance.mistakes.elements import ELEMENTS
from fp4ref.conformance.mistakes.exhibit import CaseLike, Exhibit
from fp4ref.conformance.mistakes.global_scales import global_scale
from fp4ref.conformance.mistakes.inputs import inputs
from fp4ref.conformance.mistakes.kernel import Kernel, kernel_of
from fp4ref.conformance.mistakes.library import MistakeLibrary
from fp4ref.conformance.mistakes.partial_blocks import partial_blocks
from fp4ref.conformance.mistakes.pitches import pitches
from fp4ref.conformance.mistakes.randomness import randomness
from fp4ref.conformance.mistakes.readers import scale_readers
from fp4ref.conformance.mistakes.record import Mistake, Slot, collect, known
from fp4ref.conformance.mistakes.scale_codecs import SCALE_CODECS
from fp4ref.conformance.mistakes.scale_places import misplaced, squares
from fp4ref.conformance.mistakes.scales import block_scale
from fp4ref.conformance.mistakes.tensor_maxima import TENSOR_MAXIMA
from fp4ref.conformance.mistakes.transforms import transforms
from fp4ref.conformance.mistakes.unwritten_codes import missing
from fp4ref.conformance.mistakes.windows import windows
from fp4ref.conformance.mistakes.wrapped_rows import wrapped_reads, wrapped_rows

OWN = collect(
    ELEMENTS,
    randomness(),
    DIVISIONS,
    directed(),
    limited_quotients(),
    block_scale(),
    global_scale(),
    SCALE_CODECS,
    TENSOR_MAXIMA,
    BLOCK_MAXIMA,
    partial_blocks(),
    transforms(),
    CHOICES,
    BLOCK_CHOICES,
    misplaced(),
    pitches(),
    missing(),
    inputs(),
    directions(),
    windows(),
    squares(),
    wrapped_rows(),
    wrapped_reads(),
)
SCALE_ROUNDINGS = {mistake.name for mistake in (*scale_codecs.ROUNDED, *scales.ROUNDED_TWICE, *block_maxima.ROUNDED)}
MISTAKES = MistakeLibrary(OWN)
register = MISTAKES.register

__all__ = [
    "DATA_READERS",
    "MISTAKES",
    "SCALE_ROUNDINGS",
    "CaseLike",
    "Exhibit",
    "Kernel",
    "Mistake",
    "Slot",
    "kernel_of",
    "known",
    "register",
    "scale_readers",
]
