"""Claims about the emulation's recipes: what each setting makes of each role, and where a flag says that scales are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell

FORWARD, BACKWARD = ("input", "weight", "output"), ("grad_output", "grad_input")
MODES = {"forward": FORWARD, "backward": BACKWARD}
MODULES = ("linear", "grouped_linear", "")
FLAGS = ("disable_rht", "disable_stochastic_rounding", "disable_2d_quantization", "row_scaled_activation")
RECIPES_OF_FP8 = ("MXFP8BlockScaling", "Float8BlockScaling", "Float8CurrentScaling", "DelayedScaling")
HYBRID_BY_DEFAULT = ("Float8CurrentScaling", "DelayedScaling")
SHAPES = ((128, 128), (64, 128), (128, 192), (64, 64))
QUANTIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tiles": {"with_2d_quantization": True},
    "hadamard": {"with_rht": True, "with_post_rht_amax": True},
    "row-scaled": {"row_scaled_nvfp4": True},
    "mxfp8": {},
}
ROLES = [(mode, module, tensor) for mode, tensors in MODES.items() for tensor in tensors for module in MODULES]
NVFP4_SIZE = len(ROLES) << len(FLAGS)
FP8_SIZE = 3 * len(RECIPES_OF_FP8) * len(ROLES)
FLAG_SIZE = 4 * len(QUANTIZERS) * len(SHAPES)


def _quantizer(recipe: Any, mode: str, role: tuple[str, str]) -> Any:
    from fp4ref.te.quantization import RecipeState
    from fp4ref.te.roles import QuantizerRole

    made = RecipeState.create(recipe, mode=mode, num_quantizers=1, roles=[QuantizerRole(*role)])
    return made.make_quantizers()[0]


def nvfp4(tell: Tell) -> Replayed:
    """Ask the recipe with every setting for the specification of every role.

    Rules: TEL-1, TEL-16.
    """
    import torch

    from fp4ref.te import recipe

    count = 0
    for flags in product((False, True), repeat=len(FLAGS)):
        settings: dict[str, Any] = dict(zip(FLAGS, flags, strict=True))
        no_transform, nearest, no_tiles, by_row = flags
        made = recipe.NVFP4BlockScaling(**settings)
        for mode, module, tensor in ROLES:
            count += 1
            weight, gradient = tensor == "weight", mode == "backward"
            rows = by_row and not (weight or gradient)
            transform = not weight and not no_transform
            said = f"{tensor} of {module or 'no module'}, {settings}"
            quantizer = _quantizer(made, mode, (module, tensor))
            if quantizer.row_scaled_nvfp4 != rows:
                return Replayed(count, f"{said}: a row scale is {quantizer.row_scaled_nvfp4}")
            quantizer.row_scaled_nvfp4 = False  # with a transform, no specification has one (GLB-5)
            spec = quantizer.spec(torch.bfloat16, (64, 64))
            found = (tuple(spec.block), spec.hadamard is not None, spec.stochastic)
            needed = ((16, 16) if weight and not no_tiles else (1, 16), transform, gradient and not nearest)
            if found != needed:
                return Replayed(count, f"{said}: block, transform, stochastic are {found}, need {needed}")
        tell(count / NVFP4_SIZE)
    return Replayed(count)


def fp8(tell: Tell) -> Replayed:
    """Ask the recipes of FP8 with every format for the element format of every role. Rules: TEL-2."""
    from fp4ref.te import recipe
    from fp4ref.te.dtypes import DType
    from fp4ref.te.recipe_base import RecipeFormat

    count = 0
    for name, chosen in product(RECIPES_OF_FP8, ("E4M3", "HYBRID", None)):
        kind = getattr(recipe, name)
        made = kind() if chosen is None else kind(fp8_format=RecipeFormat[chosen])
        hybrid = name in HYBRID_BY_DEFAULT if chosen is None else chosen == "HYBRID"
        for mode, module, tensor in ROLES:
            count += 1
            needed = DType.kFloat8E5M2 if hybrid and mode == "backward" else DType.kFloat8E4M3
            quantizer = _quantizer(made, mode, (module, tensor))
            if quantizer.dtype != needed:
                return Replayed(
                    count, f"{name}, {chosen or 'by default'}: {tensor} is {quantizer.dtype}, needs {needed}"
                )
        tell(count / FP8_SIZE)
    return Replayed(count)


def scale_flags(tell: Tell) -> Replayed:
    """Compare scales with those of the layout that a tensor's flag names. Rules: TEL-4."""
    import torch

    from fp4ref.te import MXFP8Quantizer, NVFP4Quantizer, emulate_device
    from fp4ref.te.dtypes import DType

    count = 0
    values = np.linspace(-8, 8, 128 * 192, dtype=np.float32) ** 3
    for (name, settings), shape, asked, device in product(QUANTIZERS.items(), SHAPES, (False, True), ((9, 0), (10, 0))):
        count += 1
        quantizer: Any = MXFP8Quantizer(DType.kFloat8E4M3) if name == "mxfp8" else NVFP4Quantizer(**settings)
        quantizer.optimize_for_gemm = asked
        x = torch.from_numpy(values[: shape[0] * shape[1]].reshape(shape)).to(torch.bfloat16)
        with emulate_device(*device):
            tensor = quantizer(x)
        tiled = tensor._with_gemm_swizzled_scales
        said = f"{name} {list(shape)}, optimize_for_gemm {asked}"
        if type(tiled) is not bool or tiled is not asked:
            return Replayed(count, f"{said}: the flag is {tiled}")
        spec = resolve("mxfp8-e4m3") if name == "mxfp8" else quantizer.spec(x.dtype, shape)
        layout = "tiled_128x4" if tiled else "linear_padded"
        for direction in ("row",) if name == "mxfp8" else ("row", "column"):
            q = api.quantize(x, spec, direction, layout)  # type: ignore[call-overload]
            mine = getattr(tensor, f"_{direction}wise_scale_inv").numpy()
            if mine.tobytes() != q.direction(direction)[0].scales.numpy().tobytes():
                return Replayed(count, f"{said}: the flag is {tiled}, and the scales of the {direction}s are elsewhere")
        tell(count / FLAG_SIZE)
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about recipes and flags."""
    shared: dict[str, Any] = {"method": Method.EXHAUSTIVE, "subject": ClaimSubject.TORCH}
    yield ProofClaim(
        name="recipe-nvfp4/torch",
        rules=("TEL-1", "TEL-16"),
        statement="The NVFP4 recipe gives each role the blocks, transform, rounding and row scale of the rules.",
        domain="all settings of four flags, five roles of two modes and three modules",
        size=NVFP4_SIZE,
        decide=nvfp4,
        covers=("fp4ref.te.recipe:NVFP4BlockScaling", "fp4ref.te.recipe_state:NVFP4BlockScalingRecipeState._make"),
        **shared,
    )
    yield ProofClaim(
        name="recipe-fp8/torch",
        rules=("TEL-2",),
        statement="The recipes of FP8 choose E5M2 for the gradients of HYBRID, and E4M3 for all else.",
        domain="four recipes, both formats and the default, five roles of two modes and three modules",
        size=FP8_SIZE,
        decide=fp8,
        covers=("fp4ref.te.recipe_state:fp8_dtype",),
        **shared,
    )
    yield ProofClaim(
        name="scale-flags/torch",
        rules=("TEL-4",),
        statement="Scales are in the layout that the tensor's flag states.",
        domain="five kinds of quantizers, four shapes, either layout, two emulated devices",
        size=FLAG_SIZE,
        decide=scale_flags,
        covers=(
            "fp4ref.te.nvfp4_quantizer:NVFP4Quantizer.settings",
            "fp4ref.te.swizzle:GEMM",
            "fp4ref.layout.value:Layout.padded_shape",
        ),
        **shared,
    )
