// GEMM: d[m, n] = sum of A[m, k] * B[n, k], by tiles of the result that walk K in chunks.
// A and B are specifications, of which only formats, block width and kind of global scale count.
#pragma once
#include "wide.h"

namespace fp4ref_cpu {

// The result of float sums, in the type that the job names. Rules: GEM-3, GEM-5, GEM-6, GEM-7, GEM-8.
// Certificates: product-*.
template <class A, class B> struct Finish {
    using Steps = Finishing<A, B>;

    static float alpha(const GemmJob& job)
    {
        return Steps::total_alpha(job.alpha, job.factor, job.division, job.a.amax, job.b.amax);
    }

    // Results n to n + count of row m.
    [[gnu::noinline]] static void write(const GemmJob& job, float alpha, const float* sums, size m, size n, size count)
    {
        switch (job.type) {
        case ResultType::float32: return write_as<float32>(job, alpha, sums, m, n, count);
        case ResultType::bfloat16: return write_as<bfloat16>(job, alpha, sums, m, n, count);
        case ResultType::float16: return write_as<float16>(job, alpha, sums, m, n, count);
        }
    }

    template <class Out> static void write_as(const GemmJob& job, float alpha, const float* sums, size m, size n, size count)
    {
        using word = typename Out::word;
        word* const out = (word*)job.out + m * job.b.rows;
        const word* const added = job.accumulate ? (const word*)job.accumulate + m * job.b.rows : nullptr;
        for (size i = n; i < n + count; ++i) {
            const float down = Steps::by_row ? job.a.amax[Steps::rows_a ? m : 0] : 1.0f;
            const float across = Steps::by_row ? job.b.amax[Steps::rows_b ? i : 0] : 1.0f;
            const float bias = job.bias ? job.bias[i] : 0.0f;
            out[i] = Steps::template result<Out>(sums[i - n], alpha, down, across, job.bias, bias, added, added ? added[i] : 0);
        }
    }
};

// The same for sums that are the same whatever becomes of them.
struct Ending {
    const GemmJob& job;
    const float alpha;
    void (*const of_row)(const GemmJob& job, float alpha, const float* sums, size m, size n, size count);

    void write(const float* sums, size m, size n, size count) const { of_row(job, alpha, sums, m, n, count); }
};

// What sums depend on: specifications that agree in it share their compiled code.
template <class Element_, class Scale_, int Columns> struct Summed {
    using Element = Element_;
    using Scale = Scale_;
    static constexpr int columns = Columns;
};

// E2M1 elements with E4M3 scales. Exact: operands are integers up to 12 * 229376 in doubles, and a chunk's sums stay
// below 2^53, so every order of additions is exact; 64-bit integers add up the chunks while K <= 1217394. Blockwise: in
// floats, a block's sums are exact, being multiples of its scales' product with 20 significant bits. Rules: GEM-2, GEM-4.
// Certificates: gemm-limit, gemm-contributions, gemm-longest, gemm-pairs-*, gemm-order-*, gemm-ties, gemm-spreads-*, gemm-long-mx,
// special-operands.
template <class A, class B, bool Exact> struct Small {
    using value = choose<Exact, double, float>;
    using total = choose<Exact, size, float>;
    typedef value lanes __attribute__((vector_size(32)));
    static constexpr int W = A::columns, T = 64, CHUNK = W >= 256 ? W : 256 / W * W, LENGTH = Exact ? CHUNK : W;
    static constexpr int LANES = 32 / sizeof(value), NR = 2 * LANES, MR = 4;
    static_assert(!Exact || (double)CHUNK * 2752512 * 2752512 < 0x1p53, "a chunk's sums are exact");
    static_assert(Exact || W <= 256, "a block's sums are exact");

    struct Tile {
        alignas(64) value a[T / MR][CHUNK][MR];
        alignas(64) value b[T / NR][CHUNK][NR];
        alignas(64) total sums[T][T];
        bool nan_a[T], nan_b[T];
    };

    // Rows of an operand, `Group` of them side by side; zeros outside the matrix. The groups and columns that it has are
    // filled, which are those that are multiplied.
    template <class S, int Group> static void load(const Side& side, size columns, size row, size column, value (*to)[CHUNK][Group], bool* nan)
    {
        const int depth = at_most(CHUNK, columns - column);
        for (int r = 0; r < at_most(T, side.rows - row + Group - 1) / Group * Group; ++r) {
            value(*const out)[Group] = to[r / Group];
            const int lane = r % Group;
            for (int k = 0; k < depth; ++k) out[k][lane] = 0;
            if (row + r >= side.rows) continue;
            const Row<S> from(side, row + r, columns);
            for (size start = column; start < column + CHUNK && start < columns; start += W) {
                const float s = from.scale(start / W);
                nan[r] |= is_nan(s);
                const value scale = Exact ? is_nan(s) ? 0 : (value)s * 1024 : (value)s;
                const size stop = columns - start < W ? columns : start + W;
                for (size k = start; k < stop; ++k) out[k - column][lane] = (value)from.element(k) * scale;
            }
        }
    }

    static int at_most(int most, size count) { return count < (size)most ? (int)count : most; }

    static void multiply(Tile& tile, int rows, int columns, int depth)
    {
        for (int j = 0; j * NR < columns; ++j)
            for (int i = 0; i * MR < rows; ++i)
                for (int start = 0; start < depth; start += LENGTH) {
                    lanes sums[MR][2] = {};
                    for (int k = start; k < at_most(start + LENGTH, depth); ++k) {
                        const lanes low = *(const lanes*)tile.b[j][k], high = *(const lanes*)(tile.b[j][k] + LANES);
                        for (int r = 0; r < MR; ++r) {
                            sums[r][0] += tile.a[i][k][r] * low;
                            sums[r][1] += tile.a[i][k][r] * high;
                        }
                    }
                    for (int r = 0; r < MR; ++r)
                        for (int c = 0; c < NR; ++c) tile.sums[i * MR + r][j * NR + c] += (total)sums[r][c / LANES][c % LANES];
                }
    }

    static void gemm(GemmJob& job, const Ending& finish)
    {
        const Units units(&job.next, job.a.rows, job.b.rows, T, T, 1);
        Tile* const tile = new Tile;
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * T, left = unit % units.across * T;
            const int rows = at_most(T, job.a.rows - top), columns = at_most(T, job.b.rows - left);
            __builtin_memset(tile->sums, 0, sizeof(tile->sums));
            for (int i = 0; i < T; ++i) tile->nan_a[i] = tile->nan_b[i] = false;
            for (size column = 0; column < job.columns; column += CHUNK) {
                load<A, MR>(job.a, job.columns, top, column, tile->a, tile->nan_a);
                load<B, NR>(job.b, job.columns, left, column, tile->b, tile->nan_b);
                multiply(*tile, rows, columns, at_most(CHUNK, job.columns - column));
            }
            for (int i = 0; i < rows; ++i) {
                float sums[T];
                for (int j = 0; j < columns; ++j) {
                    const float sum = Exact ? (float)tile->sums[i][j] * 0x1p-20f : (float)tile->sums[i][j];
                    sums[j] = tile->nan_a[i] || tile->nan_b[j] ? float_of(0x7fc00000u) : sum;
                }
                finish.write(sums, top + i, left, columns);
            }
        }
        delete tile;
    }
};

// Everything else: a block's sum in 64 or 128 bits; exact ones go to a wide accumulator. Rules: GEM-2, GEM-3, GEM-4.
// Certificates: gemm-order-*, gemm-spreads-*.
template <class A, class B, bool Exact> struct General {
    using Of_A = Counted<A>;
    using Of_B = Counted<B>;
    static constexpr int W = A::columns, T = 16, BLOCKS = W >= 512 ? 1 : 512 / W, CHUNK = BLOCKS * W;
    static constexpr int BASE = Of_A::unit + Of_B::unit;
    static constexpr int BITS = Of_A::bits + Of_B::bits + bits_of_count(W);
    static_assert(BITS <= 126, "a block's sum fits 128 bits");
    using sum_type = choose<BITS <= 31, int, choose<BITS <= 62, size, wide>>;

    template <class C> struct Panel {
        alignas(64) typename C::integer counts[T][CHUNK];
        int exponents[T][BLOCKS];
        bool special[T];
    };
    struct Tile {
        Panel<Of_A> a;
        Panel<Of_B> b;
        Accumulator exact[T][T];
        float sums[T][T];
    };

    template <class S, class C> static void load(const Side& side, size columns, size row, size column, Panel<C>& to)
    {
        for (int r = 0; r < T; ++r) {
            for (int k = 0; k < CHUNK; ++k) to.counts[r][k] = 0;
            for (int block = 0; block < BLOCKS; ++block) to.exponents[r][block] = 0;
            to.special[r] = false;
            if (row + r >= side.rows) continue;
            const Row<S> from(side, row + r, columns);
            for (int block = 0; block < BLOCKS && column + block * W < columns; ++block) {
                const size start = column + block * W, width = columns - start < W ? columns - start : W;
                to.exponents[r][block] = C::exponent(from.scale_byte(start / W));
                for (int k = 0; k < width; ++k) {
                    const bool finite = from.is_finite_at(start + k);
                    if (finite) to.counts[r][block * W + k] = C::count(from.element(start + k), from.scale(start / W));
                    to.special[r] |= !finite;
                }
            }
        }
    }

    // What IEEE arithmetic makes of some columns of two rows if only signs count; finite where all terms are.
    static float signs(const GemmJob& job, size m, size n, size start, size stop)
    {
        const Row<A> a(job.a, m, job.columns);
        const Row<B> b(job.b, n, job.columns);
        float sum = 0;
        for (size k = start; k < stop && k < job.columns; ++k) sum += a.sign(k) * b.sign(k);
        return sum;
    }

    static sum_type dot(const typename Of_A::integer* a, const typename Of_B::integer* b)
    {
        sum_type sum = 0;
        for (int k = 0; k < W; ++k) sum += (sum_type)a[k] * b[k];
        return sum;
    }

    static void pair(const GemmJob& job, Tile& tile, int i, int j, size m, size n, size column)
    {
        const bool special = tile.a.special[i] || tile.b.special[j];
        for (int block = 0; block < BLOCKS && column + block * W < job.columns; ++block) {
            const sum_type sum = dot(tile.a.counts[i] + block * W, tile.b.counts[j] + block * W);
            const int exponent = tile.a.exponents[i][block] + tile.b.exponents[j][block];
            if constexpr (Exact) {
                if (sum) tile.exact[i][j].add(sum, exponent);
            } else {
                float part = rounded(sum, exponent + BASE);
                if (special) {
                    const size start = column + block * W;
                    const float s = signs(job, m, n, start, start + W);
                    part = is_finite(s) ? part : s;
                }
                tile.sums[i][j] = tile.sums[i][j] + part;
            }
        }
        if (Exact && special) {
            const float s = signs(job, m, n, column, column + CHUNK);
            if (!is_finite(s)) tile.sums[i][j] = tile.sums[i][j] + s;
        }
    }

    static void gemm(GemmJob& job, const Ending& finish)
    {
        const Units units(&job.next, job.a.rows, job.b.rows, T, T, 1);
        Tile* const tile = new Tile;
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * T, left = unit % units.across * T;
            const int rows = (int)(job.a.rows - top < T ? job.a.rows - top : T);
            const int columns = (int)(job.b.rows - left < T ? job.b.rows - left : T);
            if (Exact) __builtin_memset(tile->exact, 0, sizeof(tile->exact));
            __builtin_memset(tile->sums, 0, sizeof(tile->sums));
            for (size column = 0; column < job.columns; column += CHUNK) {
                load<A>(job.a, job.columns, top, column, tile->a);
                load<B>(job.b, job.columns, left, column, tile->b);
                for (int i = 0; i < rows; ++i)
                    for (int j = 0; j < columns; ++j) pair(job, *tile, i, j, top + i, left + j, column);
            }
            for (int i = 0; i < rows; ++i) {
                float* const sums = tile->sums[i];  // exact: 0, or infinite or NaN
                for (int j = 0; Exact && j < columns; ++j)
                    if (sums[j] == 0) sums[j] = tile->exact[i][j].rounded_with(BASE);
                finish.write(sums, top + i, left, columns);
            }
        }
        delete tile;
    }
};

template <class OfA, class OfB> struct Gemm {
    template <class S> using summed = Summed<typename S::Element, typename S::Scale, S::columns>;
    using A = summed<OfA>;
    using B = summed<OfB>;
    using Finishing = Finish<OfA, OfB>;
    template <class S> static constexpr bool small = same_type<typename S::Element::Format, e2m1> && same_type<typename S::Scale::Format, e4m3>;
    static constexpr size LONGEST = (1ull << 63) / (2752512ull * 2752512ull);  // sums of more could leave 64 bits

    static Ending ending(const GemmJob& job) { return {job, Finishing::alpha(job), Finishing::write}; }

    template <bool Exact> static void sums(GemmJob& job)
    {
        if constexpr (small<A> && small<B> && A::columns <= 256)
            if (!Exact || job.columns <= LONGEST) return Small<A, B, Exact>::gemm(job, ending(job));
        General<A, B, Exact>::gemm(job, ending(job));
    }
    static void exact(GemmJob& job) { sums<true>(job); }
    static void blockwise(GemmJob& job) { sums<false>(job); }
    static void finish(GemmJob& job)
    {
        const Ending result = ending(job);
        const Units units(&job.next, job.a.rows, job.b.rows, 16, job.b.rows, 1);
        for (size unit; units.take(unit);)
            for (size m = unit * 16; m < unit * 16 + 16 && m < job.a.rows; ++m)
                result.write(job.sums + m * job.b.rows, m, 0, job.b.rows);
    }
};

}  // namespace fp4ref_cpu
