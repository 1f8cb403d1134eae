// d[m, n] = sum of A[m, k] * B[n, k], exact or block after block, and the steps after it.
//
//   data_*    uint8    [rows, ceil(K * bits / 8)]
//   scales_*  uint8    in Layout_A and Layout_B; padding is never used
//   amax_*    float32  [1], [rows] of row scaling; null without a global scale
//   alpha, factor      bits of float32; factor is what the maxima are divided by
//   bias      In       [N], or null
//   added     Out      [M, N], or null
//   out       Out      [M, N]
//
// A and B (specifications, of which formats, block width and kind of global scale count), Layout_A, Layout_B, In, Out, EXACT
// and WIDE (whether exact sums can leave 64 bits) come before this file. A block of threads makes 32 x 32 results, a thread
// four of them. Codes become integers by a table; a block's sum is an integer times a power of two, so that only what a
// mode says is rounded. Rules: GEM-1, GEM-2, GEM-3, GEM-4. Certificates: gemm-pairs-*, gemm-longest, gemm-order-*, gemm-ties,
// gemm-spreads-*, gemm-long-mx, product-*.
#include "common.cuh"
#include <fp4ref/products.h>

using namespace fp4ref::products;

constexpr int T = 32, W = A::columns, HALF = T / 2;
static_assert(W == B::columns && W % 16 == 0 && W <= 64 && THREADS == HALF * HALF && THREADS == 256, "the walk below");

// Elements as integers. `packed`: they fit 8 bits, and four are multiplied at once.
template <class S> struct Whole {
    using Format = typename S::Element::Format;
    using Of = Counted<S>;
    static constexpr bool complement = fp4ref::is_complement<typename S::Element>;
    static constexpr int bits = Of::template bits_of_grid<Format>() + complement;
    static constexpr bool packed = bits <= 7 + complement, finite = Format::bits == 4 && Format::codes == 8;
    using integer = choose<packed, signed char, choose<bits <= 31, int, size>>;

    static integer count(unsigned code)
    {
        const float x = S::Element::decode(code);
        return fp4ref::is_finite(x) ? (integer)(size)(x * fp4ref::power_of_two(-Of::template step<Format>())) : 0;
    }
};

constexpr bool PACKED = Whole<A>::packed && Whole<B>::packed, POWERS = Counted<A>::power;
constexpr int CHUNK = PACKED ? 256 : 64, BLOCKS = CHUNK / W, BASE = Counted<A>::unit + Counted<B>::unit;
constexpr int DOT_BITS = Whole<A>::bits + Whole<B>::bits + bits_of_count(W);
constexpr int BITS = DOT_BITS + Counted<A>::scale_bits() + Counted<B>::scale_bits();
static_assert(BITS <= 126, "a block's sum fits 128 bits");
using Dot = choose<DOT_BITS <= 31, int, choose<DOT_BITS <= 62, size, wide>>;
// Whether a block's sum and both scales have at most 24 significant bits together.
template <class Format> constexpr int significant()
{
    if constexpr (fp4ref::same_type<Format, fp4ref::e8m0>) return 0;
    else return Format::mantissa_bits + 1;
}
constexpr bool SHORT = !POWERS && DOT_BITS + significant<A::Scale::Format>() + significant<B::Scale::Format>() <= 24;
using Sum = choose<BITS <= 31, int, choose<BITS <= 62, size, wide>>;

// What a code of an operand is as an integer; of two packed codes of 4 bits, both, one in each byte.
template <class S> struct Table {
    static constexpr bool of_bytes = PACKED && S::Element::Format::bits == 4;
    using integer = choose<PACKED, signed char, choose<Whole<S>::bits <= 31, int, size>>;
    using entry_type = choose<of_bytes, unsigned short, integer>;
    entry_type entries[256];

    DEVICE entry_type made(unsigned byte)
    {
        constexpr unsigned codes = (1u << S::Element::Format::bits) - 1;
        const auto low = Whole<S>::count(byte & codes);
        if constexpr (of_bytes) return (entry_type)((unsigned char)low | (unsigned char)Whole<S>::count(byte >> 4) << 8);
        else return (entry_type)low;
    }
    __device__ integer of(unsigned code) const { return (integer)entries[code]; }
};

// Rows of an operand in shared memory: integers, and of each block the count of its scale, or its exponent.
template <class S> struct Panel {
    using integer = typename Table<S>::integer;
    static constexpr int PITCH = CHUNK + (PACKED ? 16 : 1);  // lines of neighbours lie in other banks
    alignas(16) integer counts[T][PITCH];
    int scales[T][BLOCKS];
    bool special[T];
    Table<S> table;
};

// An operand in memory.
template <class S, class Layout> struct Side {
    const byte* data;
    const byte* scales;
    index_t rows, depth, pitch, blocks;
    bool vectors;  // every block of codes of 4 bits begins at a multiple of 8 bytes

    DEVICE Side of(const byte* data, const byte* scales, index_t rows, index_t depth)
    {
        const index_t pitch = (depth * S::Element::Format::bits + 7) / 8;
        return {data, scales, rows, depth, pitch, (depth + W - 1) / W, aligned(data, pitch, 8)};
    }
    __device__ unsigned code(index_t row, index_t k) const { return code_of<S>(data + row * pitch, k); }
    __device__ unsigned scale_byte(index_t row, index_t block) const { return scales[Layout::offset(row, block, blocks, rows)]; }

    // The scale of a block as `Panel` holds it; 0 for one that is not finite.
    __device__ int scale(unsigned scale_byte) const
    {
        if constexpr (POWERS) {
            return (int)scale_byte;
        } else {
            constexpr int step = Counted<S>::template step<typename S::Scale::Format>();
            const float s = S::Scale::decode(scale_byte);
            return fp4ref::is_finite(s) ? (int)(s * fp4ref::power_of_two(-step)) : 0;
        }
    }
    __device__ float sign(index_t row, index_t k) const
    {
        return sign_of(S::Element::decode(code(row, k))) * sign_of(S::Scale::decode(scale_byte(row, k / W)));
    }

    // A whole block of codes of 4 bits: two are looked up at once.
    __device__ void load_packed(Panel<S>& to, int line, int first, const byte* from) const
    {
        UNROLL
        for (int i = 0; i < W; i += 16) {
            const uint2 codes = __ldg((const uint2*)(from + i / 2));
            const auto four = [&](unsigned two) {
                return (unsigned)to.table.entries[two & 255u] | (unsigned)to.table.entries[two >> 8 & 255u] << 16;
            };
            *(uint4*)((char*)to.counts[line] + first + i) = {four(codes.x), four(codes.x >> 16), four(codes.y), four(codes.y >> 16)};
        }
    }

    // Fills a panel with rows from `row` on and columns from `column` on; what lies outside the matrix is 0.
    __device__ void load(Panel<S>& to, index_t row, index_t column) const
    {
        const int line = threadIdx.x / 8;
        const bool inside = row + line < rows;
        bool special = false;
        for (int block = threadIdx.x % 8; block < BLOCKS; block += 8) {
            const index_t start = column + block * W;
            const bool there = inside && start < depth;
            const unsigned of_scale = there ? scale_byte(row + line, start / W) : 0;
            to.scales[line][block] = there ? scale(of_scale) : 0;
            special |= there && !fp4ref::is_finite(S::Scale::decode(of_scale));
            if (Table<S>::of_bytes && Whole<S>::finite && inside && start + W <= depth && vectors) {
                load_packed(to, line, block * W, data + (row + line) * pitch + start / 2);
                continue;
            }
            for (int i = 0; i < W; ++i) {
                const bool is_element = inside && start + i < depth;
                const unsigned of_element = is_element ? code(row + line, start + i) : 0;
                to.counts[line][block * W + i] = is_element ? to.table.of(of_element) : 0;
                if constexpr (!Whole<S>::finite) special |= is_element && !fp4ref::is_finite(S::Element::decode(of_element));
            }
        }
        if (special) to.special[line] = true;
    }
};

// Sums of a block's products: of two rows and two columns.
struct Dots {
    Dot of[2][2];
};

DEVICE Dots dots(const Panel<A>& a, const Panel<B>& b, int i, int j, int first)
{
    Dots sums = {};
    if constexpr (PACKED) {
        UNROLL
        for (int k = 0; k < W; k += 16) {
            uint4 x[2], y[2];
            UNROLL
            for (int p = 0; p < 2; ++p) {
                x[p] = *(const uint4*)(a.counts[i + p * HALF] + first + k);
                y[p] = *(const uint4*)(b.counts[j + p * HALF] + first + k);
            }
            UNROLL
            for (int pair = 0; pair < 4; ++pair) {
                const uint4 l = x[pair / 2], r = y[pair % 2];
                Dot& sum = sums.of[pair / 2][pair % 2];
                sum = __dp4a((int)l.x, (int)r.x, (int)sum);
                sum = __dp4a((int)l.y, (int)r.y, (int)sum);
                sum = __dp4a((int)l.z, (int)r.z, (int)sum);
                sum = __dp4a((int)l.w, (int)r.w, (int)sum);
            }
        }
    } else {
        UNROLL
        for (int k = 0; k < W; ++k) {
            const Dot x[2] = {a.counts[i][first + k], a.counts[i + HALF][first + k]};
            const Dot y[2] = {b.counts[j][first + k], b.counts[j + HALF][first + k]};
            UNROLL
            for (int pair = 0; pair < 4; ++pair) sums.of[pair / 2][pair % 2] += x[pair / 2] * y[pair % 2];
        }
    }
    return sums;
}

// A block's sum in units of 2^BASE and a power of two.
DEVICE Sum scaled(Dot dot, int of_a, int of_b)
{
    if constexpr (POWERS) return (Sum)dot;
    else if constexpr (DOT_BITS + Counted<A>::scale_bits() <= 31) return (Sum)((int)dot * of_a) * of_b;
    else return (Sum)dot * of_a * of_b;
}

// sum * 2^exponent, rounded once. Below 54 bits a double holds the sum, and its product with a power of two.
DEVICE float once(Sum sum, int exponent)
{
    if constexpr (BITS <= 53) return (float)((double)sum * __builtin_bit_cast(double, (unsigned long long)(exponent + 1023) << 52));
    else return rounded(sum, exponent);
}

// The same of a block; floats hold a product of few bits. Certificates: gemm-contributions.
DEVICE float contribution(Dot dot, int of_a, int of_b)
{
    if constexpr (SHORT) return (float)dot * ((float)of_a * (float)of_b) * fp4ref::power_of_two(BASE);
    else return once(scaled(dot, of_a, of_b), (POWERS ? of_a + of_b : 0) + BASE);
}

// The exact sums of a thread, in 64 bits or as wide as they can become.
template <bool Wide> struct Exact;
template <> struct Exact<false> {
    size total = 0;
    __device__ void add(Sum sum, int) { total += (size)sum; }
    __device__ float value() const { return rounded(total, BASE); }
};
template <> struct Exact<true> {
    Accumulator total = {};
    __device__ void add(Sum sum, int exponent) { if (sum) total.add(sum, exponent); }
    __device__ float value() { return total.rounded_with(BASE); }
};

using Left = Side<A, Layout_A>;
using Right = Side<B, Layout_B>;

// What IEEE arithmetic makes of some columns of two rows if only signs count; finite where all terms are.
DEVICE float signs(const Left& a, const Right& b, index_t m, index_t n, index_t start, index_t stop)
{
    float sum = 0;
    for (index_t k = start; k < stop && k < a.depth; ++k) sum += a.sign(m, k) * b.sign(n, k);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    const byte* __restrict__ data_a, const byte* __restrict__ scales_a, const float* __restrict__ amax_a,
    const byte* __restrict__ data_b, const byte* __restrict__ scales_b, const float* __restrict__ amax_b,
    index_t rows, index_t columns, index_t depth, index_t alpha, index_t factor, index_t division,
    const In::word* __restrict__ bias, const Out::word* __restrict__ added, Out::word* __restrict__ out)
{
    __shared__ Panel<A> panel_a;
    __shared__ Panel<B> panel_b;
    const Left a = Left::of(data_a, scales_a, rows, depth);
    const Right b = Right::of(data_b, scales_b, columns, depth);
    panel_a.table.entries[threadIdx.x] = Table<A>::made(threadIdx.x);
    panel_b.table.entries[threadIdx.x] = Table<B>::made(threadIdx.x);
    const index_t across = (columns + T - 1) / T, top = blockIdx.x / across * T, left = blockIdx.x % across * T;
    const int i0 = threadIdx.x / HALF, j0 = threadIdx.x % HALF;
    Exact<WIDE> exact[2][2];
    float sums[2][2] = {};  // exact: 0, or infinite or NaN
    wait_for_previous_kernel();
    for (index_t column = 0; column < depth; column += CHUNK) {
        if (threadIdx.x < T) panel_a.special[threadIdx.x] = panel_b.special[threadIdx.x] = false;
        __syncthreads();
        a.load(panel_a, top, column);
        b.load(panel_b, left, column);
        __syncthreads();
        bool special[2][2];
        UNROLL
        for (int pair = 0; pair < 4; ++pair)
            special[pair / 2][pair % 2] = panel_a.special[i0 + pair / 2 * HALF] || panel_b.special[j0 + pair % 2 * HALF];
        for (int block = 0; block < BLOCKS; ++block) {
            const index_t start = column + block * W;
            if (start >= depth) break;
            const Dots found = dots(panel_a, panel_b, i0, j0, block * W);
            UNROLL
            for (int pair = 0; pair < 4; ++pair) {
                const int p = pair / 2, q = pair % 2;
                const int of_a = panel_a.scales[i0 + p * HALF][block], of_b = panel_b.scales[j0 + q * HALF][block];
                if constexpr (EXACT) {
                    exact[p][q].add(scaled(found.of[p][q], of_a, of_b), POWERS ? of_a + of_b : 0);
                } else {
                    float part = contribution(found.of[p][q], of_a, of_b);
                    if (special[p][q]) {
                        const float s = signs(a, b, top + i0 + p * HALF, left + j0 + q * HALF, start, start + W);
                        part = fp4ref::is_finite(s) ? part : s;
                    }
                    sums[p][q] = sums[p][q] + part;
                }
            }
        }
        UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            const int p = pair / 2, q = pair % 2;
            if (EXACT && special[p][q]) {
                const float s = signs(a, b, top + i0 + p * HALF, left + j0 + q * HALF, column, column + CHUNK);
                if (!fp4ref::is_finite(s)) sums[p][q] = sums[p][q] + s;
            }
        }
        __syncthreads();
    }
    using Steps = Finishing<A, B>;
    const float total_alpha = Steps::total_alpha(fp4ref::float_of((unsigned)alpha), fp4ref::float_of((unsigned)factor),
        division, amax_a, amax_b);
    UNROLL
    for (int pair = 0; pair < 4; ++pair) {
        const int p = pair / 2, q = pair % 2;
        const index_t m = top + i0 + p * HALF, n = left + j0 + q * HALF;
        if (m >= rows || n >= columns) continue;
        float sum = sums[p][q];
        if (EXACT && sum == 0) sum = exact[p][q].value();
        const float down = Steps::by_row ? amax_a[Steps::rows_a ? m : 0] : 1.0f;
        const float over = Steps::by_row ? amax_b[Steps::rows_b ? n : 0] : 1.0f;
        out[m * columns + n] = Steps::template result<Out>(sum, total_alpha, down, over, bias, bias ? In::widen(bias[n]) : 0.0f,
            added, added ? added[m * columns + n] : 0);
    }
}
