"""Quantized checkpoints in emulated modules: the bytes of the file, values that NumPy decodes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import checkpoints_corpus as corpus

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402

EXPORTS: dict[str, tuple[Any, Any, str]] = {
    "modelopt nvfp4": (
        corpus.modelopt,
        te.recipe.NVFP4BlockScaling(disable_2d_quantization=True, backward_override="dequantized"),
        "NVFP4Tensor",
    ),
    "modelopt mxfp8": (
        lambda: corpus.modelopt("mxfp8"),
        te.recipe.MXFP8BlockScaling(backward_override="dequantized"),
        "MXFP8Tensor",
    ),
    "modelopt fp8": (lambda: corpus.modelopt("fp8"), te.recipe.Float8CurrentScaling(), "Float8Tensor"),
    "compressed nvfp4": (
        corpus.compressed,
        te.recipe.NVFP4BlockScaling(disable_2d_quantization=True, backward_override="dequantized"),
        "NVFP4Tensor",
    ),
    "compressed squares": (
        lambda: corpus.compressed_fp8("block"),
        te.recipe.Float8BlockScaling(),
        "Float8BlockwiseQTensor",
    ),
    "deepseek": (corpus.deepseek, te.recipe.Float8BlockScaling(), "Float8BlockwiseQTensor"),
    "torchao nvfp4": (
        lambda: corpus.torchao("nvfp4", swizzled=True),
        te.recipe.NVFP4BlockScaling(disable_2d_quantization=True, backward_override="dequantized"),
        "NVFP4Tensor",
    ),
}
LAYERS = [f"model.layers.{layer}.{name}" for layer in range(corpus.LAYERS) for name in corpus.SHAPES]
UP = "model.layers.0.mlp.up_proj"


def put(model: torch.nn.Module, path: str, module: torch.nn.Module) -> None:
    parent = model
    *front, last = path.split(".")
    for name in front:
        if not hasattr(parent, name):
            parent.add_module(name, torch.nn.Module())
        parent = getattr(parent, name)
    parent.add_module(last, module)


def model(recipe: Any, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    """The modules of the corpus, whose layers quantize by the recipe."""
    made, options = torch.nn.Module(), {"bias": False, "dtype": dtype}
    hidden = corpus.HIDDEN
    for path in LAYERS:
        rows, columns = corpus.SHAPES[path.partition("layers.")[2].partition(".")[2]]
        put(made, path, torch.nn.Linear(columns, rows, **options))
    for layer in range(corpus.LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            put(made, f"model.layers.{layer}.{name}", torch.nn.RMSNorm(hidden, dtype=dtype))
    put(made, "model.norm", torch.nn.RMSNorm(hidden, dtype=dtype))
    put(made, "model.embed_tokens", torch.nn.Embedding(corpus.VOCAB, hidden, dtype=dtype))
    put(made, "lm_head", torch.nn.Linear(hidden, corpus.VOCAB, **options))
    return te.convert(made, recipe, select="*layers*")


@pytest.mark.rule("TEM-38", "TEM-39")
@pytest.mark.parametrize(("export", "recipe", "kind"), EXPORTS.values(), ids=EXPORTS)
def test_weights_hold_the_bytes_of_the_file(tmp_path, export, recipe, kind):
    files = export()
    made = model(recipe)
    loaded = te.load_quantized(made, files.write(tmp_path))
    assert sorted(loaded.packed) == sorted(f"{path}.weight" for path in LAYERS)
    assert len(loaded.copied) == 2 * corpus.LAYERS + 3
    weight = made.get_submodule(UP).weight
    assert type(weight).__name__ == kind
    assert isinstance(weight, torch.nn.Parameter)
    data = weight._data if kind == "Float8Tensor" else weight._rowwise_data
    stored = next(array for name, (_, array) in files.tensors.items() if array.tobytes() == data.numpy().tobytes())
    assert stored.nbytes == data.numel()
    embedded = files.array("model.embed_tokens.weight")
    assert made.model.embed_tokens.weight.view(torch.uint16).numpy().tobytes() == embedded.tobytes()
    x = torch.randn(48, corpus.HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    y = made.get_submodule(UP)(x)
    y.sum().backward()
    assert x.grad.isfinite().all()
    wanted = x.detach().float() @ weight.dequantize(dtype=torch.float32).detach().T
    assert (y - wanted).norm() < 0.12 * wanted.norm()


@pytest.mark.rule("TEM-38")
def test_values_are_codes_times_scales(tmp_path):
    files = corpus.modelopt()
    made = model(EXPORTS["modelopt nvfp4"][1])
    te.load_quantized(made, files.write(tmp_path))
    packed = files.array(f"{UP}.weight")
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
    elements = codes.view(np.uint8).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    scales = files.array(f"{UP}.weight_scale").view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    wanted = elements * np.repeat(scales, 16, 1) * float(files.array(f"{UP}.weight_scale_2"))
    got = made.get_submodule(UP).weight.dequantize(dtype=torch.float32).detach().numpy()
    assert np.abs(got - wanted).max() <= 2.0**-22 * np.abs(wanted).max()
    assert np.array_equal(got == 0, wanted == 0)


@pytest.mark.rule("TEM-38", "TEL-40")
def test_tiles_have_columns_and_train(tmp_path):
    recipe = te.recipe.NVFP4BlockScaling()
    with te.quantized_model_init(recipe=recipe):
        written = te.Linear(128, 64, bias=False, params_dtype=torch.bfloat16)
    weight = written.weight
    tensors = {
        "up.weight.rowwise_data": ("U8", weight._rowwise_data.numpy()),
        "up.weight.rowwise_scale_inv": ("U8", weight._rowwise_scale_inv.numpy()),
        "up.weight.amax_rowwise": ("F32", weight._amax_rowwise.numpy()),
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(corpus.safetensors_bytes(tensors, {}))
    made = torch.nn.Module()
    made.up = te.Linear(128, 64, bias=False, params_dtype=torch.bfloat16)
    loaded = te.load_quantized(made, path)
    assert not loaded.rows_only
    assert made.up.weight.requires_grad
    assert torch.equal(made.up.weight._columnwise_data, weight._columnwise_data)
    x = torch.randn(32, 128, dtype=torch.bfloat16)
    results = []
    for module in (written, made.up):
        torch.manual_seed(0)
        with te.autocast(recipe=recipe):
            y = module(x)
        y.sum().backward()
        results += [y, module.weight.grad]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


@pytest.mark.rule("TEM-49")
@pytest.mark.parametrize("form", ["nvfp4", "fp8"])
def test_rows_of_several_weights_are_one(tmp_path, form):
    files = corpus.modelopt(form)
    parts = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    scales = [files.array(f"{part}.weight_scale{'_2' if form == 'nvfp4' else ''}") for part in parts]
    for scale in scales:
        scale[...] = scales[0]
    made = torch.nn.Module()
    made.qkv = te.Linear(corpus.HIDDEN, 256, bias=False, params_dtype=torch.bfloat16)
    loaded = te.load_quantized(made, files.write(tmp_path), names=lambda name: parts, strict=False)
    assert loaded.packed == ["qkv.weight"]
    data = made.qkv.weight._rowwise_data if form == "nvfp4" else made.qkv.weight._data
    assert data.numpy().tobytes() == b"".join(files.array(f"{part}.weight").tobytes() for part in parts)
    scales[1][...] *= 2
    with pytest.raises(NotImplementedError, match=r"one global scale.*\[TEM-38\]"):
        te.load_quantized(made, files.write(tmp_path / "other"), names=lambda name: parts, strict=False)


@pytest.mark.rule("TEM-38", "TEM-39", "TEM-50")
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path):
    files = corpus.modelopt("mxfp8")
    path = files.write(tmp_path / "whole")
    recipe = EXPORTS["modelopt mxfp8"][1]
    made = model(recipe)
    made.get_submodule(UP).weight = torch.nn.Parameter(torch.zeros(32, 128))
    with pytest.raises(ValueError, match=r"up_proj.weight of \[256, 128\].*\[TEM-39\]"):
        te.load_quantized(made, path)
    made = model(recipe)
    made.extra = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"the checkpoint lacks extra.*\[TEM-39\]"):
        te.load_quantized(made, path)
    assert te.load_quantized(made, path, strict=False).packed
    made = model(recipe)
    del made.lm_head
    with pytest.raises(ValueError, match=r"the model lacks lm_head.weight.*\[TEM-39\]"):
        te.load_quantized(made, path)
    plain = model(recipe)
    before = {name: value.clone() for name, value in plain.state_dict().items() if "norm" in name or "embed" in name}
    put(plain, UP, torch.nn.Linear(128, 256, bias=False))
    with pytest.raises(NotImplementedError, match=r"up_proj.weight, quantized.*te.convert.*\[TEM-38\]"):
        te.load_quantized(plain, path)
    kept = plain.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert not any(isinstance(value, te.QuantizedTensor) for value in plain.parameters())
    with pytest.raises(NotImplementedError, match=r"numbers per row.*\[TEM-38\]"):
        te.load_quantized(model(recipe), corpus.compressed_fp8("channel").write(tmp_path / "rows"))
    with pytest.raises(ValueError, match="without a quantized weight"):
        te.load_quantized(model(recipe), corpus.source().write(tmp_path / "source"))
    with pytest.raises(fp4ref.Fp4Error, match="no such file"):
        te.load_quantized(model(recipe), Path("/nowhere"))


@pytest.mark.rule("TEM-38")
def test_models_without_memory_and_shared_weights(tmp_path):
    files = corpus.deepseek()
    path = files.write(tmp_path)
    made = model(te.recipe.Float8BlockScaling())
    loaded = te.load_quantized(made, path)
    assert not loaded.rows_only
    with torch.device("meta"):
        empty = model(te.recipe.Float8BlockScaling())
    te.load_quantized(empty, path)
    assert not any(value.device.type == "meta" for value in empty.parameters())
    x = torch.randn(16, 128, dtype=torch.bfloat16)
    assert torch.equal(made.get_submodule(UP)(x), empty.get_submodule(UP)(x))
    files.drop("lm_head.weight")
    tied = model(te.recipe.Float8BlockScaling())
    tied.lm_head.weight = tied.model.embed_tokens.weight
    te.load_quantized(tied, files.write(tmp_path / "tied"))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
