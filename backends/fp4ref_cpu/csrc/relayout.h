// Scale bytes from one layout to another. Certificates: offset-*, moved-tails.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct RelayoutJob {
    byte* from;
    byte* to;  // padding written already
    size rows, columns;
    Map from_map, to_map;
    size next;
};

struct Bytes {
    static constexpr int LINES = 128, PIECE = 64;

    static void relayout(RelayoutJob& job)
    {
        job.from_map.is_sum() && job.to_map.is_sum() ? pieces<SumRow>(job) : pieces<ScaleRow>(job);
    }

    // Pieces of rows, in row groups and column groups small enough that both sides stay in cache.
    template <class Row> static void pieces(RelayoutJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, LINES, job.columns);
        for (size unit; units.take(unit);) {
            const size top = unit * LINES;
            const int lines = job.rows - top < LINES ? (int)(job.rows - top) : LINES;
            Row from[LINES], to[LINES];
            for (int l = 0; l < lines; ++l) {
                from[l] = Row::of(job.from, job.from_map, top + l);
                to[l] = Row::of(job.to, job.to_map, top + l);
                if (job.columns >= PIECE) ahead(from[l], to[l], 0, l);
            }
            for (size column = 0; column < job.columns; column += PIECE) {
                const size rest = job.columns - column;
                for (int l = 0; l < lines; ++l) {
                    if (rest >= 2 * PIECE) ahead(from[l], to[l], column + PIECE, l);
                    rest >= PIECE ? move(from[l], to[l], column, PIECE) : move(from[l], to[l], column, rest);
                }
            }
        }
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
