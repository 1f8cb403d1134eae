// Quantize one tile per block of threads, in one or both directions from one load.
//
//   x        In       [rows, columns], row-major; a member of a group is a range of its rows
//   data     uint8    [lines, bytes of a line]; lines are rows of x, or of its transpose in the column direction
//   scales   uint8    in the layout that `layout` numbers, or in Layout; padding is written
//   amax     float32  one per member, or one per line for a row scale; unused without a global scale
//   bits     uint8    [lines, elements of a line], for stochastic rounding
//
// S, In, Layout, OWN_LAYOUT, HAS_ROW and HAS_COLUMN come before this file. A thread takes one line of a scale block; the lines of a
// two-dimensional block lie in neighbouring lanes of one warp. Codes and scales leave
// through shared memory. Certificates: tiles-*, quantize-*, search-kept, past-largest-*, nan-signs.
#include "maps.cuh"

using word = In::word;
// Rows of long blocks take four of these, so that codes fill sectors of memory and scales words.
constexpr bool WIDE = sizeof(word) == 2 && !HAS_COLUMN && S::rows == 1 && S::columns > 16;
constexpr bool WIDEST = WIDE && S::Element::Format::bits > 4;  // eight: linear scales leave in 8 bytes
constexpr int TILE_ROWS = WIDEST ? 32 : WIDE || sizeof(word) == 4 ? 64 : 128, TILE_COLUMNS = WIDEST ? 256 : WIDE ? 128 : 64;
// odd multiples of 16 bytes: no bank conflicts by row or column
constexpr int PITCH = TILE_COLUMNS + 16 / sizeof(word);
constexpr int ELEMENT_BITS = S::Element::Format::bits;
constexpr int STEP = ELEMENT_BITS == 8 ? 16 : 8;  // bytes that leave at once
constexpr bool BOTH = HAS_ROW && HAS_COLUMN;
constexpr bool HALF = fp4ref::same_type<In, fp4ref::float16>, LONG = S::columns > 16;
constexpr bool PLAIN = !HALF && !LONG && !S::Search::enabled && !S::Element::stochastic && !S::has_hadamard;
// Blocks of threads of a multiprocessor, as registers allow: it is the number of warps that bounds this kernel.
constexpr int RESIDENT = ELEMENT_BITS == 4 ? (PLAIN ? 5 : HALF && LONG ? 2 : 4) : WIDEST ? 6 : sizeof(word) == 4 || BOTH ? 4 : 5;

struct Target {
    byte* data;
    byte* scales;
    const float* amax;
    const byte* bits;
};

template <bool Column> struct Staging {
    static constexpr int lines = Column ? TILE_COLUMNS : TILE_ROWS, length = Column ? TILE_ROWS : TILE_COLUMNS;
    static constexpr int bytes = length * ELEMENT_BITS / 8, pitch = bytes + STEP;
    static constexpr int blocks = length / S::columns, codes = lines * pitch, all = codes + lines * blocks;
};

// Where the tile lies in one direction's matrix of one member, and how much of the matrix is left from there.
struct Place {
    index_t lines, length, first_line, first;
    __device__ __forceinline__ int lines_left() const { return left(lines - first_line); }
    __device__ __forceinline__ int length_left() const { return left(length - first); }
    static __device__ __forceinline__ int left(index_t count) { return count > 1024 ? 1024 : (int)count; }
};

DEVICE void load_tile(word (&tile)[TILE_ROWS][PITCH], const word* x, const Place& at)
{
    constexpr int lanes = 16 / sizeof(word), across = TILE_COLUMNS / lanes, turns = TILE_ROWS * across / THREADS;
    const index_t columns = at.length;
    const int rows_left = at.lines_left(), columns_left = at.length_left();
    const word* from = x + at.first_line * columns + at.first;
    if (aligned(x, columns * sizeof(word), 16)) {
        const int r = threadIdx.x / across, c = threadIdx.x % across * lanes;
        const index_t step = columns * (THREADS / across);
        from += r * columns + c;
        uint4 v[turns];
        UNROLL
        for (int i = 0; i < turns; ++i, from += step) {
            v[i] = {0, 0, 0, 0};
            if (r + i * (THREADS / across) < rows_left && c < columns_left) v[i] = load_vector(from);
        }
        UNROLL
        for (int i = 0; i < turns; ++i) *(uint4*)&tile[r + i * (THREADS / across)][c] = v[i];
    } else {
        for (int i = threadIdx.x; i < TILE_ROWS * TILE_COLUMNS; i += THREADS) {
            const int r = i / TILE_COLUMNS, c = i % TILE_COLUMNS;
            tile[r][c] = r < rows_left && c < columns_left ? from[r * columns + c] : (word)0;
        }
    }
}

// Whether eight codes of 4 bits, or sixteen of 6, are packed together, where they are narrow.
constexpr bool BY_EIGHTS = fp4ref::same_type<S::Element, fp4ref::hardware_e2m1> && !FP4_NATIVE_E2M1;
constexpr bool BY_SIXTEENS = fp4ref::by_wider<S::Element> && !S::Search::enabled, TOGETHER = BY_EIGHTS || BY_SIXTEENS;

// The scale of a block, and whether this lane's line of it may be encoded together.
struct Choice {
    fp4ref::Scale scale;
    bool narrow;
};

// The larger one of two numbers, a NaN if one is.
DEVICE float larger_or_nan(float a, float b)
{
#if defined(__CUDA_ARCH__)
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
#else
    return fp4ref::is_nan(a) || a > b ? a : b;
#endif
}

// That of the block that this lane and its neighbours hold one line of. top: the largest magnitude, a NaN if one is; where
// it was not searched, a NaN.
DEVICE Choice choose(const float (&x)[S::columns], float top, float g, float A)
{
    const bool numbers = !fp4ref::is_nan(top);
    unsigned amax = fp4ref::bits_of(top);
    if (!numbers) {
        amax = 0;
        UNROLL
        for (int c = 0; c < S::columns; ++c) amax = fp4ref::running_amax<S::block_keeps_nan>(amax,
            fp4ref::magnitude_bits(x[c]));
    }
    UNROLL
    for (int d = 1; d < S::rows; d *= 2) amax = fp4ref::running_amax<S::block_keeps_nan>(amax, __shfl_xor_sync(~0u,
        amax, d));
    if constexpr (!S::Search::enabled) {
        const float a = fp4ref::float_of(amax);
        const fp4ref::Scale scale = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(a, g), g, a);
        if constexpr (BY_SIXTEENS)
            return {scale, numbers && fp4ref::is_below<S, In>(a, scale, fp4ref::codes_below<S::Element>)};
        return {scale, BY_EIGHTS && numbers && fp4ref::is_narrow<S, In>(a, scale)};
    }
    const auto magnitude = [&](int c, int) { return fp4ref::magnitude(x[c]); };
    const auto of_rows = [&](auto& error) {  // generic, as the next ones: no body where there is no search
        float rows[S::rows][1];
        UNROLL
        for (int r = 0; r < S::rows; ++r) rows[r][0] = __shfl_sync(~0u, error[0], r, S::rows);
        fp4ref::block_errors<S>(rows, error);
    };
    const bool quick = fp4ref::quick_over_constant(A);
    const auto errors = [&](const auto& scales, auto& error) {
        if (quick) fp4ref::row_errors<S, In, true>(scales, g, A, magnitude, error);
        else fp4ref::row_errors<S, In, false>(scales, g, A, magnitude, error);
        if constexpr (S::rows > 1) of_rows(error);
    };
    const auto estimates = [&](const auto& scales, const auto& units, auto& error) {
        fp4ref::row_estimates<S, In>(scales, units, magnitude, error);
        if constexpr (S::rows > 1) of_rows(error);
    };
    const float largest[1] = {fp4ref::float_of(amax)};
    fp4ref::Scales<1> found;
    fp4ref::choose_scales<S, In>(largest, g, A, quick, errors, estimates, [](unsigned open) { return __any_sync(~0u, open); }, found);
    const fp4ref::Scale scale = {found.byte[0], found.s[0], found.factor[0]};
    return {scale, numbers && fp4ref::is_narrow<S, In>(largest[0], scale)};
}

// Random bytes of one line of a block, `valid` of them inside the matrix, packed from the lowest bits.
struct Drawn {
    unsigned word[S::columns / 4] = {};

    __device__ __forceinline__ unsigned operator[](int c) const { return word[c / 4] >> 8 * (c % 4) & 255u; }
};

DEVICE Drawn load_bits(const byte* bits, int valid, bool vectors)
{
    Drawn drawn;
    if (vectors && valid >= S::columns) {
        UNROLL
        for (int v = 0; v < S::columns / 16; ++v) {
            const uint4 of = load_vector(bits + 16 * v);
            drawn.word[4 * v] = of.x, drawn.word[4 * v + 1] = of.y;
            drawn.word[4 * v + 2] = of.z, drawn.word[4 * v + 3] = of.w;
        }
    } else {
        UNROLL
        for (int c = 0; c < S::columns; ++c)
            if (c < valid) drawn.word[c / 4] |= (unsigned)bits[c] << 8 * (c % 4);
    }
    return drawn;
}

// Codes of one line of a block, `valid` elements of it inside the matrix, packed from the lowest bits.
constexpr int WORDS = S::columns * ELEMENT_BITS / 32;
DEVICE void encode_line(unsigned (&packed)[WORDS], float (&x)[S::columns],
    const Choice& choice, float g, int valid, const Drawn& random)
{
    const fp4ref::Scale& scale = choice.scale;
    const bool narrow = TOGETHER && __all_sync(~0u, choice.narrow);
    if constexpr (BY_SIXTEENS) if (narrow) {
        UNROLL
        for (int g = 0; g < S::columns / 16; ++g) {
            float y[16];
            UNROLL
            for (int i = 0; i < 16; ++i) y[i] = S::Arithmetic::apply<S, In>(x[16 * g + i], scale.factor, scale.s);
            fp4ref::packed_sixes<S::Element>(y, *(unsigned(*)[3])(packed + 3 * g));
        }
    }
    if constexpr (BY_EIGHTS) if (narrow) {
        UNROLL
        for (int w = 0; w < S::columns / 8; ++w) {
            float y[8];
            UNROLL
            for (int i = 0; i < 8; ++i) y[i] = S::Arithmetic::apply<S, In>(x[8 * w + i], scale.factor, scale.s);
            packed[w] = fp4ref::packed_narrow<S::Element>(y);
        }
    }
    const auto pair = [&](int i) {
        const float low = fp4ref::scaled<S, In>(x[i], scale, g), high = fp4ref::scaled<S, In>(x[i + 1], scale, g);
        return fp4ref::encode_pair<S::Element>(low, high, random[i], random[i + 1]);
    };
    if (!narrow) {
        UNROLL
        for (int w = 0; w < WORDS; ++w) packed[w] = 0;
        UNROLL
        for (int i = 0; i < S::columns; i += 2) {
            constexpr int both = 2 * ELEMENT_BITS;
            const int at = i * ELEMENT_BITS, w = at / 32;
            const unsigned codes = pair(i);
            packed[w] |= codes << at % 32;
            if (at % 32 + both > 32) packed[w + 1] |= codes >> (32 - at % 32);  // a pair of 6 bits in two words (PACK-4)
        }
    }
    if (valid < S::columns) {  // PACK-2, PACK-5
        UNROLL
        for (int w = 0; w < WORDS; ++w) {
            const int inside = valid * ELEMENT_BITS - w * 32;
            if (inside < 32) packed[w] &= inside <= 0 ? 0u : (1u << inside) - 1u;
        }
    }
}

// One line of a block, as floats; rows in vectors of 16 bytes. Result: the largest magnitude of rows of 16-bit words, a NaN
// if one is, and of others a NaN: two magnitudes in a word take less than two searches.
template <bool Column> DEVICE float load_line(float (&x)[S::columns], const word (&tile)[TILE_ROWS][PITCH], int line,
    int first)
{
    constexpr int each = 16 / sizeof(word);
    constexpr unsigned magnitudes = 0x7fff7fffu;
    unsigned two = 0x7fffu;
    if constexpr (Column) {
        UNROLL
        for (int c = 0; c < S::columns; ++c) x[c] = In::widen(tile[first + c][line]);
    } else {
        if constexpr (each == 8) two = 0;
        UNROLL
        for (int c = 0; c < S::columns; c += each) {
            const uint4 v = *(const uint4*)&tile[line][first + c];
            const unsigned words[4] = {v.x, v.y, v.z, v.w};
            if constexpr (each == 8) {
                two = __vimax3_u16x2(two, v.x & magnitudes, v.y & magnitudes);
                two = __vimax3_u16x2(two, v.z & magnitudes, v.w & magnitudes);
            }
            UNROLL
            for (int k = 0; k < each; ++k) x[c + k] = In::widen(each == 4 ? (word)words[k % 4]
                : (word)(words[k * (int)sizeof(word) / 4] >> 16 * (k % 2)));
        }
    }
    return sizeof(word) == 2 ? In::widen((word)fp4ref::larger(two & 0xffffu, two >> 16)) : fp4ref::float_of(0x7fc00000u);
}

template <bool Column> DEVICE void quantize_lines(byte* staging, const word (&tile)[TILE_ROWS][PITCH],
    const Target& to, const Place& at, const float* amax)
{
    using Shape = Staging<Column>;
    constexpr int bytes = S::columns * ELEMENT_BITS / 8;
    const int lines_left = at.lines_left(), length_left = at.length_left();
    float A = 0.0f;
    if constexpr (S::global == fp4ref::Global::tensor) A = *amax;
    float g = fp4ref::global_scale<S, In>(A);
    _Pragma("unroll 1")
    for (int turn = 0; turn < (Shape::lines * (Shape::length / S::columns) + THREADS - 1) / THREADS; ++turn) {
        const int t = turn * THREADS + threadIdx.x, l = t % Shape::lines, b = t / Shape::lines, first = b * S::columns;
        if (b >= Shape::length / S::columns) break;  // whole warps
        const index_t line = at.first_line + l;
        float x[S::columns];
        float top = load_line<Column>(x, tile, l, first);
        if constexpr (Column && S::has_hadamard) {
            UNROLL
            for (int c = 0; c < S::columns; c += 16) fp4ref::hadamard<S::signs>(*(float(*)[16][1])(x + c));
        }
        if constexpr (TOGETHER && (Column || sizeof(word) == 4)) {
            top = 0.0f;
            UNROLL
            for (int c = 0; c < S::columns; ++c) top = larger_or_nan(top, fp4ref::magnitude(x[c]));
        }
        if constexpr (S::global == fp4ref::Global::row) {
            A = l < lines_left ? amax[line] : 0.0f;
            g = fp4ref::global_scale<S, In>(A);
        }
        const int valid = l < lines_left ? length_left - first : 0;
        Drawn random;
        if constexpr (S::Element::stochastic)
            random = load_bits(to.bits + line * at.length + at.first + first, valid, aligned(to.bits, at.length, 16));
        const Choice choice = choose(x, top, g, A);
        unsigned packed[WORDS];
        encode_line(packed, x, choice, g, valid, random);
        byte* out = staging + l * Shape::pitch + b * bytes;
        UNROLL
        for (int i = 0; i < bytes / STEP; ++i) {
            if constexpr (STEP == 8) ((uint2*)out)[i] = {packed[2 * i], packed[2 * i + 1]};
            else ((uint4*)out)[i] = {packed[4 * i], packed[4 * i + 1], packed[4 * i + 2], packed[4 * i + 3]};
        }
        // LAY-5
        staging[Shape::codes + l * Shape::blocks + b] = l < lines_left && first < length_left ? choice.scale.byte : 0;
    }
}

// Scales of the tile, `each` neighbours of a line at once.
template <bool Column, class Map, int each> DEVICE void store_groups(const byte* staging, byte* scales, const Place& at)
{
    using Shape = Staging<Column>;
    constexpr bool filled = Map::row_fill || Map::column_fill;  // with other than zero
    constexpr int groups = Shape::blocks / each;
    const index_t blocks = (at.length + S::columns - 1) / S::columns, first_block = at.first / S::columns;
    const index_t padded_lines = (at.lines + Map::row_multiple - 1) / Map::row_multiple * Map::row_multiple;
    const index_t padded_blocks = (blocks + Map::column_multiple
        - 1) / Map::column_multiple * Map::column_multiple;
    const int lines_left = Place::left(padded_lines - at.first_line), blocks_left = Place::left(padded_blocks
        - first_block);
    for (int i = threadIdx.x; i < Shape::lines * groups; i += THREADS) {
        const int l = i / groups, b = i % groups * each;
        if (l >= lines_left || b >= blocks_left) continue;
        const byte* from = staging + Shape::codes + l * Shape::blocks + b;
        byte* to = scales + Map::offset(at.first_line + l, first_block + b, blocks, at.lines);
        if constexpr (filled)
            if (at.first_line + l >= at.lines || first_block + b >= blocks) {
                *to = padding<Map>(at.first_line + l, at.lines);
                continue;
            }
        const int inside = Map::quads || each == 1 ? each : blocks_left - b;
        if (each == 4 && inside >= 4 && aligned(to, 0, 4)) *(unsigned*)to = *(const unsigned*)from;
        else if (each == 2 && aligned(to, 0, 2)) *(unsigned short*)to = *(const unsigned short*)from;
        else for (int k = 0; k < each && k < inside; ++k) to[k] = from[k];
    }
}

// Up to 4 at once where the layout keeps neighbours together; where words would begin anywhere, neighbouring lanes have
// neighbouring bytes instead.
template <bool Column, class Map> DEVICE void store_scales(const byte* staging, byte* scales, const Place& at)
{
    using Shape = Staging<Column>;
    constexpr bool filled = Map::row_fill || Map::column_fill;
    if constexpr (Map::adjacent && !filled && Shape::blocks >= 4) {
        const index_t blocks = (at.length + S::columns - 1) / S::columns;
        if (Map::quads || blocks % 4 == 0) store_groups<Column, Map, 4>(staging, scales, at);
        else store_groups<Column, Map, 1>(staging, scales, at);
    } else {
        store_groups<Column, Map, Map::quads && !filled ? Shape::blocks : 1>(staging, scales, at);
    }
}

// Lines whose units are no power of two, of 6-bit codes: as many lines of a warp's at once as it has lanes for.
template <class Shape, class Unit> DEVICE void store_units(
    const byte* staging, byte* to, index_t pitch, int lines_left, int bytes_left)
{
    constexpr int size = sizeof(Unit), across = Shape::bytes / size, together = 32 / across;
    static_assert(together, "lines of at most a warp's units");
    constexpr int of_warp = Shape::lines / (THREADS / 32);
    const int lane = threadIdx.x % 32, l = lane / across, b = lane % across * size, top = threadIdx.x / 32 * of_warp + l;
    if (l >= together || b >= bytes_left) return;
    to += top * pitch + b, staging += top * Shape::pitch + b;
    UNROLL
    for (int i = 0; i < of_warp; i += together, to += together * pitch, staging += together * Shape::pitch)
        if (i + l < of_warp && top + i < lines_left) *(Unit*)to = *(const Unit*)staging;
}

// Units of any lines, one after the other.
template <class Shape, class Unit> DEVICE void store_in_turn(
    const byte* staging, byte* to, index_t pitch, int lines_left, int bytes_left)
{
    constexpr int size = sizeof(Unit), across = Shape::bytes / size;
    for (int i = threadIdx.x; i < Shape::lines * across; i += THREADS) {
        const int l = i / across, b = i % across * size;
        if (l < lines_left && b < bytes_left) *(Unit*)(to + l * pitch + b) = *(const Unit*)(staging + l * Shape::pitch + b);
    }
}

template <bool Column> DEVICE void store_codes(const byte* staging, byte* data, const Place& at)
{
    using Shape = Staging<Column>;
    constexpr int across = Shape::bytes / STEP, turns = Shape::lines * across / THREADS;  // turns: of powers of two
    const index_t pitch = (at.length * ELEMENT_BITS + 7) / 8, start = at.first * ELEMENT_BITS / 8;
    const int lines_left = at.lines_left(), bytes_left = Place::left(pitch - start);
    byte* to = data + at.first_line * pitch + start;
    if (THREADS % across && aligned(data, pitch, STEP)) {
        store_units<Shape, uint2>(staging, to, pitch, lines_left, bytes_left);
    } else if (THREADS % across && aligned(data, pitch, 4)) {
        if constexpr (Shape::bytes <= 128) store_units<Shape, unsigned>(staging, to, pitch, lines_left, bytes_left);
        else store_in_turn<Shape, unsigned>(staging, to, pitch, lines_left, bytes_left);
    } else if (aligned(data, pitch, STEP)) {
        const int l = threadIdx.x / across, b = threadIdx.x % across * STEP;
        to += l * pitch + b;
        UNROLL
        for (int i = 0; i < turns; ++i) {
            const byte* from = staging + (l + i * (THREADS / across)) * Shape::pitch + b;
            if (l + i * (THREADS / across) >= lines_left || b >= bytes_left) continue;
            if constexpr (STEP == 8) *(uint2*)(to + i * (THREADS / across) * pitch) = *(const uint2*)from;
            else *(uint4*)(to + i * (THREADS / across) * pitch) = *(const uint4*)from;
        }
    } else {
        store_in_turn<Shape, byte>(staging, to, pitch, lines_left, bytes_left);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) quantize(
    const word* __restrict__ x, index_t rows, index_t columns, index_t layout, index_t tiles_across,
    const Member* members, index_t count,
    byte* row_data, byte* row_scales, const float* row_amax, const byte* row_bits,
    byte* column_data, byte* column_scales, const float* column_amax, const byte* column_bits, const unsigned* noop)
{
    __shared__ __align__(16) word tile[TILE_ROWS][PITCH];
    __shared__ __align__(16) byte row_staging[HAS_ROW ? Staging<false>::all : 16];
    __shared__ __align__(16) byte column_staging[HAS_COLUMN ? Staging<true>::all : 16];
    wait_for_previous_kernel();
    if (noop && *noop) return;

    int which;
    const Member member = member_of(members, count, rows, blockIdx.x, which);
    const unsigned inside = (unsigned)(blockIdx.x - member.first_tile), across = (unsigned)tiles_across;
    const index_t row = (index_t)(inside / across) * TILE_ROWS, column = (index_t)(inside % across) * TILE_COLUMNS;
    const Place row_place = {member.rows, columns, row, column}, column_place = {columns, member.rows, column, row};
    load_tile(tile, x + member.first_row * columns, row_place);
    __syncthreads();

    constexpr bool by_line = S::global == fp4ref::Global::row;
    const index_t row_pitch = (columns * ELEMENT_BITS + 7) / 8, before = member.first_row * columns;
    const Target row_target = {row_data + member.first_row * row_pitch, row_scales + member.row_scales, nullptr,
        row_bits + before};
    const Target column_target = {column_data + member.column_data, column_scales + member.column_scales, nullptr,
        column_bits + before};
    if constexpr (HAS_ROW) quantize_lines<false>(row_staging, tile, row_target, row_place, row_amax + (by_line
        ? member.first_row : which));
    if constexpr (HAS_COLUMN) quantize_lines<true>(column_staging, tile, column_target, column_place,
        column_amax + (by_line ? which * columns : which));
    __syncthreads();
    if constexpr (HAS_ROW) {
        store_codes<false>(row_staging, row_target.data, row_place);
        in_layout(layout, [&](auto order) { store_scales<false, decltype(order)>(row_staging, row_target.scales, row_place); });
    }
    if constexpr (HAS_COLUMN) {
        store_codes<true>(column_staging, column_target.data, column_place);
        in_layout(layout, [&](auto order) { store_scales<true, decltype(order)>(column_staging, column_target.scales, column_place); });
    }
}
