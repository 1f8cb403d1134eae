"""Vectors of refused requests, which have no defined result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import (
    STATED,
    Json,
    floats,
    group,
    named,
    record,
    refused,
    tensor_fields,
    test,
)
from fp4ref.conformance.vectors.sources.tensors import NVFP4_STOCHASTIC
from fp4ref.conformance.vectors.text import format_words
from fp4ref.formats import CUDA_E4M3, CUDA_E8M0, STOCHASTIC_E2M1, F
from fp4ref.spec import Hadamard, Spec
from fp4ref.spec_json import encode
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4, NVFP4_2D, NVFP4_4OVER6, NVFP4_RHT, NVFP4_ROW_SCALED


def refused_groups() -> list[Json]:
    """Return requests without a defined result, each with the rule that it breaks."""

    def ask(comment: str, error: str, rule: str, x: NDArray[Any] | None = None, **more: Any) -> Json:
        fields = tensor_fields(np.ones((2, 16), F) if x is None else x)
        return test("Refused", comment, **fields, **more, expected=refused(error, rule))

    def other(dtype: str) -> Json:
        fields = {"dtype": dtype, "shape": [2, 16], "x": []}
        return test("Refused", f"{dtype}, zeros", **fields, expected=refused("DTypeError", "NUM-3"))

    one = format_words(floats([1.0]))
    illegal = (
        ("HAD-5", "a block that cuts transform groups", {"block": (1, 8)}, NVFP4_RHT),
        ("FOS-7", "4over6 with a transform", {"hadamard": Hadamard()}, NVFP4_4OVER6),
        ("FOS-7", "4over6 with stochastic rounding", {"element": STOCHASTIC_E2M1}, NVFP4_4OVER6),
        ("FOS-7", "4over6 without a global scale", {"global_scale": "none"}, NVFP4_4OVER6),
        ("FOS-7", "4over6 with 8-bit elements", {"element": CUDA_E4M3}, NVFP4_4OVER6),
        ("GLB-5", "a row scale with stochastic rounding", {"element": STOCHASTIC_E2M1}, NVFP4_ROW_SCALED),
        ("SR-5", "power-of-two scales with stochastic rounding", {"element": STOCHASTIC_E2M1}, MXFP4),
        ("GLB-5", "a row scale over blocks of 16 rows", {"global_scale": "row"}, NVFP4_2D),
        ("GLB-6", "a global scale over power-of-two scales", {"global_scale": "tensor"}, MXFP4),
        ("SPC-2", "elements that are scales", {"element": CUDA_E8M0}, MXFP4),
        ("SPC-2", "element_max past the largest element", {"element_max": 7.0}, NVFP4),
        (
            "SR-1",
            "stochastic rounding of an 8-bit element",
            {"element": encode(CUDA_E4M3) | {"rounding": "stochastic"}},
            MXFP8_E4M3,
        ),
        ("BLK-1", "an empty block", {"block": (0, 16)}, NVFP4),
    )
    no_axis = test("Refused", "no axis", dtype="float32", shape=[], x=[one], expected=refused("ShapeError", "NUM-12"))
    amaxes = [
        ask("a negative amax", "DomainError", "GLB-4", amax=format_words(floats([-1.0]))),
        ask("a NaN amax", "DomainError", "GLB-4", amax=format_words(floats([math.nan]))),
        ask("two amaxes for one tensor", "ShapeError", "GLB-4", amax=f"{one} {one}"),
    ]
    transforms = [
        ask("float32", "DTypeError", "HAD-5", np.ones((16, 2), F), direction="column"),
        ask("float16", "DTypeError", "HAD-5", np.ones((16, 2), np.float16), direction="column"),
        ask("8 rows", "ShapeError", "HAD-5", floats([1.0] * 16, "bfloat16").reshape(8, 2), direction="column"),
    ]
    bits = [
        ask("no random bits", "DomainError", "SR-1"),
        ask("too few random bits", "ShapeError", "SR-1", random_bits=["00" * 15] * 2),
    ]
    nearest = ask("random bits for nearest rounding", "DomainError", "SR-1", random_bits=["00" * 16] * 2)
    groups: tuple[tuple[str, str | Json, list[Json]], ...] = (
        ("NUM-3", "nvfp4", [other("float64"), other("int32"), other("uint8")]),
        ("NUM-12", "nvfp4", [no_axis]),
        ("GLB-4", "nvfp4", amaxes),
        ("GLB-4 GLB-5", "nvfp4-row-scaled", [ask("one amax for two rows", "ShapeError", "GLB-4", amax=one)]),
        ("GLB-6", "mxfp4", [ask("an amax without a global scale", "DomainError", "GLB-6", amax=one)]),
        ("HAD-5", "nvfp4-rht", transforms),
        ("SR-1", named(NVFP4_STOCHASTIC), bits),
        ("SR-1", "nvfp4", [nearest]),
        ("LAY-59", "nvfp4", [ask("a layout of no name", "LayoutError", "LAY-59", scale_layout="swizzled")]),
        *(
            (rule, changed(spec, **changes), [ask(comment, "DomainError", rule)])
            for rule, comment, changes, spec in illegal
        ),
    )
    return [group(rules, STATED, tests, spec=spec) for rules, spec, tests in groups]


def changed(spec: Spec, **changes: Any) -> Json:
    """Return the JSON of a record that cannot exist."""
    return record(spec) | {name: encode(value) for name, value in changes.items()}
