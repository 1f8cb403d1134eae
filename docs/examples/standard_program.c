/* A program around standard.c, which reads cases and writes the standard's bytes.
 *
 *   gcc -std=c11 -O2 -ffp-contract=off standard_program.c -o standard -lm
 *   fp4ref gen nvfp4 | ./standard nvfp4 | fp4ref verify nvfp4       quantizes cases of CNF-6, in either direction
 *   ./standard < commands                                           one operation a line, see `command` below
 */
#include <stdio.h>

#include "standard.c"

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
    for (size_t i = 0; i <= E8M0; i++)
        if (!strcmp(FORMATS[i].name, name)) return &FORMATS[i];
    exit(2);
}

static Spec *spec(void) /* a name, or * and the fields */
{
    static Spec own;
    const char *name = text();
    if (strcmp(name, "*")) return own = named(name), &own;
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
    uint8_t *random = drawn ? room(drawn) : NULL;
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
    if (argc == 2) {
        Spec s = named(argv[1]);
        stream(&s);
    }
    for (const char *name; argc == 1 && (name = text());) command(name);
    return 0;
}
