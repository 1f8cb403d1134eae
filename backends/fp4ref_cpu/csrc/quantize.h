// Quantize and amax for one specification S and one input type In: strips of blocks, flat loops that a compiler
// vectorises. All numerics come from the shared header.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

// x: [rows, columns], the rows of the direction that is quantized. A specification with a Hadamard transform transforms
// groups of 16 along the columns.
struct Input {
    const void* x;
    Axis down, along;
    size rows, columns;
};

struct QuantizeJob {
    Input input;
    const float* amax;   // [1], [rows], or null
    const byte* random;  // [rows, columns] or null
    byte* data;          // [rows, ceil(columns * bits / 8)]
    byte* scales;        // the whole buffer of the layout, padding written already
    Map map;
    size next;
};

struct AmaxJob {
    Input input;
    unsigned* amax;  // bits of [1] or [rows], +0 at first
    size next;
};

template <class S, class Raw> struct Loops {
    using In = typename input_type<S::flushes, Raw>::type;  // of what is quantized: after a transform
    using word = typename In::word;
    static constexpr int B = S::columns, R = S::rows, BITS = S::Element::Format::bits;
    static constexpr int BLOCKS = B >= 256 ? 4 : (1024 / B + 3) / 4 * 4;  // of a strip: whole groups of four scales
    static constexpr int WIDTH = BLOCKS * B;                             // elements of a strip, an even number
    static constexpr int ROWS = (31 / R + 1) * R;                        // rows of a unit where they are contiguous
    static constexpr int LINES = (127 / R + 1) * R;                      // and where they are gathered: long pieces
    static constexpr int SPAN = (8191 / WIDTH + 1) * WIDTH;              // columns of a unit, at least 8192
    static constexpr int AHEAD = 4096;                                   // bytes between a prefetch and its use
    static constexpr int TILE = 16;                                      // columns gathered together
    static constexpr word MAGNITUDE = (word)((word)~word(0) >> 1), INFINITE = (word)In::infinity;
    static constexpr bool by_row = S::global == Global::row;

    struct Gathered {
        alignas(64) word words[LINES][WIDTH + 64 / sizeof(word)];  // one line of cache more: strips start in other sets
    };
    struct Tile {
        alignas(64) word words[TILE][LINES];
    };

    // TILE columns of `lines` rows, transformed; zero outside the matrix.
    static void load(const Input& in, Tile& tile, size row, int lines, size column, int columns)
    {
        for (int c = 0; c < TILE; ++c) {
            word* to = tile.words[c];
            int l = 0;
            if (c < columns) {
                const word* from = (const word*)in.x + in.along.at(column + c);
                if (in.down.unit()) {
                    __builtin_prefetch(from + row + 2 * TILE * in.along.stride, 0, 2);
                    __builtin_memcpy(to, from + row, sizeof(word) * (unsigned)lines);
                    l = lines;
                } else {
                    for (; l < lines; ++l) to[l] = from[in.down.at(row + l)];
                }
            }
            for (; l < LINES; ++l) to[l] = 0;
        }
        if constexpr (S::has_hadamard) {
            static_assert(TILE == 16, "a tile is one group of the transform");
            alignas(64) float y[TILE][LINES];
            for (int c = 0; c < TILE; ++c)
                for (int l = 0; l < LINES; ++l) y[c][l] = Raw::widen(tile.words[c][l]);
            hadamard<S::signs>(y);
            for (int c = 0; c < TILE; ++c)
                for (int l = 0; l < LINES; ++l) tile.words[c][l] = In::round(y[c][l]);
        }
    }

    // `end`: how many columns of the result are read.
    static void gather(const Input& in, Gathered& to, size row, int lines, size column, int width, int end)
    {
        for (int c0 = 0; c0 < end; c0 += TILE) {
            Tile tile;
            load(in, tile, row, lines, column + c0, width - c0);
            const int stop = WIDTH - c0 < TILE ? WIDTH - c0 : TILE;
            for (int l = 0; l < LINES; ++l)
                for (int c = 0; c < stop; ++c) to.words[l][c0 + c] = tile.words[c][l];
        }
    }

    static word larger_word(word a, word b) { return a > b ? a : b; }

    // Maxima of neighbours, again and again until a block is one word. A NaN wins.
    template <int N> static void halve(const word* __restrict from, word* __restrict to, word mask)
    {
        if constexpr (sizeof(word) == 2) {
            const pair_of_words* pairs = (const pair_of_words*)from;
            for (int i = 0; i < N; ++i) to[i] = (word)larger(pairs[i] & mask, pairs[i] >> 16 & mask);
        } else {
            for (int i = 0; i < N; ++i) to[i] = (word)larger(from[2 * i] & mask, from[2 * i + 1] & mask);
        }
    }
    template <int Width> static void halve_to_blocks(const word* words, word (&amax)[BLOCKS])
    {
        if constexpr (Width == 1) {
            for (int b = 0; b < BLOCKS; ++b) amax[b] = words[b];
        } else if constexpr (Width == 2) {
            halve<BLOCKS>(words, amax, MAGNITUDE);
        } else {
            alignas(64) word half[BLOCKS * Width / 2];
            halve<BLOCKS * Width / 2>(words, half, MAGNITUDE);
            halve_to_blocks<Width / 2>(half, amax);
        }
    }

    // Magnitudes of the maxima of a row's blocks; whether one is a NaN.
    static bool block_maxima(const word* x, word (&amax)[BLOCKS])
    {
        if constexpr (B % 2 == 0 && (B & (B - 1)) == 0) {
            halve_to_blocks<B>(x, amax);
        } else {
            for (int b = 0; b < BLOCKS; ++b) {
                word largest = 0;
                for (int i = 0; i < B; ++i) largest = larger_word(largest, x[b * B + i] & MAGNITUDE);
                amax[b] = largest;
            }
        }
        word largest = 0;
        for (int b = 0; b < BLOCKS; ++b) largest = larger_word(largest, amax[b]);
        return largest > INFINITE;
    }
    static void block_maxima_of_numbers(const word* x, word (&amax)[BLOCKS])
    {
        for (int b = 0; b < BLOCKS; ++b) {
            word largest = 0;
            for (int i = 0; i < B; ++i) {
                const word magnitude = x[b * B + i] & MAGNITUDE;
                largest = magnitude > INFINITE || magnitude < largest ? largest : magnitude;
            }
            amax[b] = largest;
        }
    }

    struct StripScales : Scales<BLOCKS> {
        bool narrow;  // what `encode_narrow` needs holds for the whole strip
    };

    // Magnitudes of 8 or 16 blocks' elements as floats, element by element.
    template <int LANES> static void beside(const word* x, float (&elements)[B][LANES])
    {
        if constexpr (B == 16 && LANES % 8 == 0) {
            for (int half = 0; half < LANES; half += 8) {
                for (int part = 0; part < B * (int)sizeof(word) / 32; ++part) {
                    words8 lines[8];
                    for (int l = 0; l < 8; ++l) __builtin_memcpy(&lines[l], (const char*)(x + (half + l) * B) + 32 * part, 32);
                    transpose(lines);
                    for (int i = 0; i < 8; ++i)
                        for (int e = 0; e < 4 / (int)sizeof(word); ++e)
                            for (int l = 0; l < 8; ++l)
                                elements[(8 * part + i) * 4 / (int)sizeof(word) + e][half + l] =
                                    In::widen(lines[i][l] >> 16 * e & MAGNITUDE);
                }
            }
        } else {
            for (int c = 0; c < B; ++c)
                for (int l = 0; l < LANES; ++l) elements[c][l] = In::widen((word)(x[l * B + c] & MAGNITUDE));
        }
    }

    // The scales that a search finds, for LANES blocks at a time, whose elements lie side by side.
    template <bool Quick> static void search(const word* const (&x)[R], const float (&amax)[BLOCKS], float g, float A, Scales<BLOCKS>& scales)
    {
        constexpr int LANES = BLOCKS % 16 || R * B > 1024 ? 4 : 16;
        for (int b = 0; b < BLOCKS; b += LANES) {
            alignas(64) float elements[R][B][LANES], largest[LANES];
            for (int r = 0; r < R; ++r) beside(x[r] + b * B, elements[r]);
            for (int l = 0; l < LANES; ++l) largest[l] = amax[b + l];
            const auto of_rows = [&](auto& error, auto of_row) __attribute__((always_inline)) {
                alignas(64) float rows[R][LANES];
                for (int r = 0; r < R; ++r) of_row([&](int c, int l) __attribute__((always_inline)) { return elements[r][c][l]; }, rows[r]);
                block_errors<S>(rows, error);
            };
            const auto errors = [&](const auto& candidates, auto& error) __attribute__((always_inline)) {
                of_rows(error, [&](auto load, auto& of) __attribute__((always_inline)) { row_errors<S, In, Quick>(candidates, g, A, load, of); });
            };
            const auto estimates = [&](const auto& candidates, const auto& units, auto& error) __attribute__((always_inline)) {
                of_rows(error, [&](auto load, auto& of) __attribute__((always_inline)) { row_estimates<S, In>(candidates, units, load, of); });
            };
            Scales<LANES> found;
            choose_scales<S, In>(largest, g, A, Quick, errors, estimates, [](unsigned open) { return open; }, found);
            for (int l = 0; l < LANES; ++l)
                scales.byte[b + l] = found.byte[l], scales.s[b + l] = found.s[l], scales.factor[b + l] = found.factor[l];
        }
    }

    // The scales of a strip of R rows, the first `used` of whose blocks count.
    static void choose(const word* const (&x)[R], float g, float A, int used, StripScales& scales)
    {
        alignas(64) word amax[BLOCKS];
        bool nan = block_maxima(x[0], amax);
        if (nan && !S::block_keeps_nan) block_maxima_of_numbers(x[0], amax);
        for (int r = 1; r < R; ++r) {
            alignas(64) word other[BLOCKS];
            const bool has = block_maxima(x[r], other);
            if (has && !S::block_keeps_nan) block_maxima_of_numbers(x[r], other);
            for (int b = 0; b < BLOCKS; ++b) amax[b] = larger_word(amax[b], other[b]);
            nan |= has;
        }
        alignas(64) float largest[BLOCKS];
        for (int b = 0; b < BLOCKS; ++b) largest[b] = In::widen(amax[b]);
        if constexpr (S::Search::enabled) quick_over_constant(A) ? search<true>(x, largest, g, A, scales) : search<false>(x, largest, g, A, scales);
        else choose_scales<S, In, BLOCKS>(largest, g, A, false, 0, 0, 0, scales);
        unsigned wide = nan;
        for (int b = 0; b < BLOCKS; ++b)
            wide |= (b < used) & !is_narrow<S, In>(largest[b], Scale{0, scales.s[b], scales.factor[b]});
        scales.narrow = !wide;
    }

    template <bool Narrow> static unsigned code(float x, float s, float factor, float g, unsigned random)
    {
        const Scale scale{0, s, factor};
        return Narrow ? encode_narrow<S, In>(x, scale, random) : encode<S, In>(x, scale, g, random);
    }

    // Codes of one row of a strip, packed.
    template <bool Narrow> static void codes(const word* __restrict x, const StripScales& scales, float g, const byte* __restrict random, byte* __restrict out)
    {
        constexpr int STEP = B % 2 ? 1 : 2;  // a pair of elements shares its scale, or does not
        alignas(64) float factor[WIDTH / STEP], s[WIDTH / STEP];
        for (int b = 0; b < BLOCKS; ++b)
            for (int i = 0; i < B / STEP; ++i) factor[b * (B / STEP) + i] = scales.factor[b], s[b * (B / STEP) + i] = scales.s[b];
        const pair_of_words* pairs = (const pair_of_words*)x;
        const pair_of_bytes* randoms = (const pair_of_bytes*)random;
        pair_of_bytes* out16 = (pair_of_bytes*)out;
        alignas(64) unsigned packed[WIDTH / 2];  // narrowed afterwards: before, a compiler narrows every term
        for (int k = 0; k < WIDTH / 2; ++k) {
            word low, high;
            if constexpr (sizeof(word) == 2) low = (word)(pairs[k] & 0xffffu), high = (word)(pairs[k] >> 16);
            else low = x[2 * k], high = x[2 * k + 1];
            const unsigned bits = S::Element::stochastic ? randoms[k] : 0u;
            const int first = STEP == 2 ? k : 2 * k, second = STEP == 2 ? k : 2 * k + 1;
            const unsigned a = code<Narrow>(In::widen(low), s[first], factor[first], g, bits & 0xffu);
            const unsigned b = code<Narrow>(In::widen(high), s[second], factor[second], g, bits >> 8);
            if constexpr (BITS == 6) packed[k] = (a & 63u) | (b & 63u) << 6;
            else packed[k] = (BITS == 4 ? a : a & 255u) | b << BITS;
        }
        if constexpr (BITS == 6) {  // four codes in three bytes (PACK-4)
            static_assert(WIDTH % 4 == 0, "whole groups of codes");
            for (int k = 0; k < WIDTH / 4; ++k) {
                const unsigned four = packed[2 * k] | packed[2 * k + 1] << 12;
                out[3 * k] = (byte)four, out[3 * k + 1] = (byte)(four >> 8), out[3 * k + 2] = (byte)(four >> 16);
            }
            return;
        }
        for (int k = 0; k < WIDTH / 2; ++k)
            if constexpr (BITS == 4) out[k] = (byte)packed[k];
            else out16[k] = (unsigned short)packed[k];
    }

    using Pieces = SideBySide<WIDTH, B, BITS>;

    // A strip of R rows, `width` elements of it in the matrix; or of `count` times R rows from `row` on, below `bottom`.
    static void strip(const QuantizeJob& job, const word* const (&x)[R], size row, size bottom, size column, int width, const Pieces& pieces)
    {
        const Input& in = job.input;
        const float A = S::global == Global::none ? 0.0f : job.amax[by_row ? row : 0], g = global_scale<S, In>(A);
        const size pitch = (in.columns * BITS + 7) / 8;
        const int count = pieces.count, blocks = (width + B - 1) / B;
        const bool direct = width == WIDTH || (R == 1 && pieces.fill_strips() && row + count <= bottom);
        StripScales scales;
        choose(x, g, A, count * blocks, scales);
        alignas(64) byte bytes[BLOCKS], all[WIDTH * BITS / 8], drawn[S::Element::stochastic ? WIDTH : 1];
        for (int b = 0; b < BLOCKS; ++b) bytes[b] = (byte)scales.byte[b];
        for (int r = 0; r < R && row + r < bottom; ++r) {
            byte* const out = job.data + (row + r) * pitch + column * BITS / 8;
            const byte* random = job.random ? job.random + (row + r) * in.columns + column : nullptr;
            if (direct) ahead(x[r] + WIDTH / 2, WIDTH / 2);
            if (!direct && S::Element::stochastic) {
                __builtin_memset(drawn, 0, sizeof drawn);
                for (int p = 0; p < count && row + p * R + r < bottom; ++p)
                    __builtin_memcpy(drawn + p * pieces.pitch, random + p * R * in.columns, (unsigned)width);
                random = drawn;
            }
            byte* const to = direct ? out : all;
            scales.narrow ? codes<true>(x[r], scales, g, random, to) : codes<false>(x[r], scales, g, random, to);
            for (int p = 0; p < count && row + p * R + r < bottom; ++p) {
                byte* const from = all + p * pieces.pitch * BITS / 8;
                if (!direct) {
                    const int used = width * BITS % 8;  // bits of the last byte; the others are spare (PACK-2, PACK-5)
                    if (used) from[width * BITS / 8] &= (byte)((1 << used) - 1);
                    __builtin_memcpy(out + p * R * pitch, from, (unsigned)(width * BITS + 7) / 8);
                }
                ScaleRow::of(job.scales, job.map, row + p * R + r).write(column / B, bytes + p * blocks, blocks);
            }
        }
    }

    static void quantize(QuantizeJob& job)
    {
        const Input& in = job.input;
        const Pieces pieces(by_row ? 0 : in.columns);
        const bool straight = in.along.unit() && !S::has_hadamard, one = pieces.count == 1;
        const int lines = !straight ? LINES : one ? ROWS : SPAN / WIDTH * R * pieces.count;
        const Units units(&job.next, in.rows, in.columns, lines, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * lines, left = unit % units.across * SPAN;
            const size bottom = top + lines < in.rows ? top + lines : in.rows;
            const size right = left + SPAN < in.columns ? left + SPAN : in.columns;
            if (!straight) from_columns(job, top, bottom, left, right, pieces);
            else if (one) from_rows(job, top, bottom, left, right, pieces);
            else side_by_side(job, top, bottom, pieces, in.down.stride == in.columns && !in.down.offsets,
                [&](size row) { return (const word*)in.x + in.down.at(row); });
        }
    }

    // Rows of at most half a strip; `line` finds them. `flat`: one follows the other in memory.
    template <class Line> static void side_by_side(const QuantizeJob& job, size top, size bottom, const Pieces& pieces, bool flat, Line line)
    {
        for (size row = top; row < bottom; row += R * pieces.count) {
            alignas(64) word words[R][WIDTH];
            const word* x[R];
            for (int r = 0; r < R; ++r) x[r] = words[r];
            if (flat && R == 1 && pieces.fill_strips() && row + pieces.count <= bottom) {
                x[0] = line(row);
            } else {
                __builtin_memset(words, 0, sizeof words);
                for (int p = 0; p < pieces.count; ++p)
                    for (int r = 0; r < R && row + p * R + r < bottom; ++r)
                        __builtin_memcpy(words[r] + p * pieces.pitch, line(row + p * R + r), sizeof(word) * (unsigned)pieces.width);
            }
            strip(job, x, row, bottom, 0, pieces.width, pieces);
        }
    }

    // Ask for what comes AHEAD bytes later; asking for an address that does not exist does nothing.
    static void ahead(const word* x, int width)
    {
        for (int i = 0; i < width; i += 64 / (int)sizeof(word)) __builtin_prefetch((const char*)(x + i) + AHEAD);
    }

    static void from_rows(const QuantizeJob& job, size top, size bottom, size left, size right, const Pieces& pieces)
    {
        alignas(64) const word zeros[R > 1 ? WIDTH : 1] = {};
        for (size row = top; row < bottom; row += R)
            for (size column = left; column < right; column += WIDTH) {
                const int width = right - column < WIDTH ? (int)(right - column) : WIDTH;
                alignas(64) word padded[R][WIDTH];
                const word* x[R];
                for (int r = 0; r < R; ++r) {
                    x[r] = row + r < bottom ? (const word*)job.input.x + job.input.down.at(row + r) + column : zeros;
                    ahead(x[r], WIDTH / 2);
                    if (width == WIDTH || row + r >= bottom) continue;
                    for (int i = 0; i < WIDTH; ++i) padded[r][i] = i < width ? x[r][i] : word(0);
                    x[r] = padded[r];
                }
                strip(job, x, row, bottom, column, width, pieces);
            }
    }

    static void from_columns(const QuantizeJob& job, size top, size bottom, size left, size right, const Pieces& pieces)
    {
        Gathered gathered;
        if (pieces.count > 1) {
            gather(job.input, gathered, top, (int)(bottom - top), 0, pieces.width, pieces.width);
            side_by_side(job, top, bottom, pieces, false, [&](size row) { return gathered.words[row - top]; });
            return;
        }
        for (size column = left; column < right; column += WIDTH) {
            const int width = right - column < WIDTH ? (int)(right - column) : WIDTH;
            gather(job.input, gathered, top, (int)(bottom - top), column, width, WIDTH);
            for (size row = top; row < bottom; row += R) {
                const word* x[R];
                for (int r = 0; r < R; ++r) x[r] = gathered.words[row - top + r];
                strip(job, x, row, bottom, column, width, pieces);
            }
        }
    }

    // Maxima over a unit, tensor or row. Rules: GLB-1, GLB-5.
    static void amax(AmaxJob& job)
    {
        const Input& in = job.input;
        const bool straight = in.along.unit() && !S::has_hadamard;
        const int lines = straight ? ROWS : LINES;
        const Units units(&job.next, in.rows, in.columns, lines, SPAN);
        unsigned all = 0;
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * lines, left = unit % units.across * SPAN;
            const int count = in.rows - top < lines ? (int)(in.rows - top) : lines;
            const int width = in.columns - left < SPAN ? (int)(in.columns - left) : SPAN;
            word largest[LINES] = {};
            if (straight)
                for (int l = 0; l < count; ++l) largest[l] = row_maximum((const word*)in.x + in.down.at(top + l) + left, width);
            else
                gathered_maxima(in, largest, top, count, left, width);
            for (int l = 0; l < count; ++l) {
                const float a = In::widen(largest[l]);
                const unsigned bits = is_nan(a) ? 0x7fc00000u : bits_of(a);
                if (by_row) raise(job.amax + top + l, bits);
                all = larger(all, bits);
            }
        }
        if (!by_row) raise(job.amax, all);
    }

    static void gathered_maxima(const Input& in, word (&largest)[LINES], size top, int count, size left, int width)
    {
        for (int c = 0; c < width; c += TILE) {
            Tile tile;
            load(in, tile, top, count, left + c, width - c);
            for (int i = 0; i < TILE; ++i)
                for (int l = 0; l < LINES; ++l) {
                    const word magnitude = tile.words[i][l] & MAGNITUDE;
                    const bool skip = magnitude < largest[l] || (!S::amax_keeps_nan && magnitude > INFINITE);
                    largest[l] = skip ? largest[l] : magnitude;
                }
        }
    }

    static word row_maximum(const word* x, int width)
    {
        word largest = 0;
        for (int start = 0; start < width; start += WIDTH) {
            const int stop = width - start < WIDTH ? width : start + WIDTH;
            ahead(x + start, WIDTH);
            for (int i = start; i < stop; ++i) largest = larger_word(largest, x[i] & MAGNITUDE);
        }
        if (S::amax_keeps_nan || largest <= INFINITE) return largest;
        largest = 0;
        for (int i = 0; i < width; ++i) {
            const word magnitude = x[i] & MAGNITUDE;
            largest = magnitude > INFINITE || magnitude < largest ? largest : magnitude;
        }
        return largest;
    }

    static void raise(unsigned* shared, unsigned bits)
    {
        unsigned seen = __atomic_load_n(shared, __ATOMIC_RELAXED);
        while (seen < bits && !__atomic_compare_exchange_n(shared, &seen, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
    }
};

}  // namespace fp4ref_cpu
