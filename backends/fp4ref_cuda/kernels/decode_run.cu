// Dequantize 8-bit codes to a 16-bit type, of whole blocks with linear scales: one run, whatever its lines.
//
//   data    uint8  [count], count a multiple of 32, 16 bytes apart
//   scales  uint8  [count / 32]
//   out     Out    [count], 16 bytes apart
//
// S, In (the type that was quantized), Out and LARGE (values that no cache holds) come before this file. A warp takes
// two pieces of 256 codes, or four, a lane 8 of each: what a warp stores at once lies side by side.
// Certificates: dequantize-mxfp8-*.
#include "decoders.cuh"

constexpr int PIECES = LARGE ? 4 : 2, PIECE = 256;

// Bytes of a large run, which the second-level cache gives up last: so it writes values in a steady stream, instead of
// reading and writing by turns. In a small one they would drive out the values that the next kernel reads.
#if __CUDA_ARCH__ >= 800
DEVICE uint2 read(const uint2* from)
{
    if (!LARGE) return __ldg(from);
    uint2 v;
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
        : "=r"(v.x), "=r"(v.y) : "l"(from), "l"(given_up_last()));
    return v;
}
DEVICE unsigned read(const byte* from)
{
    if (!LARGE) return *from;
    unsigned v;
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.u8 %0, [%1], %2;" : "=r"(v) : "l"(from), "l"(given_up_last()));
    return v;
}
#else
template <class T> DEVICE T read(const T* from) { return *from; }
#endif

extern "C" __global__ void __launch_bounds__(THREADS, LARGE ? 5 : 8) decode_run(
    const byte* __restrict__ data, const byte* __restrict__ scales, index_t count, word* __restrict__ out)
{
    wait_for_previous_kernel();
    const index_t warp = (index_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const index_t first = warp * (PIECES * PIECE) + threadIdx.x % 32 * 8;
    const auto codes_at = [&](index_t at) { return (const D::codes*)(data + at); };
    const auto byte_at = [&](index_t at) { return (unsigned)read(scales + at / S::columns); };
    D::codes codes[PIECES];
    unsigned bytes[PIECES];
    UNROLL
    for (int i = 0; i < PIECES; ++i) codes[i] = first + i * PIECE < count ? read(codes_at(first + i * PIECE)) : D::codes{};
    UNROLL
    for (int i = 0; i < PIECES; ++i) bytes[i] = first + i * PIECE < count ? byte_at(first + i * PIECE) : 0;

    unsigned plain = 0;  // bits of pieces
    UNROLL
    for (int i = 0; i < PIECES; ++i) {
        if (first + i * PIECE >= count) continue;
        plain |= (unsigned)D::plain(codes[i], bytes[i], nullptr) << i;
        *(uint4*)(out + first + i * PIECE) = D::values(codes[i], bytes[i], nullptr);
    }
    if (!plain) return;
    _Pragma("unroll 1")
    for (int i = 0; i < PIECES; ++i) {  // read again: rare, and short in registers
        const index_t at = first + i * PIECE;
        if (plain >> i & 1u) *(uint4*)(out + at) = decoded_plainly(*codes_at(at), byte_at(at), 0.0f);
    }
}
