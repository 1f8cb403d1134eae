/* A scalar NVFP4 quantizer behind a pipe (rule CNF-6): linear scales, row direction.
 *
 *   gcc -O2 -ffp-contract=off stream_kernel.c -o stream_kernel -lm
 *   fp4ref gen nvfp4 | ./stream_kernel | fp4ref verify nvfp4
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <float.h>

static void get(void *p, size_t n) { if (n && fread(p, 1, n, stdin) != n) exit(1); }
static void put(const void *p, size_t n) { fwrite(p, 1, n, stdout); }
static float from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

static float element(const uint8_t *x, size_t i, uint32_t dtype)     /* 0 float32, 1 bfloat16, 2 float16 */
{
    uint32_t u; uint16_t h; float f;
    if (dtype == 0) { memcpy(&u, x + 4 * i, 4); return from_bits(u); }
    memcpy(&h, x + 2 * i, 2);
    if (dtype == 1) return from_bits((uint32_t)h << 16);
    int e = h >> 10 & 31, m = h & 1023;
    f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
    return h >> 15 ? -f : f;
}

static uint8_t e2m1(float y)                                         /* nearest, ties to even, saturating */
{
    float m = fabsf(y);
    if (m != m) return 7;
    return (uint8_t)((signbit(y) ? 8 : 0) | ((m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f)
                                             + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f)));
}

static float e4m3_value(int c) { return c < 8 ? ldexpf((float)c, -9) : ldexpf((float)(8 + c % 8), c / 8 - 10); }

static uint8_t e4m3(float y)                                         /* y >= 0 */
{
    int c = 0;
    if (y != y) return 0x7f;
    while (c < 126 && e4m3_value(c + 1) <= y) c++;
    if (c == 126) return 126;
    float middle = (e4m3_value(c) + e4m3_value(c + 1)) / 2;
    return (uint8_t)(y > middle || (y == middle && c % 2) ? c + 1 : c);
}

int main(void)
{
    uint32_t head[8];                            /* kind, index, key, dtype, rows, columns, count of amax, flags */
    char start[12];
    get(start, 12); put(start, 12);              /* the preamble is copied */
    memcpy(head, start + 8, 4);
    for (uint32_t i = head[0]; i; i--) { int c = getchar(); putchar(c); }
    for (;;) {
        get(head, 32);
        if (memcmp(head, "CASE", 4)) { put(head, 32); return 0; }    /* and so is the end */
        size_t rows = head[4], columns = head[5], width = (columns + 1) / 2, blocks = (columns + 15) / 16;
        size_t bytes = rows * columns * (head[3] ? 2 : 4);
        uint8_t *x = malloc(bytes + 1), *data = calloc(rows * width + 1, 1), *scales = malloc(rows * blocks + 1);
        float amax;
        get(x, bytes); get(&amax, 4);
        float g = fminf(448.0f * 6.0f / amax, FLT_MAX);
        if (amax == 0 || g == 0) g = 1;
        for (size_t r = 0; r < rows; r++)
            for (size_t b = 0; b < blocks; b++) {
                size_t from = r * columns + 16 * b, n = columns - 16 * b < 16 ? columns - 16 * b : 16;
                float top = 0;
                for (size_t i = 0; i < n; i++) {                     /* NaN is ignored; fmaxf returns a signalling one */
                    float magnitude = fabsf(element(x, from + i, head[3]));
                    if (magnitude > top) top = magnitude;
                }
                uint8_t s = scales[r * blocks + b] = e4m3(fminf(top * (g * (1.0f / 6.0f)), FLT_MAX));
                float factor = fminf(1.0f / (e4m3_value(s) * (1.0f / g)), FLT_MAX);
                for (size_t i = 0; i < n; i++)
                    data[r * width + 8 * b + i / 2] |= (uint8_t)(e2m1(element(x, from + i, head[3]) * factor) << 4 * (i % 2));
            }
        memcpy(head, "DONE", 4);
        head[3] = (uint32_t)(rows * width); head[4] = (uint32_t)(rows * blocks); head[5] = 1; head[6] = head[7] = 0;
        put(head, 32); put(data, rows * width); put(scales, rows * blocks); put(&amax, 4);
        free(x); free(data); free(scales);
    }
}
