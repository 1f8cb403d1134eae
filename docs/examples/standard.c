/* The standard in 400 lines: volume 1 in one file of C11, written from its text alone. Comments name the rules.
 * No operation may be contracted: -ffp-contract=off. standard_program.c is a program around it. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static float number(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static void *room(size_t n) { void *p = calloc(n + 1, 1); if (!p) exit(3); return p; }
static float larger(float a, float x) { return x > a ? x : a; } /* a, if x is NaN: fmaxf may return a signalling NaN */

/* ---- chapters 02 and 03: codes; float16 is one more format ---- */
typedef struct { const char *name; int exponent, mantissa, bias, last, width; } Format; /* last: the largest finite code */
static const Format FORMATS[] = {
    {"e2m1", 2, 1, 1, 7, 4}, {"e4m3", 4, 3, 7, 126, 8}, {"e5m2", 5, 2, 15, 123, 8}, {"e2m3", 2, 3, 1, 31, 6},
    {"e3m2", 3, 2, 3, 31, 6}, {"int8", 0, 7, 0, 127, 8}, {"e8m0", 8, 0, 127, 254, 8}, {"float16", 5, 10, 15, 31743, 16},
};
enum { E2M1, E4M3, E5M2, E2M3, E3M2, INT8, E8M0, F16 };

static float magnitude(const Format *f, int code) /* of a code without its sign bit */
{
    int e = code >> f->mantissa, m = code & ((1 << f->mantissa) - 1);
    if (f == &FORMATS[INT8]) return (float)code / 64;
    if (f == &FORMATS[E8M0]) return code == 255 ? NAN : ldexpf(1, code - 127);
    if (code > f->last) return f != &FORMATS[E4M3] && m == 0 ? INFINITY : NAN;
    return e ? ldexpf((float)(m + (1 << f->mantissa)), e - f->bias - f->mantissa) : ldexpf((float)m, 1 - f->bias - f->mantissa);
}

static float decode(const Format *f, int code)
{
    if (f == &FORMATS[E8M0]) return magnitude(f, code);
    if (f == &FORMATS[INT8]) return (float)(code > 127 ? code - 256 : code) / 64;
    int sign = 1 << (f->width - 1);
    return code & sign ? -magnitude(f, code ^ sign) : magnitude(f, code);
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

static int encode(const Format *f, float y) /* nearest, ties to the even code, saturating; a scale of MX upward */
{
    float a = fabsf(y);
    int c = below(f, a);
    if (f == &FORMATS[E8M0]) return y != y ? 255 : c + (c < f->last && magnitude(f, c) < a); /* E8M0-2, E8M0-3 */
    if (y != y) return f->width == 4 ? 7 : f->width == 6 ? 0x1F : 0x7F;
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

/* ---- chapter 01: types of inputs and results (NUM-1, NUM-3) ---- */
enum { FLOAT32, BFLOAT16, FLOAT16 };
static float widen(uint32_t u, int type)
{
    return type == FLOAT16 ? decode(&FORMATS[F16], (int)u) : number(type == BFLOAT16 ? u << 16 : u);
}

static uint32_t narrow(float v, int type) /* rounded once, to nearest even (DEQ-3) */
{
    uint32_t u = bits(v), sign = u >> 31 << 15;
    if (type == FLOAT32) return u;
    if (type == BFLOAT16) return v != v ? u >> 16 | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    if (v != v || fabsf(v) >= 65520) return sign | (v != v ? 0x7E00 : 0x7C00);
    return (uint32_t)encode(&FORMATS[F16], v);
}

/* ---- chapter 04: codes to bytes, low bits first ---- */
static size_t width_of(size_t n, int width) { return (n * (size_t)width + 7) / 8; }

static void put_code(uint8_t *row, size_t j, int width, int code)
{
    for (size_t i = 0, at = j * (size_t)width; i < (size_t)width; i++, at++) row[at / 8] |= (uint8_t)((code >> i & 1) << at % 8);
}

static int get_code(const uint8_t *row, size_t j, int width)
{
    int code = 0;
    for (size_t i = 0, at = j * (size_t)width; i < (size_t)width; i++, at++) code |= (row[at / 8] >> at % 8 & 1) << i;
    return code;
}

/* ---- chapter 07: the transform of a group of 16 ---- */
static void butterfly(float *v)
{
    for (int h = 1; h < 16; h *= 2)
        for (int i = 0; i < 16; i++)
            if (!(i & h)) {
                float a = v[i];
                v[i] = a + v[i + h], v[i + h] = a - v[i + h];
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
    {"mxfp6-e2m3", E2M3, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxfp6-e3m2", E3M2, E8M0, 1, 32, NONE, RCEIL, -1, 0, 448, 0},
    {"mxint8", INT8, E8M0, 1, 32, NONE, OCP_FLOOR, -1, 0, 448, 0},
};

static Spec named(const char *name) /* with -sr: its stochastic twin (SR-12) */
{
    size_t n = strlen(name), twin = n > 3 && !strcmp(name + n - 3, "-sr");
    for (size_t i = 0; i < sizeof SPECS / sizeof *SPECS; i++) {
        Spec s = SPECS[i];
        s.stochastic = (int)twin;
        if (strlen(s.name) == n - 3 * twin && !strncmp(s.name, name, n - 3 * twin)) return s;
    }
    exit(2);
}

static const Format *element(const Spec *s) { return &FORMATS[s->element]; }
static float element_max(const Spec *s) { return magnitude(element(s), element(s)->last); }
static float largest(const Spec *s) { return element_max(s) * (float)s->top; } /* T */

/* ---- chapters 05, 06, 10 and 12: one block (SPC-9) ---- */
static float global_scale(const Spec *s, float G) /* GLB-2, GLB-3, GLB-6 */
{
    if (s->global == NONE) return 1;
    float g = fminf(largest(s) / G, FLT_MAX);
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
    float f = widen(narrow(fminf(g / v, number(0x7F7F0000)), BFLOAT16), BFLOAT16);      /* BLK-11 */
    if (s->arithmetic == TE_FAST) return fmaf(x, f, +0.0f);
    return s->arithmetic < TE_FAST ? x * fminf(1 / (v * (1 / g)), FLT_MAX) : x / v;     /* BLK-4, BLK-5, BLK-10 */
}

/* x: rows * columns elements, padded with +0. Returns the scale byte; with 4over6 the better one (FOS-6). */
static int block(const Spec *s, const float *x, const uint8_t *random, float G, uint8_t *codes)
{
    int n = s->rows * s->columns, byte[2] = {0, 0};
    float a = 0, g = global_scale(s, G), total[2] = {0, 0}, row[32];
    uint8_t *found[2] = {codes, room((size_t)n)};
    for (int i = 0; i < n; i++) a = larger(a, fabsf(x[i]));                             /* BLK-2 */
    float t = block_scale(s, a, g);
    for (int c = 0; c <= (s->search > 0); c++, t *= 1.5f) {                             /* FOS-1 */
        byte[c] = encode(&FORMATS[s->scale], t);
        float v = decode(&FORMATS[s->scale], byte[c]);
        for (int i = 0; i < n; i++) {
            float y = scaled(s, x[i], v, g);
            found[c][i] = (uint8_t)(s->stochastic ? encode_stochastic(y, random[i]) : encode(element(s), y));
            if (!s->search) continue;
            float error = decode(element(s), found[c][i]) * v * G / largest(s) - x[i];      /* FOS-3 */
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
    for (size_t i = 0; column && s->signs >= 0 && i + 16 <= rows * columns; i += 16) transform(m.x + i, (unsigned)s->signs);
    return m;
}

static void maxima(const Spec *s, Matrix m, float *G) /* GLB-1, GLB-5 */
{
    for (size_t i = 0; i < (s->global == ROW ? m.rows : s->global == TENSOR); i++) G[i] = 0;
    for (size_t i = 0; s->global != NONE && i < m.rows * m.columns; i++) {
        size_t at = s->global == ROW ? i / m.columns : 0;
        G[at] = larger(G[at], fabsf(m.x[i]));
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
            int byte = block(s, x, drawn, s->global == NONE ? 0 : G[s->global == ROW ? top : 0], codes);
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
        values[i] = s->global == NONE ? q * v : q * (v * G[s->global == ROW ? r : 0] * (1 / largest(s)));
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

/* ---- chapter 15: an operand is the matrix of one direction, with scales in the layout `linear` ---- */
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

static void add_term(Sum *sum, float qa, float sa, float qb, float sb) /* GEM-1, GEM-23 */
{
    double term = (double)qa * sa * ((double)qb * sb);                                  /* exact: 16 bits, 2^-286 to 2^286 */
    if (term != term) sum->not_a_number = 1;
    else if (isinf(term)) sum->infinite[term < 0] = 1;
    else if (term != 0) {
        int e, sign = term < 0 ? -1 : 1;
        int64_t digits = (int64_t)ldexp(frexp(fabs(term), &e), 20);
        int at = e - 20 - LOWEST;
        sum->limb[at / 32] += sign * (digits << at % 32 & 0xFFFFFFFF);
        sum->limb[at / 32 + 1] += sign * (digits << at % 32 >> 32);
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

/* bias: of column n, or NULL; more: what is added, or NULL. division: the other pick of GEM-6. */
static uint32_t product(const Operand *A, const Operand *B, size_t m, size_t n, int blockwise, int division, float alpha,
                        const float *bias, const float *more, int type)
{
    float d = sum_of(A, B, m, n, blockwise);
    int rows = (A->s->global == ROW) + (B->s->global == ROW);
    if (A->s->global == NONE) d *= alpha;
    else {
        float factor = largest(A->s) * largest(B->s);
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
        uint32_t next[4] = {(uint32_t)(p >> 32) ^ c[1] ^ k0, (uint32_t)p, (uint32_t)(q >> 32) ^ c[3] ^ k1, (uint32_t)q};
        memcpy(c, next, 16);
    }
}

static int random_byte(size_t r, size_t c, size_t n, uint64_t seed, uint64_t stream, int d) /* SR-7 */
{
    uint64_t B = r * ((n + 15) / 16) + c / 16, U = 2 * stream + (uint64_t)d;
    uint32_t counter[4] = {(uint32_t)B, (uint32_t)(B >> 32), (uint32_t)U, (uint32_t)(U >> 32)};
    philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32), 10);
    return counter[c % 16 / 4] >> 8 * (c % 4) & 255;
}
