"""Functions of the cpu backend that tests call, compiled many to a library: alone, each takes three times as long."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product

import fp4ref
from fp4ref import registry
from fp4ref.arithmetic import OCP_CEIL, OCP_EVEN, OCP_FLOOR, TE_DIVISION
from fp4ref.errors import Fp4Error
from fp4ref.four_over_six import scaled_units_float16
from fp4ref.registry import Call

TYPES = ("float32", "bfloat16", "float16")


def together(calls: Iterable[Call]) -> None:
    """Compile what the cpu backend needs for calls; nothing where it cannot run, which its own tests report."""
    with suppress(Fp4Error):
        cpu = registry.get("cpu")
        unserved = registry.backends()["cpu"].unserved
        cpu.prefetch([call for call in calls if not unserved(call)], lambda line: None)


# Peers that tests of commands, checkpoints and profiles quantize by.
PEERS = """compressed_tensors.mxfp4 compressed_tensors.mxfp8 compressed_tensors.nvfp4 fouroversix.nvfp4_mae
fouroversix.nvfp4_mse ggml.mxfp4 ggml.nvfp4 mlx.mxfp4 mlx.nvfp4 modelopt.mxfp4 modelopt.mxfp8 modelopt.nvfp4
te.fp8_block_e5m2 te.python_reference torchao.mxfp4_even torchao.mxfp4_floor torchao.mxfp4_floor@0.18.0
torchao.mxfp4_rceil@0.18.0 torchao.mxfp8_e4m3_floor torchao.mxfp8_e4m3_rceil@0.18.0 torchao.nvfp4_1lvl
torchao.nvfp4_2lvl triton_kernels.mxfp4_down triton_kernels.mxfp4_up triton_kernels.mxfp8_e4m3_up
triton_kernels.nvfp4_up vllm.nvfp4_kernel vllm.ref_mxfp8 vllm.ref_nvfp4_emulation"""


def calls_of_the_standard() -> Iterator[Call]:
    """Yield the calls that many files share: all specifications of the standard, in all types, and some peers'."""
    for spec in (spec for name, spec in fp4ref.profiles.items() if "." not in name):
        for source in ("bfloat16",) if spec.hadamard else TYPES:
            yield Call("quantize", spec, source, "column" if spec.hadamard else "row")
            yield from (Call("dequantize", spec, source, to=to) for to in TYPES)
    multiplied = fp4ref.NVFP4, fp4ref.NVFP4_ROW_SCALED, fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2
    for spec in multiplied:
        yield from (Call(operation, spec, spec_b=spec) for operation in ("gemm_exact", "gemm_fast"))
    peers = {name: fp4ref.profiles[name] for name in PEERS.split() if name in fp4ref.profiles}
    yield from (Call("quantize", spec, "float32") for spec in peers.values())
    for name in ("compressed_tensors.nvfp4", "modelopt.nvfp4", "torchao.nvfp4_2lvl"):
        if name in peers:
            yield Call("quantize", peers[name], "bfloat16")
            yield Call("dequantize", peers[name], to="float32")
    yield Call("random_bits", fp4ref.NVFP4)
    yield from calls_of_single_tests()


def calls_of_te() -> Iterator[Call]:
    """Yield what te's quantizers call: searches of a second scale, and its reference in Python."""
    searched, squares = (fp4ref.FourOverSix(metric=metric, scale_max=256) for metric in ("mae", "mse"))
    units = fp4ref.FourOverSix(difference=scaled_units_float16)
    te = fp4ref.NVFP4.replace(arithmetic=TE_DIVISION, four_over_six=searched)
    tiles, python = te.replace(block=(16, 16)), fp4ref.profiles["te.python_reference"]
    searches = [te.replace(four_over_six=each) for each in (searched, squares, units)]
    searches += [tiles, tiles.replace(four_over_six=fp4ref.FourOverSix())]
    pythons = [python, python.replace(block=(16, 16)), python.replace(global_scale="row")]
    pythons += [python.replace(arithmetic=TE_DIVISION, four_over_six=searched)]
    for spec in (*searches, *pythons):
        yield Call("quantize", spec, "bfloat16")
    for signs in (0, 55272):
        turned = python.replace(hadamard=dataclasses.replace(fp4ref.NVFP4_RHT.hadamard, signs=signs))
        yield Call("quantize", turned, "bfloat16", "column")
    yield Call("dequantize", te)
    yield Call("dequantize", fp4ref.NVFP4.replace(global_scale="none"), to="bfloat16")


def calls_of_single_tests() -> Iterator[Call]:
    """Yield the calls of which one or two tests each make some."""
    yield from calls_of_te()
    wide = fp4ref.NVFP4_4OVER6.replace(block=(16, 16), four_over_six=fp4ref.FourOverSix(scale_max=256))
    yield from (Call("quantize", wide, source) for source in ("float32", "bfloat16"))
    for name in ("te.fp8_block", "te.fp8_block_e5m2"):
        yield Call("quantize", fp4ref.profiles[name].replace(block=(128, 128)), "float32")
    for spec, to in product((fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2), TYPES):
        yield Call("block_values", spec, to=to)
    yield Call("gemm_fast", fp4ref.MXFP8_E4M3, spec_b=fp4ref.MXFP4)
    for signs in (0, 42435, 65535):
        turned = dataclasses.replace(fp4ref.NVFP4_RHT.hadamard, signs=signs)
        yield Call("quantize", fp4ref.NVFP4_RHT.replace(hadamard=turned), "bfloat16", "column")
    for spec, rounding in product(
        (fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2), (OCP_FLOOR, OCP_CEIL, OCP_EVEN)
    ):
        yield Call("quantize", spec.replace(arithmetic=rounding), "float32")
    for spec, source in product((fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2), TYPES):
        yield Call("tensor_codes", spec, source)
    single = """quantize te.fp8_block float32, quantize te.mxfp8_cast_only float32,
        quantize torchao.mxfp4_even bfloat16, quantize torchao.mxfp4_even float16,
        quantize fouroversix.nvfp4_static_6 float32, dequantize fouroversix.nvfp4_static_6 float32,
        gemm_exact mxfp6-e2m3 float32, gemm_exact mxfp6-e3m2 float32, gemm_exact mxint8 float32,
        gemm_fast ggml.nvfp4 float32"""
    for operation, name, source in map(str.split, single.split(",")):
        if name in fp4ref.profiles:
            spec = fp4ref.profiles[name]
            other = {"spec_b": spec} if operation.startswith("gemm") else {}
            yield Call(operation, spec, source, **other)
