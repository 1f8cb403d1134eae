// Scale bytes from one layout to another. Certificates: offset-*, moved-tails.
#pragma once
#include "lines.h"

namespace fp4ref_cpu {

struct RelayoutJob {
    byte* from;
    byte* to;  // padding written already
    size rows, columns;
    Map from_map, to_map;
    size next;
};

struct Bytes {
    static constexpr int LINES = Lines::ROWS, PIECE = 64;

    static void relayout(RelayoutJob& job)
    {
        job.from_map.is_sum() && job.to_map.is_sum() ? pieces<SumRow>(job) : pieces<ScaleRow>(job);
    }

    // Pieces of rows, in row groups and column groups small enough that both sides stay in cache.
    template <class Row> static void pieces(RelayoutJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, LINES, job.columns);
        size unit, later;
        for (bool more = units.take(later); more;) {
            unit = later, more = units.take(later);
            const size top = unit * LINES;
            const int lines = job.rows - top < LINES ? (int)(job.rows - top) : LINES;
            Row from[LINES], to[LINES];
            for (int l = 0; l < lines; ++l) from[l] = Row::of(job.from, job.from_map, top + l), to[l] = Row::of(job.to, job.to_map, top + l);
            size column = 0;
            if constexpr (same_type<Row, SumRow>) if (lines == LINES) column = by_lines(job, from, to, top, more ? later * LINES : top);
            if (job.columns - column >= PIECE)
                for (int l = 0; l < lines; ++l) ahead(from[l], to[l], column, l);
            for (; column < job.columns; column += PIECE) {
                const size rest = job.columns - column;
                for (int l = 0; l < lines; ++l) {
                    if (rest >= 2 * PIECE) ahead(from[l], to[l], column + PIECE, l);
                    rest >= PIECE ? move(from[l], to[l], column, PIECE) : move(from[l], to[l], column, rest);
                }
            }
        }
    }

    // Move what one side stores in whole lines, and ask for the rows from `later` on; the number of columns moved.
    static size by_lines(const RelayoutJob& job, const SumRow* from, const SumRow* to, size top, size later)
    {
        const bool writes = job.from_map.step == 4;
        if (job.columns < Lines::PIECE || writes == (job.to_map.step == 4)) return 0;
        const Lines lines = writes ? Lines(job.to, job.to_map, top) : Lines(job.from, job.from_map, top);
        if (!lines.whole) return 0;
        const byte *next_from = job.from + job.from_map.row(later), *next_to = job.to + job.to_map.row(later);
        size column = 0;
        for (; column + Lines::PIECE <= job.columns; column += Lines::PIECE) {
            for (int l = 0; l < Lines::PIECE * LINES; l += 64, next_from += 64, next_to += 64)
                __builtin_prefetch(next_from, 0, 2), __builtin_prefetch(next_to, 1);
            writes ? lines.write(from, column) : lines.read(to, column);
        }
        return column;
    }

    // Ask for a piece of row l of a group: where rows are tiled, sixteen of them share the lines of sixteen tiles.
    template <class Row> __attribute__((always_inline)) static void ahead(const Row& from, const Row& to, size column, int l)
    {
        __builtin_prefetch(from.place(column));
        __builtin_prefetch(to.place(column + l % 4 * 4 + l / 32 * 16), 1);
    }

    template <class Row> __attribute__((always_inline)) static void move(const Row& from, const Row& to, size column, size count)
    {
        byte bytes[PIECE];
        from.read(column, bytes, count);
        to.write(column, bytes, count);
    }
};

}  // namespace fp4ref_cpu
