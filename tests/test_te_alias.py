from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from importlib import metadata

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import alias_names, hadamard, helpers  # noqa: E402


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
transformer_engine.common.recipe:quantizer_factory quantizer_policy Recipe MMParams DelayedScaling Float8BlockScaling
transformer_engine.pytorch:QuantizedTensorStorage get_default_fp8_recipe quantizer_factory Float8BlockQuantizer
transformer_engine.pytorch.quantization:get_default_fp8_recipe _amax_and_scale_update QuantizerRole
transformer_engine.pytorch.quantization:NVFP4BlockScalingRecipeState get_align_size_for_quantization
transformer_engine.pytorch.fp8:fp8_autocast fp8_model_init FP8GlobalStateManager get_fp8_torch_dtype get_fp4_te_dtype
transformer_engine.pytorch.module.base:get_dummy_wgrad quantize_weight get_workspace _2X_ACC_FPROP _2X_ACC_WGRAD
transformer_engine.pytorch.module.base:get_multi_stream_cublas_workspace _2X_ACC_DGRAD get_ub
transformer_engine.pytorch.utils:init_method_normal scaled_init_method_normal attention_mask_func is_bf16_compatible
transformer_engine.pytorch.utils:get_cudnn_version is_non_tn_fp8_gemm_supported get_device_compute_capability divide
transformer_engine.pytorch.utils:assert_dim_for_fp8_exec cast_if_needed clear_tensor_data get_default_init_method
transformer_engine.pytorch.cpp_extensions:layernorm_bwd rmsnorm_fwd swizzle_scales_for_gemm_
transformer_engine.pytorch.cpp_extensions.gemm:general_gemm
transformer_engine.pytorch.cpp_extensions.fused_attn:FusedAttnBackend
transformer_engine.pytorch.constants:FP8FwdTensorIdx FP8BwdTensorIdx
transformer_engine.pytorch.attention.dot_product_attention:_attention_backends
transformer_engine.pytorch.attention.dot_product_attention.utils:check_set_window_size get_attention_backend
transformer_engine.pytorch._extra_state:UNSAFE_PICKLE_EXTRA_STATE_ENV should_load_extra_state_pickle _RECIPE_POLICIES
transformer_engine.pytorch.ops:Sequential Linear BasicLinear
transformer_engine.pytorch.ops.fused:ForwardLinearBiasAdd UserbuffersForwardLinear
transformer_engine.pytorch.ops.basic.basic_linear:BasicLinear
transformer_engine.pytorch.distributed:checkpoint gather_along_first_dim activation_recompute_forward
transformer_engine.pytorch.distributed:CudaRNGStatesTracker is_fp8_activation_recompute_enabled get_all_rng_states
transformer_engine.pytorch.distributed:in_fp8_activation_recompute_phase _NVFP4AllGatherAsyncHandle
transformer_engine.pytorch.attention:DotProductAttention _SplitAlongDim
transformer_engine.pytorch.attention.rope:apply_rotary_pos_emb
transformer_engine.pytorch.optimizers:FusedAdam FusedSGD multi_tensor_applier multi_tensor_l2norm multi_tensor_scale
transformer_engine.pytorch.utils:make_weak_ref
transformer_engine.pytorch.module.fp8_padding:Fp8Padding
transformer_engine.pytorch.permutation:moe_permute moe_unpermute moe_sort_chunks_by_index
transformer_engine.pytorch.router:fused_topk_with_score_function fused_moe_aux_loss QBHistogramMode RoutingMapFormat
transformer_engine.pytorch.cpu_offload:get_cpu_offload_context mark_not_offload
transformer_engine.pytorch.graph:make_graphed_callables
transformer_engine.pytorch.experimental:quantization_nvfp4 utils
transformer_engine.pytorch.experimental.quantization_microblock_ref:NVFP4QuantizerRef
transformer_engine.pytorch.custom_recipes.quantizer_factories:mxfp8_factory
transformer_engine.pytorch.custom_recipes.reference_nvfp4:nvfp4_ref_rht_2d_factory
transformer_engine.pytorch.tensor:cast_master_weights_to_fp8 quantize_master_weights Float8BlockQuantizer
transformer_engine.pytorch.tensor.utils:post_all_gather_processing replace_raw_data
transformer_engine.pytorch.tensor.float8_blockwise_tensor:Float8BlockQuantizer
transformer_engine.pytorch.tensor.hybrid_tensor:HybridQuantizer
transformer_engine.pytorch.custom_recipes.reference_current_scaling:CurrentScalingQuantizerRef CurrentScalingTensorRef
transformer_engine.pytorch.custom_recipes.reference_current_scaling:current_scaling_ref_factory
transformer_engine.pytorch.module:_split_quantization _common
transformer_engine.pytorch.quantized_tensor:restore_from_func_ctx
transformer_engine.pytorch.ops.basic.activation:GELU SwiGLU
transformer_engine.pytorch.constants:AttnMaskTypes QKVLayouts
transformer_engine.pytorch.utils:gpu_autocast_ctx split_tensor_along_dim
transformer_engine.common.utils:deprecate_wrapper
transformer_engine_torch:multi_tensor_compute_scale_inv_e8m0 gelu multi_tensor_l2norm
transformer_engine_torch:get_cublasLt_version rmsnorm_fwd layernorm_fwd FP8FwdTensors
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


# What `transformer_engine.pytorch` of the emulated version binds.
PUBLIC = """
constants DType LayerNormLinear Linear LayerNormMLP LayerNorm RMSNorm GroupedLinear Fp8Padding Fp8Unpadding
initialize_ub destroy_ub UserBufferQuantizationMode DotProductAttention FusedMLAQUpProjRopeQuant MultiheadAttention
InferenceParams RotaryPositionEmbedding TransformerLayer moe_permute moe_permute_with_probs
moe_permute_and_pad_with_probs moe_unpermute moe_sort_chunks_by_index moe_sort_chunks_by_index_with_probs fp8_autocast
fp8_model_init autocast quantized_model_init is_fp8_available is_mxfp8_available is_fp8_block_scaling_available
is_nvfp4_available get_default_recipe QuantizerRole QuantizerRequest DelayedScalingRequest get_cudnn_version
get_device_compute_capability is_bf16_available deinterleave_glu_tensor interleave_glu_tensor make_graphed_callables
checkpoint CudaRNGStatesTracker get_cpu_offload_context mark_not_offload ManualOffloadSynchronizer ops optimizers
onnx_export parallel_cross_entropy CusolverMpCtx newton_schulz QuantizedTensorStorage QuantizedTensor Quantizer
prepare_for_saving restore_from_saved restore_from_func_ctx Float8Quantizer Float8CurrentScalingQuantizer
MXFP8Quantizer Float8BlockQuantizer NVFP4Quantizer Float8TensorStorage MXFP8TensorStorage NVFP4TensorStorage
Float8BlockwiseQTensorStorage Float8Tensor MXFP8Tensor Float8BlockwiseQTensor NVFP4Tensor HybridQuantizer
HybridQuantizedTensorStorage IdentityQuantizer IdentityTensorStorage HybridQuantizedTensor IdentityTensor
_make_float8_tensor_in_reduce_ex _make_mxfp8_tensor_in_reduce_ex _make_nvfp4_tensor_in_reduce_ex
_make_float8_blockwise_tensor_in_reduce_ex _make_hybrid_quantized_tensor_in_reduce_ex
_make_identity_tensor_in_reduce_ex module tensor attention torch_version
"""


@pytest.mark.rule("TEL-14", "TEL-39")
def test_every_public_name_imports_and_is_emulated_or_raises_by_name(alias):
    aliased = importlib.import_module("transformer_engine.pytorch")
    names = PUBLIC.split()
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(aliased, name) is not None, name
    assert set(alias_names.NOT_EMULATED) <= set(names)
    for name in alias_names.NOT_EMULATED:
        assert getattr(te, name) is not None
        for thing in (getattr(te, name), getattr(aliased, name)):
            with pytest.raises(NotImplementedError, match=name):
                thing()
            with pytest.raises(NotImplementedError, match=f"{name}.member"):
                _ = thing.member
            assert not hasattr(thing, "member")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = te.nonsense


@pytest.mark.rule("TEL-14")
def test_tools_find_the_library_while_the_alias_is_installed():
    te.install_alias()
    try:
        for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine_torch"):
            assert importlib.util.find_spec(name).name == name
        aliased = importlib.import_module("transformer_engine")
        for distribution in ("transformer-engine", "transformer_engine"):
            assert metadata.version(distribution) == aliased.__version__
    finally:
        te.uninstall_alias()
    assert importlib.util.find_spec("transformer_engine") is None
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("transformer-engine")


@pytest.mark.rule("TEL-14")
def test_things_are_the_same_by_either_name(alias):
    import transformer_engine.pytorch as aliased
    from transformer_engine.pytorch.module.base import TransformerEngineBaseModule
    from transformer_engine.pytorch.ops.basic.activation import GELU
    from transformer_engine.pytorch.ops.basic.bias import Bias
    from transformer_engine.pytorch.optimizers.fused_adam import FusedAdam

    assert (GELU, Bias, FusedAdam) == (te.ops.GELU, te.ops.Bias, te.optimizers.FusedAdam)
    assert aliased.NVFP4Quantizer is te.NVFP4Quantizer
    assert aliased.torch_version() >= (2, 4)  # the function, although a module has its name
    assert aliased.FusedMLAQUpProjRopeQuant.is_supported() is False
    assert issubclass(te.Linear, TransformerEngineBaseModule)


@pytest.mark.rule("TEL-14")
def test_setting_an_attribute_reaches_the_module(alias, monkeypatch):
    from transformer_engine.pytorch import quantization

    from fp4ref.te import quantization as ours

    monkeypatch.setattr(quantization, "get_default_recipe", "changed")
    assert ours.get_default_recipe == "changed"


@pytest.mark.rule("TEL-14", "TEL-39")
def test_below_a_module_that_is_emulated_in_part_the_rest_raises_by_name(alias):
    from transformer_engine.pytorch.ops.basic.activation import no_such_activation
    from transformer_engine.pytorch.utils import split_tensor_along_dim
    from transformer_engine_torch import fused_attn_fwd

    for thing in (no_such_activation, split_tensor_along_dim, fused_attn_fwd):
        with pytest.raises(NotImplementedError, match=thing.__name__):
            thing()


@pytest.mark.rule("TEL-39")
def test_what_is_absent_imports_and_raises_by_name(alias):
    from transformer_engine.pytorch import newton_schulz

    with pytest.raises(NotImplementedError, match="newton_schulz"):
        newton_schulz(1)
    with pytest.raises(ImportError):
        from transformer_engine.pytorch import NoSuchThing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import transformer_engine.pytorch.no_such_module  # noqa: F401


@pytest.mark.rule("TEL-39")
def test_absent_packages_import_whole_and_raise_by_name(alias):
    from transformer_engine.pytorch import ep
    from transformer_engine.pytorch.module.grouped_linear import _GroupedLinear
    from transformer_engine.pytorch.ops.fused import UserbuffersForwardLinear

    assert ep.EpBuffer is ep.EpBuffer
    assert not hasattr(ep, "__wrapped__")
    for thing in (ep.EpBuffer, UserbuffersForwardLinear, _GroupedLinear):
        with pytest.raises(NotImplementedError, match=thing.__name__):
            thing()
        assert not isinstance(1, thing)
        uses = (lambda: thing > 1, lambda: 1 + thing, lambda: [*thing], lambda: thing["x"], lambda: [0][thing])  # noqa: B023
        for use in uses:
            with pytest.raises(NotImplementedError, match=thing.__name__):
                use()


def test_our_own_modules_keep_no_absent_names():
    from fp4ref.te import quantization
    from fp4ref.te.module import base

    te.install_alias()
    assert hasattr(quantization, "_default_sf_compute")
    te.uninstall_alias()
    te.uninstall_alias()
    assert not hasattr(quantization, "_default_sf_compute")
    assert not hasattr(base, "get_ub")
    assert not hasattr(te.distributed, "checkpoint")


@pytest.mark.parametrize(
    "mask, window, expected",
    [
        ("causal", None, (-1, 0)),
        ("causal", (-1, -1), (-1, 0)),
        ("padding_causal", (128, 64), (128, 0)),
        ("no_mask", None, (-1, -1)),
        ("padding", (-1, 0), (-1, -1)),
        ("no_mask", (8, 8), (8, 8)),
    ],
)
def test_windows_of_masks(mask, window, expected):
    assert helpers.check_set_window_size(mask, window) == expected


def test_small_helpers():
    torch.manual_seed(0)
    filled = helpers.init_method_normal(0.5)(torch.empty(10000))
    assert filled.std().item() == pytest.approx(0.5, rel=0.05)
    assert helpers.scaled_init_method_normal(0.5, 8)(torch.empty(10000)).std().item() == pytest.approx(0.125, rel=0.05)
    assert helpers.init_method_constant(3.0)(torch.empty(2)).tolist() == [3, 3]
    assert helpers.get_default_init_method()(torch.empty(10000)).std().item() == pytest.approx(0.023, rel=0.05)
    assert helpers.attention_mask_func(torch.zeros(2), torch.tensor([True, False])).tolist() == [-10000, 0]
    assert helpers.divide(6, 3) == 2
    with pytest.raises(AssertionError, match="7 by 3"):
        helpers.divide(7, 3)
    with pytest.raises(ValueError, match="window_size"):
        helpers.check_set_window_size("no_mask", (-1, 4))
    helpers.assert_dim_for_fp8_exec(torch.empty(8, 16))
    with pytest.raises(AssertionError, match="FP8 execution"):
        helpers.assert_dim_for_fp8_exec(torch.empty(8, 16), torch.empty(4, 16))
    assert helpers.cast_if_needed(None, torch.float16) is None
    assert helpers.cast_if_needed(torch.ones(1), torch.float16).dtype is torch.float16
    assert helpers.requires_grad(None, torch.ones(1, requires_grad=True))
    packed, plain = te.MXFP8Quantizer()(torch.ones(32, 32)), torch.ones(4)
    helpers.clear_tensor_data(packed, plain, None)
    assert packed._rowwise_data.numel() == plain.numel() == 0
    with helpers.get_nvtx_range_context("x"):
        helpers.nvtx_range_push("y")
        helpers.nvtx_range_pop("y")
    assert helpers.get_cudnn_version() == (0, 0, 0)
    assert helpers.is_bf16_compatible()
    assert helpers.is_bf16_available(return_reason=True) == (True, "")


def test_factories_say_what_they_do():
    from fp4ref.te.recipe import CustomRecipe, quantizer_factory, quantizer_policy

    @quantizer_factory(key=("mine", 1))
    def made(role):
        return None

    assert CustomRecipe(qfactory=made).qfactory_key == ("mine", 1)
    assert CustomRecipe(qfactory=made, qfactory_key="other").qfactory_key == "other"
    assert quantizer_policy(key=2)(made) is made
    assert CustomRecipe(qfactory=made).policy_key == 2
    with pytest.raises(TypeError, match="quantizer_policy key must be hashable"):
        quantizer_policy(key=["mutable"])


@pytest.mark.rule("TEL-82")
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


def test_layers_that_frameworks_derive_train(alias):
    """A block as Megatron builds it: its classes derive from the library's, and take their arguments by name."""
    import transformer_engine as engine
    from transformer_engine.common.recipe import NVFP4BlockScaling
    from transformer_engine.pytorch.attention import _SplitAlongDim
    from transformer_engine.pytorch.fp8 import fp8_autocast
    from transformer_engine.pytorch.optimizers import FusedAdam

    class Attention(engine.pytorch.DotProductAttention):
        def forward(self, query, key, value, mask):
            return super().forward(query, key, value, mask, attn_mask_type="causal", num_splits=None)

    class Column(engine.pytorch.LayerNormLinear):
        def forward(self, x):
            return super().forward(x, is_first_microbatch=True)

    torch.manual_seed(0)
    tracker = engine.pytorch.distributed.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 1)
    options = {"params_dtype": torch.bfloat16, "bias": False, "get_rng_state_tracker": lambda: tracker}
    column = Column(in_features=64, out_features=192, normalization="RMSNorm", parallel_mode="column", **options)
    row = engine.pytorch.Linear(64, 64, parallel_mode="row", **options)
    attention = Attention(num_attention_heads=4, kv_channels=16, num_gqa_groups=4, layer_number=1)
    parameters = [*column.parameters(), *row.parameters()]
    optimizer = FusedAdam(parameters, lr=1e-2, master_weights=True)
    x, losses = torch.randn(16, 2, 64).bfloat16(), []
    for _ in range(3):
        with fp8_autocast(enabled=True, fp8_recipe=NVFP4BlockScaling()):
            heads = _SplitAlongDim.apply(column(x).view(16, 2, 4, 48), 3, [16, 16, 16])
            y = row(attention(*heads, None))
        loss = (y.float() - x.float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
