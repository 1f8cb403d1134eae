"""Manifests: digests of every tensor, independent of the convention, from a checkpoint or from modules in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fp4ref.checkpoints.access import WeightPiece, keep_freed_memory
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.decoded_digest import DecodedDigest
from fp4ref.checkpoints.float_scales import FloatScales
from fp4ref.checkpoints.gguf_views import as_on_the_hub
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.openai_names import EXPERTS, on_the_hub, parts_on_the_hub
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError, FileError
from fp4ref.files.tensors import reason, shown
from fp4ref.formats import FORMATS
from fp4ref.layout import layout
from fp4ref.quantized import Quantized
from fp4ref.spec import Granularity

DIGEST = 9  # bytes of a SHA-256 that are kept; written as 12 characters
CHUNK = 1 << 24
VERSION = 3
KEY = "fp4ref_manifest"
KV_SCALES = (".k_scale", ".v_scale")


class TensorSignature(NamedTuple):
    """The digests of a tensor.

    form: "element/scale/columns of a block" of a quantized weight, else an element type. shape: logical. codes, scales:
    of the canonical codes and of the linear scales; of a tensor in high precision, codes is that of its bytes. values:
    of the decoded numbers, in whichever format. factor: the global scale, as text.
    """

    form: str
    shape: tuple[int, ...]
    codes: str
    scales: str = ""
    values: str = ""
    factor: str = ""

    @property
    def quantized(self) -> bool:
        """True for a weight of codes and scales."""
        return "/" in self.form


def digest(parts: Iterable[Any]) -> str:
    """Return the beginning of the SHA-256 of some bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return base64.urlsafe_b64encode(found.digest()[:DIGEST]).decode()


def signature_of(weight: Weight) -> TensorSignature:
    """Return the digests of a quantized weight, in one pass. Rules: CNV-16."""
    codes, scales, values = hashlib.sha256(), hashlib.sha256(), DecodedDigest(weight, DIGEST)
    for piece in weight.read(1):
        codes.update(piece.packed.tobytes())
        if piece.scales is not None:
            scales.update(piece.scales.tobytes())
        values.add(piece)
    if weight.float_scales is not None:
        scales.update(weight.float_scales.numbers().tobytes())
    short = [base64.urlsafe_b64encode(each.digest()[:DIGEST]).decode() for each in (codes, scales)]
    block = f"{weight.block[1]}" if weight.scale else weight.granularity
    if block == "square" and weight.block[0] == 1:
        block = f"1x{weight.block[1]}"
    form = f"{weight.element}/{weight.scale or 'float'}/{block}"
    return TensorSignature(form, weight.shape, short[0], short[1], values.text(), factor_text(weight.global_scale))


def factor_text(scale: StoredScale | None) -> str:
    """Return the global scale as a float32 multiplier, in the hexadecimal digits of its bits; "" for 1.

    Many scales, those of the matrices of a weight, give a digest.
    """
    if scale is None:
        return ""
    values = scale.to(Direction(ScaleWay.MULTIPLIER)).values.astype(">f4")
    if (values == 1).all():
        return ""
    return values.tobytes().hex() if values.size == 1 else digest([values.tobytes()])


def plain_signature(tensor: StoredTensor) -> TensorSignature:
    """Return the digest of a tensor in high precision."""
    chunks = (tensor.bytes(begin, min(CHUNK, tensor.count - begin)) for begin in range(0, tensor.count, CHUNK))
    return TensorSignature(tensor.dtype, tensor.shape, digest(chunks))


def manifest_of_checkpoint(
    path: str | Path, step: Callable[[str], None] = lambda name: None
) -> dict[str, TensorSignature]:
    """Return the signatures of a checkpoint's tensors by logical name: a quantized weight is MODULE.weight.

    Errors: FileError, also for a file that changed meanwhile; DomainError.

    Rules: CNV-16, CKP-34.
    """
    keep_freed_memory()
    checkpoint = open_checkpoint(path)
    checkpoint.require_readable()
    if (view := as_on_the_hub(checkpoint)) is not None:
        checkpoint = view.checkpoint
    found = recognize(checkpoint)
    signatures = {}
    openai = any(map(EXPERTS.fullmatch, checkpoint.tensors))
    for group in found.groups:
        step(group.module)
        logical = f"{group.module}.weight"
        signatures[on_the_hub(logical) if openai else logical] = signature_of(read_weight(group))
    inside = {name for group in found.groups for name in group.names}
    for name, tensor in checkpoint.tensors.items():
        for each in (
            () if name in inside else parts_on_the_hub(tensor, checkpoint.config or {}) if openai else (tensor,)
        ):
            step(name)
            logical = _logical(each.name, found.configuration.kv_scales)
            signature = plain_signature(each)
            is_number = logical.endswith(KV_SCALES) and tensor.size == 1
            signatures[logical] = signature._replace(shape=()) if is_number else signature
    checkpoint.require_unchanged()
    return signatures


def _logical(name: str, kv_scales: tuple[str, str]) -> str:
    """Return a name in which scales of the KV cache belong to the attention, as most conventions have it."""
    for suffix, usual in zip(kv_scales, KV_SCALES, strict=True):
        if name.endswith(suffix):
            return name.removesuffix(suffix) + usual
    return name


def manifest_of_object(value: Any) -> dict[str, TensorSignature]:
    """Return the signatures of tensors in memory: a torch module, or arrays and `Quantized` results by name.

    Quantized tensors of `fp4ref.te` count with their row direction. The extra state of its modules is no tensor.

    Errors: DomainError for an object of another kind, and for a quantized tensor without its row direction.

    Rules: CNV-16.
    """
    if hasattr(value, "named_parameters"):
        named = {**dict(value.named_parameters()), **dict(value.named_buffers())}
    elif isinstance(value, Mapping):
        named = dict(value)
    else:
        got = f"an object of type {type(value).__name__}"
        raise DomainError("manifest", got, "a torch module, or tensors by name", "CNV-16")
    return {name: _signature_of_object(name, each) for name, each in named.items() if not name.endswith(EXTRA_STATE)}


def _signature_of_object(name: str, value: Any) -> TensorSignature:
    if hasattr(value, "directions") and "row" not in value.directions():
        raise DomainError("manifest", f"{name} without its row direction", "a tensor that holds it", "CNV-16")
    if hasattr(value, "read_in"):  # te's tensors of one part for each direction, and those in high precision
        return _signature_of_object(name, value.read_in("row"))
    if (float_scales := _float_scales(value)) is not None:
        block, numbers = float_scales
        return signature_of(_fp8_weight(name, value, block, numbers))
    quantized = value.record("row") if hasattr(value, "record") else value
    if isinstance(quantized, Quantized):
        weight = weight_of(name, quantized)
        amax = getattr(value, "amax_rowwise", None)  # te keeps it beside the record
        if amax is not None:
            constant = Direction(ScaleWay.AMAX, FORMATS["e2m1"].max * value._nvfp4_e4m3_max)
            weight = replace(weight, global_scale=StoredScale(amax.cpu().numpy(), constant))
        return signature_of(replace(weight, shape=tuple(value.shape)))
    if hasattr(value, "detach"):
        import torch

        tensor = value.detach().cpu().contiguous()
        kind = TORCH.get(str(tensor.dtype).removeprefix("torch."), str(tensor.dtype))
        return TensorSignature(kind, tuple(tensor.shape), digest([tensor.reshape(-1).view(torch.uint8).numpy()]))
    array = np.ascontiguousarray(value)
    kind = TORCH.get(array.dtype.name, array.dtype.name)
    return TensorSignature(kind, array.shape, digest([array.reshape(-1).view(np.uint8)]))


def _float_scales(value: Any) -> tuple[tuple[int, int], Any] | None:
    """Return the block and the scales of a tensor of te in FP8 whose scales are numbers; None for other tensors."""
    if not hasattr(value, "_fp8_dtype") or not hasattr(value, "codes"):
        return None
    if not hasattr(value, "_is_2D_scaled"):
        return ((0, 0), value._scale_inv.reshape(())) if hasattr(value, "_scale_inv") else None
    square = value.block_scales("row")
    high = FP8_SQUARE if value._is_2D_scaled else 1
    return (high, FP8_SQUARE), square[::high]


def _fp8_weight(name: str, value: Any, block: tuple[int, int], numbers: Any) -> Weight:
    """Return a tensor of te in FP8 as a weight."""
    import torch

    codes = value.codes("row") if all(block) else value.codes().reshape(-1, value.shape[-1])
    kind = TORCH[str(codes.dtype).removeprefix("torch.")]
    packed = codes.detach().cpu().contiguous().view(torch.uint8).numpy()
    scales = numbers.detach().cpu().contiguous().numpy().astype("<f4")
    return Weight(
        module=name.removesuffix(".weight"),
        element=kind.removeprefix("F8_").lower(),
        scale="",
        block=block,
        shape=tuple(value.shape),
        read=lambda multiple: iter([WeightPiece(0, 0, packed, None)]),
        float_scales=FloatScales("F32", scales.shape, scales.tobytes()),
    )


FP8_SQUARE = 128  # rows and columns of te's blocks
EXTRA_STATE = "_extra_state"
TORCH = {
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "int8": "I8",
    "bool": "BOOL",
}


def weight_of(name: str, quantized: Quantized) -> Weight:
    """Return the row direction of a result of `fp4ref.quantize` as a weight."""
    spec = quantized.spec
    data, (rows, columns) = quantized.direction("row")
    packed, scales = (np.asarray(part.cpu() if hasattr(part, "cpu") else part) for part in (data.data, data.scales))
    linear = layout(quantized.scale_layout).to_linear(scales, rows, -(-columns // spec.block.columns))
    constant = Direction(ScaleWay.AMAX, float(spec.scale_max * (spec.element_max or spec.element.format.max)))
    amax = None
    if spec.global_scale is not Granularity.NONE:
        values = np.asarray(data.amax.cpu() if hasattr(data.amax, "cpu") else data.amax, np.float32)
        amax = StoredScale(values, constant)
    return Weight(
        module=name.removesuffix(".weight"),
        element=spec.element.format.name,
        scale=spec.scale.format.name,
        block=(1, spec.block.columns),
        shape=quantized.shape,
        read=lambda multiple: iter([WeightPiece(0, 0, packed.reshape(rows, -1), linear)]),
        global_scale=amax,
    )


def to_text(signatures: Mapping[str, TensorSignature]) -> str:
    """Return a manifest as JSON, one tensor per line, of less than 200 bytes beside its name. Rules: CNV-16, CNV-59."""
    lines = (f"{json.dumps(name)}: {json.dumps([*each], separators=(',', ':'))}" for name, each in signatures.items())
    return f'{{"{KEY}": {VERSION}, "tensors": {{\n' + ",\n".join(lines) + "\n}}\n"


def from_text(text: str, place: str) -> dict[str, TensorSignature]:
    """Return the signatures of a manifest's text. Errors: FileError. Rules: CNV-16."""
    try:
        record = json.loads(text)
        version = record[KEY]
        entries = record["tensors"].items() if version == VERSION else ()
        tensors = {name: TensorSignature(form, tuple(shape), *rest) for name, (form, shape, *rest) in entries}
    except json.JSONDecodeError as error:
        raise FileError(f"read {shown(place)}", reason(error), "a manifest of fp4ref", "CNV-16") from None
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        got = "JSON without the entries of tensors"
        raise FileError(f"read {shown(place)}", got, "a manifest of fp4ref", "CNV-16") from None
    if version != VERSION:
        raise FileError(f"read {shown(place)}", f"a manifest of version {shown(str(version))}", f"{VERSION}", "CNV-16")
    return tensors
