"""Checks of the small tensors: global scales, input scales, scales of the KV cache."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.check_config import is_plain
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import DTYPES

SCALAR_MAX = 1 << 16  # elements of a tensor that counts as small
FLOATING = {"F64", "F32", "F16", "BF16"}
KV_SUFFIXES = (".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale")
Number = tuple[str, list[float]]


def numbers(tensor: StoredTensor | None) -> list[float]:
    """Return the values of a small tensor of floating-point type; nothing for any other."""
    if tensor is None or tensor.dtype not in FLOATING or tensor.size > SCALAR_MAX:
        return []
    array: NDArray[np.generic] = np.frombuffer(tensor.bytes(), DTYPES[tensor.dtype].array)
    return [float(value) for value in array]


class NumberFacts(NamedTuple):
    """The range of many numbers, and why some cannot be scales. least, largest: 0 if there are none.

    size: their number. whole: all are integers. powers: all are powers of two.
    wrong: the number of those that cannot be scales, by the reason.
    """

    size: int
    least: float
    largest: float
    whole: bool
    powers: bool
    wrong: dict[str, int]

    @property
    def exponents(self) -> bool:
        """True if all are whole numbers from 0 to 255, as exponent bytes are that were converted as numbers."""
        return self.whole and self.least >= 0 and self.largest < 256

    @property
    def usual_exponents(self) -> bool:
        """True for exponent bytes that were converted as numbers, of scales that weights have. Rules: CKP-16."""
        return self.exponents and self.least >= 32


def number_facts(tensor: StoredTensor | None) -> NumberFacts:
    """Return extremes and counts of special values of a floating-point tensor, read in chunks; else zeros."""
    if tensor is None or tensor.dtype not in FLOATING:
        return NumberFacts(0, 0.0, 0.0, False, False, {})
    kind = DTYPES[tensor.dtype].array
    least, largest, whole, powers = math.inf, -math.inf, tensor.size > 0, True
    wrong: Counter[str] = Counter()
    for begin in range(0, tensor.size, SCALAR_MAX):
        count = min(SCALAR_MAX, tensor.size - begin)
        values = np.frombuffer(tensor.bytes(begin * kind.itemsize, count * kind.itemsize), kind).astype(np.float64)
        finite = values[np.isfinite(values)]
        wrong["NaN"] += int(np.isnan(values).sum())
        wrong["infinite"] += int(np.isinf(values).sum())
        wrong["zero"] += int((finite == 0).sum())
        wrong["negative"] += int((finite < 0).sum())
        least, largest = min(least, finite.min(initial=math.inf)), max(largest, finite.max(initial=-math.inf))
        whole &= len(finite) == count and bool((finite == np.round(finite)).all())
        powers &= bool((np.frexp(finite[finite > 0])[0] == 0.5).all())
    known = least <= largest
    return NumberFacts(tensor.size, least if known else 0.0, largest if known else 0.0, whole, powers, dict(+wrong))


def bad(value: float) -> str:
    """Return why a number cannot be a scale; "" if it can."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite"
    return "zero" if value == 0 else "negative" if value < 0 else ""


def check_values(found: Recognized) -> Iterator[LintFinding]:
    """Yield scales that are no positive finite numbers, and input scales that were never set. Rules: CKP-21."""
    for role, code in (("global_scale", "global-scale-value"), ("input_scale", "input-scale")):
        wrong: dict[str, list[str]] = {}
        good: dict[str, float] = {}
        for group in found.groups:
            tensor = group.parts.get(role)
            values = numbers(tensor)
            reasons = [why for why in map(bad, values) if why]
            if tensor is None or not values:
                continue
            if role == "global_scale" and not reasons and _is_wild(values[0]):
                reasons = [f"{values[0]:g}, unwritten memory"]
            if reasons:
                wrong.setdefault(reasons[0], []).append(tensor.name)
            else:
                good[tensor.name] = values[0]
        for why, names in wrong.items():
            yield finding(code, ERROR, names, f"{why}; need a positive finite number")
        if role == "input_scale":
            yield from _unset(good)
    yield from _tensor_scales(found)


def _is_wild(value: float) -> bool:
    """Return True for a positive number that no tensor's amax leads to."""
    return not 1e-20 <= value <= 1e20


def _unset(values: dict[str, float]) -> Iterator[LintFinding]:
    """Yield input scales with the value of a fresh parameter or of memory that nobody wrote. Rules: CKP-41."""
    ones = [name for name, value in values.items() if value == 1.0]
    if ones and (len(ones) < len(values) or len(ones) > 1):
        yield finding("input-scale", WARNING, ones, "exactly 1.0, as a parameter that calibration never reached")
    wild = [name for name, value in values.items() if _is_wild(value)]
    if wild:
        shown = values[wild[0]]
        yield finding("input-scale", ERROR, wild, f"{shown:g}: not a scale of activations, but unwritten memory")


def _tensor_scales(found: Recognized) -> Iterator[LintFinding]:
    """Check float scales of tensors, rows and squares: those of FP8 weights."""
    wrong: dict[str, list[str]] = {}
    uneven: list[str] = []
    for group in found.groups:
        tensor = group.parts.get("scales")
        if group.convention.scale or tensor is None:
            continue
        facts = number_facts(tensor)
        for why in facts.wrong:
            wrong.setdefault(why, []).append(tensor.name)
        if found.config.scale_format == "ue8m0" and facts.size and not facts.powers and not facts.usual_exponents:
            uneven.append(tensor.name)
    if uneven:
        yield finding("config", ERROR, [*found.config.files, *uneven], "scale_fmt is ue8m0: need powers of two")
    codes = {"NaN": "scale-nan", "negative": "scale-negative", "zero": "scale-zero", "infinite": "scale-nan"}
    for why, names in wrong.items():
        yield finding(codes[why], ERROR, names, f"a scale is {why}; need positive finite numbers")


def check_kv(found: Recognized, *, header_only: bool = False) -> Iterator[LintFinding]:
    """Yield scales of the KV cache that are missing, of another shape, or no positive finite numbers.

    Rules: CKP-21, CKP-64.
    """
    stored = {name: tensor for name, tensor in found.plain.items() if name.endswith(KV_SUFFIXES)}
    vectors = [name for name, tensor in stored.items() if tensor.size != 1]
    per_head = any("head" in str(record.get("kv_cache_scheme")) for record in found.config.files.values())
    if vectors and not per_head:
        shape = [*stored[vectors[0]].shape]
        yield finding("kv-scale", ERROR, vectors, f"shape {shape}; need one number")
    whole = [name for name, tensor in stored.items() if tensor.dtype not in FLOATING]
    if whole:
        yield finding("dtype", ERROR, whole, f"{stored[whole[0]].dtype}; need {' or '.join(sorted(FLOATING))}")
    wrong: dict[str, list[str]] = {}
    for name, tensor in () if header_only else stored.items():
        for why in {bad(value) for value in numbers(tensor)} - {""} if name not in {*vectors, *whole} else ():
            wrong.setdefault(why, []).append(name)
    for why, names in wrong.items():
        yield finding("kv-scale", ERROR, names, f"{why}; need a positive finite number")
    if found.config.kv and found.checkpoint.complete and not is_plain(found):
        yield from _missing_kv(found, set(stored))
    if stored and not found.config.kv and found.config.files:
        yield finding(
            "config",
            WARNING,
            found.config.files,
            f"no KV-cache quantization is declared, but {len(stored)} scales of the KV cache are stored",
        )


def _missing_kv(found: Recognized, stored: set[str]) -> Iterator[LintFinding]:
    """Yield the scales that layers with attention lack."""
    keys = [group.name for group in found.groups] + [name.removesuffix(".weight") for name in found.plain]
    layers = sorted({name.rpartition(".")[0] for name in keys if name.endswith(".k_proj")})
    usual = dict(zip("kv", found.configuration.kv_scales, strict=True))
    lost = found.checkpoint.lost
    missing = []
    for layer in layers:
        for letter in "kv":
            names = {
                f"{layer}.{letter}_scale",
                f"{layer}.{letter}_proj.{letter}_scale",
                f"{layer}.attn.{letter}_scale",
                f"{layer}.{letter}_proj.output_scale",
                f"{layer}.kv_scale",
            }
            if not names & (stored | lost):
                missing.append(layer + usual[letter])
    both = [name for name in stored if name.endswith(".kv_scale")]
    if both:
        text = "one scale for keys and values, a name that only older readers know: need .k_scale and .v_scale"
        how = {"sglang": "reads the cache with scale 1.0", "tensorrt-llm": "reads the cache with scale 1.0"}
        yield finding("kv-scale", WARNING, both, text, consumers=how)
    if missing:
        yield finding(
            "kv-scale",
            ERROR,
            missing,
            f"not stored, though the cache is declared as {found.config.kv}",
            consumers={"vllm": "reads the cache with scale 1.0"},
        )


def check_fused(found: Recognized, without: set[str]) -> Iterator[LintFinding]:
    """Yield fused sets whose members have different global or input scales.

    without: tensors that are known to be wrong in another way.

    Rules: CKP-22.
    """
    for role in ("global_scale", "input_scale"):
        tensors: list[str] = []
        ratio, sets = 1.0, 0
        for members in _sets(found):
            values = {group.parts[role].name: _comparable(group, role) for group in members if role in group.parts}
            values = {name: value for name, value in values.items() if value and name not in without}
            if len(values) > 1 and len({tuple(value) for value in values.values()}) > 1:
                firsts = [value[0] for value in values.values()]
                ratio, sets = max(ratio, max(firsts) / min(firsts)), sets + 1
                tensors += values
        if tensors:
            text = f"{sets} fused sets have members with different scales, ratio up to {ratio:.4g}"
            how = "keeps one scale for the fused module, so the other members decode wrongly"
            yield finding(
                "fused-global-scale",
                WARNING,
                tensors,
                text,
                consumers={"vllm": how, "sglang": how, "tensorrt-llm": how},
                evidence={"sets": sets, "largest_ratio": ratio},
            )


def _comparable(group: TensorGroup, role: str) -> list[float]:
    """Return the values of a scale that has no defect of its own; nothing otherwise."""
    tensor = group.parts[role]
    values = numbers(tensor) if tensor.dtype in group.convention.roles[role].dtypes else []
    fits = len(values) in {1, group.matrices if group.shape else 1}
    return values if fits and not any(map(bad, values)) else []


def _sets(found: Recognized) -> Iterator[list[TensorGroup]]:
    """Yield the groups of each fused set that have the same parent module. Rules: CKP-22."""
    homes: dict[tuple[str, tuple[str, ...]], list[TensorGroup]] = {}
    for group in found.groups:
        head, _, last = group.module.rpartition(".")
        for members in group.convention.fused:
            if last in members and not _is_cross_attention(head):
                homes.setdefault((head, members), []).append(group)
    yield from (groups for groups in homes.values() if len(groups) > 1)


def _is_cross_attention(head: str) -> bool:
    """Return True for the attention of diffusion models that reads keys from elsewhere."""
    return head.rpartition(".")[2] in {"attn2", "cross_attn", "encoder_attn"}
