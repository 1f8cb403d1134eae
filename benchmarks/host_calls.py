"""The calls whose time on the host is measured, on arrays whose addresses change from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import ml_dtypes
import numpy as np
import torch

import fp4ref
from fp4ref import Directions, registry, te

Act = Callable[[], Any]
LAYOUT = "tiled_128x4"
TURNS = 5  # arrays of each kind that a call gets in turn
APART = 64  # elements between the addresses of inputs

QUANTIZED = (  # profiles and directions
    *(("nvfp4", "row"), ("nvfp4", "both"), ("nvfp4", "column"), ("nvfp4-rht", "both"), ("nvfp4-2d", "both")),
    *(("nvfp4-4over6", "row"), ("nvfp4-row-scaled", "row"), ("nvfp4-row-scaled", "both"), ("mxfp4", "both")),
    *(("mxfp6-e2m3", "both"), ("mxfp8-e4m3", "row"), ("mxfp8-e4m3", "both")),
)
QUANTIZERS: dict[str, Callable[[], Any]] = {
    "NVFP4Quantizer row": lambda: te.NVFP4Quantizer(columnwise=False),
    "NVFP4Quantizer both": te.NVFP4Quantizer,
    "NVFP4Quantizer column": lambda: te.NVFP4Quantizer(rowwise=False),
    "NVFP4Quantizer rht": lambda: te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    "NVFP4Quantizer 2d": lambda: te.NVFP4Quantizer(with_2d_quantization=True),
    "NVFP4Quantizer 4over6 row": lambda: te.NVFP4Quantizer(columnwise=False, nvfp4_use_4over6=True),
    "NVFP4Quantizer row-scaled row": lambda: te.NVFP4Quantizer(columnwise=False, row_scaled_nvfp4=True),
    "NVFP4Quantizer sr both": lambda: te.NVFP4Quantizer(stochastic_rounding=True),
    "NVFP4Quantizer both, scales moved": lambda: _for_products(te.NVFP4Quantizer()),
    "MXFP8Quantizer row": lambda: te.MXFP8Quantizer(columnwise=False),
    "MXFP8Quantizer column": lambda: te.MXFP8Quantizer(rowwise=False),
    "MXFP8Quantizer both": te.MXFP8Quantizer,
    "MXFP8Quantizer both, storage for products": lambda: _for_products(te.MXFP8Quantizer(), internal=True),
    "Float8CurrentScalingQuantizer": te.Float8CurrentScalingQuantizer,
    "Float8BlockQuantizer blocks": lambda: te.Float8BlockQuantizer(block_scaling_dim=1),
    "Float8BlockQuantizer tiles": te.Float8BlockQuantizer,
    "HybridQuantizer": lambda: te.HybridQuantizer(
        rowwise_quantizer=te.MXFP8Quantizer(), columnwise_quantizer=te.NVFP4Quantizer()
    ),
}


def calls(x: Any) -> Iterator[tuple[str, Act]]:
    """Yield the calls by name. x: [M, K] bfloat16, both multiples of 32."""
    inputs, backend = _copies(x), "cuda" if x.is_cuda else "cpu"
    yield from _quantizing(inputs, backend)
    yield from _reading(inputs, backend)
    if not x.is_cuda:
        of_numpy = [each.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for each in inputs]
        for name, act in (*_quantizing(of_numpy, backend), *_reading(of_numpy, backend)):
            yield f"{name}, NumPy", act
    yield from _multiplying(inputs, backend)
    yield from _on_one_backend(inputs, backend)
    yield from _te(inputs)


def _copies(x: Any) -> list[Any]:
    """Return copies of a tensor whose addresses differ, half of them in one piece of memory."""
    memory = x.new_empty(x.numel() + APART * TURNS)
    made = [memory[APART * i :][: x.numel()].view(x.shape) for i in range(TURNS)]
    for each in made:
        each.copy_(x)  # which shifts the others, so that their values differ
    return [each.clone() if i % 2 else each for i, each in enumerate(made)]


def _in_turn(function: Callable[..., Any], *arguments: Sequence[Any]) -> Act:
    """Return a call of a function with one of each of some sequences after the other."""
    turn = cycle(zip(*arguments, strict=True)).__next__
    return lambda: function(*turn())


def _quantizing(inputs: list[Any], backend: str) -> Iterator[tuple[str, Act]]:
    """Yield calls of `quantize`."""
    quantize = partial(fp4ref.quantize, scale_layout=LAYOUT, backend=backend)
    for name, directions in QUANTIZED:
        run = partial(quantize, spec=fp4ref.profiles[name], directions=directions)
        yield f"quantize {name} {directions}", _in_turn(run, inputs)
    like, rows = inputs[0], partial(quantize, spec=fp4ref.NVFP4, directions="row")
    both = partial(quantize, spec=fp4ref.NVFP4, directions="both")
    yield "quantize 'nvfp4' row, by name", _in_turn(partial(quantize, spec="nvfp4"), inputs)
    yield "quantize nvfp4 row of columns", _in_turn(rows, [each.T for each in inputs])
    yield "quantize nvfp4 row of three dimensions", _in_turn(rows, [_cube(each) for each in inputs])
    amaxes = [_given(like, "float32", (1,)) for _ in inputs]
    yield "quantize nvfp4 row, amax", _in_turn(lambda x, amax: rows(x, amax=amax), inputs, amaxes)
    yield "quantize nvfp4 row, amax a number", _in_turn(lambda x: rows(x, amax=4.0), inputs)
    yield "quantize nvfp4 both, amax", _in_turn(lambda x, amax: both(x, amax=amax), inputs, amaxes)
    of_each = [Directions(amax, _given(like, "float32", (1,))) for amax in amaxes]
    turned = partial(quantize, spec=fp4ref.NVFP4_RHT, directions="both")
    yield "quantize nvfp4-rht both, amaxes", _in_turn(lambda x, amax: turned(x, amax=amax), inputs, of_each)
    by_row, heights = fp4ref.NVFP4_ROW_SCALED, [_given(like, "float32", like.shape[:1]) for _ in inputs]
    scaled = partial(quantize, spec=by_row, directions="row")
    yield "quantize nvfp4-row-scaled row, amaxes", _in_turn(lambda x, amax: scaled(x, amax=amax), inputs, heights)
    drawn = partial(quantize, spec=fp4ref.NVFP4_SR)
    bits = [Directions(_given(like, "uint8", like.shape), _given(like, "uint8", like.shape[::-1])) for _ in inputs]
    yield "quantize nvfp4-sr row, random_bits", _in_turn(lambda x, b: drawn(x, random_bits=b.row), inputs, bits)
    both_drawn = partial(drawn, directions="both")
    yield "quantize nvfp4-sr both, random_bits", _in_turn(lambda x, b: both_drawn(x, random_bits=b), inputs, bits)
    outs = [both(each) for each in inputs]
    flag = _given(like, "uint8", (1,))
    flag[...] = 0
    yield "quantize nvfp4 row, out", _in_turn(lambda x, out: rows(x, out=out), inputs, outs)
    yield "quantize nvfp4 both, out", _in_turn(lambda x, out: both(x, out=out), inputs, outs)
    yield "quantize nvfp4 row, out, noop", _in_turn(lambda x, out: rows(x, out=out, noop=flag), inputs, outs)
    yield (
        "quantize nvfp4 row, out, amax",
        _in_turn(lambda x, out, amax: rows(x, out=out, amax=amax), inputs, outs, amaxes),
    )


def _cube(x: Any) -> Any:
    return x.reshape(4, -1, x.shape[-1])


def _given(like: Any, dtype: str, shape: Sequence[int]) -> Any:
    """Return an array of ones beside another one."""
    if isinstance(like, np.ndarray):
        return np.ones(shape, dtype)
    return torch.ones(tuple(shape), dtype=getattr(torch, dtype), device=like.device)


def _reading(inputs: list[Any], backend: str) -> Iterator[tuple[str, Act]]:
    """Yield calls of `dequantize` and `to_layout`."""
    quantize = partial(fp4ref.quantize, directions="both", scale_layout=LAYOUT, backend=backend)
    read = partial(fp4ref.dequantize, dtype="bfloat16", backend=backend)
    for name in ("nvfp4", "nvfp4-row-scaled", "mxfp4", "mxfp6-e2m3", "mxfp8-e4m3"):
        made = [quantize(each, fp4ref.profiles[name]) for each in inputs]
        yield f"dequantize {name}", _in_turn(read, made)
    made = [quantize(each, fp4ref.NVFP4) for each in inputs]
    outs = [_given(each, "float32", each.shape) for each in inputs]
    columns = [_given(each, "float32", each.shape[::-1]) for each in inputs]
    wide = partial(read, dtype="float32")
    yield "dequantize nvfp4 column", _in_turn(partial(read, direction="column"), made)
    yield "dequantize nvfp4, out", _in_turn(lambda q, out: wide(q, out=out), made, outs)
    yield "dequantize nvfp4 column, out", _in_turn(lambda q, out: wide(q, direction="column", out=out), made, columns)
    turned = [quantize(each, fp4ref.NVFP4_RHT) for each in inputs]
    yield (
        "dequantize nvfp4-rht column, inverse",
        _in_turn(partial(read, direction="column", inverse_hadamard=True), turned),
    )
    rows = [fp4ref.quantize(each, fp4ref.NVFP4, "row", LAYOUT, backend=backend) for each in inputs]
    compact = [fp4ref.to_layout(each, "linear", backend=backend) for each in made]
    move = partial(fp4ref.to_layout, backend=backend)
    yield "to_layout nvfp4", _in_turn(partial(move, scale_layout="linear"), rows)
    yield "to_layout nvfp4 both, linear", _in_turn(partial(move, scale_layout="linear"), made)
    yield "to_layout nvfp4 both, tiled", _in_turn(partial(move, scale_layout=LAYOUT), compact)


def _multiplying(inputs: list[Any], backend: str) -> Iterator[tuple[str, Act]]:
    """Yield products, so small that the products themselves cost little."""
    few = [fp4ref.quantize(each[:16, :16].contiguous(), fp4ref.NVFP4, "both", backend=backend) for each in inputs]
    bias, wide = inputs[0][0, :16].contiguous(), inputs[0][:16, :16].float()
    for mode in ("exact", "blockwise", "fast"):
        yield f"gemm {mode}, 16x16x16", _in_turn(partial(fp4ref.gemm, mode=mode), few, few[::-1])
    fast = partial(fp4ref.gemm, mode="fast")
    yield "gemm fast, 16x16x16, bias", _in_turn(partial(fast, bias=bias), few, few)
    yield "gemm fast, 16x16x16, accumulate", _in_turn(partial(fast, accumulate=wide), few, few)
    columns = partial(fast, directions=("column", "column"), dtype="bfloat16", alpha=0.5)
    yield "gemm fast, 16x16x16, columns, bfloat16, alpha", _in_turn(columns, few, few)


def _on_one_backend(inputs: list[Any], backend: str) -> Iterator[tuple[str, Act]]:
    """Yield calls of several tensors, of random bytes, and those that one backend alone has."""
    x = inputs[0]
    half, operations = x.shape[0] // 2, registry.get(backend)
    grouped = partial(fp4ref.quantize_grouped, splits=[half, x.shape[0] - half], scale_layout=LAYOUT, backend=backend)
    yield "quantize_grouped nvfp4, 2 members", _in_turn(partial(grouped, spec=fp4ref.NVFP4), inputs)
    yield "random_bits", partial(fp4ref.random_bits, tuple(x.shape), device=x.device, backend=backend)
    if hasattr(operations, "amax"):
        found = _given(x, "float32", (1,))
        yield "amax nvfp4", _in_turn(partial(operations.amax, spec=fp4ref.NVFP4), inputs)
        yield "amax nvfp4, out", _in_turn(partial(operations.amax, spec=fp4ref.NVFP4, out=found), inputs)


def _for_products(quantizer: Any, *, internal: bool = False) -> Any:
    quantizer.optimize_for_gemm, quantizer.internal = True, internal
    return quantizer


def _te(inputs: list[Any]) -> Iterator[tuple[str, Act]]:
    """Yield calls of quantizers and of their tensors."""
    x = inputs[0]
    ones = [torch.ones(1, device=x.device) for _ in range(2)]
    delayed = {"Float8Quantizer": lambda: te.Float8Quantizer(*ones, te.DType.kFloat8E4M3)}
    flag = torch.zeros(1, device=x.device)
    for name, make in (QUANTIZERS | delayed).items():
        quantizer = make()
        made = [quantizer(each) for each in inputs]
        yield f"te {name}", _in_turn(quantizer, inputs)
        if name != "NVFP4Quantizer column":  # whose values nobody computes
            yield f"te {name}, dequantize", _in_turn(lambda t: t.dequantize(), made)
        yield f"te {name}, make_empty", partial(quantizer.make_empty, tuple(x.shape), dtype=x.dtype, device=x.device)
        update = quantizer.update_quantized
        yield f"te {name}, update_quantized", _in_turn(update, inputs, made)
        yield f"te {name}, update_quantized, noop_flag", _in_turn(partial(update, noop_flag=flag), inputs, made)
    needing = [each.clone().requires_grad_() for each in inputs]
    yield "te NVFP4Quantizer both, requires_grad", _in_turn(te.NVFP4Quantizer(), needing)
    deep = [_cube(each) for each in inputs]
    yield "te NVFP4Quantizer both, three dimensions", _in_turn(te.NVFP4Quantizer(), deep)
