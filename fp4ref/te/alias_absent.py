"""Names of the emulated library, in modules that are emulated, that are not: they import, and raise when they are used.

Tables, read by `alias`; `alias_names` lists packages that are absent as a whole.
"""

from __future__ import annotations

from fp4ref.te.alias_names import CUSTOM, EXTENSION, NOT_EMULATED, PYTORCH, ROOT, STORAGE, TENSOR

_TENSORS = ("GroupedTensorStorage",)
# Functions of the compiled extension.
_COMPILED = """
CommOverlap CommOverlapHelper CommOverlapP2P bgrad_group_quantize bgrad_quantize bulk_allocate
bulk_overlap_ag_with_external_gemm clamped_dswiglu clamped_swiglu compute_amax convert_bshd_to_thd convert_thd_to_bshd
copy_data_ptrs_to_device copy_to_kv_cache create_empty_quantized_tensor create_nvshmem_tensor cusolvermp_ctx_create
cusolvermp_ctx_destroy dbias_dgelu dbias_dqgelu dbias_drelu dbias_dsilu dbias_dsrelu dgeglu dgelu dglu dqgeglu dqgelu
dreglu drelu dropout_bwd dropout_fwd dsilu dsituglu dsreglu dsrelu dswiglu fa_prepare_bwd fa_prepare_fwd
fp8_block_scaling_compute_partial_amax fp8_block_scaling_partial_cast fp8_transpose fused_attn_bwd fused_attn_fwd
fused_moe_aux_loss_bwd fused_moe_aux_loss_fwd fused_moe_aux_loss_fwd_graph_safe fused_multi_row_padding
fused_multi_row_unpadding fused_qkv_rope_backward fused_qkv_rope_forward fused_rope_backward fused_rope_forward
fused_score_for_moe_aux_loss_bwd fused_score_for_moe_aux_loss_fwd fused_topk_with_score_function_bwd
fused_topk_with_score_function_fwd fused_topk_with_score_function_qb_fwd geglu gelu get_cudnn_version
get_fused_attn_backend get_grouped_gemm_setup_workspace_size get_num_cublas_streams glu group_dequantize
group_requantize_inplace grouped_mlp_experimental grouped_swizzle_for_gemm init_nvshmem_backend moe_permute_bwd
moe_permute_fwd moe_unpermute_bwd moe_unpermute_fwd multi_tensor_adam multi_tensor_adam_capturable
multi_tensor_adam_capturable_master multi_tensor_adam_fp8 multi_tensor_adam_param_remainder
multi_tensor_compute_scale_and_scale_inv multi_tensor_compute_scale_inv_e8m0 multi_tensor_pad_last_dim
multi_tensor_quantize multi_tensor_scale_tensor multi_tensor_sgd multi_tensor_swizzle_scales_for_gemm_
multi_tensor_swizzle_scales_for_gemm_unchecked_ multi_tensor_transpose_to_bhsd multi_tensor_unscale_l2norm
mxfp8_scaling_compute_partial_amax mxfp8_scaling_partial_cast newton_schulz nvfp4_2d_compute_partial_amax
nvfp4_2d_multi_tensor_transpose nvfp4_2d_partial_cast nvfp4_2d_scale_transpose nvfp4_compute_global_scale
nvfp4_compute_per_block_scale nvfp4_data_transpose nvfp4_expand_scale_to_fp8 nvfp4_fused_scale
nvfp4_group_quantize_with_amax nvfp4_multi_tensor_2d_partial_cast nvfp4_multi_tensor_compute_partial_amax
nvfp4_multi_tensor_fused_scale nvfp4_quantize_with_amax nvshmem_finalize nvshmem_send_on_current_stream
nvshmem_wait_on_current_stream qgeglu qgelu reglu relu rmsnorm_bwd_add scaled_aligned_causal_masked_softmax_backward
scaled_aligned_causal_masked_softmax_forward scaled_clamped_dswiglu scaled_clamped_swiglu scaled_dsituglu scaled_dsrelu
scaled_dswiglu scaled_masked_softmax_backward scaled_masked_softmax_forward scaled_situglu scaled_softmax_backward
scaled_softmax_forward scaled_srelu scaled_swiglu scaled_upper_triang_masked_softmax_backward
scaled_upper_triang_masked_softmax_forward silu situglu splits_to_offsets splits_to_offsets_multi sreglu srelu
swap_first_dims swiglu te_general_grouped_gemm te_general_grouped_gemm_for_discrete_in
te_general_grouped_gemm_for_discrete_out te_general_grouped_gemm_for_grouped_tensor
thd_copy_valid_tokens_from_per_split_to_rank_local thd_cp_rank_order_to_sequence_order thd_get_partitioned_indices
thd_grad_correction thd_out_correction thd_read_half_tensor thd_read_second_half_lse thd_second_half_lse_correction
thd_sequence_order_to_cp_rank_order
"""
# Small functions of the module of helpers.
_HELPERS = """
all_close assert_viewless_tensor canonicalize_device canonicalize_dtype canonicalize_process_group ceil_div
combine_tensors compare_tensors deinterleave_glu_tensor devices_match ensure_divisibility get_cached_ones_tensor
get_sm_count interleave_glu_tensor mark_grouped_tensor needs_quantized_gemm print_rank_0
resolve_grouped_linear_single_param_flags safely_set_viewless_tensor_data split_tensor_along_dim
torch_get_autocast_gpu_dtype validate_ctx_manager validate_rng_states_func
"""
_DISTRIBUTED = """
_NVFP4AllGatherAsyncHandle gather_split_1d_tensor get_symmetric_memory_tensor get_te_classes graph_safe_rng_available
has_te_modules initialize_affine_weight_gpu is_graph_safe_rng_state prepare_te_modules_for_fsdp release_symm_mem_pool
set_tensor_model_parallel_attributes split_tensor_into_1d_equal_chunks symm_mem_alloc symmetric_all_reduce
symmetric_mem_cache use_reentrant_activation_recompute
"""
_OVERLAP = """
UserBufferQuantizationMode destroy_ub fill_userbuffers_buffer_for_all_gather get_ub get_ub_is_fp8 initialize_ub
is_ub_initialized layers_atomic_ring_exchange using_cublasmp_backend
"""
ABSENT: dict[str, tuple[str, ...]] = {
    ROOT: ("is_nccl_ep_available", "require_nccl_ep"),
    f"{ROOT}.common": (
        *(
            "_get_shared_object_file",
            "cuda_include_dir",
            "get_te_core_package_info",
            "load_framework_extension",
            "load_libs_for_no_ctk",
        ),
        "sanity_checks_for_pypi_installation",
    ),
    PYTORCH: (*NOT_EMULATED, "load_framework_extension"),
    f"{PYTORCH}.constants": ("AttnBiasTypes", "AttnTypes", "LayerTypes", "QKVLayouts", "dist_group_type"),
    f"{PYTORCH}.cpp_extensions.gemm": (
        *("_validate_native_gemm_output_quantizer", "get_cublas_workspace"),
        *("get_cublas_workspace_size_bytes", "get_grouped_gemm_setup_workspace_size", "validate_gemm_scale"),
    ),
    f"{PYTORCH}.distributed": tuple(_DISTRIBUTED.split()),
    f"{PYTORCH}.module": ("initialize_ub", "destroy_ub", "UserBufferQuantizationMode"),
    f"{PYTORCH}.module.base": tuple(_OVERLAP.split()),
    f"{PYTORCH}.module.grouped_linear": ("_GroupedLinear",),
    f"{PYTORCH}.module.layernorm_linear": ("_LayerNormLinear",),
    f"{PYTORCH}.module.layernorm_mlp": ("_LayerNormMLP",),
    f"{PYTORCH}.module.linear": ("LinearBwdArgs", "LinearFwdArgs", "TensorOrQuantized", "_Linear"),
    f"{PYTORCH}.quantization": ("get_fp8_max", "split_and_copy"),
    f"{PYTORCH}.quantized_tensor": ("InnerTensor",),
    f"{PYTORCH}.utils": tuple(_HELPERS.split()),
    f"{CUSTOM}.gemm": ("custom_gemm",),
    f"{CUSTOM}.reference_nvfp4": (
        *("cast_from_fp4x2", "cast_to_e4m3", "cast_to_e8", "cast_to_fp4x2", "get_wgrad_sign_vector"),
        "high_precision_gemm_ref",
    ),
    f"{CUSTOM}.reference_utils": ("HIGH_PRECISION_FLOAT_DTYPES", "roundup_div"),
    TENSOR: (*_TENSORS, "get_all_tensor_types"),
    f"{TENSOR}.grouped_tensor": ("BANNED_SHAPE_OPS",),
    f"{TENSOR}.nvfp4_tensor": ("get_no_random_sign_vector",),
    f"{TENSOR}.utils": ("clear_columnwise_cache", "is_custom"),
    STORAGE: _TENSORS,
    f"{STORAGE}.grouped_tensor_storage": ("GroupedTensorStorage",),
    EXTENSION: tuple(_COMPILED.split()),
}
