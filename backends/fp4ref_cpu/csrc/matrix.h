// What the loops walk over: a strided matrix, its work units, and the rows of a buffer of scales.
#pragma once
#include <fp4ref/fp4ref.h>

namespace fp4ref_cpu {

using namespace fp4ref;
using size = long long;
using byte = unsigned char;
typedef unsigned __attribute__((aligned(1), may_alias)) pair_of_words;        // two 16-bit words, anywhere
typedef unsigned short __attribute__((aligned(1), may_alias)) pair_of_bytes;

#if defined(__AVX512F__)
typedef float floats16 __attribute__((vector_size(64), may_alias));
typedef int ints16 __attribute__((vector_size(64), may_alias));

// 16 bytes as integers, in one instruction; GCC makes many of a loop, and as many of __builtin_convertvector.
inline ints16 widened(const byte* from)
{
#if defined(__clang__)
    typedef byte bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
    return __builtin_convertvector(*(const bytes16*)from, ints16);
#else
    typedef char bytes16 __attribute__((vector_size(16), aligned(1), may_alias));
    return __builtin_ia32_pmovzxbd512_mask(*(const bytes16*)from, ints16{}, (unsigned short)-1);
#endif
}

// table[index % 16], and of two tables the entry index % 32, in one instruction that no compiler finds by itself.
inline floats16 looked_up(floats16 table, ints16 index)
{
#if defined(__clang__)
    return __builtin_ia32_permvarsf512(table, index);
#else
    return __builtin_shuffle(table, index);
#endif
}
inline floats16 looked_up(floats16 low, floats16 high, ints16 index)
{
#if defined(__clang__)
    return __builtin_ia32_vpermi2varps512(low, index, high);
#else
    return __builtin_shuffle(low, high, index);
#endif
}
#endif

// Whether one of COUNT integers is not zero.
template <int COUNT> inline bool has_any(const unsigned* flags)
{
#if defined(__AVX512F__)
    if constexpr (COUNT % 16 == 0) {
        ints16 all = *(const ints16*)flags;
        for (int i = 16; i < COUNT; i += 16) all |= *(const ints16*)(flags + i);
        return __builtin_ia32_ucmpd512_mask(all, ints16{}, 4, (unsigned short)-1);  // not equal, a bit for each
    }
#endif
    unsigned all = 0;
    for (int i = 0; i < COUNT; ++i) all |= flags[i];
    return all;
}

#if defined(__AVX512BW__)
// Every second one of the elements of two vectors, from element First on.
template <int First, class V> __attribute__((always_inline)) inline V every_second(V a, V b)
{
    constexpr int I = First;
    if constexpr (sizeof(a[0]) == 2)
        return __builtin_shufflevector(a, b, I, I + 2, I + 4, I + 6, I + 8, I + 10, I + 12, I + 14, I + 16, I + 18, I + 20, I + 22,
            I + 24, I + 26, I + 28, I + 30, I + 32, I + 34, I + 36, I + 38, I + 40, I + 42, I + 44, I + 46, I + 48, I + 50, I + 52,
            I + 54, I + 56, I + 58, I + 60, I + 62);
    else
        return __builtin_shufflevector(a, b, I, I + 2, I + 4, I + 6, I + 8, I + 10, I + 12, I + 14, I + 16, I + 18, I + 20, I + 22,
            I + 24, I + 26, I + 28, I + 30);
}
#endif

#if defined(__AVX512VBMI__)
typedef byte bytes64 __attribute__((vector_size(64), may_alias));
typedef unsigned short halves32 __attribute__((vector_size(64), may_alias));

// Of two tables the entry index % 128.
inline bytes64 looked_up(bytes64 low, bytes64 high, bytes64 index)
{
#if defined(__clang__)
    return (bytes64)__builtin_ia32_vpermi2varqi512((char __attribute__((vector_size(64))))low, (char __attribute__((vector_size(64))))index,
        (char __attribute__((vector_size(64))))high);
#else
    return __builtin_shuffle(low, high, index);
#endif
}
// Bytes FIRST, FIRST + STEP, ... of two vectors, one vector after the other.
template <int FIRST, int STEP> inline bytes64 bytes_of(bytes64 a, bytes64 b)
{
    bytes64 index;
    for (int i = 0; i < 64; ++i) index[i] = (byte)(FIRST + STEP * i);
    return looked_up(a, b, index);
}
// Bytes FIRST, FIRST + 2, ... of two vectors, by turns.
template <int FIRST> inline bytes64 by_turns(bytes64 a, bytes64 b)
{
    bytes64 index;
    for (int i = 0; i < 64; ++i) index[i] = (byte)(FIRST + (i % 2 ? 64 + i - 1 : i));
    return looked_up(a, b, index);
}
#endif

// Each of COUNT numbers TIMES over; and sixteen of them, from `at` on.
template <int COUNT, int TIMES> inline void spread(const float* from, float* to)
{
    for (int b = 0; b < COUNT; ++b)
        for (int i = 0; i < TIMES; ++i) to[b * TIMES + i] = from[b];
}
#if defined(__AVX512F__)
template <int COUNT, int TIMES> __attribute__((always_inline)) inline floats16 spread_at(const float* from, int at)
{
    const int b = at / TIMES;
    if constexpr (TIMES == 8) {
        constexpr ints16 second = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
        return second ? from[b + 1] - floats16{} : from[b] - floats16{};
    }
    return from[b] - floats16{};
}
#endif

typedef unsigned words8 __attribute__((vector_size(32), may_alias));

// Before a loop of up to 16 turns over an array of vectors, which otherwise is in memory.
#define IN_REGISTERS _Pragma("GCC unroll 16")

// Rows and columns of 8 x 8 words exchanged.
__attribute__((always_inline)) inline void transpose(words8 (&x)[8])
{
    words8 a[8];
    IN_REGISTERS
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    words8 b[8];
    IN_REGISTERS
    for (int i = 0; i < 8; i += 4)
        IN_REGISTERS
        for (int j = 0; j < 2; ++j) {
            b[i + 2 * j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * j + 1] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    IN_REGISTERS
    for (int i = 0; i < 4; ++i) {
        x[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Eight words of 16 bits, and eight others, by turns.
inline void beside_each_other(const unsigned short* low, const unsigned short* high, words8& to)
{
    typedef unsigned short halves8 __attribute__((vector_size(16), may_alias));
    halves8 a, b;
    __builtin_memcpy(&a, low, 16), __builtin_memcpy(&b, high, 16);
    to = (words8)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
}

// Element offsets along one axis: a stride, or a table.
struct Axis {
    size stride;
    const size* offsets;

    size at(size i) const { return offsets ? offsets[i] : i * stride; }
    bool unit() const { return stride == 1 && !offsets; }
};

// Threads take the next unit until none is left: LINES rows by SPAN columns, along the rows first. Many units are taken
// from several places by turns, so that two threads seldom write to one large page, which the system would clear twice.
struct Units {
    static constexpr size PARTS = 16;
    size* next;
    size across, count, parts, part;

    Units(size* counter, size rows, size columns, size lines, size span, size places = PARTS)
        : next(counter), across((columns + span - 1) / span), count((rows + lines - 1) / lines * across),
          parts(count < 2 * places ? 1 : places), part((count + parts - 1) / parts)
    {
    }
    bool take(size& unit) const
    {
        for (size turn; (turn = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < parts * part;)
            if ((unit = turn % parts * part + turn / parts) < count) return true;
        return false;
    }
};

// Rows of at most half a strip of WIDTH elements are put side by side, `count` of them, `pitch` elements from one to the
// next; a whole block of B elements takes whole bytes.
template <int WIDTH, int B> struct SideBySide {
    int width, pitch, count;

    SideBySide(size columns, int bits) : width(0), pitch(WIDTH), count(1)  // 0 columns: one row at a time
    {
        if (B * bits % 8 || columns == 0 || columns > WIDTH / 2) return;
        width = (int)columns, pitch = (width + B - 1) / B * B, count = WIDTH / pitch;
    }
    bool fill_strips() const { return width == pitch && pitch * count == WIDTH; }
};

// One digit of an index: how many values it takes, bytes between them, and log2 of their number, or -1.
struct Digit {
    size radix, stride, log2;
};

// A digit of a row (axis 0) or a column (axis 1).
struct Place {
    size axis, weight, radix;

    size of(size row, size column) const { return (axis ? column : row) / weight % radix; }
};

// A digit that is stored XOR another one.
struct Turn {
    Place mine, by;
    size stride;
};

// A layout for given sizes: a row's digits, and where the columns of a row are stored. Rules: LAY-13, LAY-19, LAY-21, LAY-30.
struct Map {
    const Digit* digits;  // fastest first
    size count, first;
    size step;            // bytes between groups of four columns that are stored side by side, or 0
    const size* columns;  // where the columns of a row are stored, if step is 0
    const Turn* turns;    // `turned` of them; with one, or a table, an offset is no sum over row and column
    size turned;
    const size* table;    // where the units of each run from `base` on are moved, or null
    size run, base;

    bool is_sum() const { return !turned && !table; }
    // Whether rows of so many columns follow each other without a gap.
    bool is_flat(size of_columns) const { return is_sum() && count == 1 && step == 4 && digits[0].stride == of_columns; }
    size row(size index) const
    {
        size offset = first;
        for (const Digit* d = digits; d != digits + count - 1; ++d) {
            const size rest = d->log2 >= 0 ? index >> d->log2 : index / d->radix;
            offset += (index - rest * d->radix) * d->stride;
            index = rest;
        }
        return offset + index * digits[count - 1].stride;
    }
    size turned_and_moved(size row, size column, size offset) const
    {
        for (const Turn* t = turns; t != turns + turned; ++t) {
            const size value = t->mine.of(row, column);
            offset += ((value ^ t->by.of(row, column)) - value) * t->stride;
        }
        if (!table) return offset;
        const size unit = (offset - base) % run;
        return offset - unit + table[unit];
    }
};

// The scale bytes of a row, where an offset is a sum over row and column.
struct SumRow {
    byte* first;
    size step;
    const size* columns;

    static SumRow of(byte* scales, const Map& map, size row) { return {scales + map.row(row), map.step, map.columns}; }
    byte* group(size column) const { return first + column / 4 * step; }  // column % 4 == 0
    byte* place(size column) const { return columns ? first + columns[column] : group(column) + column % 4; }

    __attribute__((always_inline)) void write(size column, const byte* from, size count) const
    {
        if (step == 4) {
            __builtin_memcpy(group(column), from, (unsigned long)count);
            return;
        }
        size i = 0;
        if (columns) {
            for (; i < count; ++i) first[columns[column + i]] = from[i];
            return;
        }
        byte* to = group(column);
        for (; i + 4 <= count; i += 4, to += step) {
            __asm__("" : "+r"(to));  // a vector's parts are scattered more slowly than they are written one by one
            __builtin_memcpy(to, from + i, 4);
        }
        if (i < count) __builtin_memcpy(to, from + i, (unsigned long)(count - i));
    }
    __attribute__((always_inline)) void read(size column, byte* to, size count) const
    {
        if (step == 4) {
            __builtin_memcpy(to, group(column), (unsigned long)count);
            return;
        }
        size i = 0;
        if (columns) {
            for (; i < count; ++i) to[i] = first[columns[column + i]];
            return;
        }
        const byte* from = group(column);
        for (; i + 4 <= count; i += 4, from += step) {
            __asm__("" : "+r"(from));
            __builtin_memcpy(to + i, from, 4);
        }
        if (i < count) __builtin_memcpy(to + i, from, (unsigned long)(count - i));
    }
};

// The scale bytes of a row of any layout.
struct ScaleRow : SumRow {
    const Map* map;  // where offsets are no sums, else null; `first` is then of all rows
    size row;

    static ScaleRow of(byte* scales, const Map& map, size row)
    {
        if (map.is_sum()) return {SumRow::of(scales, map, row), nullptr, row};
        return {{scales, 0, map.columns}, &map, row};
    }
    byte* place(size column) const
    {
        return map ? first + map->turned_and_moved(row, column, map->row(row) + columns[column]) : SumRow::place(column);
    }
    byte at(size column) const { return *place(column); }

    __attribute__((always_inline)) void write(size column, const byte* from, size count) const
    {
        if (count == 1)  // of a narrow matrix, where a call of memcpy would cost more than the rest
            *place(column) = *from;
        else if (map)
            for (size i = 0; i < count; ++i) *place(column + i) = from[i];
        else
            SumRow::write(column, from, count);
    }
    __attribute__((always_inline)) void read(size column, byte* to, size count) const
    {
        if (map)
            for (size i = 0; i < count; ++i) to[i] = *place(column + i);
        else
            SumRow::read(column, to, count);
    }
};

// A row of a narrow matrix, where a call of memcpy would cost more than the rest.
inline void copy_row(void* to, const void* from, size bytes)
{
    switch (bytes) {
    case 1: __builtin_memcpy(to, from, 1); return;
    case 2: __builtin_memcpy(to, from, 2); return;
    case 4: __builtin_memcpy(to, from, 4); return;
    case 8: __builtin_memcpy(to, from, 8); return;
    case 16: __builtin_memcpy(to, from, 16); return;
    case 32: __builtin_memcpy(to, from, 32); return;
    case 64: __builtin_memcpy(to, from, 64); return;
    default: __builtin_memcpy(to, from, (unsigned long)bytes);
    }
}

// Results of at least this many bytes go past the caches, which they would only sweep.
constexpr size STREAMED = 4 << 20;

inline bool streams(const void* to, size whole) { return whole >= STREAMED && (unsigned long)to % 16 == 0; }

// Copy past the caches; `to` and `count` are multiples of 16. A line that is written in parts, one right after another, is
// written to memory once.
inline void stream(void* __restrict to, const void* __restrict from, int count)
{
    byte* const out = (byte*)to;
    const byte* const in = (const byte*)from;
    const auto move = [&](int at) __attribute__((always_inline)) {
        typedef long long lane __attribute__((vector_size(16), may_alias));
        lane part;
        __builtin_memcpy(&part, in + at, 16);
#if defined(__clang__)
        __builtin_nontemporal_store(part, (lane*)(out + at));
#elif defined(__SSE2__)
        __builtin_ia32_movntdq((lane*)(out + at), part);
#else
        *(lane*)(out + at) = part;
#endif
    };
    int at = 0;
#if defined(__AVX512F__) && !defined(__clang__)
    typedef long long line __attribute__((vector_size(64), may_alias));
    for (; at < count && (unsigned long)(out + at) % 64; at += 16) move(at);
    for (; at + 64 <= count; at += 64) {
        line whole;
        __builtin_memcpy(&whole, in + at, 64);
        __builtin_ia32_movntdq512((line*)(out + at), whole);
    }
#endif
    for (; at < count; at += 16) move(at);
}

// What was streamed is in memory before anything that this thread says about it.
inline void settle()
{
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

// Round to nearest even, subnormals kept, whatever the calling thread is set to. Rules: NUM-1.
struct FloatModes {
#if defined(__SSE__)
    unsigned saved = __builtin_ia32_stmxcsr();
    FloatModes() { __builtin_ia32_ldmxcsr(0x1f80u); }
    ~FloatModes() { __builtin_ia32_ldmxcsr(saved); }
#elif defined(__aarch64__)
    unsigned long saved;
    FloatModes()
    {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
        __asm__ volatile("msr fpcr, %0" ::"r"(0ul));
    }
    ~FloatModes() { __asm__ volatile("msr fpcr, %0" ::"r"(saved)); }
#endif
};

}  // namespace fp4ref_cpu
