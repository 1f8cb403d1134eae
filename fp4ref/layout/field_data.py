"""Orders of packed data in the field, as `SCALES` are: of codes, of bytes of codes, and of bits."""

from __future__ import annotations

from fp4ref.layout.origin import READ, RUN, TRANSCRIBED, Listed

REFUSED = "; pad n refused; pad k refused"

CODES = (
    Listed("ggml.mxfp4_data", "n(*) k(16,2,*): k1 k0 |34 k2 n0; unit 4; pad k refused; base 2", "ggml", RUN,
          "dequantize_row_mxfp4", "llama.cpp, GGUF files: MXFP4", "PACK-8"),
    Listed("ggml.nvfp4_data", "n(*) k(8,2,4,*): k1 k0 k2 |72 k3 n0; unit 4; pad k refused; base 8", "ggml", RUN,
          "dequantize_row_nvfp4", "llama.cpp, GGUF files: NVFP4", "PACK-8"),
    Listed("ggml.mxfp4x4_data", f"n(4,*) k(4,4,2,*): k2 k0 n0 k1 |136 k3 n1; unit 4{REFUSED}; base 8", "ggml", RUN,
          "repack.cpp make_block_mxfp4x4(4)", "ggml on a CPU, four rows at a time", "PACK-8"),
    Listed("ggml.mxfp4x8_data", f"n(8,*) k(8,2,2,*): k2 k0 n0 k1 |272 k3 n1; unit 4{REFUSED}; base 16", "ggml", RUN,
          "repack.cpp make_block_mxfp4x8(8)", "ggml on a CPU, eight rows at a time", "PACK-8"),
    Listed("vllm.marlin_fp4", f"n(8,2,4,*) k(2,4,2,*): k2 n1 k0 n2 k1 n0 n3 k3; unit 4{REFUSED}", "vllm", RUN,
          "marlin_weights, which equals gptq_marlin_repack", "Marlin FP4 with 16-bit activations", "PACK-8"),
    Listed("vllm.marlin_fp4_a8", f"n(8,2,2,*) k(4,4,2,*): k2 k0 n1 n2 k1 n0 n3 k3; unit 4{REFUSED}", "vllm", RUN,
          "marlin_weights(is_a_8bit=True)", "Marlin FP4 with FP8 activations", "PACK-9"),
    Listed("triton.hopper_value_before_bits",
          "n(2,4,2,*) k(2,4,2,4,*): k0 n2 k2 k3 k1 n0 k4 n1 n3; unit 4; pad n 256; pad k 128",
          "triton@000df03e", TRANSCRIBED,
          "HopperMXValueLayout, mx_axis -2, mma_version 3, without its step on bits; it takes [K, N]",
          "triton_kernels on SM90, before the step on bits", "PACK-9"),
    Listed("triton.blackwell_value_shuffled", "n(16,*) k(2,16,*): k0 k1 n0 n1 k2; unit 4; pad k 256", "triton@000df03e",
          TRANSCRIBED, "BlackwellMXValueShuffledLayout, block_k 32, block_n 16; it takes [K, N]",
          "triton_kernels on SM100; blocks are settings", "PACK-9"),
    Listed("triton.blackwell_value_packed_shuffled", "n(16,*) k(2,8,4,2,*): k0 k1 k3 k2 n0 n1 k4; unit 4",
          "triton@1b6f0172", TRANSCRIBED, "blackwell_value_packed_shuffled, block_k 64, block_n 16; it takes [K, N]",
          "triton_kernels on SM100; blocks are settings", "PACK-9"),
    Listed("cuda.tma_16u4_align16", "n(*) k(16,*): k0 |32 k1 n0; unit 4; pad k refused", "cuda", READ,
          "CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B: 8 bytes of codes, 8 of gap", "TMA loads of FP4", "PACK-9"),
    Listed("aiter.shuffle_weight_16x16", f"n(16,*) k(16,2,*): k0 n0 k1 k2 n1{REFUSED}", "aiter", RUN,
          "shuffle_weight(layout=(16, 16)), bytes", "aiter's GEMM and MoE", "PACK-9"),
    Listed("aiter.shuffle_weight_f4", f"n(16,*) k(16,*): k0 n0 k1 n1{REFUSED}", "aiter", RUN,
          "shuffle_weight_f4 = shuffle_mxfp8fp4_b, bytes", "aiter's FP4 GEMM on gfx1250", "PACK-9"),
    Listed("aiter.shuffle_mxfp8fp4_a", "m(2,*) k(128,*): k0 m0 k1 m1; pad m refused; pad k refused", "aiter", RUN,
          "shuffle_mxfp8fp4_a, bytes", "aiter's mixed GEMM on gfx1250, activations", "PACK-9"),
    Listed("trtllm.shuffle_a_32", "n(4,8,*) k(*): k0 n1 n0 n2; pad n refused", "flashinfer", RUN,
          "get_shuffle_matrix_a_row_indices, epilogue_tile_m 128", "TRT-LLM-gen GEMM and MoE, weights", "PACK-9"),
    Listed("trtllm.shuffle_a_16", "n(2,8,*) k(*): k0 n1 n0 n2; pad n refused", "flashinfer", RUN,
          "get_shuffle_matrix_a_row_indices, epilogue_tile_m 64", "TRT-LLM-gen GEMM and MoE, weights", "PACK-9"),
    Listed("trtllm.gated_rows", "n(*,2) k(*): k0 n1 n0; pad n refused", "flashinfer", RUN,
          "get_reorder_rows_for_gated_act_gemm_row_indices", "TRT-LLM-gen gated GEMM; gpt-oss as stored", "PACK-9"),
    Listed("trtllm.w3_w1_shuffle_32", "n(2,8,*,2) k(*): k0 n1 n3 n0 n2; pad n refused", "flashinfer", RUN,
          "fused_moe/core.py: gated rows, then the shuffle of 32", "TRT-LLM-gen gated MoE, first weights", "PACK-9"),
    Listed("cutedsl.gate_up_64", "n(64,*,2) k(*): k0 n0 n2 n1; pad n refused", "flashinfer", RUN,
          "_interleave_linear_and_gate(group_size=64)", "flashinfer's CuteDSL MoE", "PACK-9"),
    Listed("cutedsl.gate_up_16", "n(16,*,2) k(*): k0 n0 n2 n1; pad n refused", "flashinfer", RUN,
          "_interleave_linear_and_gate(group_size=16)", "flashinfer's MoE backends", "PACK-9"),
    Listed("trtllm.block_major_k", "n(*) k(128,*): k0 n0 k1; pad k refused", "flashinfer", RUN,
          "convert_to_block_layout(blockK=128), bytes", "TRT-LLM-gen MoE, weights", "PACK-9"),
)  # fmt: skip
# Where a bit of eight codes of 4 bits is stored in a word of 32: sign and mantissa part ways.
BITS_OF_BF16 = "table 6,7,8,15,22,23,24,31,3,4,5,12,19,20,21,28,0,1,2,9,16,17,18,25,13,10,11,14,29,26,27,30"
BITS_OF_FP8 = "table 0,1,2,7,4,5,6,15,8,9,10,23,12,13,14,31,16,17,18,3,20,21,22,11,24,25,26,19,28,29,30,27"
OTHER_DATA = (
    Listed("flashinfer.sm90_fp4_bf16_bits",
          f"n(8,2,*) k(2,4,2,2,2,*) q(4,*): q0 k0 n1 k2 k1 k4 k5 n0 k3 n2 q1; unit 1{REFUSED}; pad q refused; "
          + BITS_OF_BF16, "flashinfer", RUN, "interleave_fp4_weights_for_sm90_mixed_gemm; q is the bit of a code",
          "mixed-input MoE GEMM on SM90, bfloat16 activations"),
    Listed("flashinfer.sm90_fp4_fp8_bits",
          f"n(8,2,*) k(4,4,2,2,*) q(4,*): q0 k0 n1 k1 k3 k4 n0 k2 n2 q1; unit 1{REFUSED}; pad q refused; "
          + BITS_OF_FP8, "flashinfer", RUN, "interleave_fp4_fp8_weights_for_sm90; q is the bit of a code",
          "mixed-input MoE GEMM on SM90, FP8 activations"),
    Listed("triton.hopper_value_bits",
          "n(2,4,2,*) k(2,4,2,4,*) q(4,*): q0 k0 n2 k2 k3 k1 n0 k4 n1 n3 q1; unit 1; pad n 256; pad k 128; "
          "pad q refused; " + BITS_OF_BF16, "triton@000df03e", TRANSCRIBED,
          "HopperMXValueLayout, mx_axis -2, mma_version 3; it takes [K, N]; q is the bit of a code",
          "triton_kernels on SM90"),
    Listed("aiter.shuffle_weight_a16w4", f"e(*) n(16,*) k(16,4,*): k0 n0 k1 k2 n1 e0{REFUSED}", "aiter", RUN,
          "shuffle_weight_a16w4(NLane=16, gate_up=False), bytes", "aiter's a16w4 MoE, second weights"),
    Listed("aiter.shuffle_weight_a16w4_gate_up", f"e(*) n(16,*,2) k(16,4,*): k0 n0 k1 k2 n2 n1 e0{REFUSED}", "aiter",
          RUN, "shuffle_weight_a16w4(NLane=16, gate_up=True), bytes", "aiter's a16w4 MoE, gate and up"),
    Listed("cuda.tma_16u6_align16", "n(*) k(16,*) q(6,*): q0 k0 |128 k1 n0 q1; unit 1; pad k refused; pad q refused",
          "cuda", READ, "CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B: 12 bytes of codes, 4 of gap; q is the bit of a code",
          "TMA loads of FP6 for mixed inputs"),
)  # fmt: skip
