// The walk over a matrix that is quantized or searched for its maximum: strips of blocks, gathered where their elements
// are not side by side. It holds no numerics; specifications that agree in its arguments share its compiled code.
#pragma once
#include "lines.h"

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

// What a thread found for the maximum of the strip before: the global scale, and the factors of scale bytes for an
// arithmetic that takes long to find them.
struct Found {
    bool nothing = true;
    unsigned A;  // bits of the maximum
    float g;
    bool known[256];
    float factor[256];

    bool is_of(float maximum) const { return !nothing && __builtin_bit_cast(unsigned, maximum) == A; }
    void begin(float maximum, float global)
    {
        nothing = false, A = __builtin_bit_cast(unsigned, maximum), g = global;
        __builtin_memset(known, 0, sizeof known);
    }
};

// Tiles of TILE columns whose elements are not side by side, and strips of WIDTH columns gathered from them.
// In: the type in memory, and of what is quantized, after a transform.
template <class In, int LINES, int WIDTH> struct Tiles {
    using word = typename In::word;
    static constexpr int TILE = 16;  // columns gathered together

    // A transform of groups of TILE columns, in place, or null.
    using Transform = void (*)(float (&y)[TILE][LINES]);

    struct Gathered {
        alignas(64) word words[LINES][WIDTH + 64 / sizeof(word)];  // one line of cache more: strips start in other sets
    };
    struct Tile {
        alignas(64) word words[TILE][LINES];
    };

    // TILE columns of `lines` rows, transformed; zero outside the matrix.
    [[gnu::noinline]] static void load(const Input& in, Transform transform, Tile& tile, size row, int lines, size column, int columns)
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
        if (transform) {
            alignas(64) float y[TILE][LINES];
            for (int c = 0; c < TILE; ++c)
                for (int l = 0; l < LINES; ++l) y[c][l] = In::widen(tile.words[c][l]);
            transform(y);
            for (int c = 0; c < TILE; ++c)
                for (int l = 0; l < LINES; ++l) tile.words[c][l] = In::round(y[c][l]);
        }
    }

    // `end`: how many columns of the result are read.
    [[gnu::noinline]] static void gather(const Input& in, Transform transform, Gathered& to, size row, int lines, size column, int width, int end)
    {
        for (int c0 = 0; c0 < end; c0 += TILE) {
            const word* columns[TILE];
            const bool in_place = in.down.unit() && lines == LINES && width - c0 >= TILE && !transform;
            Tile tile;
            if (!in_place) load(in, transform, tile, row, lines, column + c0, width - c0);
            for (int c = 0; c < TILE; ++c) columns[c] = in_place ? (const word*)in.x + in.along.at(column + c0 + c) + row : tile.words[c];
            const int stop = WIDTH - c0 < TILE ? WIDTH - c0 : TILE;
            int l = 0;
            if (stop == TILE)
                for (; l + 8 <= LINES; l += 8) turn(columns, l, to, c0);
            for (; l < LINES; ++l)
                for (int c = 0; c < stop; ++c) to.words[l][c0 + c] = columns[c][l];
        }
    }

    // Eight lines of TILE columns, from line l on: two columns of 16 bits move together.
    static void turn(const word* const (&columns)[TILE], int l, Gathered& to, int c0)
    {
        if constexpr (sizeof(word) == 2) {
            words8 pairs[8];
            for (int p = 0; p < 8; ++p) beside_each_other(columns[2 * p] + l, columns[2 * p + 1] + l, pairs[p]);
            transpose(pairs);
            for (int i = 0; i < 8; ++i) __builtin_memcpy(to.words[l + i] + c0, &pairs[i], 32);
        } else {
            for (int c = 0; c < TILE; c += 8) {
                words8 lines[8];
                for (int i = 0; i < 8; ++i) __builtin_memcpy(&lines[i], columns[c + i] + l, 32);
                transpose(lines);
                for (int i = 0; i < 8; ++i) __builtin_memcpy(to.words[l + i] + c0 + c, &lines[i], 32);
            }
        }
    }
};

// In: the type in memory. B, R: columns and rows of a block. STRIP: elements of a strip, about.
template <class In, int B, int R, int STRIP> struct Walk {
    using word = typename In::word;
    static constexpr int BLOCKS = B >= 256 ? 4 : (STRIP / B + 3) / 4 * 4;  // of a strip: whole groups of four scales
    static constexpr int WIDTH = BLOCKS * B;                             // elements of a strip, an even number
    static constexpr int ROWS = (31 / R + 1) * R;                        // rows of a unit where they are contiguous
    static constexpr int LINES = (127 / R + 1) * R;                      // and where they are gathered: long pieces
    static constexpr int SPAN = (8191 / WIDTH + 1) * WIDTH;              // columns of a unit, at least 8192
    static constexpr int LONG = 512 / sizeof(word) << 10;                // elements of a unit of one long row
    static constexpr bool whole_lines = SPAN / B <= 512 && Lines::ROWS % R == 0;
    static constexpr size MANY = 8 * Lines::ROWS * (size)SPAN;           // elements of many units of whole lines
    static constexpr int AHEAD = 4096;                                   // bytes between a prefetch and its use
    static constexpr word MAGNITUDE = (word)((word)~word(0) >> 1), INFINITE = (word)In::infinity;

    // The scales of a strip, and the global scale of its rows.
    struct StripScales : Scales<BLOCKS> {
        float g;
        bool narrow;  // what `encode_narrow` needs holds for the whole strip
    };

    using Gathering = Tiles<In, LINES, WIDTH>;
    using Tile = typename Gathering::Tile;
    using Gathered = typename Gathering::Gathered;
    using Transform = typename Gathering::Transform;
    static constexpr int TILE = Gathering::TILE;

    // The numerics of a specification, for one strip of R rows.
    struct Numerics {
        int bits;     // of a code
        bool by_row;  // every row has a maximum of its own
        bool block_keeps_nan;
        float least;  // numbers below it are read as zeros
        Transform transform;
        Found* found;  // of this thread
        // largest: the maximum of each block, the first `used` of which count; A: of the tensor or row.
        void (*choose)(const word* const (&x)[R], const float (&largest)[BLOCKS], bool nan, float A, int used, Found& found, StripScales& scales);
        // Codes of one row, packed.
        void (*codes)(const word* x, const StripScales& scales, const byte* random, byte* out);
    };

    static word larger_word(word a, word b) { return a > b ? a : b; }

    // A magnitude as a float. Rules: NUM-5.
    static float flushed(word magnitude, float least)
    {
        const float a = In::widen(magnitude);
        return a < least ? 0.0f : a;
    }

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

#if defined(__AVX512BW__)
    // Maxima of neighbours as well, of the words of one vector after those of the other: a compiler narrows what is wider.
    typedef word lanes __attribute__((vector_size(64), may_alias));
    static constexpr int LANES = 64 / (int)sizeof(word);
    template <int Width> __attribute__((always_inline)) static lanes largest_of(const word* x)
    {
        if constexpr (Width == 1) {
            lanes all;
            __builtin_memcpy(&all, x, sizeof all);
            return all & MAGNITUDE;
        } else {
            const lanes low = largest_of<Width / 2>(x), high = largest_of<Width / 2>(x + Width / 2 * LANES);
            const lanes even = every_second<0>(low, high), odd = every_second<1>(low, high);
            return even > odd ? even : odd;
        }
    }
    static constexpr bool of_many = BLOCKS % LANES == 0 && B <= 64 && (B & (B - 1)) == 0, by_lanes = of_many || B % LANES == 0;
    // The maxima of a row's blocks; whether one is a NaN.
    static bool maxima_by_lanes(const word* x, word (&amax)[BLOCKS])
    {
        lanes most = {};
        if constexpr (of_many) {
            for (int b = 0; b < BLOCKS; b += LANES) {
                const lanes found = largest_of<B>(x + b * B);
                *(lanes*)(amax + b) = found;
                most = most > found ? most : found;
            }
        } else {
            for (int b = 0; b < BLOCKS; ++b) {
                lanes found = largest_of<1>(x + b * B);
                for (int i = LANES; i < B; i += LANES) {
                    const lanes magnitudes = largest_of<1>(x + b * B + i);
                    found = found > magnitudes ? found : magnitudes;
                }
                most = most > found ? most : found;
                amax[b] = 0;
                for (int l = 0; l < LANES; ++l) amax[b] = larger_word(amax[b], found[l]);
            }
        }
        alignas(64) unsigned flags[16];
        *(lanes*)flags = most > INFINITE;
        return has_any<16>(flags);
    }
#else
    static constexpr bool by_lanes = false;
    static bool maxima_by_lanes(const word*, word (&)[BLOCKS]) { return false; }
#endif

    // Magnitudes of the maxima of a row's blocks; whether one is a NaN.
    static bool block_maxima(const word* x, word (&amax)[BLOCKS])
    {
        if constexpr (by_lanes) {
            return maxima_by_lanes(x, amax);
        } else if constexpr (B % 2 == 0 && (B & (B - 1)) == 0) {
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

    // The maxima of the blocks of a strip; true if one is a NaN.
    [[gnu::noinline]] static bool maxima(const word* const (&x)[R], bool keeps_nan, float least, float (&largest)[BLOCKS])
    {
        alignas(64) word amax[BLOCKS];
        bool nan;
        if constexpr (R > 1 && by_lanes) {
            alignas(64) word merged[WIDTH];  // first of the columns, then of their neighbours
            for (int i = 0; i < WIDTH; ++i) merged[i] = x[0][i] & MAGNITUDE;
            for (int r = 1; r < R; ++r)
                for (int i = 0; i < WIDTH; ++i) merged[i] = larger_word(merged[i], x[r][i] & MAGNITUDE);
            nan = maxima_by_lanes(merged, amax);
            if (nan && !keeps_nan) of_rows(x, keeps_nan, amax);
        } else nan = of_rows(x, keeps_nan, amax);
        for (int b = 0; b < BLOCKS; ++b) largest[b] = flushed(amax[b], least);
        return nan;
    }
    static bool of_rows(const word* const (&x)[R], bool keeps_nan, word (&amax)[BLOCKS])
    {
        bool nan = block_maxima(x[0], amax);
        if (nan && !keeps_nan) block_maxima_of_numbers(x[0], amax);
        for (int r = 1; r < R; ++r) {
            alignas(64) word other[BLOCKS];
            const bool has = block_maxima(x[r], other);
            if (has && !keeps_nan) block_maxima_of_numbers(x[r], other);
            for (int b = 0; b < BLOCKS; ++b) amax[b] = larger_word(amax[b], other[b]);
            nan |= has;
        }
        return nan;
    }

    using Pieces = SideBySide<WIDTH, B>;

    // A strip of R rows, `width` elements of it in the matrix; or of `count` times R rows from `row` on, below `bottom`.
    [[gnu::noinline]] static void strip(const QuantizeJob& job, const Numerics& numerics, const word* const (&x)[R], size row, size bottom, size column, int width, const Pieces& pieces)
    {
        const Input& in = job.input;
        const float A = job.amax ? job.amax[numerics.by_row ? row : 0] : 0.0f;
        const int bits = numerics.bits;
        const size pitch = (in.columns * bits + 7) / 8;
        const int count = pieces.count, blocks = (width + B - 1) / B;
        const bool direct = width == WIDTH || (R == 1 && pieces.fill_strips() && row + count <= bottom);
        StripScales scales;
        alignas(64) float largest[BLOCKS];
        const bool nan = maxima(x, numerics.block_keeps_nan, numerics.least, largest);
        numerics.choose(x, largest, nan, A, count * blocks, *numerics.found, scales);
        alignas(64) byte bytes[BLOCKS], all[WIDTH], drawn[WIDTH];
        for (int b = 0; b < BLOCKS; ++b) bytes[b] = (byte)scales.byte[b];
        const bool flat = R == 1 && count > 1 && job.map.is_flat(blocks);
        if (flat) __builtin_memcpy(job.scales + job.map.row(row), bytes, (unsigned long)(bottom - row < count ? bottom - row : count) * (unsigned)blocks);
        for (int r = 0; r < R && row + r < bottom; ++r) {
            byte* const out = job.data + (row + r) * pitch + column * bits / 8;
            const byte* random = job.random ? job.random + (row + r) * in.columns + column : nullptr;
            if (direct) ahead(x[r] + WIDTH / 2, WIDTH / 2);
            if (!direct && random) {
                __builtin_memset(drawn, 0, sizeof drawn);
                for (int p = 0; p < count && row + p * R + r < bottom; ++p)
                    __builtin_memcpy(drawn + p * pieces.pitch, random + p * R * in.columns, (unsigned)width);
                random = drawn;
            }
            byte* const to = direct ? out : all;
            numerics.codes(x[r], scales, random, to);
            for (int p = 0; p < count && row + p * R + r < bottom; ++p) {
                byte* const from = all + p * pieces.pitch * bits / 8;
                if (!direct) {
                    const int used = width * bits % 8;  // bits of the last byte; the others are spare (PACK-2, PACK-5)
                    if (used) from[width * bits / 8] &= (byte)((1 << used) - 1);
                    copy_row(out + p * R * pitch, from, (width * bits + 7) / 8);
                }
                if (!flat) ScaleRow::of(job.scales, job.map, row + p * R + r).write(column / B, bytes + p * blocks, blocks);
            }
        }
    }

    static void quantize(QuantizeJob& job, const Numerics& numerics)
    {
        const Input& in = job.input;
        const Pieces pieces(numerics.by_row ? 0 : in.columns, numerics.bits);
        const bool straight = in.along.unit() && !numerics.transform, one = pieces.count == 1;
        const bool tiled = whole_lines && one && in.rows * in.columns >= MANY && Lines(job.scales, job.map, 0).whole;
        const int lines = tiled ? Lines::ROWS : !straight ? LINES : one ? ROWS : SPAN / WIDTH * R * pieces.count;
        const Units units(&job.next, in.rows, in.columns, lines, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * lines, left = unit % units.across * SPAN;
            const size bottom = top + lines < in.rows ? top + lines : in.rows;
            const size right = left + SPAN < in.columns ? left + SPAN : in.columns;
            if (tiled && bottom - top == lines) tiled_unit(job, numerics, top, left, right, pieces, straight);
            else if (one) unit_of(job, numerics, top, bottom, left, right, pieces, straight);
            else if (!straight) from_columns(job, numerics, top, bottom, left, right, pieces);
            else side_by_side(job, numerics, top, bottom, pieces, {(const word*)in.x, in.down, 0}, in.down.stride == in.columns && !in.down.offsets);
        }
    }
    static void unit_of(const QuantizeJob& job, const Numerics& numerics, size top, size bottom, size left, size right, const Pieces& pieces, bool straight)
    {
        straight ? from_rows(job, numerics, top, bottom, left, right, pieces) : from_columns(job, numerics, top, bottom, left, right, pieces);
    }

    // A unit whose scales are gathered row by row, then moved in whole lines of the layout.
    [[gnu::noinline]] static void tiled_unit(const QuantizeJob& job, const Numerics& numerics, size top, size left, size right, const Pieces& pieces, bool straight)
    {
        constexpr int PITCH = whole_lines ? SPAN / B + 64 : 1;  // one line of cache more: rows start in other sets
        alignas(64) byte bytes[whole_lines ? Lines::ROWS : 1][PITCH];
        const Digit down{Lines::ROWS, PITCH, -1};
        const size start = left / B, count = (right - left + B - 1) / B;
        QuantizeJob part = job;
        part.scales = bytes[0];
        part.map = Map{&down, 1, -top * PITCH - start, 4, nullptr, nullptr, 0, nullptr, 0, 0};
        unit_of(part, numerics, top, top + Lines::ROWS, left, right, pieces, straight);
        SumRow rows[Lines::ROWS];
        for (int l = 0; l < Lines::ROWS; ++l) rows[l] = SumRow::of(part.scales, part.map, top + l);
        const Lines lines(job.scales, job.map, top);
        size column = start;
        for (; lines.whole && column + Lines::PIECE <= start + count; column += Lines::PIECE) lines.write(rows, column);
        if (const size rest = start + count - column)
            for (int l = 0; l < Lines::ROWS; ++l) ScaleRow::of(job.scales, job.map, top + l).write(column, bytes[l] + (column - start), rest);
    }

    // Where rows are, counted from row `top` on.
    struct Rows {
        const word* first;
        Axis down;
        size top;

        const word* at(size row) const { return first + down.at(row - top); }
    };

    // Rows of at most half a strip. `flat`: one follows the other in memory.
    [[gnu::noinline]] static void side_by_side(const QuantizeJob& job, const Numerics& numerics, size top, size bottom, const Pieces& pieces, const Rows& rows, bool flat)
    {
        for (size row = top; row < bottom; row += R * pieces.count) {
            alignas(64) word words[R][WIDTH];
            const word* x[R];
            for (int r = 0; r < R; ++r) x[r] = words[r];
            const bool whole = pieces.fill_strips() && row + R * pieces.count <= bottom;
            if (flat && R == 1 && whole) {
                x[0] = rows.at(row);
            } else {
                if (!whole) __builtin_memset(words, 0, sizeof words);
                for (int p = 0; p < pieces.count; ++p)
                    for (int r = 0; r < R && row + p * R + r < bottom; ++r)
                        copy_row(words[r] + p * pieces.pitch, rows.at(row + p * R + r), (size)sizeof(word) * pieces.width);
            }
            strip(job, numerics, x, row, bottom, 0, pieces.width, pieces);
        }
    }

    // Ask for what comes AHEAD bytes later; asking for an address that does not exist does nothing.
    static void ahead(const word* x, int width)
    {
        for (int i = 0; i < width; i += 64 / (int)sizeof(word)) __builtin_prefetch((const char*)(x + i) + AHEAD);
    }

    static void from_rows(const QuantizeJob& job, const Numerics& numerics, size top, size bottom, size left, size right, const Pieces& pieces)
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
                strip(job, numerics, x, row, bottom, column, width, pieces);
            }
    }

    static void from_columns(const QuantizeJob& job, const Numerics& numerics, size top, size bottom, size left, size right, const Pieces& pieces)
    {
        Gathered gathered;
        if (pieces.count > 1) {
            Gathering::gather(job.input, numerics.transform, gathered, top, (int)(bottom - top), 0, pieces.width, pieces.width);
            side_by_side(job, numerics, top, bottom, pieces, {gathered.words[0], {gathered.words[1] - gathered.words[0], nullptr}, top}, false);
            return;
        }
        for (size column = left; column < right; column += WIDTH) {
            const int width = right - column < WIDTH ? (int)(right - column) : WIDTH;
            Gathering::gather(job.input, numerics.transform, gathered, top, (int)(bottom - top), column, width, WIDTH);
            for (size row = top; row < bottom; row += R) {
                const word* x[R];
                for (int r = 0; r < R; ++r) x[r] = gathered.words[row - top + r];
                strip(job, numerics, x, row, bottom, column, width, pieces);
            }
        }
    }

    // Maxima over a unit, tensor or row. Rules: GLB-1, GLB-5.
    static void amax(AmaxJob& job, bool by_row, bool keeps_nan, float least, Transform transform)
    {
        Input in = job.input;
        if (!by_row && !transform && in.along.unit() && !in.down.offsets && in.down.stride == in.columns)
            in.columns *= in.rows, in.rows = in.rows > 0;  // one long row
        const bool straight = in.along.unit() && !transform;
        const int lines = straight ? ROWS : LINES;
        const size span = in.rows == 1 && in.columns >= 16 * (size)LONG ? LONG : SPAN;
        const Units units(&job.next, in.rows, in.columns, lines, span);
        unsigned all = 0;
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * lines, left = unit % units.across * span;
            const int count = in.rows - top < lines ? (int)(in.rows - top) : lines;
            const int width = (int)(in.columns - left < span ? in.columns - left : span);
            word largest[LINES] = {};
            if (straight)
                for (int l = 0; l < count; ++l) largest[l] = row_maximum((const word*)in.x + in.down.at(top + l) + left, width, keeps_nan);
            else
                gathered_maxima(in, transform, keeps_nan, largest, top, count, left, width);
            for (int l = 0; l < count; ++l) {
                const float a = flushed(largest[l], least);
                const unsigned bits = is_nan(a) ? 0x7fc00000u : bits_of(a);
                if (by_row) raise(job.amax + top + l, bits);
                all = larger(all, bits);
            }
        }
        if (!by_row) raise(job.amax, all);
    }

    static void gathered_maxima(const Input& in, Transform transform, bool keeps_nan, word (&largest)[LINES], size top, int count, size left, int width)
    {
        const word ceiling = keeps_nan ? MAGNITUDE : INFINITE;
        for (int c = 0; c < width; c += TILE) {
            Tile tile;
            Gathering::load(in, transform, tile, top, count, left + c, width - c);
            for (int i = 0; i < TILE; ++i)
                for (int l = 0; l < LINES; ++l) {
                    const word magnitude = tile.words[i][l] & MAGNITUDE;
                    const bool skip = magnitude < largest[l] || magnitude > ceiling;
                    largest[l] = skip ? largest[l] : magnitude;
                }
        }
    }

    static word row_maximum(const word* x, int width, bool keeps_nan)
    {
        word largest = 0;
        int i = 0;
#if defined(__AVX512BW__)
        constexpr int STEP = 4 * LANES;
        if (width >= STEP) {
            lanes most[4] = {};
            for (; i + STEP <= width; i += STEP)
                IN_REGISTERS
                for (int k = 0; k < 4; ++k) {
                    ahead(x + i + k * LANES, LANES);
                    const lanes magnitudes = largest_of<1>(x + i + k * LANES);
                    most[k] = most[k] > magnitudes ? most[k] : magnitudes;
                }
            IN_REGISTERS
            for (int k = 0; k < 4; ++k)
                for (int l = 0; l < LANES; ++l) largest = larger_word(largest, most[k][l]);
        }
#endif
        for (int start = i; start < width; start += WIDTH) {
            const int stop = width - start < WIDTH ? width : start + WIDTH;
            ahead(x + start, WIDTH);
            for (i = start; i < stop; ++i) largest = larger_word(largest, x[i] & MAGNITUDE);
        }
        if (keeps_nan || largest <= INFINITE) return largest;
        largest = 0;
        for (i = 0; i < width; ++i) {
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
