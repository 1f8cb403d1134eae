"""Claims about the emulation's products: directions of operands, global scales, and weights of groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import numpy as np

from fp4ref.formats import F, Floats
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.emulated import COLUMN, PADDED, ROW, Doubles, filled
from fp4ref.proof.finishing import factors, over, times

MULTIPLIED = ("nvfp4", "mxfp8-e4m3", "bfloat16")
SIZE = (32, 64, 96)  # rows and columns of a product, and its contraction
LAYOUTS = {"TN": ("row", "row"), "NN": ("column", "row"), "NT": ("column", "column"), "TT": ("row", "column")}
MAXIMA = (448, 256)
ALPHAS = (1.0, 1.1, -0.3, 3e-20)
AMAXES = (0.0, 1e-40, 3e38)  # besides ordinary ones
GROUPS = (*permutations((0, 32, 64)), (0, 0, 0), (32, 32, 32))  # rows of the members
RECIPES = ("", "MXFP8BlockScaling", "NVFP4BlockScaling")


def _kept(kind: str, shape: tuple[int, int], seed: int) -> tuple[Any, dict[str, Doubles]]:
    """Return an operand, and its values in each direction."""
    import torch

    if kind != "bfloat16":
        found = filled(kind, shape, seed)
        return found.tensor, found.values
    r, c = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    values = ((5 * r + 3 * c + r * c + seed) % 17 - 8).astype(np.float64)
    return torch.from_numpy(values).to(torch.bfloat16), {"row": values, "column": values.T}


def directions_read(tell: Tell) -> Replayed:
    """Multiply in every layout, by both entry points; each other choice of directions gives another result or none."""
    import torch

    from fp4ref.te import general_gemm, generic_gemm
    from fp4ref.te.dtypes import DType

    nothing = (None, None, DType.kFloat32, None, None, False, None, False, None, 0, False, False)
    rows, columns, depth = SIZE
    cases = [*product(MULTIPLIED, LAYOUTS)]
    for count, (kind, layout) in enumerate(cases):
        of_a, of_b = LAYOUTS[layout]
        a, right = _kept(kind, (columns, depth) if of_a == "row" else (depth, columns), 0)
        b, left = _kept(kind, (rows, depth) if of_b == "row" else (depth, rows), 7)
        want = (left[of_b] @ right[of_a].T).astype(F)
        if kind == "nvfp4":
            amaxes = [ROW if way == "row" else COLUMN for way in (of_a, of_b)]
            want = times(want, times(times(*amaxes), over(1.0, 36 * 448 * 448)))
        made = [generic_gemm(a, layout[0] == "T", b, layout[1] == "T", *nothing)[0]]
        if layout != "TT":
            made.append(general_gemm(a, b, out_dtype=torch.float32, layout=layout)[0])
        for each in made:
            got = each.numpy()
            if got.shape != want.shape or got.tobytes() != want.tobytes():
                return Replayed(count, f"{kind} in {layout}: {list(got.shape)} is another product")
        tell((count + 1) / len(cases))
    return Replayed(len(cases))


def _alike(x: Floats, y: Floats) -> bool:
    return bool(((x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))).all())


def global_scale(tell: Tell) -> Replayed:
    """Multiply under all pairs of largest scales, amaxes and alphas, and compare with the steps of the rule."""
    import torch

    from fp4ref.te import general_gemm

    amaxes = np.concatenate([factors(1)[:6], np.array(AMAXES, F)])
    cases = [*product(MAXIMA, MAXIMA, ALPHAS, amaxes, factors(2)[:6])]
    unlike = {"amaxes first": False, "the constant first": False, "from the right": False}
    (a, right, _), (b, left, _) = filled("nvfp4", (16, 16), 1), filled("nvfp4", (16, 16), 4)
    sums = (left["row"] @ right["row"].T).astype(F)
    for count, (of_a, of_b, alpha, amax_a, amax_b) in enumerate(cases):
        for tensor, largest, amax in ((a, of_a, amax_a), (b, of_b, amax_b)):
            tensor._nvfp4_e4m3_max, tensor._nvfp4_use_4over6 = largest, True
            tensor._amax_rowwise.fill_(float(amax))
        f = over(1.0, 36 * of_a * of_b)
        want = times(sums, times(times(times(F(alpha), amax_a), amax_b), f))
        others = {
            "amaxes first": times(times(F(alpha), times(amax_a, amax_b)), f),
            "the constant first": times(times(times(F(alpha), f), amax_a), amax_b),
            "from the right": times(F(alpha), times(amax_a, times(amax_b, f))),
        }
        for name, other in others.items():
            unlike[name] |= not _alike(times(sums, other), want)
        got = general_gemm(a, b, out_dtype=torch.float32, alpha=alpha)[0].numpy()
        if not _alike(got, want):
            said = f"scales up to {of_a} and {of_b}, alpha {alpha}, amaxes {amax_a!s} and {amax_b!s}"
            return Replayed(count, f"{said}: {got[0, 0]!s}, needs {want[0, 0]!s}")
        tell((count + 1) / len(cases))
    same = [name for name, told in unlike.items() if not told]
    return Replayed(len(cases), f"not told apart: {', '.join(same)}" if same else None)


def own_weights(tell: Tell) -> Replayed:
    """Train a group on lists of three counts of rows, and each member's module alone, and compare all gradients."""
    import torch

    from fp4ref.te import recipe
    from fp4ref.te.module.grouped_linear import GroupedLinear
    from fp4ref.te.module.linear import Linear
    from fp4ref.te.quantization import autocast

    def trained(module: Any, x: Any, name: str, *given: Any) -> tuple[Any, Any]:
        settings = {"disable_stochastic_rounding": True} if name == "NVFP4BlockScaling" else {}
        own = x.clone().requires_grad_()
        with autocast(enabled=bool(name), recipe=getattr(recipe, name)(**settings) if name else None):
            y = module(own, *given)
        y.backward(torch.ones_like(y) * torch.arange(1, y.shape[1] + 1).to(y.dtype))
        return y, own.grad

    cases = [*product(RECIPES, GROUPS)]
    for count, (name, rows) in enumerate(cases):
        module = GroupedLinear(3, 64, 32, params_dtype=torch.bfloat16)
        place = torch.arange(sum(rows) * 64, dtype=torch.float64).view(-1, 64)
        member = torch.repeat_interleave(torch.arange(3), torch.tensor(rows))[:, None]
        x = (torch.sin(place) * 5.0**member).to(torch.bfloat16)
        for i in range(3):
            of_weight = torch.cos(torch.arange(2048, dtype=torch.float64) * (i + 1)).view(32, 64)
            getattr(module, f"weight{i}").data.copy_(of_weight * 3.0**i)
            getattr(module, f"bias{i}").data.fill_(float(i + 1))
        y, dx = trained(module, x, name, list(rows))
        said = f"{name or 'no recipe'}, rows {list(rows)}"
        for i in range(3):
            weight, bias = (getattr(module, f"{part}{i}") for part in ("weight", "bias"))
            part = slice(sum(rows[:i]), sum(rows[: i + 1]))
            if not rows[i]:
                if weight.grad is None or weight.grad.shape != weight.shape or weight.grad.any() or bias.grad.any():
                    return Replayed(count, f"{said}: the gradient of weight {i} is not 0")
                continue
            alone = Linear(64, 32, params_dtype=torch.bfloat16)
            alone.weight.data, alone.bias.data = weight.data, bias.data
            z, dz = trained(alone, x[part], name)
            pairs = {
                "result": (y[part], z),
                "gradient": (dx[part], dz),
                "weight's gradient": (weight.grad, alone.weight.grad),
                "bias's gradient": (bias.grad, alone.bias.grad),
            }
            for what, (mine, its) in pairs.items():
                if not torch.equal(mine, its):
                    return Replayed(count, f"{said}: the {what} of group {i} is not that of its rows and weight alone")
        tell((count + 1) / len(cases))
    return Replayed(len(cases))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about products of the emulation."""
    shared: dict[str, Any] = {"method": Method.ARGUMENT, "subject": ClaimSubject.TORCH}
    yield ProofClaim(
        name="operand-directions/torch",
        rules=("TEL-11",),
        statement="The letters of a layout choose the direction, the amax and the place of either operand.",
        domain="all four layouts, three kinds of operands whose directions are unlike, both entry points",
        size=len(MULTIPLIED) * len(LAYOUTS),
        decide=directions_read,
        covers=(PADDED, "fp4ref.te.gemm:general_gemm", "fp4ref.te.gemm:generic_gemm"),
        reduction="a direction is read whole, so operands whose directions are unlike decide which ones are read",
        **shared,
    )
    yield ProofClaim(
        name="product-scale/torch",
        rules=("TEL-12",),
        statement="A product of NVFP4 tensors is multiplied by ((alpha amax_A) amax_B) f, each step in float32.",
        domain="all pairs of largest scales, four alphas, and pairs of amaxes, among them 0, subnormal and large ones",
        size=len(MAXIMA) ** 2 * len(ALPHAS) * (6 + len(AMAXES)) * 6,
        decide=global_scale,
        covers=("fp4ref.te.gemm:general_gemm", "fp4ref.te.global_scale:global_factors"),
        reduction="the steps are the same for all values, so values on which each other order gives other bits decide",
        **shared,
    )
    yield ProofClaim(
        name="group-weights/torch",
        rules=("TEM-5",),
        statement="A member has the results and gradients that it has alone; the weight of one without rows gets 0.",
        domain="members of 0, 32 and 64 rows in every order, all empty, and all of 32; in bfloat16, MXFP8 and NVFP4",
        size=len(RECIPES) * len(GROUPS),
        decide=own_weights,
        covers=(
            *(PADDED, "fp4ref.te.module.grouped_function:grouped_linear"),
            *(
                "fp4ref.te.module.calls:LinearCall.quantizes",
                "fp4ref.te.recipe:NVFP4BlockScaling.uses_4over6",
            ),
        ),
        reduction="a group is a loop over its members, so three of them have each kind at each place",
        **shared,
    )
