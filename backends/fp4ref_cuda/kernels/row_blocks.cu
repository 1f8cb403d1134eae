// Quantize rows of 16-bit floats in blocks of 16 to E2M1 by the plain numerics: stochastic, searched, scaled by row, or
// of float16.
//
//   x       In        [rows, columns], fewer than 2^31 each, columns a multiple of 8, rows 16 bytes apart
//   amax    float32   [parts] partial maxima, and amax_out gets their maximum; or one per row, for a row scale
//   bits    uint8     [rows, columns], 16 bytes apart, for stochastic rounding
//   data    uint8     [rows, columns / 2]
//   scales  uint8     in Layout, padding written as zero
//
// S, In, Layout, WARPS and SEARCHED (amax was, by the kernel before this one) come before this file. The units and their
// way through shared memory are those of `rows`; random bytes take it too. A lane takes a block of every row.
// Certificates: row-blocks-bfloat16, drawn-rows-bfloat16, quantize-nvfp4-float16.
#include "blocks.cuh"
#include "units.cuh"

constexpr bool STOCHASTIC = S::Element::stochastic, BY_ROW = S::global == fp4ref::Global::row;
constexpr int OF_ROW = LINE + (STOCHASTIC ? WIDTH : 0), STEP = 2 * OF_ROW, STAGES = 2, OF_WARP = STAGES * STEP;
// Searches by estimates, under scales whose bytes are looked up, and codes by thresholds.
constexpr bool BFLOAT16 = fp4ref::same_type<In, fp4ref::bfloat16>;
constexpr bool THRESHOLDS = BFLOAT16 && !BY_ROW && fp4ref::estimates_apply<S, typename S::Search>
    && fp4ref::same_type<typename S::Scale, fp4ref::hardware_e4m3> && fp4ref::same_type<S::Element, fp4ref::hardware_e2m1>
    && (fp4ref::same_type<S::Arithmetic, fp4ref::arithmetic::te> || fp4ref::same_type<S::Arithmetic, fp4ref::arithmetic::te_division>);

constexpr unsigned QUICK[2] = {(127 - 60) << 7, (127 + 120) << 7};  // patterns of 2^-60 and 2^120

#if FP4_NATIVE_E2M1
constexpr bool NATIVE = fp4ref::same_type<S::Element, fp4ref::hardware_e2m1>;
#else
constexpr bool NATIVE = false;
#endif

struct Words {
    unsigned word[8];
    __device__ __forceinline__ float operator[](int i) const
    {
        if constexpr (BFLOAT16) return fp4ref::float_of(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
        return In::widen((In::word)(word[i / 2] >> 16 * (i % 2)));
    }
};

// The same of finite words, by the device's conversion: exact, but for a NaN's sign. Certificates: quantize-*-float16.
struct FiniteWords {
    const Words& of;
    __device__ __forceinline__ float operator[](int i) const
    {
#if defined(__CUDA_ARCH__)
        if constexpr (fp4ref::same_type<In, fp4ref::float16>) {
            float x;
            const unsigned short w = (unsigned short)(of.word[i / 2] >> 16 * (i % 2));
            asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(w));
            return x;
        }
#endif
        return of[i];
    }
};

// The largest magnitude of a block, and whether all are finite.
DEVICE float block_amax(const Words& x, bool& finite)
{
    unsigned two = 0, amax = 0;
    UNROLL
    for (int k = 0; k < 8; k += 2) two = __vimax3_u16x2(two, x.word[k] & 0x7fff7fffu, x.word[k + 1] & 0x7fff7fffu);
    const unsigned largest = fp4ref::larger(two & 0xffffu, two >> 16);
    finite = largest < (BFLOAT16 ? 0x7f80u : 0x7c00u);
    if (finite) return In::widen((In::word)largest);
    UNROLL
    for (int i = 0; i < 16; ++i) amax = fp4ref::running_amax<S::block_keeps_nan>(amax, fp4ref::magnitude_bits(x[i]));
    return fp4ref::float_of(amax);
}

// The scale of a block.
DEVICE fp4ref::Scale scale_of(const Words& x, float amax, float g, float A)
{
    return fp4ref::choose_between<S, In>(amax, g, [&](const auto& candidate) {
        const auto magnitude = [&](int c) { return fp4ref::magnitude(x[c]); };
        const float row[1] = {fp4ref::quick_over_constant(A) ? fp4ref::row_error<S, In, true>(candidate, g, A, magnitude)
            : fp4ref::row_error<S, In, false>(candidate, g, A, magnitude)};
        return fp4ref::block_error<S>(row);
    });
}

// What a scale byte means under the global scale, what q = 1 dequantizes to, and where codes begin.
struct alignas(16) Meaning {
    float factor, unit;
    thresholds::Entry entry;
};
constexpr int TABLE = THRESHOLDS ? 128 * sizeof(Meaning) : 0;
template <class T> DEVICE Meaning meaning(unsigned byte, float g, float A)
{
    if constexpr (!THRESHOLDS) return {};
    else {
        const float s = T::Scale::decode(byte), factor = T::Arithmetic::template factor<T, In>(s, g);
        return {factor, fp4ref::estimate_unit<T>(s, g, A), thresholds::entry<T>(byte, g)};
    }
}

// The byte of the scale that a search by estimates chooses, whose sums may be fused: they are nearer to the exact ones than
// the margin asks for. Result: whether they decide. The maximum is 0 or in [2^-60, 2^120]. Certificates: estimate-*.
template <class T> DEVICE bool estimated_byte(
    const unsigned (&magnitudes)[8], float amax, float g, const Meaning* table, unsigned& byte)
{
    const float before = fp4ref::quick_block_scale<T, In>(amax, g);
    const unsigned bytes = fp4ref::encode_pair<typename T::Scale>(before, before * 1.5f) & 0x7f7fu;
    const unsigned of[2] = {bytes & 255u, bytes >> 8};
    unsigned up[2];
    float factor[2], unit[2], sum[2];
    UNROLL
    for (int k = 0; k < 2; ++k) {
        const float2 pair = *(const float2*)&table[of[k]];
        factor[k] = pair.x, unit[k] = pair.y, up[k] = T::Element::binades_up(pair.y);
    }
    UNROLL
    for (int c = 0; c < 16; ++c) {
        const float x = fp4ref::float_of(c % 2 ? magnitudes[c / 2] & 0xffff0000u : magnitudes[c / 2] << 16);
        UNROLL
        for (int k = 0; k < 2; ++k) {
            const float q = T::Element::nearest_or_tied(x, factor[k], up[k]);
            const float d = __fmaf_rn(q, unit[k], -x);
            if constexpr (T::Search::metric == fp4ref::Metric::mse) sum[k] = c ? __fmaf_rn(d, d, sum[k]) : d * d;
            else sum[k] = c ? sum[k] + fp4ref::magnitude(d) : fp4ref::magnitude(d);
        }
    }
    byte = sum[1] < sum[0] ? of[1] : of[0];
    const auto narrow = [&](int k) { return fp4ref::is_narrow<T, In>(amax, {of[k], 0.0f, factor[k]}); };
    return (of[0] == of[1]) | (narrow(0) & narrow(1) & fp4ref::estimates_decide<T>(sum[0], sum[1], unit[0], unit[1]));
}

// Bytes 0 of four words.
DEVICE unsigned low_bytes(const unsigned (&of)[4])
{
    return __byte_perm(__byte_perm(of[0], of[1], 0x0040), __byte_perm(of[2], of[3], 0x0040), 0x5410);
}

// Codes of a block by a search by estimates and by thresholds, for a maximum below the pattern `beyond`. Result: 0
// where one of them does not do.
template <class T> DEVICE unsigned searched_codes(
    const Words& x, float g, unsigned beyond, const Meaning* table, uint2& codes, unsigned& scale_byte)
{
    if constexpr (!THRESHOLDS) return 0;
    else {
        unsigned pairs[8], magnitudes[8], minus_zero = thresholds::MINUS_ZERO;
        KEEP(minus_zero);
        UNROLL
        for (int k = 0; k < 8; ++k) {
            const int w = k / 4 * 4 + k % 4 / 2;
            pairs[k] = __byte_perm(x.word[w], x.word[w + 2], k % 2 ? 0x7632 : 0x5410);
            magnitudes[k] = thresholds::magnitudes_of(pairs[k], minus_zero);
        }
        const unsigned largest = thresholds::largest(magnitudes);
        const float amax = In::widen(largest);
        if (largest >= beyond || (largest < QUICK[0] && largest)) return 0;
        if (!estimated_byte<T>(magnitudes, amax, g, table, scale_byte)) return 0;
        const thresholds::Entry entry = table[scale_byte].entry;
        codes = packed_block(pairs, magnitudes, entry);
        return largest ? entry.ramp : 1;
    }
}

// Codes of a block, the lower and the upper eight.
DEVICE uint2 block_codes(const Words& x, const uint4& drawn, float g, float A, unsigned beyond, const Meaning* table,
    unsigned& scale_byte)
{
    uint2 codes;
    if (searched_codes<S>(x, g, beyond, table, codes, scale_byte)) return codes;
    bool finite;
    const float amax = block_amax(x, finite);
    const fp4ref::Scale scale = scale_of(x, amax, g, A);
    scale_byte = scale.byte;
    const unsigned random[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    const auto bits = [&](int i) { return random[i / 4] >> 8 * (i % 4) & 255u; };
    unsigned pairs[8];
    if (!NATIVE && finite && fp4ref::is_narrow<S, In>(amax, scale)) {
        const FiniteWords y = {x};
        UNROLL
        for (int i = 0; i < 16; i += 2) pairs[i / 2] = fp4ref::encode_narrow<S, In>(y[i], scale, bits(i))
            + (fp4ref::encode_narrow<S, In>(y[i + 1], scale, bits(i + 1)) << 4);
    } else {
        UNROLL
        for (int i = 0; i < 16; i += 2) pairs[i / 2] = fp4ref::encode_pair<S::Element>(
            fp4ref::scaled<S, In>(x[i], scale, g), fp4ref::scaled<S, In>(x[i + 1], scale, g), bits(i), bits(i + 1));
    }
    return {low_bytes(*(const unsigned(*)[4])pairs), low_bytes(*(const unsigned(*)[4])(pairs + 4))};
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) row_blocks(
    const byte* __restrict__ x, index_t row_count, index_t column_count, index_t unit_count, index_t strips,
    index_t factor, index_t shift, const float* amax, index_t parts, float* amax_out, const byte* __restrict__ bits,
    byte* __restrict__ data, byte* __restrict__ scales, const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = gridDim.x * WARPS;
    const unsigned rows = (unsigned)row_count, columns = (unsigned)column_count, units = (unsigned)unit_count;
    const unsigned pitch = columns * 2, half = columns / 2, blocks = (columns + 15) / 16;
    const Divisor of_strips = {(unsigned)strips, (unsigned)factor, (unsigned)shift};
    const bool whole = columns % 16 == 0;

    // The first of a unit's rows, and the column of a unit.
    const auto place = [&](unsigned index, unsigned& column) {
        if (SEARCHED) index = units - 1 - index;  // the pass for the maximum left the end of x in the cache
        const unsigned line = of_strips.quotient(index);
        column = (index - line * of_strips.divisor) * WIDTH;
        return line / 32 * 128 + line % 32;
    };
    // The two vectors of every second quad of blocks change places: no two lanes of a quarter of a warp meet in a bank.
    byte* const mine = memory + TABLE + warp * OF_WARP;
    const unsigned stage = to_shared(mine), to_vector = stage + (lane ^ (lane >> 3 & 1)) * 16;
    const size band = (size)pitch * 32, bits_band = (size)columns * 32;
    // A unit's first row and column, where a lane copies from, and how many rows there are from the next one on: for its
    // first vector, its second one, and its random bytes; none past the last unit.
    struct Unit {
        unsigned row, column;
        const byte *from, *bits;
        int left, left_second, left_bits;
    };
    const auto unit = [&](unsigned index) {
        unsigned column;
        const unsigned row = place(index, column), at = column + lane * 8, bits_at = column + lane * 16;
        const int left = index < units ? rows - row : 0;
        return Unit{row, column, x + ((size)row * pitch + at * 2), bits + ((size)row * columns + bits_at),
            at < columns ? left : 0, at + WIDTH / 2 < columns ? left : 0, bits_at < columns ? left : 0};
    };
    // Half of a unit: two of its rows.
    const auto load = [&](Unit& of, unsigned step) {
        UNROLL
        for (int i = 0; i < 2; ++i) {
            const unsigned to = step * STEP + i * OF_ROW;
            copy_to_shared(to_vector + to, of.from, of.left > i * 32);
            copy_to_shared(to_vector + to + LINE / 2, of.from + LINE / 2, of.left_second > i * 32);
            of.from += band;
            KEEP_ADDRESS(of.from);
            if constexpr (STOCHASTIC) {
                copy_to_shared(stage + to + LINE + lane * 16, of.bits, of.left_bits > i * 32);
                of.bits += bits_band;
            }
        }
        of.left -= 64, of.left_second -= 64, of.left_bits -= 64;
        commit_copies();
    };

    const unsigned first = blockIdx.x + warp * gridDim.x;
    Unit next = unit(first);
    if (!SEARCHED) {  // else x was there before that one
        const unsigned row = next.row + lane / 8 * 32, at = next.column * 2 + lane % 8 * 128;  // a lane for a line
        if (first < units && row < rows && at < pitch) fetch(x + ((size)row * pitch + at));
        wait_for_previous_kernel();
    }
    UNROLL
    for (unsigned step = 0; step < STAGES; ++step) load(next, step);
    if (SEARCHED) wait_for_previous_kernel();
    if (noop && *noop) return;
    float A = 0.0f, g = 1.0f;
    if constexpr (!BY_ROW) {
        A = amax_of_parts<WARPS * 32>(amax, parts), g = fp4ref::global_scale<S, In>(A);
        if (blockIdx.x == 0 && threadIdx.x == 0) *amax_out = A;
    }

    Meaning* const table = (Meaning*)memory;
    if constexpr (THRESHOLDS) {
        if (threadIdx.x < 128) table[threadIdx.x] = meaning<S>(threadIdx.x, g, A);
        __syncthreads();
    }
    // Where a lane's block lies in shared memory: the vector of its lower half, 16 bytes from that of the upper one.
    unsigned block_at = TABLE + warp * OF_WARP + (lane * 32 | (lane >> 2 & 1) * 16);
    unsigned beyond = fp4ref::quick_over_constant(A) ? QUICK[1] + 1 : 0;
    KEEP(block_at);
    KEEP(beyond);
    _Pragma("unroll 1")
    for (unsigned index = first; index < units; index += all) {
        const unsigned row = next.row, mine_first = next.column + lane * 16, quad = next.column / 64 + lane / 4;
        const unsigned left = mine_first < columns ? columns - mine_first : 0;
        next = unit(index + all);
        unsigned four = 0, turn = 0;
        int lines = left ? rows - row : 0;  // that are inside
        byte* to = data + ((size)row * half + mine_first / 2);
        KEEP_ADDRESS(to);
        _Pragma("unroll 1")
        for (unsigned step = 0; step < STAGES; ++step) {
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            _Pragma("unroll 1")
            do {
                const unsigned at = block_at + turn * OF_ROW;
                const uint4 a = *(const uint4*)(memory + at), b = *(const uint4*)(memory + (at ^ 16));
                uint4 drawn = {0, 0, 0, 0};
                if constexpr (STOCHASTIC) drawn = *(const uint4*)(mine + turn * OF_ROW + LINE + lane * 16);
                const bool inside = lines > 0;
                if constexpr (BY_ROW) A = inside ? amax[row + turn * 32] : 0.0f, g = fp4ref::global_scale<S, In>(A);
                unsigned scale;
                const uint2 codes = block_codes({{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}}, drawn, g, A, beyond, table, scale);
                four = __byte_perm(four, inside ? scale : 0, 0x4321);
                if (inside) {
                    if (whole) *(uint2*)to = codes;
                    else store_words(to, codes, left);
                }
                to += (size)half * 32, lines -= 32;
            } while (++turn % 2);
            __syncwarp();
            load(next, step);
        }
        store_scales(scales, transposed(four, lane), row, lane % 4, quad, rows, blocks);
    }
}
