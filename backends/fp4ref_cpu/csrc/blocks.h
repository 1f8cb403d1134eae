// 8-bit floats under a float32 scale of every 128 elements of a row, or of every square of 128x128: values of a matrix of
// them, and codes of a matrix and of its transpose. S, whose element counts alone; T is the type of the values.
#pragma once
#include "strips.h"
#include "tensor.h"
#include "turn.h"

namespace fp4ref_cpu {

struct BlockValuesJob {
    const byte* codes;    // [rows, columns]
    const float* scales;  // [blocks of columns, pitch], pitch >= rows; of squares [blocks of rows, pitch]
    void* out;            // [rows, columns]
    size rows, columns, pitch, squares;
    size next;
};

// The codes of one direction, null if they are not wanted, and 1 over their scales.
struct BlockSide {
    byte* codes;    // [high, wide]
    float* scales;  // [blocks of wide, pitch], pitch >= high; of squares [blocks of high, pitch]
    size pitch;
};

struct BlockCodesJob {
    const void* x;            // [rows, columns]
    BlockSide row, column;    // of x, and of its transpose
    size rows, columns;
    float least, most;        // the least amax; the largest number of x's type
    size power_of_two, squares;
    size next;
};

template <class S, class T> struct Blocks {
    using word = typename T::word;
    static constexpr int WIDTH = 128, LINES = 32, SPAN = 32 * WIDTH;  // WIDTH: of a block, and height of a square

    static void some(const byte* __restrict codes, float factor, word* __restrict out)
    {
        alignas(64) unsigned wide[WIDTH];
        for (int i = 0; i < WIDTH; ++i) wide[i] = codes[i];
        for (int i = 0; i < WIDTH; ++i) out[i] = T::round(S::Element::decode(wide[i]) * factor);
    }

    // Rules: DEQ-2, DEQ-3, TEL-49.
    static void block_values(BlockValuesJob& job)
    {
        in_strips<LINES, SPAN, WIDTH>(&job.next, job.rows, job.columns, [&](size row, size column, int width) {
            const size block = column / WIDTH, at = row * job.columns + column;
            const float factor = job.scales[job.squares ? row / WIDTH * job.pitch + block : block * job.pitch + row];
            some_of<WIDTH>(job.codes + at, factor, (word*)job.out + at, width, some);
        });
    }

    // A square of x, the words outside of which are zero, and codes by its rows.
    struct Square {
        const word* x;
        size pitch, high, wide;
        alignas(64) word whole[WIDTH][WIDTH];
        alignas(64) byte codes[WIDTH][WIDTH];
    };

    // Largest magnitudes of rows and columns of a square; NaN is ignored.
    static void maxima(const Square& of, word (&rows)[WIDTH], word (&columns)[WIDTH])
    {
        constexpr word MAGNITUDE = (word)((word)~word(0) >> 1), INFINITE = (word)T::infinity;
        for (int c = 0; c < WIDTH; ++c) columns[c] = 0;
        for (int r = 0; r < of.high; ++r) {
            const word* __restrict x = of.x + r * of.pitch;
            word largest = 0;
            for (int c = 0; c < WIDTH; ++c) {
                const word m = (word)(x[c] & MAGNITUDE), number = m > INFINITE ? (word)0 : m;
                columns[c] = columns[c] < number ? number : columns[c];
                largest = largest < number ? number : largest;
            }
            rows[r] = largest;
        }
    }

    // Codes of the rows of a square; its element c of row r is multiplied by factors[r], or by factors[c].
    template <bool ByRow> static void encode(Square& of, const float* __restrict factors)
    {
        for (int r = 0; r < of.high; ++r) {
            const word* __restrict x = of.x + r * of.pitch;
            alignas(64) unsigned codes[WIDTH];
            for (int c = 0; c < WIDTH; ++c) codes[c] = S::Element::encode(T::widen(x[c]) * factors[ByRow ? r : c]);
            for (int c = 0; c < WIDTH; ++c) of.codes[r][c] = (byte)codes[c];
        }
    }

    // 1 over the scales of `count` neighbours of a line, and zeros behind them to its end if they are the last ones.
    static void write_scales(float* line, size at, const float* factors, size count, size whole, size pitch)
    {
        for (size i = 0; i < count; ++i) line[at + i] = 1.0f / factors[i];
        if (at + count == whole)
            for (size i = whole; i < pitch; ++i) line[i] = 0.0f;
    }

    // Rules: TEL-49, TEL-50, TEL-73.
    static void block_codes(BlockCodesJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, WIDTH, WIDTH);
        const size down = (job.rows + WIDTH - 1) / WIDTH;
        for (size unit; units.take(unit);) {
            const size below = unit / units.across, beside = unit % units.across, top = below * WIDTH, left = beside * WIDTH;
            Square square;
            take(job, top, left, square);
            const size high = square.high, wide = square.wide;
            word rows[WIDTH] = {}, columns[WIDTH];
            maxima(square, rows, columns);
            float by_row[WIDTH], by_column[WIDTH];
            if (job.squares) {
                word largest = 0;
                for (int i = 0; i < WIDTH; ++i) largest = largest < rows[i] ? rows[i] : largest;
                const float scale = scale_of(job, largest);
                for (int i = 0; i < WIDTH; ++i) by_row[i] = scale;
                encode<true>(square, by_row);
            } else {
                for (int i = 0; i < WIDTH; ++i) by_row[i] = scale_of(job, rows[i]), by_column[i] = scale_of(job, columns[i]);
            }
            if (job.row.codes) {
                const BlockSide& to = job.row;
                if (!job.squares) encode<true>(square, by_row);
                for (size r = 0; r < high; ++r)
                    __builtin_memcpy(to.codes + (top + r) * job.columns + left, square.codes[r], (unsigned long)wide);
                if (job.squares) write_scales(to.scales + below * to.pitch, beside, by_row, 1, units.across, to.pitch);
                else write_scales(to.scales + beside * to.pitch, top, by_row, high, job.rows, to.pitch);
            }
            if (job.column.codes) {
                const BlockSide& to = job.column;
                if (!job.squares) encode<false>(square, by_column);
                turn(square, to.codes + left * job.rows + top, job.rows);
                if (job.squares) write_scales(to.scales + beside * to.pitch, below, by_row, 1, down, to.pitch);
                else write_scales(to.scales + below * to.pitch, left, by_column, wide, job.columns, to.pitch);
            }
        }
    }

    static float scale_of(const BlockCodesJob& job, word amax)
    {
        return Tensor<S, T>::scale_of(T::widen(amax), job.least, job.most, job.power_of_two);
    }

    static void take(const BlockCodesJob& job, size top, size left, Square& to)
    {
        to.x = (const word*)job.x + top * job.columns + left, to.pitch = job.columns;
        to.high = job.rows - top < WIDTH ? job.rows - top : WIDTH, to.wide = job.columns - left < WIDTH ? job.columns - left : WIDTH;
        if (to.wide == WIDTH) return;
        __builtin_memset(to.whole, 0, sizeof to.whole);
        for (size r = 0; r < to.high; ++r) __builtin_memcpy(to.whole[r], to.x + r * to.pitch, sizeof(word) * (unsigned long)to.wide);
        to.x = to.whole[0], to.pitch = WIDTH;
    }

    static void turn(const Square& from, byte* to, size pitch)
    {
        constexpr int TILE = Turned::TILE;
        for (size c = 0; c < from.wide; c += TILE)
            for (size r = 0; r < from.high; r += TILE) {
                if (from.high - r >= TILE && from.wide - c >= TILE) Turned::tile(&from.codes[r][c], WIDTH, to + c * pitch + r, pitch);
                else Turned::part(&from.codes[r][c], WIDTH, to + c * pitch + r, pitch, from.high - r, from.wide - c);
            }
    }
};

}  // namespace fp4ref_cpu
