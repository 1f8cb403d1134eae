"""Which names of the emulated library stand for what: tables, read by `alias`."""

from __future__ import annotations

ROOT, EXTENSION = "transformer_engine", "transformer_engine_torch"
VERSION = "2.20.0.dev0"  # of the library whose interface and numerics are emulated
PYTORCH = f"{ROOT}.pytorch"
CUSTOM = f"{PYTORCH}.custom_recipes"
TENSOR = f"{PYTORCH}.tensor"
STORAGE = f"{TENSOR}.storage"

# Names that are modules of this layer under another path.
SAME: dict[str, str] = {
    f"{ROOT}.common.recipe": "recipe",
    f"{PYTORCH}.quantization": "quantization",
    f"{PYTORCH}.fp8": "quantization",
    f"{PYTORCH}.utils": "helpers",
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
    PYTORCH: (
        ":*",
        "attention.backends: FusedMLAQUpProjRopeQuant",
        "helpers: torch_version is_bf16_available get_cudnn_version",
        "quantization: get_default_fp8_recipe DelayedScalingRequest QuantizerRequest QuantizerRole",
        "recipe: quantizer_factory quantizer_policy",
        "storage: QuantizedTensorStorage",
    ),
    f"{PYTORCH}.module": (
        ":Fp8Padding Fp8Unpadding GroupedLinear LayerNorm LayerNormLinear LayerNormMLP Linear RMSNorm",
        "module.grouped_linear: is_module_grouped_tensor_path_supported",
    ),
    f"{PYTORCH}.module.layernorm": (":LayerNorm",),
    f"{PYTORCH}.module.rmsnorm": (":RMSNorm",),
    f"{PYTORCH}.constants": ("dtypes:*", "attention.masks: AttnMaskTypes"),
    f"{PYTORCH}.cpp_extensions": (
        "gemm:*",
        "grouped_gemm: general_grouped_gemm general_grouped_gemm_for_grouped_tensor",
        "swizzle: swizzle_scales_for_gemm_",
        "cast: quantize dequantize",
        "module.normalization: layernorm_bwd layernorm_fwd rmsnorm_bwd rmsnorm_fwd",
    ),
    f"{PYTORCH}.quantized_tensor": (
        "tensor: QuantizedTensor",
        "storage: QuantizedTensorStorage prepare_for_saving restore_from_func_ctx restore_from_saved",
        "quantizer: Quantizer",
    ),
    CUSTOM: (),
    f"{CUSTOM}.reference_nvfp4": (
        "reference: NVFP4QuantizerRef NVFP4TensorRef nvfp4_ref_rht_2d_factory nvfp4_ref_rht_2d_quantizer_factory",
    ),
    f"{CUSTOM}.reference_current_scaling": (
        "reference_current: CurrentScalingQuantizerRef CurrentScalingTensorRef current_scaling_ref_factory",
    ),
    f"{CUSTOM}.reference_utils": ("reference: Fp4Formats",),
    f"{CUSTOM}.gemm": ("reference: GEMMType MMParams",),
    TENSOR: (
        "__init__:*",
        "hybrid_quantizer: HybridQuantizer IdentityQuantizer",
        "hybrid_tensor: HybridQuantizedTensor",
        "identity_tensor: IdentityTensor",
        "master_weights: cast_master_weights_to_fp8 quantize_master_weights replace_raw_data",
        "storage: QuantizedTensorStorage restore_from_func_ctx",
    ),
    f"{TENSOR}.quantized_tensor": ("tensor: QuantizedTensor", "quantizer: Quantizer", "storage:*"),
    f"{TENSOR}.nvfp4_tensor": ("nvfp4_storage:*", "nvfp4_tensor:*", "nvfp4_quantizer:*", "hadamard:*"),
    f"{TENSOR}.mxfp8_tensor": ("mxfp8_tensor:*", "mxfp8_quantizer:*"),
    f"{TENSOR}.float8_tensor": ("float8_tensor:*", "float8_quantizer:*"),
    f"{TENSOR}.float8_blockwise_tensor": ("float8_block_tensor:*", "float8_block_quantizer:*"),
    f"{TENSOR}.utils": ("master_weights:*",),
    f"{TENSOR}.grouped_tensor": ("grouped_tensor: GroupedTensor",),
    STORAGE: (
        *("nvfp4_storage:*", "mxfp8_tensor:*", "float8_tensor:*", "float8_block_tensor:*"),
        "hybrid_tensor: HybridQuantizedTensorStorage",
        "identity_tensor: IdentityTensorStorage",
        "grouped_tensor: GroupedTensor",
    ),
    f"{STORAGE}.float8_blockwise_tensor_storage": ("float8_block_tensor: Float8BlockwiseQTensorStorage",),
    f"{STORAGE}.nvfp4_tensor_storage": ("nvfp4_storage: NVFP4TensorStorage",),
    f"{STORAGE}.mxfp8_tensor_storage": ("mxfp8_tensor: MXFP8TensorStorage",),
    f"{STORAGE}.float8_tensor_storage": ("float8_tensor: Float8TensorStorage",),
    f"{STORAGE}.grouped_tensor": ("grouped_tensor: GroupedTensor",),
    f"{STORAGE}.grouped_tensor_storage": ("grouped_tensor: GroupedTensor",),
    EXTENSION: (
        "cast: quantize dequantize",
        "delayed_scaling: FP8TensorMeta fused_amax_and_scale_update_after_reduction",
        "grouped: split_quantize group_quantize",
        "dtypes: DType FP8BwdTensors FP8FwdTensors",
        "gemm: generic_gemm",
        "helpers: get_cublasLt_version",
        "module.normalization: layernorm_bwd layernorm_fwd rmsnorm_bwd rmsnorm_fwd",
        "optimizers: multi_tensor_l2norm multi_tensor_scale",
        "swizzle: swizzle_scales_for_gemm_",
        "attention.backends: NVTE_Fused_Attn_Backend",
    ),
    f"{PYTORCH}.torch_version": ("helpers: torch_version",),
}
# Other names of the same modules.
RENAMED = {
    f"{CUSTOM}.quantization_nvfp4": f"{CUSTOM}.reference_nvfp4",
    f"{CUSTOM}.quantization_ref_nvfp4": f"{CUSTOM}.reference_nvfp4",
    f"{CUSTOM}.utils": f"{CUSTOM}.reference_utils",
    f"{CUSTOM}.quantization": f"{CUSTOM}.gemm",
    f"{PYTORCH}.experimental": CUSTOM,
    f"{PYTORCH}.experimental.quantization_nvfp4": f"{CUSTOM}.reference_nvfp4",
    f"{PYTORCH}.experimental.quantization_microblock_ref": f"{CUSTOM}.reference_nvfp4",
    f"{PYTORCH}.experimental.utils": f"{CUSTOM}.reference_utils",
    f"{PYTORCH}.experimental.quantization": f"{CUSTOM}.gemm",
    f"{PYTORCH}.float8_tensor": f"{TENSOR}.float8_tensor",
}
# Names of the package itself that are not emulated: they import, so that a file which uses some of them loads, and
# raise when they are used.
NOT_EMULATED = (
    "InferenceParams",
    *("CusolverMpCtx", "ManualOffloadSynchronizer", "UserBufferQuantizationMode"),
    *("deinterleave_glu_tensor", "destroy_ub", "initialize_ub", "interleave_glu_tensor"),
    *("newton_schulz", "onnx_export"),
    *(f"_make_{kind}_tensor_in_reduce_ex" for kind in ("float8", "mxfp8", "nvfp4", "float8_blockwise", "identity")),
    "_make_hybrid_quantized_tensor_in_reduce_ex",
)
# Names that one of our modules under another name (SAME) has besides its own, as in GATHERED.
BESIDES = {
    f"{PYTORCH}.quantization": ("delayed_scaling: _amax_and_scale_update _default_sf_compute",),
    f"{PYTORCH}.cpp_extensions.gemm": (
        "grouped_gemm: general_grouped_gemm general_grouped_gemm_for_grouped_tensor",
        "hybrid_tensor: _unwrap_tensor",
    ),
    f"{PYTORCH}.distributed": (
        "checkpoint: checkpoint activation_recompute_forward get_activation_recompute_contexts",
        "checkpoint: in_fp8_activation_recompute_phase is_fp8_activation_recompute_enabled",
        "random_states: CudaRNGStatesTracker get_all_rng_states set_all_rng_states",
    ),
}
# Packages that are not emulated at all: every submodule and every name of theirs imports, and raises when it is used.
ABSENT_PACKAGES = (
    f"{ROOT}.common.triton",
    f"{ROOT}.common.utils",
    f"{ROOT}.debug",
    *(
        f"{PYTORCH}.{name}"
        for name in (
            *("_extra_state", "attention", "cpu_offload", "cpu_offload_v1", "cross_entropy", "distributed_weight"),
            *("dynamo", "ep", "export", "fuser", "graph", "jit", "newton_schulz", "numerics_debug"),
            *("onnx_extensions", "ops", "optimizers", "permutation", "router", "transformer", "triton"),
            *("module._common", "module._split_quantization", "module.fp8_padding", "module.fp8_unpadding"),
        )
    ),
    f"{PYTORCH}.cpp_extensions.fused_attn",
    *(f"{CUSTOM}.{name}" for name in ("qdq", "quantizer_factories", "quantizer_factory_zoo")),
    *(f"{CUSTOM}.{name}" for name in ("quantization_recipes_base", "quantization_current_scaling")),
    *(f"{TENSOR}.{name}" for name in ("_quantization_helpers", "hybrid_tensor", "identity_tensor", "_internal")),
    *(f"{STORAGE}.{name}_storage" for name in ("hybrid_tensor", "identity_tensor")),
)
# The names that exist in packages that are otherwise absent; a module below one of these has them, too.
PRESENT_IN_ABSENT = {
    f"{PYTORCH}._extra_state": (
        "pickled_state: CheckpointExtraStatePolicy UNSAFE_PICKLE_EXTRA_STATE_ENV _RECIPE_POLICIES"
        " should_load_extra_state_pickle"
    ),
    f"{PYTORCH}.module.fp8_padding": "module.padding: Fp8Padding",
    f"{PYTORCH}.module.fp8_unpadding": "module.padding: Fp8Unpadding",
    f"{PYTORCH}.module._common": "quantizer: can_reconstruct_wgrad_input_from_original",
    f"{PYTORCH}.module._split_quantization": "grouped: _split_quantize validate_grouped_quantizer_list",
    f"{PYTORCH}.permutation": "permutation:*",
    f"{PYTORCH}.router": (
        "router: QBHistogramMode RoutingMapFormat fused_compute_score_for_moe_aux_loss fused_moe_aux_loss"
        " fused_topk_with_score_function"
    ),
    f"{PYTORCH}.cpu_offload": "offload:*",
    f"{PYTORCH}.cross_entropy": "cross_entropy: parallel_cross_entropy",
    f"{PYTORCH}.graph": "graph: make_graphed_callables",
    f"{PYTORCH}.cpu_offload_v1": "offload:*",
    f"{CUSTOM}.quantizer_factories": (
        "quantizer_factories: current_scaling_factory delayed_scaling_factory float8_block_scaling_factory"
        " high_precision_factory mxfp8_factory nvfp4_factory"
    ),
    f"{CUSTOM}.quantizer_factory_zoo": (
        "quantizer_factory_zoo: high_precision_fwd_mxfp8_bwd_factory mxfp8_fwd_nvfp4_bwd_factory"
        " nvfp4_1d_weight_factory mxfp8_fwd_high_precision_bwd_factory nvfp4_row_scaled_fwd_mxfp8_bwd_factory"
        " nvfp4_row_scaled_fwd_high_precision_bwd_factory"
    ),
    f"{TENSOR}.hybrid_tensor": "hybrid_quantizer: HybridQuantizer HybridQuantizedTensor HybridQuantizedTensorStorage",
    f"{TENSOR}.identity_tensor": "hybrid_quantizer: IdentityQuantizer IdentityTensor IdentityTensorStorage",
    f"{STORAGE}.hybrid_tensor_storage": "hybrid_tensor: HybridQuantizedTensorStorage",
    f"{STORAGE}.identity_tensor_storage": "identity_tensor: IdentityTensorStorage",
    f"{PYTORCH}.ops": "ops:*",
    f"{PYTORCH}.ops.op": "ops: BasicOperation FusibleOperation OperationContext",
    f"{PYTORCH}.ops.fused": (
        "ops.fused: BackwardActivationBias BackwardAddRMSNorm BackwardLinearAdd BackwardLinearScale"
        " ForwardLinearBiasActivation ForwardLinearBiasAdd ForwardLinearScaleAdd"
    ),
    f"{PYTORCH}.optimizers": "optimizers:*",
    f"{PYTORCH}.attention": "attention:*",
    f"{PYTORCH}.attention.dot_product_attention": (
        "attention.dot_product_attention: DotProductAttention _attention_backends"
    ),
    f"{PYTORCH}.attention.dot_product_attention.utils": (
        "attention.backends: AttentionLogging AttentionParams FlashAttentionUtils check_set_window_size"
        " get_attention_backend"
    ),
    f"{PYTORCH}.cpp_extensions.fused_attn": "attention.backends: FusedAttnBackend",
    f"{PYTORCH}.transformer": "transformer: TransformerLayer",
    f"{PYTORCH}.attention.rope": "attention: RotaryPositionEmbedding apply_rotary_pos_emb",
}
