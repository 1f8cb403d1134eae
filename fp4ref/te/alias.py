"""The names under which scripts import the emulated library, for as long as the alias is installed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.errors import NotSupportedError, SettingError

ROOT, EXTENSION = "transformer_engine", "transformer_engine_torch"
PYTORCH = f"{ROOT}.pytorch"
CUSTOM = f"{PYTORCH}.custom_recipes"
TENSOR = f"{PYTORCH}.tensor"
STORAGE = f"{TENSOR}.storage"

# Names that are modules of this layer under another path.
SAME: dict[str, str] = {
    f"{ROOT}.common.recipe": "recipe",
    f"{PYTORCH}.quantization": "quantization",
    f"{PYTORCH}.fp8": "quantization",
    f"{PYTORCH}.module.base": "module.base",
    f"{PYTORCH}.module.linear": "module.linear",
    f"{PYTORCH}.module.layernorm_linear": "module.layernorm_linear",
    f"{PYTORCH}.module.layernorm_mlp": "module.layernorm_mlp",
    f"{PYTORCH}.module.grouped_linear": "module.grouped_linear",
    f"{PYTORCH}.distributed": "distributed",
    f"{PYTORCH}.cpp_extensions.gemm": "gemm",
}
# Names that gather things from several modules: "module: name name ..." each.
GATHERED: dict[str, tuple[str, ...]] = {
    ROOT: (),
    f"{ROOT}.common": (),
    PYTORCH: (":*",),
    f"{PYTORCH}.module": (":GroupedLinear LayerNorm LayerNormLinear LayerNormMLP Linear RMSNorm",),
    f"{PYTORCH}.constants": ("dtypes:*",),
    f"{PYTORCH}.cpp_extensions": ("gemm:*", "swizzle: swizzle_scales_for_gemm_", "cast: quantize dequantize"),
    f"{PYTORCH}.quantized_tensor": (
        "tensor: QuantizedTensor",
        "storage: QuantizedTensorStorage prepare_for_saving restore_from_saved",
        "quantizer: Quantizer",
    ),
    f"{PYTORCH}.utils": ("capability: get_device_compute_capability",),
    CUSTOM: (),
    f"{CUSTOM}.reference_nvfp4": ("reference: NVFP4QuantizerRef NVFP4TensorRef",),
    f"{CUSTOM}.reference_utils": ("reference: Fp4Formats",),
    f"{CUSTOM}.gemm": ("reference: GEMMType MMParams",),
    TENSOR: ("__init__:*",),
    f"{TENSOR}.quantized_tensor": ("tensor: QuantizedTensor", "quantizer: Quantizer", "storage:*"),
    f"{TENSOR}.nvfp4_tensor": ("nvfp4_tensor:*", "nvfp4_quantizer:*", "hadamard:*"),
    f"{TENSOR}.mxfp8_tensor": ("mxfp8_tensor:*",),
    f"{TENSOR}.float8_tensor": ("float8_tensor:*",),
    f"{TENSOR}.utils": ("master_weights:*",),
    f"{TENSOR}.grouped_tensor": ("grouped: GroupedTensor",),
    STORAGE: ("nvfp4_tensor:*", "mxfp8_tensor:*", "float8_tensor:*", "grouped: GroupedTensor"),
    f"{STORAGE}.nvfp4_tensor_storage": ("nvfp4_tensor: NVFP4TensorStorage",),
    f"{STORAGE}.mxfp8_tensor_storage": ("mxfp8_tensor: MXFP8TensorStorage",),
    f"{STORAGE}.float8_tensor_storage": ("float8_tensor: Float8TensorStorage",),
    f"{STORAGE}.grouped_tensor": ("grouped: GroupedTensor",),
    f"{STORAGE}.grouped_tensor_storage": ("grouped: GroupedTensor",),
    EXTENSION: (
        "cast: quantize dequantize",
        "grouped: split_quantize group_quantize",
        "dtypes: DType FP8BwdTensors FP8FwdTensors",
        "gemm: generic_gemm",
        "swizzle: swizzle_scales_for_gemm_",
    ),
}
# Other names of the same things.
RENAMED = {
    f"{CUSTOM}.quantization_nvfp4": f"{CUSTOM}.reference_nvfp4",
    f"{CUSTOM}.quantization_ref_nvfp4": f"{CUSTOM}.reference_nvfp4",
    f"{CUSTOM}.utils": f"{CUSTOM}.reference_utils",
    f"{CUSTOM}.quantization": f"{CUSTOM}.gemm",
}
# Parts of the interface that are not emulated: they import, so that a file which uses some of them loads, and raise
# when they are used.
ABSENT: dict[str, tuple[str, ...]] = {
    PYTORCH: (
        *("DotProductAttention", "MultiheadAttention", "TransformerLayer", "Fp8Padding", "Fp8Unpadding"),
        *("Float8BlockQuantizer", "Float8BlockwiseQTensor", "InferenceParams", "make_graphed_callables"),
    ),
    f"{PYTORCH}._extra_state": ("UNSAFE_PICKLE_EXTRA_STATE_ENV",),
    f"{PYTORCH}.attention": ("DotProductAttention", "InferenceParams", "MultiheadAttention"),
    f"{PYTORCH}.attention.dot_product_attention": ("DotProductAttention", "_attention_backends"),
    f"{PYTORCH}.attention.dot_product_attention.utils": (
        *("AttentionLogging", "AttentionParams", "check_set_window_size", "get_attention_backend"),
    ),
    f"{PYTORCH}.cpp_extensions.fused_attn": ("FusedAttnBackend",),
    f"{PYTORCH}.utils": ("attention_mask_func", "init_method_normal", "scaled_init_method_normal"),
    TENSOR: ("Float8BlockQuantizer", "Float8BlockwiseQTensor"),
}

_INSTALLED: dict[str, ModuleType] = {}


def install_alias() -> None:
    """Make `transformer_engine`, its submodules and `transformer_engine_torch` importable as this layer.

    Doing it twice is doing it once.

    Errors: SettingError if the real library is loaded.

    Rules: TEL-14.
    """
    if _INSTALLED:
        return
    for name in (ROOT, EXTENSION):
        if name in sys.modules:
            raise SettingError("install_alias", f"{name} already imported", "a process without it", "TEL-14")
    _INSTALLED.update(_modules())
    for name, module in _INSTALLED.items():
        if name not in SAME:
            module.__path__ = []  # a package, so that its submodules are looked up
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_INSTALLED[parent], child, module)
    sys.modules.update(_INSTALLED)


def _modules() -> dict[str, ModuleType]:
    """Every module by its other name."""
    made = {name: importlib.import_module(f"fp4ref.te.{path}") for name, path in SAME.items()}
    for name, sources in GATHERED.items():
        module = made[name] = ModuleType(name, "An alias of fp4ref.te.")
        for source in sources:
            _gather(module, source)
    made |= {name: made[target] for name, target in RENAMED.items()}
    for name, missing in ABSENT.items():
        module = made.setdefault(name, ModuleType(name, "Not emulated."))
        vars(module).update({attribute: _absent(attribute) for attribute in missing})
    for name in (PYTORCH, f"{PYTORCH}.utils"):
        vars(made[name]).update(HELPERS)
    vars(made[EXTENSION])["get_cublasLt_version"] = lambda: CUBLASLT_VERSION
    return made


def uninstall_alias() -> None:
    """Take the names away again; what was imported by them keeps working. Rules: TEL-14."""
    for name in _INSTALLED:
        sys.modules.pop(name, None)
    _INSTALLED.clear()


def _gather(module: ModuleType, source: str) -> None:
    path, _, names = source.partition(":")
    if path == "__init__":
        path = ""
    origin = importlib.import_module(f"fp4ref.te.{path}".rstrip("."))
    wanted = names.split()
    chosen = [name for name in vars(origin) if not name.startswith("__")] if wanted == ["*"] else wanted
    for name in chosen:
        setattr(module, name, getattr(origin, name))


def _absent(name: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotSupportedError("fp4ref.te", name, "a part of the interface that is emulated", "TEL-14")

    return type(name, (), {"__init__": refuse, "__doc__": "Not emulated."})


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdigit())


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Small functions that scripts import beside the rest.
HELPERS: dict[str, Any] = {
    "torch_version": _torch_version,
    "round_up_to_nearest_multiple": _round_up,
    "is_bf16_available": lambda return_reason=False: (True, "") if return_reason else True,
    "is_non_tn_fp8_gemm_supported": lambda: get_device_compute_capability() >= (10, 0),
}
CUBLASLT_VERSION = 130600  # the first whose block-scaled products know every layout on every device
