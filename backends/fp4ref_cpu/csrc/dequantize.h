// Dequantize for one specification S, one type In that was quantized and one output type Out. Certificates: dequantize-*,
// rows-decoded-by-amax, columns-inverted.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct DequantizeJob {
    const byte* data;    // [rows, ceil(columns * bits / 8)]
    byte* scales;        // the whole buffer of the layout, only read
    const float* amax;   // [1], [rows], or null
    size rows, columns;
    void* out;           // [rows, columns]
    Map map;
    size next;
};

// The walk over strips of blocks of B values. It holds no numerics; specifications that agree in B, and in the size of the
// values, share its compiled code.
template <class word, int B> struct ValueStrips {
    static constexpr int BLOCKS = B >= 256 ? 4 : (1024 / B + 3) / 4 * 4;
    static constexpr int WIDTH = BLOCKS * B, LINES = 32, SPAN = (8191 / WIDTH + 1) * WIDTH;

    // The numerics of a specification.
    struct Numerics {
        int bits;  // of a code
        bool has_maximum, by_row;
        void (*values)(const byte* data, const byte (&bytes)[BLOCKS], float A, word* out);  // of a strip
    };

    using Pieces = SideBySide<WIDTH, B>;

    // A strip of `width` values of one row, or of the next `pieces.count` rows below `bottom`.
    static void strip(const DequantizeJob& job, const Numerics& numerics, size row, size bottom, size column, int width, const Pieces& pieces)
    {
        const int bits = numerics.bits;
        const size pitch = (job.columns * bits + 7) / 8;
        const int rows = bottom - row < pieces.count ? (int)(bottom - row) : pieces.count, blocks = (width + B - 1) / B;
        const bool direct = width == WIDTH || (pieces.fill_strips() && rows == pieces.count);
        const float A = numerics.has_maximum ? job.amax[numerics.by_row ? row : 0] : 0.0f;
        alignas(64) byte bytes[BLOCKS] = {}, padded[WIDTH];
        if (pieces.count > 1 && job.map.is_flat(blocks)) __builtin_memcpy(bytes, job.scales + job.map.row(row), (unsigned)(rows * blocks));
        else
            for (int p = 0; p < rows; ++p) ScaleRow::of(job.scales, job.map, row + p).read(column / B, bytes + p * blocks, blocks);
        const byte* data = job.data + row * pitch + column * bits / 8;
        if (!direct) {
            __builtin_memset(padded, 0, sizeof padded);
            for (int p = 0; p < rows; ++p)
                copy_row(padded + p * pieces.pitch * bits / 8, data + p * pitch, (width * bits + 7) / 8);
            data = padded;
        }
        word* const out = (word*)job.out + row * job.columns + column;
        alignas(64) word all[WIDTH];
        const bool past = direct && WIDTH % 16 == 0 && streams(out, job.rows * job.columns * (size)sizeof(word));
        numerics.values(data, bytes, A, direct && !past ? out : all);
        if (past) stream(out, all, sizeof(all));
        else if (!direct)
            for (int p = 0; p < rows; ++p) copy_row(out + p * job.columns, all + p * pieces.pitch, (size)sizeof(word) * width);
    }

    static void dequantize(DequantizeJob& job, const Numerics& numerics)
    {
        const Pieces pieces(numerics.by_row ? 0 : job.columns, numerics.bits);
        const int lines = pieces.count == 1 ? LINES : SPAN / WIDTH * pieces.count;
        const Units units(&job.next, job.rows, job.columns, lines, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * lines, left = unit % units.across * SPAN;
            const size bottom = top + lines < job.rows ? top + lines : job.rows;
            const size right = left + SPAN < job.columns ? left + SPAN : job.columns;
            for (size row = top; row < bottom; row += pieces.count)
                for (size column = left; column < right; column += WIDTH)
                    strip(job, numerics, row, bottom, column, right - column < WIDTH ? (int)(right - column) : WIDTH, pieces);
        }
        settle();
    }
};

// A specification with a Hadamard transform undoes it.
template <class S, class In, class Out> struct Values {
    using word = typename Out::word;
    static constexpr int B = S::columns, BITS = S::Element::Format::bits;
    using Strips = ValueStrips<word, B>;
    static constexpr int BLOCKS = Strips::BLOCKS, WIDTH = Strips::WIDTH;
    // A format without infinity and NaN; a number times a finite scale is one.
    static constexpr bool only_numbers = S::Element::Format::codes == 1 << (BITS - 1);

    template <bool Numbers> static float value(float q, float decoded, float A)
    {
        return Numbers ? value_of_number<S, In>(q, decoded, A) : value_of<S, In>(q, decoded, A);
    }
    template <bool Numbers> static word rounded(float x) { return Numbers ? Out::round_number(x) : Out::round(x); }

    // Two codes of a strip in each of its integers, the first one low. Rules: PACK-1, PACK-4.
    static void pairs_of_codes(const byte* data, unsigned (&codes)[WIDTH / 2])
    {
        const pair_of_bytes* data16 = (const pair_of_bytes*)data;
        if constexpr (BITS == 6)  // of four codes in three bytes, the lower 12 bits and the higher ones
            for (int k = 0; k < WIDTH / 4; ++k) {
                codes[2 * k] = *(const pair_of_bytes*)(data + 3 * k) & 0xfffu;
                codes[2 * k + 1] = *(const pair_of_bytes*)(data + 3 * k + 1) >> 4;
            }
        else
            for (int k = 0; k < WIDTH / 2; ++k) codes[k] = BITS == 4 ? data[k] : data16[k];
    }

    // The same as `decoded_scale` where every scale is a positive number, and what is decoded a finite one; whether one is not.
    static bool decoded_numbers(const byte (&bytes)[BLOCKS], float A, float (&decoded)[BLOCKS])
    {
        alignas(64) unsigned wide[BLOCKS];  // beforehand, as codes are
        for (int b = 0; b < BLOCKS; ++b) wide[b] = bytes[b];
        unsigned special = !is_finite(A);
        for (int b = 0; b < BLOCKS; ++b) {
            float s;
            if constexpr (same_type<typename S::Scale::Format, e8m0> || is_complement<typename S::Scale>) s = S::Scale::decode(wide[b]);
            else s = S::Scale::value(wide[b]);
            if constexpr (S::global != Global::none) s = S::Arithmetic::template decode<S, In>(s, A);
            special |= (wide[b] >= S::Scale::Format::codes) | !is_finite(s);
            decoded[b] = s;
        }
        return special;
    }

    // Whether every code of a strip is a number's.
    static bool numbers_alone(const byte* data)
    {
        if constexpr (BITS != 8 || only_numbers) return only_numbers;
        byte largest = 0;
        for (int k = 0; k < WIDTH; ++k) {
            const byte magnitude = data[k] & (S::Element::Format::sign_bit - 1);
            largest = magnitude > largest ? magnitude : largest;
        }
        return largest < S::Element::Format::codes;
    }

#if defined(__AVX512F__)
    // Values of the lower six bits of integers, the highest of which is the sign.
    static floats16 six_bits(floats16 low, floats16 high, ints16 codes)
    {
        return (floats16)((ints16)looked_up(low, high, codes) | (codes & 32) << 26);
    }
#endif

    // Element values of a strip: even ones and odd ones.
    static void decode(const byte* data, float (&even)[WIDTH / 2], float (&odd)[WIDTH / 2])
    {
#if defined(__AVX512F__)
        if constexpr (BITS == 4 && WIDTH % 32 == 0) {
            floats16 table;
            for (int i = 0; i < 16; ++i) table[i] = S::Element::decode((unsigned)i);
            for (int k = 0; k < WIDTH / 2; k += 16) {
                const ints16 both = widened(data + k);
                *(floats16*)(even + k) = looked_up(table, both), *(floats16*)(odd + k) = looked_up(table, both >> 4);
            }
            return;
        }
#endif
        alignas(64) unsigned codes[WIDTH / 2];  // widened beforehand: afterwards, a compiler widens every term
        pairs_of_codes(data, codes);
#if defined(__AVX512F__)
        if constexpr (BITS == 6 && WIDTH % 32 == 0) {
            floats16 low, high;
            for (int i = 0; i < 16; ++i) low[i] = S::Element::decode((unsigned)i), high[i] = S::Element::decode(16u + i);
            for (int k = 0; k < WIDTH / 2; k += 16) {
                const ints16 both = *(const ints16*)(codes + k);
                *(floats16*)(even + k) = six_bits(low, high, both), *(floats16*)(odd + k) = six_bits(low, high, both >> 6);
            }
            return;
        }
#endif
        for (int k = 0; k < WIDTH / 2; ++k) {
            even[k] = S::Element::decode(codes[k] & ((1u << BITS) - 1));
            odd[k] = S::Element::decode(codes[k] >> BITS);
        }
    }

    // Sixteen bytes at a time, whose values never leave the registers.
    static constexpr bool by_sixteen = BITS == 4 && (B == 16 || B % 32 == 0) && !S::has_hadamard;
#if defined(__AVX512F__)
    template <bool Numbers> static void values_of_sixteen(const byte* data, const float (&decoded)[BLOCKS], float A, word* __restrict out)
    {
        floats16 table;
        for (int i = 0; i < 16; ++i) table[i] = S::Element::decode((unsigned)i);
        pair_of_words* pairs = (pair_of_words*)out;
        for (int k = 0; k < WIDTH / 2; k += 16) {
            alignas(64) float even[16], odd[16], d[16];
            const ints16 both = widened(data + k);
            *(floats16*)even = looked_up(table, both), *(floats16*)odd = looked_up(table, both >> 4);
            *(floats16*)d = spread_at<BLOCKS, B / 2>(decoded, k);
            for (int i = 0; i < 16; ++i) {
                const float low = value<Numbers>(even[i], d[i], A), high = value<Numbers>(odd[i], d[i], A);
                if constexpr (sizeof(word) == 2) pairs[k + i] = rounded<Numbers>(low) | (unsigned)rounded<Numbers>(high) << 16;
                else out[2 * (k + i)] = rounded<Numbers>(low), out[2 * (k + i) + 1] = rounded<Numbers>(high);
            }
        }
    }
#endif

    template <bool Numbers> static void values(const byte* data, const float (&decoded)[BLOCKS], float A, word* __restrict out)
    {
#if defined(__AVX512F__)
        if constexpr (by_sixteen) return values_of_sixteen<Numbers>(data, decoded, A, out);
#endif
        constexpr int STEP = B % 2 ? 1 : 2;
        alignas(64) float d[WIDTH / STEP], even[WIDTH / 2], odd[WIDTH / 2];
        spread<BLOCKS, B / STEP>(decoded, d);
        decode(data, even, odd);
        pair_of_words* pairs = (pair_of_words*)out;
        alignas(64) float y[S::has_hadamard ? WIDTH : 1];
        for (int k = 0; k < WIDTH / 2; ++k) {
            const float low = value<Numbers>(even[k], d[STEP == 2 ? k : 2 * k], A);
            const float high = value<Numbers>(odd[k], d[STEP == 2 ? k : 2 * k + 1], A);
            if constexpr (S::has_hadamard) y[2 * k] = low, y[2 * k + 1] = high;
            else if constexpr (sizeof(word) == 2) pairs[k] = rounded<Numbers>(low) | (unsigned)rounded<Numbers>(high) << 16;
            else out[2 * k] = rounded<Numbers>(low), out[2 * k + 1] = rounded<Numbers>(high);
        }
        if constexpr (S::has_hadamard) {
            undo_transform(y);
            for (int i = 0; i < WIDTH; ++i) out[i] = Out::round(y[i]);
        }
    }

    // The inverse transform of every 16 values, of many groups side by side where they come in eights.
    static void undo_transform(float (&y)[WIDTH])
    {
        constexpr int LANES = WIDTH % 128 ? 1 : WIDTH / 16, SIDE = LANES % 8 ? 1 : 8;
        for (int first = 0; first < WIDTH; first += 16 * LANES) {
            alignas(64) float groups[16][LANES];
            for (int g = 0; g < LANES; g += SIDE)
                for (int j = 0; j < 16; j += SIDE) exchange<SIDE>(y + first + 16 * g + j, 16, &groups[j][g], LANES);
            inverse_hadamard<S::signs>(groups);
            for (int g = 0; g < LANES; g += SIDE)
                for (int j = 0; j < 16; j += SIDE) exchange<SIDE>(&groups[j][g], LANES, y + first + 16 * g + j, 16);
        }
    }

    // A square of SIDE x SIDE floats, rows and columns exchanged; pitches are floats from one row to the next.
    template <int SIDE> static void exchange(const float* from, int pitch, float* to, int to_pitch)
    {
        if constexpr (SIDE == 1) {
            *to = *from;
        } else {
            words8 rows[8];
            for (int i = 0; i < 8; ++i) __builtin_memcpy(&rows[i], from + i * pitch, 32);
            transpose(rows);
            for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * to_pitch, &rows[i], 32);
        }
    }

    // A strip of values, from its codes and the bytes of its scales.
    static void strip(const byte* data, const byte (&bytes)[BLOCKS], float A, word* out)
    {
        alignas(64) float decoded[BLOCKS];
        const bool special = decoded_numbers(bytes, A, decoded);  // a scale, A or a product that is no finite number
        if (special)
            for (int b = 0; b < BLOCKS; ++b) decoded[b] = decoded_scale<S, In>(bytes[b], A);
        !special && numbers_alone(data) ? values<true>(data, decoded, A, out) : values<false>(data, decoded, A, out);
    }

    static void dequantize(DequantizeJob& job) { Strips::dequantize(job, {BITS, S::global != Global::none, S::global == Global::row, strip}); }
};

}  // namespace fp4ref_cpu
