from __future__ import annotations

import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import hadamard  # noqa: E402


@pytest.fixture
def alias():
    te.install_alias()
    yield
    te.uninstall_alias()


NAMES = """
transformer_engine.pytorch:Linear LayerNormLinear LayerNormMLP GroupedLinear LayerNorm RMSNorm
transformer_engine.pytorch:autocast fp8_autocast quantized_model_init fp8_model_init is_nvfp4_available DType
transformer_engine.pytorch:is_mxfp8_available is_fp8_available NVFP4Quantizer MXFP8Quantizer NVFP4Tensor MXFP8Tensor
transformer_engine.pytorch:Float8CurrentScalingQuantizer quantize_nvfp4 torch_version module
transformer_engine.pytorch.module.base:TransformerEngineBaseModule
transformer_engine.pytorch.quantization:FP8GlobalStateManager RecipeState autocast
transformer_engine.pytorch.constants:TE_DType TE_DType_To_Torch NVFP4_BLOCK_SCALING_SIZE MXFP8_BLOCK_SCALING_SIZE
transformer_engine.pytorch.cpp_extensions:general_gemm general_grouped_gemm
transformer_engine.pytorch.quantized_tensor:QuantizedTensor QuantizedTensorStorage Quantizer prepare_for_saving
transformer_engine.pytorch.custom_recipes.reference_nvfp4:NVFP4QuantizerRef NVFP4TensorRef
transformer_engine.pytorch.custom_recipes.quantization_nvfp4:NVFP4QuantizerRef
transformer_engine.pytorch.custom_recipes.reference_utils:Fp4Formats
transformer_engine.pytorch.custom_recipes:utils reference_utils
transformer_engine.pytorch.tensor.nvfp4_tensor:NVFP4Quantizer NVFP4Tensor get_rht_matrix get_random_sign_mask_for_rht
transformer_engine.pytorch.tensor.mxfp8_tensor:MXFP8Quantizer MXFP8Tensor
transformer_engine.pytorch.tensor.float8_tensor:Float8Tensor Float8CurrentScalingQuantizer
transformer_engine.pytorch.tensor.storage.nvfp4_tensor_storage:NVFP4TensorStorage
transformer_engine.pytorch.tensor.storage.mxfp8_tensor_storage:MXFP8TensorStorage
transformer_engine.pytorch.tensor.storage.grouped_tensor:GroupedTensor
transformer_engine.common.recipe:NVFP4BlockScaling MXFP8BlockScaling Float8CurrentScaling Format QParams CustomRecipe
transformer_engine.common:recipe
transformer_engine_torch:quantize dequantize split_quantize group_quantize DType generic_gemm swizzle_scales_for_gemm_
"""


@pytest.mark.rule("TEL-14")
@pytest.mark.parametrize("line", NAMES.split("\n")[1:-1])
def test_names_are_importable(line, alias):
    module, names = line.split(":")
    for name in names.split():
        namespace = {}
        exec(f"from {module} import {name} as found", namespace)
        assert namespace["found"] is not None
    exec(f"import {module}")


@pytest.mark.rule("TEL-14")
def test_things_are_the_same_by_either_name(alias):
    import transformer_engine.pytorch as aliased
    from transformer_engine.pytorch.module.base import TransformerEngineBaseModule

    assert aliased.NVFP4Quantizer is te.NVFP4Quantizer
    assert issubclass(te.Linear, TransformerEngineBaseModule)


@pytest.mark.rule("TEL-14")
def test_setting_an_attribute_reaches_the_module(alias, monkeypatch):
    from transformer_engine.pytorch import quantization

    from fp4ref.te import quantization as ours

    monkeypatch.setattr(quantization, "get_default_recipe", "changed")
    assert ours.get_default_recipe == "changed"


@pytest.mark.rule("TEL-14")
def test_what_is_absent_imports_and_raises_by_name(alias):
    from transformer_engine.common.recipe import DelayedScaling
    from transformer_engine.pytorch import DotProductAttention

    with pytest.raises(NotImplementedError, match="DotProductAttention"):
        DotProductAttention(1)
    with pytest.raises(ValueError, match="DelayedScaling"), te.autocast(recipe=DelayedScaling()):
        pass
    with pytest.raises(ImportError):
        from transformer_engine.pytorch import NoSuchThing  # noqa: F401


@pytest.mark.rule("TEL-14")
def test_names_vanish():
    te.install_alias()
    te.install_alias()
    te.uninstall_alias()
    ours = ("transformer_engine", "transformer_engine_torch")
    assert not [name for name in sys.modules if name.partition(".")[0] in ours]
    with pytest.raises(ModuleNotFoundError):
        import transformer_engine  # noqa: F401


@pytest.mark.rule("TEL-14")
def test_a_loaded_library_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", types.ModuleType("transformer_engine_torch"))
    with pytest.raises(RuntimeError, match="already imported"):
        te.install_alias()


def test_without_torch_the_error_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import fp4ref; import fp4ref.te"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.strip().endswith("fp4ref.te needs torch: pip install 'fp4ref[torch]'")


@pytest.mark.rule("HAD-1")
def test_hadamard_helpers():
    assert hadamard.get_random_sign_mask_for_rht(True) == 0xD7E8
    assert hadamard.get_random_sign_mask_for_rht(False) == 0
    assert hadamard.get_sign_from_vector(hadamard.get_wgrad_sign_vector()) == 0xD7E8
    matrix = hadamard.get_rht_matrix(True)
    assert matrix.dtype is torch.bfloat16
    assert torch.equal(matrix.float() @ matrix.float().t(), torch.eye(16))
    x = torch.zeros(1, 16)
    x[0, 3] = 4
    row = [-1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1]
    assert (x @ matrix.float()).tolist() == [row]
