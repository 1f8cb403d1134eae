"""Load conversions with their consumers' own readers: python .ci/checkpoints/load.py EXPORTS PAGE.

EXPORTS is what `.ci/checkpoints/write.py` wrote, in the environment of `.ci/checkpoints/writers.txt`. Each export is
converted and read by the target's library, whose values are compared with those that fp4ref decodes from the export.
Readers that return bfloat16 round each value once or twice.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.checkpoints.transfer.running import run

Values = dict[str, np.ndarray]
INTRO = """# Conversions in their consumers' readers

Written by `.ci/checkpoints/load.py`: an export of a real writer is converted by `fp4ref convert`, and loaded by the
target's own reader. The last column is the largest difference between the reader's values and those that fp4ref decodes
from the export, beside the largest value of the tensor; a GGUF has llama.cpp's names and orders of rows, so that
fp4ref decodes it and not the export. Readers that compute in bfloat16 round a scale and a product,
each by up to 2^-8 of its value, and float32 products in another order differ by about 2^-23.

"""


def decoded(path: Path) -> Values:
    """Return the values of every quantized matrix of a checkpoint, as fp4ref decodes them."""
    found = {}
    for group in recognize(open_checkpoint(path)).groups:
        weight = read_weight(group)
        found[group.module] = np.concatenate([weight.decoded(piece) for piece in weight.read(1)])
    return found


def by_transformers(path: Path) -> Values:
    """Load a model, run it once so that compressed layers are decompressed, and return its linear weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    with torch.no_grad():
        model(torch.arange(8)[None])
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {
        name: module.weight.dequantize().float().detach().numpy()
        if hasattr(module.weight, "dequantize")
        else module.weight.float().detach().numpy()
        for name, module in linear.items()
    }


def by_torchao(path: Path) -> Values:
    """Rebuild tensor subclasses from files and their metadata, and dequantize them."""
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    values = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            found, _ = unflatten_tensor_state_dict(load_file(file), opened.metadata())
        for name, tensor in found.items():
            if hasattr(tensor, "qdata"):
                values[name.removesuffix(".weight")] = tensor.dequantize(torch.float32).float().numpy()
    return values


def by_mlx(path: Path) -> Values:
    """Dequantize with MLX; a global scale is its amax, which MLX takes as an argument."""
    import json

    import mlx.core as mx

    tensors: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors |= mx.load(str(file))
    record = json.loads((path / "config.json").read_text())["quantization"]
    values = {}
    for name in tensors:
        if name.endswith(".scales"):
            stem = name.removesuffix(".scales")
            numbers = {key: record[key] for key in ("group_size", "bits", "mode")}
            found = mx.dequantize(tensors[f"{stem}.weight"], tensors[name], dtype=mx.float32, **numbers)
            amax = tensors.get(f"{stem}.global_scale")
            factor = np.float32(1) if amax is None else np.array(amax)[0] / np.float32(2688)
            values[stem] = np.array(found) * factor
    return values


def by_gguf(path: Path) -> Values:
    """Dequantize with gguf; the second level is a tensor of its own."""
    import gguf

    values = {}
    for file in sorted(path.glob("*.gguf")):
        tensors = {each.name: each for each in gguf.GGUFReader(file).tensors}
        for name, each in tensors.items():
            if each.tensor_type.name in {"MXFP4", "NVFP4"}:
                stem = name.removesuffix(".weight")
                scale = tensors.get(f"{stem}.scale")
                factor = np.float32(1) if scale is None else scale.data[0]
                values[stem] = gguf.quants.dequantize(each.data, each.tensor_type) * factor
    return values


READERS: list[tuple[str, str, Callable[[Path], Values], tuple[str, ...], tuple[str, ...]]] = [
    (
        "transformers with compressed-tensors",
        "compressed-tensors",
        by_transformers,
        ("transformers", "compressed-tensors"),
        ("modelopt-llama-nvfp4", "modelopt-llama-mxfp4", "modelopt-llama-fp8", "modelopt-llama-fp8-row"),
    ),
    ("torchao", "torchao", by_torchao, ("torchao",), ("modelopt-llama-nvfp4", "modelopt-llama-mxfp8")),
    ("MLX", "mlx", by_mlx, ("mlx",), ("modelopt-llama-nvfp4", "modelopt-llama-mxfp4", "modelopt-llama-mxfp8")),
    ("gguf", "gguf", by_gguf, ("gguf",), ("modelopt-llama-nvfp4", "modelopt-llama-mxfp4")),
]


def rows(exports: Path) -> Any:
    """Yield a row of the table for each export and reader."""
    for title, family, read, packages, names in READERS:
        for name in names:
            source = exports / "clean" / name
            if not source.exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                run(request_to_convert(source, Path(folder) / "out", to=family, lossy=True))
                try:
                    values = read(Path(folder) / "out")
                    wanted = decoded(Path(folder) / "out" if family == "gguf" else source)
                except Exception as error:  # noqa: BLE001 - whatever a reader raises is what the page reports
                    yield f"| {title} | `{name}` | 0 | {type(error).__name__}: {' '.join(str(error).split())[:120]} |"
                    continue
            worst, count = 0.0, 0
            for module, expected in wanted.items():
                found = values[module].reshape(expected.shape)
                worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
                count += 1
            used = ", ".join(f"{each} {version(each)}" for each in packages)
            yield f"| {used} | `{name}` | {count} | {'equal' if not worst else f'{worst:.2g}'} |"


def main(exports: Path, page: Path) -> None:
    """Write the page."""
    lines = ["| reader | export, converted to its convention | matrices | difference |", "|---|---|---|---|"]
    page.write_text(INTRO + "\n".join([*lines, *rows(exports)]) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
