// Quantize and amax for one specification S and one input type: flat loops over a strip of blocks, which a compiler
// vectorises. All numerics come from the shared header. Certificates: quantize-*, cut-*, pieces, search-kept,
// stochastic-rows, special-blocks-*, small-inputs, past-largest-*, nan-signs, part-*, pieces-*, row-scaled, amax-kept,
// amax-places, search-far, spare-nibbles, hadamard-column*, padding-written, theorem-*.
#pragma once
#include "walk.h"

namespace fp4ref_cpu {

template <class S, class Raw, int STRIP = 1024> struct Loops {
    using In = typename input_type<S::flushes, Raw>::type;
    static constexpr int B = S::columns, R = S::rows, BITS = S::Element::Format::bits;
    using Steps = Walk<Raw, B, R, STRIP>;
    using StripScales = typename Steps::StripScales;
    using word = typename Steps::word;
    static constexpr int BLOCKS = Steps::BLOCKS, WIDTH = Steps::WIDTH;
    static constexpr word MAGNITUDE = Steps::MAGNITUDE;

    static constexpr bool by_row = S::global == Global::row;
    static constexpr float least = S::flushes ? 0x1p-126f : 0.0f;
    // Whether an element is its product with a factor, which is 1 over the unit of an estimate but for seven roundings.
    template <class... A> static constexpr bool is_among = (same_type<typename S::Arithmetic, A> || ...);
    static constexpr bool has_product = is_among<arithmetic::te, arithmetic::te_division, arithmetic::te_python, arithmetic::te_python_division>;

    // Whether the factor of a scale takes the approximate reciprocal, of which no compiler makes vectors.
    static constexpr bool by_reciprocal = is_among<arithmetic::cutlass, arithmetic::kernel_approx, arithmetic::kernel_approx_by_amax>;

    static void quantize(QuantizeJob& job)
    {
        Found found;
        Steps::quantize(job, {BITS, by_row, S::block_keeps_nan, least, transform(), &found, choose, codes});
    }
    static void amax(AmaxJob& job) { Steps::amax(job, by_row, S::amax_keeps_nan, least, transform()); }

    static typename Steps::Transform transform()
    {
        if constexpr (S::has_hadamard) return hadamard<S::signs, Steps::LINES>;
        else return nullptr;
    }

    // Magnitudes of 8 or 16 blocks' elements as floats, element by element.
    template <int LANES> static void beside(const word* x, float (&elements)[B][LANES])
    {
        if constexpr (B == 16 && LANES % 8 == 0) {
            IN_REGISTERS
            for (int half = 0; half < LANES; half += 8) {
                IN_REGISTERS
                for (int part = 0; part < B * (int)sizeof(word) / 32; ++part) {
                    words8 lines[8];
                    IN_REGISTERS
                    for (int l = 0; l < 8; ++l) __builtin_memcpy(&lines[l], (const char*)(x + (half + l) * B) + 32 * part, 32);
                    transpose(lines);
                    IN_REGISTERS
                    for (int i = 0; i < 8; ++i)
                        IN_REGISTERS
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

    // The same as `row_estimates`, in another order and but for ties, which its margin allows: an element passes at most half
    // a row's additions and those of the rows. Certificates: estimate-ties, estimate-margin.
    template <int LANES> __attribute__((always_inline)) static void product_estimates(
        const float (&elements)[R][B][LANES], const Scales<LANES>& candidates, const float (&units)[LANES], float (&error)[LANES])
    {
        alignas(64) float factor[LANES], unit[LANES], sum[LANES] = {};
        alignas(64) unsigned up[LANES];
        for (int l = 0; l < LANES; ++l) factor[l] = candidates.factor[l], unit[l] = units[l], up[l] = S::Element::binades_up(units[l]);
        for (int r = 0; r < R; ++r) {
            alignas(64) float halves[2][LANES] = {};
            IN_REGISTERS
            for (int c = 0; c < B; ++c)
                for (int l = 0; l < LANES; ++l) {
                    const float x = elements[r][c][l], q = S::Element::nearest_or_tied(x, factor[l], up[l]);
                    const float d = exact_product_plus(q, unit[l], -x);
                    halves[c % 2][l] += S::Search::metric == Metric::mse ? d * d : magnitude(d);
                }
            for (int l = 0; l < LANES; ++l) sum[l] += halves[0][l] + halves[1][l];
        }
        for (int l = 0; l < LANES; ++l) error[l] = sum[l];
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
                if constexpr (has_product) product_estimates(elements, candidates, units, error);
                else of_rows(error, [&](auto load, auto& of) __attribute__((always_inline)) { row_estimates<S, In>(candidates, units, load, of); });
            };
            Scales<LANES> found;
            choose_scales<S, In>(largest, g, A, Quick, errors, estimates, [](unsigned open) { return open; }, found);
            for (int l = 0; l < LANES; ++l)
                scales.byte[b + l] = found.byte[l], scales.s[b + l] = found.s[l], scales.factor[b + l] = found.factor[l];
        }
    }

    // What a scale byte means; a scale is rounded once for both.
    static float value_of_byte(unsigned byte, float before)
    {
        if constexpr (same_type<typename S::Scale, hardware_e4m3>) {
            const float nearest = S::Scale::nearest_magnitude(magnitude(before));
            return is_nan(before) ? float_of(0x7fc00000u) : float_of(bits_of(nearest) | (bits_of(before) & 0x80000000u));
        } else return S::Scale::decode(byte);
    }

    // The same factors as one by one, those of a byte once.
    static void look_up(const float (&largest)[BLOCKS], Found& found, StripScales& scales)
    {
        for (int b = 0; b < BLOCKS; ++b) {
            const unsigned byte = scales.byte[b];
            if (!found.known[byte]) found.factor[byte] = S::Arithmetic::template factor<S, In>(S::Scale::decode(byte), scales.g), found.known[byte] = true;
            scales.factor[b] = found.factor[byte];
        }
        if constexpr (is_among<arithmetic::kernel_approx_by_amax>)
            for (int b = 0; b < BLOCKS; ++b) scales.factor[b] = largest[b] == 0.0f ? 0.0f : scales.factor[b];
    }

    static void choose(const word* const (&x)[R], const float (&largest)[BLOCKS], bool nan, float A, int used, Found& found, StripScales& scales)
    {
        if (!found.is_of(A)) found.begin(A, global_scale<S, In>(A));
        const float g = scales.g = found.g;
        if constexpr (S::Search::enabled) {
            quick_over_constant(A) ? search<true>(x, largest, g, A, scales) : search<false>(x, largest, g, A, scales);
        } else {
            for (int b = 0; b < BLOCKS; ++b) {
                const float before = block_scale<S, In>(largest[b], g);
                const unsigned byte = S::Scale::encode(before);
                const float s = S::Arithmetic::working(before, value_of_byte(byte, before), largest[b]);
                scales.byte[b] = byte, scales.s[b] = s;
                if constexpr (!by_reciprocal) scales.factor[b] = S::Arithmetic::template factor<S, In>(s, g);
            }
            if constexpr (by_reciprocal) look_up(largest, found, scales);
        }
        alignas(64) unsigned wide[BLOCKS];
        for (int b = 0; b < BLOCKS; ++b)
            wide[b] = (b < used) & !is_narrow<S, In>(largest[b], Scale{0, scales.s[b], scales.factor[b]});
        scales.narrow = !nan && !has_any<BLOCKS>(wide);
    }

    template <bool Narrow> static unsigned code(float x, float s, float factor, float g, unsigned random)
    {
        const Scale scale{0, s, factor};
        return Narrow ? encode_narrow<S, In>(x, scale, random) : encode<S, In>(x, scale, g, random);
    }

    static void codes(const word* x, const StripScales& scales, const byte* random, byte* out)
    {
        scales.narrow ? codes_of<true>(x, scales, random, out) : codes_of<false>(x, scales, random, out);
    }

#if defined(__AVX512VBMI__)
    // Whether codes are made of bytes, those of patterns and the highest ones, which have the signs: of the elements, or of
    // bfloat16 inputs that are multiplied by a positive factor.
    static constexpr bool by_bytes = BITS == 4 && S::Element::by_sums && (S::Element::sign == Sign::bit || S::Element::sign == Sign::negative)
        && !S::Element::tells_infinity && WIDTH % 128 == 0 && (B == 16 || B % 32 == 0);
    static constexpr bool multiplies = S::Arithmetic::template apply<S, In> == arithmetic::te::apply<S, In>
        || S::Arithmetic::template apply<S, In> == arithmetic::flashinfer::apply<S, In>
        || S::Arithmetic::template apply<S, In> == arithmetic::no_global_scale::apply<S, In>;
    static constexpr bool input_signs = multiplies && S::Element::sign == Sign::bit && same_type<In, bfloat16>;

    // The pattern of an element, and a number with its sign: -0 has none where only negative numbers do.
    __attribute__((always_inline)) static unsigned pattern(float x, float s, float factor, unsigned& sign)
    {
        const float y = scaled_number<S, In>(x, Scale{0, s, factor});
        sign = bits_of(S::Element::sign == Sign::bit ? y : y + 0.0f);
        return S::Element::template e2m1_pattern<true>(y);
    }

    // The codes of 64 elements from x on, those of two in the lower byte of each word.
    __attribute__((always_inline)) static halves32 pairs_of_codes(const word* x, const StripScales& scales, int at)
    {
        alignas(64) unsigned patterns[4][16], signs[4][16];
        alignas(64) float f[16], s[16];
        bytes64 codes, high;
        if constexpr (sizeof(word) == 2) {
            alignas(64) unsigned w[2][16];
            __builtin_memcpy(w, x, sizeof w);
            IN_REGISTERS
            for (int q = 0; q < 2; ++q) {
                *(floats16*)f = spread_at<BLOCKS, B / 2>(scales.factor, at / 2 + 16 * q);
                *(floats16*)s = spread_at<BLOCKS, B / 2>(scales.s, at / 2 + 16 * q);
                for (int k = 0; k < 16; ++k)
                    if constexpr (input_signs) {
                        const unsigned magnitudes = w[q][k] & 0x7fff7fffu;
                        patterns[q][k] = S::Element::template e2m1_pattern_of_magnitude<true>(float_of(magnitudes << 16) * f[k]);
                        patterns[2 + q][k] = S::Element::template e2m1_pattern_of_magnitude<true>(float_of(magnitudes & 0xffff0000u) * f[k]);
                    } else {
                        patterns[q][k] = pattern(In::widen((word)(w[q][k] & 0xffffu)), s[k], f[k], signs[q][k]);
                        patterns[2 + q][k] = pattern(In::widen((word)(w[q][k] >> 16)), s[k], f[k], signs[2 + q][k]);
                    }
            }
            codes = by_turns<0>(words_of<0>(patterns[0], patterns[1]), words_of<0>(patterns[2], patterns[3]));
            if constexpr (input_signs) high = bytes_of<1, 2>(*(bytes64*)w[0], *(bytes64*)w[1]);
            else high = by_turns<1>(words_of<1>(signs[0], signs[1]), words_of<1>(signs[2], signs[3]));
        } else {
            IN_REGISTERS
            for (int q = 0; q < 4; ++q) {
                *(floats16*)f = spread_at<BLOCKS, B>(scales.factor, at + 16 * q), *(floats16*)s = spread_at<BLOCKS, B>(scales.s, at + 16 * q);
                for (int k = 0; k < 16; ++k) patterns[q][k] = pattern(In::widen(x[16 * q + k]), s[k], f[k], signs[q][k]);
            }
            codes = bytes_of<0, 2>(words_of<0>(patterns[0], patterns[1]), words_of<0>(patterns[2], patterns[3]));
            high = bytes_of<1, 2>(words_of<1>(signs[0], signs[1]), words_of<1>(signs[2], signs[3]));
        }
        const halves32 both = (halves32)codes | ((halves32)high >> 4 & 0x0808);
        return both | both >> 4;
    }
    template <int FIRST> __attribute__((always_inline)) static bytes64 words_of(const unsigned (&a)[16], const unsigned (&b)[16])
    {
        return (bytes64)every_second<FIRST>(*(const halves32*)a, *(const halves32*)b);
    }
#endif

    template <bool Narrow> static void codes_of(const word* __restrict x, const StripScales& scales, const byte* __restrict random, byte* __restrict out)
    {
        const float g = scales.g;
        constexpr int STEP = B % 2 ? 1 : 2;  // a pair of elements shares its scale, or does not
        alignas(64) float factor[WIDTH / STEP], s[WIDTH / STEP];
        const pair_of_words* pairs = (const pair_of_words*)x;
        alignas(64) unsigned packed[WIDTH / 2];  // narrowed afterwards: before, a compiler narrows every term
#if defined(__AVX512VBMI__)
        if constexpr (Narrow && by_bytes) {
            for (int at = 0; at < WIDTH; at += 128) {
                const bytes64 first = (bytes64)pairs_of_codes(x + at, scales, at);
                const bytes64 both = bytes_of<0, 2>(first, (bytes64)pairs_of_codes(x + at + 64, scales, at + 64));
                __builtin_memcpy(out + at / 2, &both, 64);
            }
            return;
        }
#endif
        spread<BLOCKS, B / STEP>(scales.factor, factor), spread<BLOCKS, B / STEP>(scales.s, s);
        const pair_of_bytes* randoms = (const pair_of_bytes*)random;
        pair_of_bytes* out16 = (pair_of_bytes*)out;
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
};

}  // namespace fp4ref_cpu
