// One block: its maximum, its scale, its codes, and the search of 4over6.
//
// S is a specification: Element and Scale (Codec), Arithmetic, Search, element_max, scale_max, rows, columns, Global
// (none, tensor, row), block_keeps_nan, amax_keeps_nan, flushes, has_hadamard, signs. In is the input type, `flushing` if
// S::flushes.
#pragma once
#include <fp4ref/engines.h>
#include <fp4ref/signs.h>

namespace fp4ref {

enum class Global { none, tensor, row };

// A running maximum of magnitudes from +0, as bit patterns; a NaN is ignored, or wins. Rules: BLK-2.
// Certificates: running-amax.
template <bool KeepNaN> FP4_API unsigned running_amax(unsigned amax, unsigned magnitude)
{
#if defined(__CUDACC__)
    if constexpr (!KeepNaN) return bits_of(running_max(float_of(amax), float_of(magnitude)));
#endif
    return !KeepNaN && magnitude > 0x7f800000u ? amax : larger(amax, magnitude);
}

// g of a maximum; 1 without a global scale. Rules: GLB-2, GLB-3, GLB-5, GLB-6.
template <class S, class In> FP4_API float global_scale(float A)
{
    if constexpr (S::global == Global::none) return 1.0f;
    return signed_nan(S::Arithmetic::template global_scale<S, In>(A), A, 0.0f, 0.0f);
}

// A stored scale: its byte, the scale that elements are divided by, and what every element is combined with.
struct Scale {
    unsigned byte;
    float s, factor;
};

// Rules: BLK-4, BLK-6.
template <class S, class In> FP4_API Scale stored_scale(float before, float g, float amax)
{
    const unsigned byte = S::Scale::encode(before);
    const float s = S::Arithmetic::working(before, S::Scale::decode(byte), amax);
    return {byte, s, S::Arithmetic::template factor<S, In>(s, g)};
}

// E4M3 to the nearest value, whatever its NaN are.
template <class C> constexpr bool is_nearest_e4m3 = false;
template <int NaN, int NegativeNaN> constexpr bool is_nearest_e4m3<Codec<e4m3, Rounding::even, Sign::bit, NaN, NegativeNaN, -1>> = true;

// The scale that a search divides elements by. Rules: BLK-4, FOS-7.
template <class S> FP4_API float searched_scale(float before, float amax)
{
    if constexpr (is_nearest_e4m3<typename S::Scale> && !S::Element::keeps_nan_sign)
        return S::Arithmetic::working(before, is_nan(before) ? float_of(0x7fc00000u) : S::Scale::nearest_magnitude(before), amax);
    else return S::Arithmetic::working(before, S::Scale::decode(S::Scale::encode(before)), amax);
}

// A block's scale before its codec. Rules: BLK-3, BLK-10. Certificates: block-scale, mx-floor,
// mx-ceil, mx-even, mx-rceil, unscaled.
template <class S, class In> FP4_API float block_scale(float amax, float g)
{
    const float t = S::Arithmetic::template block_scale<S, In>(amax, g);
    if constexpr (S::Scale::keeps_nan_sign) return signed_nan(t, amax, g, 0.0f);
    return t;
}

// An element in units of its scale. Rules: BLK-5.
template <class S, class In> FP4_API float scaled(float x, const Scale& scale, float g)
{
    const float y = S::Arithmetic::template apply<S, In>(x, scale.factor, scale.s);
    if constexpr (S::Element::keeps_nan_sign) return signed_nan(y, x, scale.s, g);
    return y;
}

// The same where nothing is a NaN; by a quotient, below QUOTIENT_LIMIT only. Certificates: past-largest-*.
template <class S, class In> FP4_API float scaled_number(float x, const Scale& scale)
{
    using Arithmetic = typename S::Arithmetic;
    if constexpr (arithmetic::by_quotient<Arithmetic>) return Arithmetic::template quotient<S, In>(x, scale.factor, scale.s);
    else return Arithmetic::template apply<S, In>(x, scale.factor, scale.s);
}

template <class S, class In> FP4_API unsigned encode(float x, const Scale& scale, float g, unsigned random_bits = 0)
{
    return S::Element::encode(scaled<S, In>(x, scale, g), random_bits);
}

// Whether all of a block whose maximum is `amax`, without a NaN, is below a limit in units of its scale. An arithmetic that
// grows with |x| tells it by the maximum, one that does not tells nothing; and a NaN compares false. Certificates: past-largest-*.
template <class S, class In> FP4_API bool is_below(float amax, const Scale& scale, float limit)
{
    if constexpr (!arithmetic::grows<typename S::Arithmetic>) return false;
    const float end = arithmetic::by_quotient<typename S::Arithmetic> ? min_number(limit, arithmetic::QUOTIENT_LIMIT) : limit;
    return magnitude(scaled_number<S, In>(amax, scale)) < end;
}

// Whether it may be encoded by `encode_narrow`.
template <class S, class In> FP4_API bool is_narrow(float amax, const Scale& scale)
{
    return is_below<S, In>(amax, scale, S::Element::narrow_limit);
}

// The code in the low byte, with anything above it.
template <class S, class In> FP4_API unsigned encode_narrow(float x, const Scale& scale, unsigned random_bits = 0)
{
    return S::Element::encode_narrow(scaled_number<S, In>(x, scale), random_bits);
}

// A finite x >= 0 over a constant, rounded once. Quick is for an x that is 0 or in [2^-60, 2^120], where neither the
// product nor its error is a subnormal: for the constants named here, x times the reciprocal in two parts, high and low,
// rounds as the quotient does, for all 2^23 significands. Rules: FOS-3. Certificates: over-2688, over-1536, over-6.
template <bool Quick> FP4_API float over_constant(float x, float constant)
{
#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    if (Quick && (constant == 2688.0f || constant == 1536.0f || constant == 6.0f)) {
        const double reciprocal = 1.0 / constant;
        const float high = (float)reciprocal, low = (float)(reciprocal - high);
#if defined(__CUDACC__)
        return fmaf(x, high, x * low);
#else
        return __builtin_fmaf(x, high, x * low);
#endif
    }
#endif
    return x / constant;
}

// The scale before its codec of a block with a maximum of 0, or in [2^-60, 2^120]. Rules: BLK-3, FOS-1.
template <class S, class In> FP4_API float quick_block_scale(float amax, float g)
{
    if constexpr (same_type<typename S::Arithmetic, arithmetic::te_division>) return over_constant<true>(amax, 6.0f) * g;
    return block_scale<S, In>(amax, g);
}

// Whether Quick and estimates may be used in a tensor or row with this maximum: s is 0, NaN or in [2^-9, 448].
// Certificates: quick-range.
FP4_API bool quick_over_constant(float A) { return A > 0x1p-30f && A < 0x1p100f; }

// 4over6: how far an element value q is from its input. Rules: FOS-3, FOS-4. Certificates: search-errors.
namespace difference {
struct dequantized {
    template <class S, bool Quick> FP4_API float of(float q, float s, float, float A, float x) { return over_constant<Quick>(q * s * A, S::element_max * S::scale_max) - x; }
};
struct dequantized_by_reciprocal {
    template <class S, bool> FP4_API float of(float q, float s, float g, float, float x) { return q * s * (1.0f / g) - x; }
};
struct scaled_units {
    template <class S, bool> FP4_API float of(float q, float s, float g, float, float x) { return exact_product_plus(q, s, -(x * g)); }
};
struct scaled_units_float16 {
    template <class S, bool> FP4_API float of(float q, float s, float g, float, float x) { return float16::narrow(q * s) - x * g; }
};
}  // namespace difference

// 4over6: the order in which the errors of a row, and of the rows, are added, for Lanes blocks side by side.
// Rules: FOS-5. Certificates: search-order.
namespace total {
template <int N, int Lanes> FP4_API void left_to_right(const float (&e)[N][Lanes], float (&sum)[Lanes])
{
    FP4_UNROLL
    for (int l = 0; l < Lanes; ++l) sum[l] = e[0][l];
    FP4_UNROLL
    for (int i = 1; i < N; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) sum[l] = sum[l] + e[i][l];
}
template <int N, int Lanes> FP4_API void halved(const float (&e)[N][Lanes], float (&half)[N / 2][Lanes])
{
    FP4_UNROLL
    for (int i = 0; i < N / 2; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) half[i][l] = e[i][l] + e[i + N / 2][l];
}
struct sequential {
    static constexpr bool in_order = true;  // of a row's errors, left to right
    template <int N, int Lanes> FP4_API void of_row(const float (&e)[N][Lanes], float (&sum)[Lanes]) { left_to_right(e, sum); }
    template <int N, int Lanes> FP4_API void of_rows(const float (&e)[N][Lanes], float (&sum)[Lanes]) { left_to_right(e, sum); }
};
struct halves : sequential {
    static constexpr bool in_order = false;
    template <int N, int Lanes> FP4_API void of_row(const float (&e)[N][Lanes], float (&sum)[Lanes])
    {
        float half[N / 2][Lanes];
        halved(e, half);
        left_to_right(half, sum);
    }
};
struct rows_by_tree : sequential {
    template <int N, int Lanes> FP4_API void of_rows(const float (&e)[N][Lanes], float (&sum)[Lanes])
    {
        if constexpr (N == 1) {
            left_to_right(e, sum);
        } else {
            float half[N / 2][Lanes];
            halved(e, half);
            of_rows(half, sum);
        }
    }
};
}  // namespace total

enum class Metric { mae, mse, max };

struct no_search {
    static constexpr bool enabled = false;
};
template <Metric M, class Difference_, class Total_> struct four_over_six {
    static constexpr bool enabled = true;
    static constexpr Metric metric = M;
    using Difference = Difference_;
    using Total = Total_;
};

// The largest error; a NaN wins.
template <int N, int Lanes> FP4_API void largest_errors(const float (&e)[N][Lanes], float (&largest)[Lanes])
{
    FP4_UNROLL
    for (int l = 0; l < Lanes; ++l) largest[l] = e[0][l];
    FP4_UNROLL
    for (int i = 1; i < N; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) largest[l] = is_nan(largest[l]) || largest[l] > e[i][l] ? largest[l] : e[i][l];
}

// The scales of Lanes blocks side by side.
template <int Lanes> struct Scales {
    unsigned byte[Lanes];
    float s[Lanes], factor[Lanes];
};

// Errors of one row of blocks, from those of its elements: of(column, lane). Rules: FOS-5.
template <class S, int Lanes, class Of> FP4_API void sum_row(Of of, float (&error)[Lanes])
{
    using Search = typename S::Search;
    const auto count = [&](int c, int l) {
        const float d = of(c, l);
        return Search::metric == Metric::mse ? d * d : magnitude(d);
    };
    if constexpr (Search::metric != Metric::max && Search::Total::in_order) {
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) {
            float sum = count(0, l);
            FP4_UNROLL
            for (int c = 1; c < S::columns; ++c) sum = sum + count(c, l);
            error[l] = sum;
        }
    } else {
        float e[S::columns][Lanes];
        FP4_UNROLL
        for (int c = 0; c < S::columns; ++c)
            FP4_UNROLL
            for (int l = 0; l < Lanes; ++l) e[c][l] = count(c, l);
        if constexpr (Search::metric == Metric::max) largest_errors(e, error);
        else Search::Total::of_row(e, error);
    }
}

// Errors of one row of blocks under one candidate; load(column, lane) gives the magnitudes of its elements, for no step
// depends on a sign but the sign of a difference. Rules: FOS-3, FOS-4, FOS-5.
template <class S, class In, bool Quick, int Lanes, class Load>
FP4_API void row_errors(const Scales<Lanes>& scales, float g, float A, Load load, float (&error)[Lanes])
{
    sum_row<S>([&](int c, int l) {
        const Scale scale{0, scales.s[l], scales.factor[l]};
        const float x = load(c, l), q = S::Element::nearest_magnitude(scaled<S, In>(x, scale, g));
        return S::Search::Difference::template of<S, Quick>(q, scale.s, g, A, x);
    }, error);
}

// Most blocks are decided by estimates of their errors: an element value q counts as q times the unit U, which is what
// q = 1 dequantizes to, and `estimates_decide` says whether the estimates are too near to each other to tell.
//
// Why that is safe. u = 2^-24, N elements a block, x >= 0 and q <= 6, no step subnormal (`quick_over_constant`), s * A
// finite. What q dequantizes to is (q s A / D)(1 + h) with |h| <= 2u + u^2, for q s is exact; so is U with q = 1; hence it
// differs from q U by at most 4.01 u q U <= 24.1 u U. An estimate rounds q U where the target has no fused operation:
// 30.2 u U. Where x times the factor, rounded, is a tie T <= 5 it may take the other neighbour, whose error differs by
// 2 |T U - x|; factor times U is 1 after six roundings, hence that is at most 71 u U: 101.2 u U in all. An element passes
// at most columns + rows - 2 <= 30 additions, and each operation is off by u of its result; a sum S of counts that are not
// negative is off by at most 31.1 u S for mae and 33.1 u S for mse.
// mae: the two sums differ by at most 101.2 u N U + 62.3 u S.
// mse: |(d + e)^2 - d^2| <= k d^2 + (1 + 1/k) e^2 for every k > 0; with e = 101.2 u U and k = 256 u that adds up to
// 256 u S + 40.1 u N U^2, and the rounding to 66.3 u S; a square below 2^-126 is off by 2^-150, U^2 is 0 or above 2^-103.
// The margin of a candidate is more than that, for what is of the order of u^2: 104 u N U + 64 u S, or 44 u N U^2 + 328 u S.
// A NaN or an infinity decides nothing: the margin is as large as the difference.
// The claims that are proved have smaller bounds: 2.75 u, 5 u and 82 u U for 4.01 u, 6 u and 101.2 u U.
// Certificates: estimate-units, estimate-narrow, estimate-ties, estimate-margin.
template <class S, class Search> constexpr bool estimates_apply = false;
template <class S, Metric M, class Total>
constexpr bool estimates_apply<S, four_over_six<M, difference::dequantized, Total>> =
    M != Metric::max && S::rows <= 16 && S::columns <= 16 && S::Element::by_sums && !S::Element::keeps_nan_sign;

template <class S> FP4_API float estimate_unit(float s, float g, float A)
{
    return S::Search::Difference::template of<S, true>(1.0f, s, g, A, 0.0f);
}

// Where every block is narrow.
template <class S, class In, int Lanes, class Load>
FP4_API void row_estimates(const Scales<Lanes>& scales, const float (&unit)[Lanes], Load load, float (&error)[Lanes])
{
    sum_row<S>([&](int c, int l) {
        const float x = load(c, l);
        const float y = S::Arithmetic::template apply<S, In>(x, scales.factor[l], scales.s[l]);
        return exact_product_plus(S::Element::nearest_narrow(y), unit[l], -x);
    }, error);
}

template <class S> FP4_API bool estimates_decide(float first, float second, float first_unit, float second_unit)
{
    constexpr bool squares = S::Search::metric == Metric::mse;
    constexpr float u = 0x1p-24f, of_units = S::rows * S::columns * (squares ? 44.0f : 104.0f) * u, of_sums = (squares ? 328.0f : 64.0f) * u;
    const float units = squares ? first_unit * first_unit + second_unit * second_unit : first_unit + second_unit;
    return magnitude(second - first) > of_units * units + of_sums * (first + second);
}

// Errors of blocks, from those of their rows. Rules: FOS-5.
template <class S, int Lanes> FP4_API void block_errors(const float (&rows)[S::rows][Lanes], float (&error)[Lanes])
{
    if constexpr (S::Search::metric == Metric::max) largest_errors(rows, error);
    else S::Search::Total::of_rows(rows, error);
}

// The same for one block.
template <class S, class In, bool Quick, class Load> FP4_API float row_error(const Scale& scale, float g, float A, Load load)
{
    float error[1];
    row_errors<S, In, Quick>(Scales<1>{{scale.byte}, {scale.s}, {scale.factor}}, g, A, [&](int c, int) { return load(c); }, error);
    return error[0];
}
template <class S> FP4_API float block_error(const float (&rows)[S::rows])
{
    float column[S::rows][1], error[1];
    FP4_UNROLL
    for (int r = 0; r < S::rows; ++r) column[r][0] = rows[r];
    block_errors<S>(column, error);
    return error[0];
}

// The scale of a block with maximum `amax`; error(scale) is the block's error under a candidate.
// Rules: BLK-3, BLK-4, FOS-1, FOS-6.
template <class S, class In, class Error> FP4_API Scale choose_between(float amax, float g, Error error)
{
    const float before = block_scale<S, In>(amax, g);
    const Scale first = stored_scale<S, In>(before, g, amax);
    if constexpr (S::Search::enabled) {
        const Scale second = stored_scale<S, In>(before * 1.5f, g, amax);
        if (error(second) < error(first)) return second;
    }
    return first;
}

// The same for a block that load(row, column) gives whole.
template <class S, class In, class Load> FP4_API Scale choose_scale(float amax, float g, float A, Load load)
{
    return choose_between<S, In>(amax, g, [&](const auto& scale) {  // generic: no body where there is no search
        float rows[S::rows];
        for (int r = 0; r < S::rows; ++r) rows[r] = row_error<S, In, false>(scale, g, A, [&](int c) { return magnitude(load(r, c)); });
        return block_error<S>(rows);
    });
}

// The same for Lanes blocks side by side; errors(scales, error) are theirs under a candidate, and
// estimates(scales, units, error) nearly, if `quick` allows them; any(open) says whether somebody needs the errors.
template <class S, class In, int Lanes, class Errors, class Estimates, class Any>
FP4_API void choose_scales(
    const float (&amax)[Lanes], float g, float A, bool quick, Errors errors, Estimates estimates, Any any, Scales<Lanes>& out)
{
    Scales<Lanes> second;
    float before[Lanes];
    FP4_UNROLL
    for (int l = 0; l < Lanes; ++l) {
        before[l] = block_scale<S, In>(amax[l], g);
        if constexpr (S::Search::enabled) {
            out.s[l] = searched_scale<S>(before[l], amax[l]), second.s[l] = searched_scale<S>(before[l] * 1.5f, amax[l]);
            out.factor[l] = S::Arithmetic::template factor<S, In>(out.s[l], g);
            second.factor[l] = S::Arithmetic::template factor<S, In>(second.s[l], g);
        } else {
            const Scale scale = stored_scale<S, In>(before[l], g, amax[l]);
            out.byte[l] = scale.byte, out.s[l] = scale.s, out.factor[l] = scale.factor;
        }
    }
    if constexpr (S::Search::enabled) {
        float of_first[Lanes], of_second[Lanes];
        unsigned open = 1;
        if constexpr (estimates_apply<S, typename S::Search>) if (quick) {
            float first_unit[Lanes], second_unit[Lanes];
            FP4_UNROLL
            for (int l = 0; l < Lanes; ++l) {
                first_unit[l] = estimate_unit<S>(out.s[l], g, A);
                second_unit[l] = estimate_unit<S>(second.s[l], g, A);
            }
            estimates(out, first_unit, of_first);
            estimates(second, second_unit, of_second);
            open = 0;
            FP4_UNROLL
            for (int l = 0; l < Lanes; ++l) {
                const Scale a{0, out.s[l], out.factor[l]}, b{0, second.s[l], second.factor[l]};
                const bool first_narrow = is_narrow<S, In>(amax[l], a), second_narrow = is_narrow<S, In>(amax[l], b);
                const bool apart = estimates_decide<S>(of_first[l], of_second[l], first_unit[l], second_unit[l]);
                open |= !(first_narrow & second_narrow & apart) & (out.s[l] != second.s[l]);  // one scale, one error
            }
        }
        if (any(open)) {
            errors(out, of_first);
            errors(second, of_second);
        }
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) {
            const bool better = of_second[l] < of_first[l];
            out.byte[l] = encode_pair<typename S::Scale>(better ? before[l] * 1.5f : before[l], 0.0f) & 255u;
            out.s[l] = better ? second.s[l] : out.s[l];
            out.factor[l] = better ? second.factor[l] : out.factor[l];
        }
    }
}

// What `dequantized` combines with every element of a block. Rules: DEQ-1, DEQ-2, DEQ-5.
template <class S, class In> FP4_API float decoded_scale(unsigned byte, float A)
{
    const float s = S::Scale::decode(byte);
    if constexpr (S::global == Global::none) return s;
    return signed_nan(S::Arithmetic::template decode<S, In>(s, A), s, A, 0.0f);
}

// The value that an element q stands for.
template <class S, class In> FP4_API float value_of(float q, float decoded, float A)
{
    if constexpr (S::global == Global::none) return signed_nan(q * decoded, q, decoded, 0.0f);
    return signed_nan(S::Arithmetic::template value<S, In>(q, decoded, A), q, decoded, A);
}

// The same where neither the element, nor the scale, nor what becomes of them, is a NaN.
template <class S, class In> FP4_API float value_of_number(float q, float decoded, float A)
{
    if constexpr (S::global == Global::none) return q * decoded;
    return S::Arithmetic::template value<S, In>(q, decoded, A);
}

template <class S, class In> FP4_API float dequantized(unsigned code, float decoded, float A)
{
    return value_of<S, In>(S::Element::decode(code), decoded, A);
}

}  // namespace fp4ref
