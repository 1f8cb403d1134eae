"""The public GEMM: checks that two operands fit, then calls a backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Literal

from fp4ref import arguments, arrays, registry, repeats
from fp4ref.arithmetic import dequantized_te, product
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.formats import E4M3, E8M0, UE4M3, is_number, nearest_float32
from fp4ref.layout import Layout, layout
from fp4ref.operands import AlphaRule, Epilogue, Operand
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Quantized
from fp4ref.spec import Granularity, Spec

Mode = Literal["exact", "blockwise", "fast"]
SCALES = (E4M3, UE4M3, E8M0)  # formats of scales
LONGEST = 62  # bits of a value counted in smallest steps
MODES: tuple[Mode, ...] = ("exact", "blockwise", "fast")


def gemm(
    a: Quantized,
    b: Quantized,
    mode: Mode = "exact",
    directions: tuple[Direction, Direction] = ("row", "row"),
    alpha: float = 1.0,
    bias: Any = None,
    accumulate: Any = None,
    dtype: Any = "float32",
    backend: str | None = None,
    alpha_rule: AlphaRule | Literal["reciprocal", "division"] = AlphaRule.RECIPROCAL,
) -> Any:
    """Multiply two quantized tensors: d[m, n] = sum over k of A[m, k] * B[n, k].

    a, b: quantized tensors, in any scale layout. directions: which matrix of each, [M, K] and [N, K], is multiplied.
    mode: "exact" rounds the true sum once to float32; "blockwise" adds one block after the other in float32; "fast"
    multiplies exact operands by a library, in float32 and an order of its own (an error bound holds).
    alpha: a factor, rounded to float32. bias: [N], float32, bfloat16 or float16. accumulate: [M, N] of `dtype`, added
    and not changed. dtype: "float32", "bfloat16" or "float16", of the result [M, N].
    alpha_rule: "reciprocal", or "division" for Transformer Engine's Python reference.
    NaN and infinities propagate; every NaN of the result is the positive quiet one.

    Errors: DTypeError, ShapeError, DomainError, LayoutError, BackendError; they name both operands.

    >>> import numpy as np, fp4ref
    >>> x, w = np.float32([[6, 1] * 8]), np.float32([[1, -6] * 8, [3, 2] * 8])
    >>> fp4ref.gemm(fp4ref.quantize(x, "nvfp4"), fp4ref.quantize(w, "nvfp4"))
    array([[  0., 160.]], dtype=float32)

    Rules: GEM-1, GEM-2, GEM-3, GEM-4, GEM-5, GEM-6, GEM-7, GEM-8, GEM-9, GEM-10, GEM-11,
    GEM-20, GEM-21, GEM-22, GEM-57, GEM-58, GEM-59, GEM-60.
    """
    kinds = _kinds(a, b, directions, bias, accumulate)
    key = "gemm", kinds, mode, directions, type(alpha), dtype, backend, alpha_rule
    again = repeats.find(key) if kinds else None
    if again:
        return again(a, b, alpha, bias, accumulate)
    _require_mode(mode)
    operands = _operands(a, b, directions)
    rest = _epilogue(operands, alpha, bias, accumulate, dtype, alpha_rule)
    call = _call(mode, operands, rest)
    multiply = registry.choose(call, backend)
    if kinds:
        again = _repeating(multiply, call, operands, directions, rest, registry.binder(call, backend), alpha)
        repeats.keep(key, again, a.scale_layout, b.scale_layout)
    return multiply(call, *operands, rest)


def _kinds(
    a: Quantized, b: Quantized, directions: tuple[Direction, Direction], bias: Any, accumulate: Any
) -> tuple[Hashable, ...] | None:
    """Return the kinds of all arrays of a product; None if one has no kind."""
    if type(directions) is not tuple or len(directions) != 2:
        return None
    return repeats.kinds_of_results([(a, directions[:1]), (b, directions[1:])], bias, accumulate)


def _repeating(
    multiply: Callable[..., Any],
    call: registry.Call,
    operands: tuple[Operand, Operand],
    directions: tuple[Direction, Direction],
    rest: Epilogue,
    bind: Callable[..., Any] | None,
    first: float,
) -> Callable[..., Any]:
    """Return a function that multiplies other tensors of the same kinds, with checks of values only.

    first: the alpha of `rest`; the same object is not rounded again.
    """
    bound = bind(call, *operands, rest) if bind else None
    of_a, of_b = (operand._replace(data=DirectionData(None, None, None)) for operand in operands)  # holds no bytes
    of_rows = [direction == "row" for direction in directions]
    rounded, _, _, to, rule = rest
    plain = rest._replace(bias=None, accumulate=None)

    def again(a: Quantized, b: Quantized, alpha: float, bias: Any, accumulate: Any) -> Any:
        left: Any = a.row if of_rows[0] else a.column
        right: Any = b.row if of_rows[1] else b.column
        if alpha is first and bias is None and accumulate is None:
            end = plain
        else:
            end = Epilogue(rounded if alpha is first else nearest_float32(alpha), bias, accumulate, to, rule)
        if bound:
            return bound(left, right, end)
        return multiply(call, of_a._replace(data=left), of_b._replace(data=right), end)

    return again


def gemm_grouped(
    a: Sequence[Quantized],
    b: Sequence[Quantized],
    mode: Mode = "exact",
    directions: tuple[Direction, Direction] = ("row", "row"),
    alpha: float = 1.0,
    bias: Sequence[Any] | None = None,
    accumulate: Sequence[Any] | None = None,
    dtype: Any = "float32",
    backend: str | None = None,
    alpha_rule: AlphaRule | Literal["reciprocal", "division"] = AlphaRule.RECIPROCAL,
) -> list[Any]:
    """Multiply the members of two lists pairwise, each as `gemm` does; nothing is shared between members.

    A member may have no rows: its result is [0, N]. All members are checked before the first is multiplied.
    bias, accumulate: one per member, None for none. Result: a list, one matrix per member.

    Errors: ShapeError for lists that differ in length, else those of `gemm`.

    Rules: GEM-12.
    """
    lists = {"a": a, "b": b, "bias": bias, "accumulate": accumulate}
    for name, members in lists.items():
        if members is None and name not in {"a", "b"}:
            continue
        if isinstance(members, (str, Quantized)) or not isinstance(members, Sequence):
            raise DTypeError("gemm_grouped", f"{name} of type {type(members).__name__}", "a list", "GEM-12")
        if len(members) != len(a):
            raise ShapeError("gemm_grouped", f"{len(a)} members of a and {len(members)} of {name}", "as many", "GEM-12")
    _require_mode(mode)
    calls = []
    for i, (left, right) in enumerate(zip(a, b, strict=True)):
        operands = _operands(left, right, directions)
        added, summed = (None if members is None else members[i] for members in (bias, accumulate))
        rest = _epilogue(operands, alpha, added, summed, dtype, alpha_rule)
        call = _call(mode, operands, rest)
        calls.append((registry.choose(call, backend), call, *operands, rest))
    return [function(*arguments) for function, *arguments in calls]


def _call(mode: str, operands: tuple[Operand, Operand], rest: Epilogue) -> registry.Call:
    """Describe a product to backends. Rules: CNF-5."""
    a, b = operands
    specs, layouts = (a.spec, b.spec), (a.scale_layout, b.scale_layout)
    return _described(mode, specs, layouts, (a.shape[0], b.shape[0]), rest.dtype.name, arrays.device_of(a.data.data))


@lru_cache(maxsize=4096)
def _described(
    mode: str,
    specs: tuple[Spec, Spec],
    layouts: tuple[Layout, Layout],
    shape: tuple[int, int],
    to: str,
    device: str,
) -> registry.Call:
    """Return the record of a product, one for all of a kind."""
    (spec, spec_b), (form, form_b) = specs, layouts
    return registry.Call(
        registry.PRODUCTS[mode], spec, to=to, layout=form, device=device, shape=shape, spec_b=spec_b, layout_b=form_b
    )


def _require_mode(mode: str) -> None:
    if mode not in MODES:
        raise DomainError("gemm", f"mode {mode!r}", f"one of {', '.join(MODES)}", "GEM-19")


def _operands(a: Quantized, b: Quantized, directions: tuple[Direction, Direction]) -> tuple[Operand, Operand]:
    """Return both operands, which fit each other. Rules: GEM-19, GEM-20, GEM-22, GEM-61."""
    both = tuple(directions) if isinstance(directions, (tuple, list)) else ()
    if len(both) != 2 or any(name not in DIRECTIONS for name in both):
        raise DomainError("gemm", f"directions {directions!r}", "two of row and column, for a and b", "GEM-19")
    left, right = _operand("a", a, both[0]), _operand("b", b, both[1])
    if left.shape[1] != right.shape[1]:
        got = f"a {both[0]} {list(left.shape)} and b {both[1]} {list(right.shape)}"
        raise ShapeError("gemm", got, "the same inner (last) dimension", "GEM-22")
    devices = [arrays.device_of(operand.data.data) for operand in (left, right)]
    if devices[0] != devices[1]:
        raise DomainError("gemm", f"a on {devices[0]} and b on {devices[1]}", "one device", "GEM-61")
    _require_formats(left, right)
    _require_hadamard(left, right, both)
    return left, right


def _operand(name: str, q: Quantized, direction: Direction) -> Operand:
    """Return one side, its buffers checked. Rules: RES-7, GEM-20."""
    arguments.require_quantized("gemm", q, name)
    if (q.row if direction == "row" else q.column) is None:
        got = f"{name} ({q.spec.name}) without its {direction} direction"
        raise DomainError("gemm", got, f"one quantized with directions={direction!r} or 'both'", "GEM-20")
    form = layout(q.scale_layout, f"gemm, scale_layout of {name}")
    arguments.require_bytes(f"gemm, operand {name}", q, direction)
    return Operand(*q.direction(direction), q.spec, form)


def _require_formats(a: Operand, b: Operand) -> None:
    """Require scales of one format over blocks of one width, both or neither with a global scale.

    Rules: GEM-9, GEM-57, GEM-58, GEM-59, GEM-60. Certificates: operands.
    """
    both = f"a {a.spec.name} and b {b.spec.name}"
    for operand in (a, b):
        spec = operand.spec
        require_scales("gemm", both, spec)
        if spec.arithmetic.dequantized not in {dequantized_te, product}:
            got = f"{both}: {spec.name} applies its global scale in the order of {spec.arithmetic.name}"
            raise DomainError("gemm", got, "the order of DEQ-1, on which alpha rests", "GEM-59")
        element, scale = spec.element.format, spec.scale.format
        span = element.span + (0 if scale.powers_of_two else scale.span)
        if span > LONGEST:
            got = f"{both}: {element.name} under {scale.name} spans {span} bits"
            raise DomainError("gemm", got, f"at most {LONGEST}", "GEM-60")
    formats = [operand.spec.scale.format.name for operand in (a, b)]
    _require_same(both, "scales", formats[0], formats[1], "GEM-9")
    _require_same(both, "block width", a.spec.block.columns, b.spec.block.columns, "GEM-57")
    has = [operand.spec.global_scale is not Granularity.NONE for operand in (a, b)]
    _require_same(both, "a global scale", has[0], has[1], "GEM-58")


def require_scales(operation: str, what: str, spec: Spec) -> None:
    """Require scales of a format that products take. Rules: GEM-9."""
    if spec.scale.format not in SCALES:
        names = " or ".join(form.name for form in SCALES)
        raise DomainError(operation, f"{what}: scales {spec.scale.format.name}", names, "GEM-9")


def _require_same(both: str, what: str, of_a: Any, of_b: Any, rule: str) -> None:
    if of_a != of_b:
        raise DomainError("gemm", f"{both}: {what} {of_a} and {of_b}", f"the same {what}", rule)


def _require_hadamard(a: Operand, b: Operand, directions: tuple[str, ...]) -> None:
    """Require that both are transformed with the same signs, or neither. Rules: GEM-10."""
    masks = [
        operand.spec.hadamard.signs if operand.spec.hadamard and direction == "column" else None
        for operand, direction in zip((a, b), directions, strict=True)
    ]
    if masks[0] != masks[1]:
        said = [
            f"{name} {operand.spec.name} {direction} {'not transformed' if mask is None else f'with signs {mask:#x}'}"
            for name, operand, direction, mask in zip("ab", (a, b), directions, masks, strict=True)
        ]
        raise DomainError("gemm", " and ".join(said), "the same Hadamard transform, or none, on both", "GEM-10")


def _epilogue(
    operands: tuple[Operand, Operand],
    alpha: float,
    bias: Any,
    accumulate: Any,
    dtype: Any,
    alpha_rule: AlphaRule | str,
) -> Epilogue:
    """Return alpha, the bias [N] and C [M, N] after checking types, shapes and devices.

    Rules: GEM-6, GEM-19, GEM-61.
    """
    to = arrays.output_dtype("gemm", dtype)
    if alpha_rule not in tuple(AlphaRule):
        raise DomainError("gemm", f"alpha_rule {alpha_rule!r}", f"one of {', '.join(AlphaRule)}", "GEM-6")
    if not is_number(alpha):
        raise DTypeError("gemm", f"alpha of type {type(alpha).__name__}", "a number", "GEM-19")
    (rows, _), (columns, _) = (operand.shape for operand in operands)
    device = arrays.device_of(operands[0].data.data)
    needs = (
        ("bias", bias, (columns,), tuple(arrays.INPUT_DTYPES)),
        ("accumulate", accumulate, (rows, columns), (to.name,)),
    )
    for name, value, shape, dtypes in needs:
        if value is None:
            continue
        got = arrays.dtype_name(value)
        if got not in dtypes:
            raise DTypeError("gemm", f"{name} of dtype {got}", " or ".join(dtypes), "GEM-19")
        if tuple(value.shape) != shape:
            raise ShapeError("gemm", f"{name} of shape {list(value.shape)}", f"{list(shape)}", "GEM-19")
        if arrays.device_of(value) != device:
            raise DomainError("gemm", f"{name} on {arrays.device_of(value)} and a on {device}", "one device", "GEM-61")
    return Epilogue(nearest_float32(alpha), bias, accumulate, to, AlphaRule(alpha_rule))
