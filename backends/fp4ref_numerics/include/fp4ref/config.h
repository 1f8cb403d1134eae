// What every function starts with, and what the compiler must promise. No header of any library is included.
// Rules: NUM-1.
#pragma once

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "fp4ref: compiled with fast-math; every operation must be one IEEE float32 operation [NUM-1]"
#endif
#if defined(__CUDACC__) && (defined(__CUDA_FTZ) && __CUDA_FTZ || defined(__CUDA_PREC_DIV) && !__CUDA_PREC_DIV)
#error "fp4ref: compiled with --use_fast_math, -ftz or imprecise division; subnormals must be kept [NUM-1]"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__
#error "fp4ref: float operations are evaluated in a wider type; use SSE arithmetic [NUM-1]"
#endif
#if defined(__clang__) && !defined(__CUDACC__)
#pragma clang fp contract(off)
#elif defined(__GNUC__) && !defined(__CUDACC__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA)) && !defined(FP4_CONTRACTION_IS_OFF)
#error "fp4ref: GCC contracts a * b + c on this target: compile with -ffp-contract=off -DFP4_CONTRACTION_IS_OFF [NUM-1]"
#endif

#if defined(__CUDACC_RTC__)
#define FP4_API static __device__ __forceinline__
#elif defined(__CUDACC__)
#define FP4_API static __host__ __device__ __forceinline__
#else
#define FP4_API static inline __attribute__((always_inline))
#endif

// Arrays indexed by a loop stay in registers only when the loop is unrolled; host compilers decide for themselves.
#if defined(__CUDACC__)
#define FP4_UNROLL _Pragma("unroll")
#else
#define FP4_UNROLL
#endif

// Whether the target converts to E2M1 by an instruction; FP4_SOFTWARE_E2M1 asks for the software path all the same.
#if !defined(FP4_SOFTWARE_E2M1) && (defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) \
    || defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL))
#define FP4_NATIVE_E2M1 1
#else
#define FP4_NATIVE_E2M1 0
#endif

// The same for 8-bit formats.
#if !defined(FP4_SOFTWARE_FP8) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define FP4_NATIVE_FP8 1
#else
#define FP4_NATIVE_FP8 0
#endif

// Whether the target has the approximate reciprocal as an instruction; all of CUDA's do.
#if !defined(FP4_SOFTWARE_RECIPROCAL) && defined(__CUDA_ARCH__)
#define FP4_NATIVE_RECIPROCAL 1
#else
#define FP4_NATIVE_RECIPROCAL 0
#endif
