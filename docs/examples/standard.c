/* Volume 1 of the standard in one file of C11, written from its text alone. Comments name the rules.
 *
 *   gcc -std=c11 -O2 -ffp-contract=off standard.c -o standard -lm
 *   fp4ref gen nvfp4 | ./standard nvfp4 | fp4ref verify nvfp4       quantizes cases of CNF-6, in either direction
 *   ./standard < commands                                           one operation a line, see `commands` below
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float number(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static void *room(size_t n) { void *p = calloc(n + 1, 1); if (!p) exit(3); return p; }

/* ---- chapter 01: types of inputs and results (NUM-1, NUM-3) ---- */

enum { FLOAT32, BFLOAT16, FLOAT16 };

static float widen(uint32_t u, int type)
{
    if (type == FLOAT32) return number(u);
    if (type == BFLOAT16) return number(u << 16);
    int e = u >> 10 & 31, m = u & 1023;
    float f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
    return u >> 15 ? -f : f;
}

static uint32_t narrow(float v, int type) /* rounded once, to nearest even (DEQ-3) */
{
    uint32_t u = bits(v), sign = u >> 31 << 15;
    if (type == FLOAT32) return u;
    if (type == BFLOAT16) return v != v ? u >> 16 | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    if (v != v) return sign | 0x7E00;
    float a = fabsf(v), step;
    if (a >= 65520) return sign | 0x7C00;
    int e;
    frexpf(a, &e);
    if (e < -13) e = -13;                                  /* a step is 2^-24 below the smallest normal number */
    step = ldexpf(1, e - 11);
    uint32_t n = (uint32_t)rintf(a / step);                /* 1024 to 2048 steps if the number is normal */
    return sign | (n < 1024 ? n : n == 2048 ? (uint32_t)(e + 15) << 10 : ((uint32_t)(e + 14) << 10) + n - 1024);
}

static float larger(float a, float x) { return x > a ? x : a; } /* a, if x is NaN: fmaxf may return a signalling NaN */

/* ---- chapters 02 and 03: codes ---- */

typedef struct { const char *name; int exponent, mantissa, bias, last, width; } Format; /* last: the largest finite code */
static const Format FORMATS[] = {
    {"e2m1", 2, 1, 1, 7, 4}, {"e4m3", 4, 3, 7, 126, 8}, {"e5m2", 5, 2, 15, 123, 8}, {"e2m3", 2, 3, 1, 31, 6},
    {"e3m2", 3, 2, 3, 31, 6}, {"int8", 0, 7, 0, 127, 8}, {"e8m0", 8, 0, 127, 254, 8},
};
enum { E2M1, E4M3, E5M2, E2M3, E3M2, INT8, E8M0 };

static float magnitude(const Format *f, int code) /* of a code without its sign bit */
{
    int e = code >> f->mantissa, m = code & ((1 << f->mantissa) - 1);
    if (f == &FORMATS[INT8]) return (float)code / 64;
    if (f == &FORMATS[E8M0]) return code == 255 ? NAN : ldexpf(1, code - 127);
    if (code > f->last) return f == &FORMATS[E5M2] && m == 0 ? INFINITY : NAN;
    return e ? ldexpf((float)(m + (1 << f->mantissa)), e - f->bias - f->mantissa) : ldexpf((float)m, 1 - f->bias - f->mantissa);
}

static float decode(const Format *f, int code)
{
    if (f == &FORMATS[E8M0]) return magnitude(f, code);
    if (f == &FORMATS[INT8]) return (float)(code > 127 ? code - 256 : code) / 64;
    int sign = 1 << (f->width - 1);
    return code & sign ? -magnitude(f, code ^ sign) : magnitude(f, code);
}

static int encode_e8m0(float t) /* E8M0-2, E8M0-3 */
{
    if (t != t) return 255;
    uint32_t e = bits(t) >> 23, m = bits(t) & 0x7FFFFF;
    if (e == 0) return m > 0x400000;
    e += m != 0;
    return e > 254 ? 254 : (int)e;
}

static int below(const Format *f, float a) /* the largest code whose value is not above a */
{
    int low = 0, high = f->last;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (magnitude(f, middle) <= a) low = middle; else high = middle - 1;
    }
    return low;
}

static int encode(const Format *f, float y) /* nearest, ties to the even code, saturating */
{
    if (f == &FORMATS[E8M0]) return encode_e8m0(y);
    if (y != y) return f->width == 4 ? 7 : f->width == 6 ? 0x1F : 0x7F;
    float a = fabsf(y);
    int c = below(f, a);
    if (c < f->last) {
        float middle = (magnitude(f, c) + magnitude(f, c + 1)) / 2;
        c += a > middle || (a == middle && c % 2);
    }
    if (f == &FORMATS[INT8]) return signbit(y) ? (256 - c) % 256 : c;
    return signbit(y) ? c | 1 << (f->width - 1) : c;
}

static int encode_stochastic(float y, int b) /* SR-2, SR-3 */
{
    if (y != y) return 7;
    float a = fabsf(y), step = a >= 4 ? 2 : a >= 2 ? 1 : 0.5f;
    return below(&FORMATS[E2M1], fmaf((float)b / 256, step, a)) | (signbit(y) ? 8 : 0);
}

/* ---- chapter 04: codes to bytes, low bits first ---- */

static size_t width_of(size_t n, int width) { return (n * (size_t)width + 7) / 8; }

static void put_code(uint8_t *row, size_t j, int width, int code)
{
    for (int i = 0; i < width; i++)
        if (code >> i & 1) row[(j * (size_t)width + (size_t)i) / 8] |= (uint8_t)(1 << (j * (size_t)width + (size_t)i) % 8);
}

static int get_code(const uint8_t *row, size_t j, int width)
{
    int code = 0;
    for (int i = 0; i < width; i++) {
        size_t at = j * (size_t)width + (size_t)i;
        code |= (row[at / 8] >> at % 8 & 1) << i;
    }
    return code;
}

/* ---- chapter 07: the transform of a group of 16 ---- */

static void butterfly(float *v)
{
    for (int h = 1; h < 16; h *= 2)
        for (int i = 0; i < 16; i++)
            if (!(i & h)) {
                float a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
}

static void transform(float *v, unsigned mask) /* HAD-2, HAD-3 */
{
    for (int i = 0; i < 16; i++) v[i] *= mask >> i & 1 ? -0.25f : 0.25f;
    butterfly(v);
    for (int i = 0; i < 16; i++) v[i] = widen(narrow(v[i] + 0.0f, BFLOAT16), BFLOAT16);
}

static void restore(float *v, unsigned mask) /* HAD-6 */
{
    for (int i = 0; i < 16; i++) v[i] *= 0.25f;
    butterfly(v);
    for (int i = 0; i < 16; i++) v[i] = (v[i] + 0.0f) * (mask >> i & 1 ? -1.0f : 1.0f);
}

/* ---- chapter 12: the standard's own specs (SPC-8) ---- */

enum { NONE, TENSOR, ROW };
enum { TE, TE_DIVISION, TE_FAST, RCEIL, OCP_FLOOR };
/* search: 0 none, 1 by mae, 2 by mse. top: scale_max. signs: the mask, or -1 */
typedef struct { const char *name; int element, scale, rows, columns, global, arithmetic, signs, search, top, stochastic; } Spec;
static const Spec SPECS[] = {
    {"nvfp4", E2M1, E4M3, 1, 16, TENSOR, TE, -1, 0, 448, 0},
    {"nvfp4-2d", E2M1, E4M3, 16, 16, TENSOR, TE, -1, 0, 448, 0},
    {"nvfp4-row-scaled", E2M1, E4M3, 1, 16, ROW, TE, -1, 0, 448, 0},
    {"nvfp4-rht", E2M1, E4M3, 1, 16, TENSOR, TE, 0xD7E8, 0, 448, 0},
    {"nvfp4-4over6", E2M1, E4M3, 1, 16, TENSOR, TE_DIVISION, -1, 1, 448, 0},
    {"nvfp4-fast", E2M1, E4M3, 1, 16, TENSOR, TE_FAST, -1, 0, 448, 0},
    {"mxfp4", E2M1, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp4-2d", E2M1, E8M0, 32, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp8-e4m3", E4M3, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp8-e5m2", E5M2, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp8-2d", E4M3, E8M0, 32, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"nvfp4-sr", E2M1, E4M3, 1, 16, TENSOR, TE, -1, 0, 448, 1},
    {"nvfp4-2d-sr", E2M1, E4M3, 16, 16, TENSOR, TE, -1, 0, 448, 1},
    {"nvfp4-rht-sr", E2M1, E4M3, 1, 16, TENSOR, TE, 0xD7E8, 0, 448, 1},
    {"nvfp4-fast-sr", E2M1, E4M3, 1, 16, TENSOR, TE_FAST, -1, 0, 448, 1},
    {"mxfp6-e2m3", E2M3, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp6-e3m2", E3M2, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxint8", INT8, E8M0, 1, 32, NONE, OCP_FLOOR, -1, 0, 448, 0},
};

static const Spec *named(const char *name)
{
    for (size_t i = 0; i < sizeof SPECS / sizeof *SPECS; i++)
        if (!strcmp(SPECS[i].name, name)) return &SPECS[i];
    fprintf(stderr, "no spec %s\n", name);
    exit(2);
}

static const Format *element(const Spec *s) { return &FORMATS[s->element]; }
static float element_max(const Spec *s) { return magnitude(element(s), element(s)->last); }

/* ---- chapters 05, 06, 10 and 12: one block (SPC-9) ---- */

static float global_scale(const Spec *s, float G) /* GLB-2, GLB-3, GLB-6 */
{
    if (s->global == NONE) return 1;
    float g = fminf((float)s->top * element_max(s) / G, FLT_MAX);
    return G == 0 || g == 0 ? 1 : g;
}

static float block_scale(const Spec *s, float a, float g)
{
    switch (s->arithmetic) {
    case TE: case TE_FAST: return fminf(a * (g * (1.0f / 6.0f)), FLT_MAX);              /* BLK-3 */
    case TE_DIVISION: return a / 6 * g;                                                 /* FOS-1 */
    case RCEIL: return a * (1 / element_max(s));                                        /* MXS-1 */
    }
    if (!isfinite(a)) return NAN;                                                       /* MXS-5 */
    int e, field = (int)(bits(a) >> 23);                                                /* MXS-2 */
    frexpf(element_max(s), &e);
    field -= e - 1;
    return ldexpf(1, (field < 0 ? 0 : field > 254 ? 254 : field) - 127);
}

static float scaled(const Spec *s, float x, float v, float g) /* v: the value of the scale byte */
{
    if (s->arithmetic == TE_FAST) {                                                     /* BLK-11 */
        float f = fminf(g / v, number(0x7F7F0000));
        return fmaf(x, widen(narrow(f, BFLOAT16), BFLOAT16), +0.0f);
    }
    return s->arithmetic <= TE_FAST ? x * fminf(1 / (v * (1 / g)), FLT_MAX) : x / v;   /* BLK-4, BLK-5, BLK-10 */
}

/* x: rows * columns elements, padded with +0. Returns the scale byte; with 4over6 the better one (FOS-6). */
static int block(const Spec *s, const float *x, const uint8_t *random, float G, uint8_t *codes)
{
    int n = s->rows * s->columns, byte[2] = {0, 0};
    float a = 0, g = global_scale(s, G), total[2] = {0, 0}, row[32];
    uint8_t *found[2] = {codes, room((size_t)n)};
    for (int i = 0; i < n; i++) a = larger(a, fabsf(x[i]));                             /* BLK-2 */
    float t = block_scale(s, a, g);
    for (int c = 0; c <= (s->search > 0); c++, t *= 1.5f) {                                   /* FOS-1 */
        byte[c] = encode(&FORMATS[s->scale], t);
        float v = decode(&FORMATS[s->scale], byte[c]);
        for (int i = 0; i < n; i++) {
            float y = scaled(s, x[i], v, g);
            found[c][i] = (uint8_t)(s->stochastic ? encode_stochastic(y, random[i]) : encode(element(s), y));
            if (!s->search) continue;
            float error = decode(element(s), found[c][i]) * v * G / ((float)s->top * element_max(s)) - x[i]; /* FOS-3 */
            error = s->search == 2 ? error * error : fabsf(error);                      /* FOS-5 */
            row[i / s->columns] = i % s->columns ? row[i / s->columns] + error : error; /* FOS-8 */
        }
        for (int h = s->rows / 2; s->search && h; h /= 2)
            for (int r = 0; r < h; r++) row[r] += row[r + h];
        total[c] = row[0];
    }
    int second = s->search && total[1] < total[0];
    if (second) memcpy(codes, found[1], (size_t)n);
    free(found[1]);
    return byte[second];
}

/* ---- one direction of a tensor ---- */

typedef struct { size_t rows, columns; float *x; } Matrix;

static Matrix seen(const Spec *s, const float *x, size_t rows, size_t columns, int column) /* NUM-4, BLK-8, HAD-4 */
{
    Matrix m = {column ? columns : rows, column ? rows : columns, room(rows * columns * sizeof(float))};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) m.x[column ? j * rows + i : i * columns + j] = x[i * columns + j];
    if (column && s->signs >= 0)
        for (size_t i = 0; i + 16 <= rows * columns; i += 16) transform(m.x + i, (unsigned)s->signs);
    return m;
}

static void maxima(const Spec *s, Matrix m, float *G) /* GLB-1, GLB-5 */
{
    if (s->global == TENSOR) G[0] = 0;
    for (size_t i = 0; i < m.rows; i++) {
        float *of = s->global == ROW ? G + i : G;
        if (s->global == ROW) *of = 0;
        for (size_t j = 0; j < m.columns; j++) *of = larger(*of, fabsf(m.x[i * m.columns + j]));
    }
}

static void quantize(const Spec *s, Matrix m, const float *G, const uint8_t *random, uint8_t *data, uint8_t *scales)
{
    size_t R = (size_t)s->rows, C = (size_t)s->columns, across = (m.columns + C - 1) / C;
    size_t wide = width_of(m.columns, element(s)->width);
    float *x = room(R * C * sizeof(float));
    uint8_t *drawn = room(R * C), *codes = room(R * C);
    for (size_t top = 0; top < m.rows; top += R)
        for (size_t b = 0; b < across; b++) {                                           /* BLK-1 */
            for (size_t i = 0; i < R * C; i++) {
                size_t r = top + i / C, c = b * C + i % C;
                int inside = r < m.rows && c < m.columns;
                x[i] = inside ? m.x[r * m.columns + c] : 0;
                drawn[i] = inside && random ? random[r * m.columns + c] : 0;
            }
            int byte = block(s, x, drawn, G ? G[s->global == ROW ? top : 0] : 0, codes);
            for (size_t r = top; r < m.rows && r < top + R; r++) {
                scales[r * across + b] = (uint8_t)byte;                                 /* BLK-7 */
                for (size_t c = b * C; c < m.columns && c < b * C + C; c++)
                    put_code(data + r * wide, c, element(s)->width, codes[(r - top) * C + c % C]);
            }
        }
    free(x); free(drawn); free(codes);
}

/* ---- chapter 11 ---- */

static void dequantize(const Spec *s, size_t rows, size_t columns, const uint8_t *data, const uint8_t *scales,
                       const float *G, int inverse, float *values)
{
    size_t C = (size_t)s->columns, across = (columns + C - 1) / C, wide = width_of(columns, element(s)->width);
    for (size_t i = 0; i < rows * columns; i++) {
        size_t r = i / columns, c = i % columns;
        float q = decode(element(s), get_code(data + r * wide, c, element(s)->width));
        float v = decode(&FORMATS[s->scale], scales[r * across + c / C]);
        values[i] = s->global == NONE ? q * v : q * (v * G[s->global == ROW ? r : 0] * (1 / (element_max(s) * (float)s->top)));
    }
    for (size_t i = 0; inverse && i + 16 <= rows * columns; i += 16) restore(values + i, (unsigned)s->signs);
}

/* ---- chapter 08 ---- */

static size_t pad(size_t n, size_t a) { return (n + a - 1) / a * a; }

static size_t offset(const char *layout, size_t m, size_t k, size_t M, size_t Kb, size_t *R, size_t *C)
{
    size_t tile = !strcmp(layout, "tiled_8x4") ? 8 : 128, T = pad(Kb, 4) / 4;
    *R = M, *C = Kb;
    if (!strcmp(layout, "linear")) return m * Kb + k;                                   /* LAY-1 */
    *R = pad(M, tile), *C = pad(Kb, 4);
    if (!strcmp(layout, "linear_padded")) return m * *C + k;                            /* LAY-2 */
    if (tile == 8) return (m / 8 * T + k / 4) * 32 + m % 8 * 4 + k % 4;                 /* LAY-4 */
    return (m / 128 * T + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;        /* LAY-3 */
}

/* ---- chapter 15 ---- */

/* An operand, the matrix of one direction; scales in the layout `linear`. */
typedef struct { const Spec *s; size_t rows, columns; const uint8_t *data, *scales; const float *G; } Operand;

/* A sum without rounding: an integer in units of 2^-320, 32 bits a limb. Terms that are not finite are noted apart. */
enum { LIMBS = 24, LOWEST = -320 };
typedef struct { int64_t limb[LIMBS]; int not_a_number, infinite[2]; } Sum;

static void carry(Sum *sum)
{
    for (int i = 0; i + 1 < LIMBS; i++) {
        int64_t low = sum->limb[i] & 0xFFFFFFFF;                                        /* two's complement */
        sum->limb[i + 1] += (sum->limb[i] - low) / 4294967296;
        sum->limb[i] = low;
    }
}

static void add_term(Sum *sum, float qa, float sa, float qb, float sb) /* GEM-1, GEM-3 */
{
    double term = (double)qa * sa * ((double)qb * sb);                                  /* exact: 16 bits, 2^-286 to 2^286 */
    if (term != term) sum->not_a_number = 1;
    else if (isinf(term)) sum->infinite[term < 0] = 1;
    else if (term != 0) {
        int e;
        int64_t digits = (int64_t)ldexp(frexp(fabs(term), &e), 20), sign = term < 0 ? -1 : 1;
        int at = e - 20 - LOWEST;
        uint64_t moved = (uint64_t)digits << at % 32;
        sum->limb[at / 32] += sign * (int64_t)(moved & 0xFFFFFFFF);
        sum->limb[at / 32 + 1] += sign * (int64_t)(moved >> 32);
    }
}

static float rounded(Sum *sum) /* GEM-2: once, to nearest even; GEM-3 */
{
    if (sum->not_a_number || (sum->infinite[0] && sum->infinite[1])) return NAN;
    if (sum->infinite[0] || sum->infinite[1]) return sum->infinite[0] ? INFINITY : -INFINITY;
    carry(sum);
    int negative = sum->limb[LIMBS - 1] < 0, top = LIMBS - 1;
    for (int i = 0; negative && i < LIMBS; i++) sum->limb[i] = -sum->limb[i];
    carry(sum);
    while (top && !sum->limb[top]) top--;
    /* 33 to 64 bits from the highest limb on, then 53; a last bit of 1 stands for all below, so that two roundings are one */
    uint64_t high = (uint64_t)sum->limb[top] << 32 | (uint64_t)(top ? sum->limb[top - 1] : 0), lost = 0;
    int shift = 0;
    for (int i = 0; i < top - 1; i++) lost |= (uint64_t)sum->limb[i];
    for (; high >> 53; shift++, high >>= 1) lost |= high & 1;
    double value = ldexp((double)(high | (lost != 0)), shift + 32 * (top - 1) + LOWEST);
    return (float)(negative ? -value : value);
}

static float operand(const Operand *o, size_t r, size_t k, float *scale)
{
    size_t C = (size_t)o->s->columns, across = (o->columns + C - 1) / C;
    *scale = decode(&FORMATS[o->s->scale], o->scales[r * across + k / C]);
    return decode(element(o->s), get_code(o->data + r * width_of(o->columns, element(o->s)->width), k, element(o->s)->width));
}

static float sum_of(const Operand *A, const Operand *B, size_t m, size_t n, int blockwise) /* GEM-1, GEM-2, GEM-4 */
{
    size_t K = A->columns, step = blockwise ? (size_t)A->s->columns : K;
    float total = 0;
    for (size_t k = 0; k < K; k += step) {
        Sum sum = {0};
        for (size_t i = k; i < K && i < k + step; i++) {
            float sa, sb, qa = operand(A, m, i, &sa), qb = operand(B, n, i, &sb);
            add_term(&sum, qa, sa, qb, sb);
        }
        total = blockwise ? total + rounded(&sum) : rounded(&sum);
    }
    return total;
}

static float top_of(const Spec *s) { return element_max(s) * (float)s->top; }

/* bias: of column n, or NULL; more: what is added, or NULL. division: the other pick of GEM-6. */
static uint32_t product(const Operand *A, const Operand *B, size_t m, size_t n, int blockwise, int division, float alpha,
                        const float *bias, const float *more, int type)
{
    float d = sum_of(A, B, m, n, blockwise);
    int rows = (A->s->global == ROW) + (B->s->global == ROW);
    if (A->s->global == NONE) d *= alpha;
    else {
        float factor = top_of(A->s) * top_of(B->s);
        float a = A->G[A->s->global == ROW ? m : 0], b = B->G[B->s->global == ROW ? n : 0];
        float all = rows ? alpha : alpha * a * b;                                       /* GEM-5, GEM-7 */
        d *= division ? all / factor : all * (1 / factor);
        if (rows == 1) d *= a * b;
        if (rows == 2) d = d * a * b;
    }
    if (!rows && more) d += *more;                                                      /* GEM-8 */
    if (bias) d += *bias;
    if (rows && more) d = widen(narrow(d, type), type) + *more;
    return narrow(d != d ? NAN : d, type);
}

/* ---- chapter 09: the standard's own random bytes ---- */

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1, int rounds) /* SR-6 */
{
    for (int i = 0; i < rounds; i++, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
        uint64_t p = (uint64_t)0xCD9E8D57 * c[2], q = (uint64_t)0xD2511F53 * c[0];
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p;
        c[2] = (uint32_t)(q >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)q;
    }
}

static int random_byte(size_t r, size_t c, size_t n, uint64_t seed, uint64_t stream, int d) /* SR-7 */
{
    uint64_t B = r * ((n + 15) / 16) + c / 16, U = 2 * stream + (uint64_t)d;
    uint32_t counter[4] = {(uint32_t)B, (uint32_t)(B >> 32), (uint32_t)U, (uint32_t)(U >> 32)};
    philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32), 10);
    return counter[c % 16 / 4] >> 8 * (c % 4) & 255;
}

/* ---- the stream of cases (CNF-6) ---- */

static void get(void *p, size_t n) { if (n && fread(p, 1, n, stdin) != n) exit(1); }
static void put(const void *p, size_t n) { fwrite(p, 1, n, stdout); }

static void stream(const Spec *s)
{
    uint32_t head[8], left;
    char start[12];
    get(start, 12); put(start, 12);
    for (memcpy(&left, start + 8, 4); left; left--) putchar(getchar());
    for (;;) {
        get(head, 32);
        if (memcmp(head, "CASE", 4)) { put(head, 32); return; }
        size_t rows = head[4], columns = head[5], n = rows * columns, size = head[3] == FLOAT32 ? 4 : 2;
        uint8_t *raw = room(n * size), *random = head[7] & 1 ? room(n) : NULL;
        float *x = room(n * sizeof(float));
        get(raw, n * size);
        for (size_t i = 0; i < n; i++) {
            uint32_t u = 0;
            memcpy(&u, raw + i * size, size);
            x[i] = widen(u, (int)head[3]);
        }
        Matrix m = seen(s, x, rows, columns, head[7] & 4);
        size_t count = head[6], across = (m.columns + (size_t)s->columns - 1) / (size_t)s->columns;
        float *G = room(count * sizeof(float));
        get(G, count * sizeof(float));
        if (random) get(random, n);
        if (!(head[7] & 2)) maxima(s, m, G);
        size_t bytes = m.rows * width_of(m.columns, element(s)->width), tiles = m.rows * across;
        uint8_t *data = room(bytes), *scales = room(tiles);
        quantize(s, m, G, random, data, scales);
        memcpy(head, "DONE", 4);
        head[3] = (uint32_t)bytes, head[4] = (uint32_t)tiles, head[5] = (uint32_t)count, head[6] = head[7] = 0;
        put(head, 32); put(data, bytes); put(scales, tiles); put(G, count * sizeof(float));
        free(raw); free(random); free(x); free(m.x); free(G); free(data); free(scales);
    }
}

/* ---- one operation a line; numbers are hexadecimal, counts decimal ---- */

static size_t count(void) { size_t n; return scanf("%zu", &n) == 1 ? n : (exit(1), 0); }
static uint64_t word(void) { unsigned long long u; return scanf("%llx", &u) == 1 ? u : (exit(1), 0); }
static const char *text(void) { static char t[2][64], *p; p = p == t[0] ? t[1] : t[0]; return scanf("%63s", p) == 1 ? p : NULL; }
static void hex(const uint8_t *p, size_t n) { for (size_t i = 0; i < n; i++) printf("%02x", p[i]); putchar(' '); }

static const Format *format(void)
{
    const char *name = text();
    for (size_t i = 0; i < 7; i++)
        if (!strcmp(FORMATS[i].name, name)) return &FORMATS[i];
    exit(2);
}

static const Spec *spec(void) /* a name, or * and the fields */
{
    static Spec own;
    const char *name = text();
    if (strcmp(name, "*")) return named(name);
    int *field[] = {&own.element, &own.scale, &own.rows, &own.columns, &own.global, &own.arithmetic, &own.signs, &own.search, &own.top, &own.stochastic};
    for (size_t i = 0; i < 10; i++)
        if (scanf("%d", field[i]) != 1) exit(1);
    return &own;
}

static void command_quantize(void) /* spec type column layout rows columns | counts of amax, random bytes | x, amax, random */
{
    const Spec *s = spec();
    int type = (int)count(), column = (int)count();
    const char *layout = text();
    size_t rows = count(), columns = count(), given = count(), drawn = count(), R, C;
    float *x = room(rows * columns * sizeof(float));
    for (size_t i = 0; i < rows * columns; i++) x[i] = widen((uint32_t)word(), type);
    Matrix m = seen(s, x, rows, columns, column);
    float *G = room((m.rows + 1) * sizeof(float));
    uint8_t *random = room(drawn);
    maxima(s, m, G);
    for (size_t i = 0; i < given; i++) G[i] = number((uint32_t)word());
    for (size_t i = 0; i < drawn; i++) random[i] = (uint8_t)word();
    size_t across = (m.columns + (size_t)s->columns - 1) / (size_t)s->columns, bytes = m.rows * width_of(m.columns, element(s)->width);
    uint8_t *data = room(bytes), *scales = room(m.rows * across);
    quantize(s, m, G, random, data, scales);
    offset(layout, 0, 0, m.rows, across, &R, &C);
    uint8_t *stored = room(R * C);                                                      /* LAY-5 */
    for (size_t i = 0; i < m.rows * across; i++) stored[offset(layout, i / across, i % across, m.rows, across, &R, &C)] = scales[i];
    hex(data, bytes); hex(stored, R * C);
    for (size_t i = 0; i < (s->global == ROW ? m.rows : s->global == TENSOR); i++) printf("%08x", (unsigned)bits(G[i]));
    free(x); free(m.x); free(G); free(random); free(data); free(scales); free(stored);
}

static void command_dequantize(void) /* spec, type of the result, inverse, layout, rows, columns of the direction, amaxes, bytes */
{
    const Spec *s = spec();
    int type = (int)count(), inverse = (int)count();
    const char *layout = text();
    size_t rows = count(), columns = count(), given = count(), R, C, across = (columns + (size_t)s->columns - 1) / (size_t)s->columns;
    size_t bytes = rows * width_of(columns, element(s)->width);
    offset(layout, 0, 0, rows, across, &R, &C);
    float *G = room(given * sizeof(float)), *values = room(rows * columns * sizeof(float));
    uint8_t *data = room(bytes), *stored = room(R * C), *scales = room(rows * across);
    for (size_t i = 0; i < given; i++) G[i] = number((uint32_t)word());
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)word();
    for (size_t i = 0; i < R * C; i++) stored[i] = (uint8_t)word();
    for (size_t i = 0; i < rows * across; i++) scales[i] = stored[offset(layout, i / across, i % across, rows, across, &R, &C)];
    dequantize(s, rows, columns, data, scales, G, inverse, values);
    for (size_t i = 0; i < rows * columns; i++) printf("%0*x ", type ? 4 : 8, (unsigned)narrow(values[i], type));
    free(G); free(values); free(data); free(stored); free(scales);
}

static Operand read_operand(void) /* spec layout rows columns, count of amaxes | amaxes, bytes of data and of scales */
{
    Spec *s = room(sizeof(Spec));
    *s = *spec();
    const char *layout = text();
    size_t rows = count(), columns = count(), given = count(), R, C, across = (columns + (size_t)s->columns - 1) / (size_t)s->columns;
    size_t bytes = rows * width_of(columns, element(s)->width);
    offset(layout, 0, 0, rows, across, &R, &C);
    float *G = room(given * sizeof(float));
    uint8_t *data = room(bytes), *stored = room(R * C), *scales = room(rows * across);
    for (size_t i = 0; i < given; i++) G[i] = number((uint32_t)word());
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)word();
    for (size_t i = 0; i < R * C; i++) stored[i] = (uint8_t)word();
    for (size_t i = 0; i < rows * across; i++) scales[i] = stored[offset(layout, i / across, i % across, rows, across, &R, &C)];
    free(stored);
    return (Operand){s, rows, columns, data, scales, G};
}

static void release(Operand o) { free((void *)o.s); free((void *)o.data); free((void *)o.scales); free((void *)o.G); }

static void command_gemm(void) /* type blockwise division alpha A B | counts of bias and of accumulate, both as float32 */
{
    int type = (int)count(), blockwise = (int)count(), division = (int)count();
    float alpha = number((uint32_t)word());
    Operand A = read_operand(), B = read_operand();
    size_t biases = count(), added = count();
    float *bias = room(biases * sizeof(float)), *more = room(added * sizeof(float));
    for (size_t i = 0; i < biases; i++) bias[i] = number((uint32_t)word());
    for (size_t i = 0; i < added; i++) more[i] = number((uint32_t)word());
    for (size_t i = 0; i < A.rows * B.rows; i++) {
        const float *to_column = biases ? bias + i % B.rows : NULL, *to_sum = added ? more + i : NULL;
        uint32_t d = product(&A, &B, i / B.rows, i % B.rows, blockwise, division, alpha, to_column, to_sum, type);
        printf("%0*x ", type ? 4 : 8, (unsigned)d);
    }
    release(A); release(B); free(bias); free(more);
}

static void command(const char *name)
{
    if (!strcmp(name, "quantize")) command_quantize();
    if (!strcmp(name, "dequantize")) command_dequantize();
    if (!strcmp(name, "gemm")) command_gemm();
    if (!strcmp(name, "encode")) { /* format, stochastic, n, values with their random bytes */
        const Format *f = format();
        int stochastic = (int)count();
        for (size_t n = count(); n; n--) {
            float y = number((uint32_t)word());
            printf("%x ", (unsigned)(stochastic ? encode_stochastic(y, (int)word()) : encode(f, y)));
        }
    }
    if (!strcmp(name, "decode")) { /* format, n, codes */
        const Format *f = format();
        for (size_t n = count(); n; n--) printf("%08x ", (unsigned)bits(decode(f, (int)word())));
    }
    if (!strcmp(name, "pack")) { /* format, n, codes */
        int width = format()->width;
        size_t n = count(), bytes = width_of(n, width);
        uint8_t *row = room(bytes);
        for (size_t j = 0; j < n; j++) put_code(row, j, width, (int)word());
        hex(row, bytes);
        for (size_t j = 0; j < n; j++) printf("%x", (unsigned)get_code(row, j, width));
        free(row);
    }
    if (!strcmp(name, "layout")) { /* name, rows, columns, n, positions */
        const char *layout = text();
        size_t M = count(), Kb = count(), n = count(), R, C;
        offset(layout, 0, 0, M, Kb, &R, &C);
        for (printf("%zu %zu", R, C); n; n--) {
            size_t m = count(), k = count();
            printf(" %zu", offset(layout, m, k, M, Kb, &R, &C));
        }
    }
    if (!strcmp(name, "hadamard")) { /* mask, 16 values of bfloat16 */
        unsigned mask = (unsigned)word();
        float v[16];
        for (int i = 0; i < 16; i++) v[i] = widen((uint32_t)word(), BFLOAT16);
        transform(v, mask);
        for (int i = 0; i < 16; i++) printf("%04x ", (unsigned)narrow(v[i], BFLOAT16));
        restore(v, mask);
        for (int i = 0; i < 16; i++) printf("%08x ", (unsigned)bits(v[i]));
    }
    if (!strcmp(name, "philox")) { /* rounds, counter, key */
        int rounds = (int)count();
        uint32_t u[6];
        for (int i = 0; i < 6; i++) u[i] = (uint32_t)word();
        philox(u, u[4], u[5], rounds);
        for (int i = 0; i < 4; i++) printf("%08x ", (unsigned)u[i]);
    }
    if (!strcmp(name, "random")) { /* of the direction: rows, columns, first row, first column, columns of the whole; d, seed, stream */
        size_t rows = count(), columns = count(), r = count(), c = count(), n = count();
        int d = (int)count();
        uint64_t seed = word(), number_of_stream = word();
        for (size_t i = 0; i < rows * columns; i++)
            printf("%02x", (unsigned)random_byte(r + i / columns, c + i % columns, n, seed, number_of_stream, d));
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc == 2) stream(named(argv[1]));
    for (const char *name; argc == 1 && (name = text());) command(name);
    return 0;
}
