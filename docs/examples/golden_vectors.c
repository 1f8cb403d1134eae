/* An MXFP4 quantizer against golden vectors, on a little-endian machine:
 *   fp4ref vectors export golden --spec mxfp4
 *   gcc -std=c11 -ffp-contract=off -Igolden golden_vectors.c -o check && ./check golden/mxfp4.bin */
#include <stdio.h>
#include <string.h>
#include "mxfp4.h"

static uint8_t file[1 << 20], data[1 << 14];

static uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float number(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static float element(const fp4ref_vector *v, size_t i) /* float32 or bfloat16 */
{
    uint32_t u = 0, size = v->dtype ? 2 : 4;
    memcpy((uint8_t *)&u + 4 - size, file + v->x.offset + i * size, size);
    return number(u);
}
static uint32_t power_of_two_above(float t)
{
    uint32_t e = bits(t) >> 23, m = bits(t) & 0x7fffff;
    return e == 0 ? m > 0x400000 : e + (m != 0) < 255 ? e + (m != 0) : 254;
}
static unsigned nearest(float y)
{
    float a = number(bits(y) & 0x7fffffff);
    unsigned code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
    return y != y ? 7 : code | (bits(y) >> 31) << 3;
}
int main(int count, char **names)
{
    FILE *binary = count == 2 ? fopen(names[1], "rb") : NULL;
    if (!binary || !fread(file, 1, sizeof file, binary) || fgetc(binary) != EOF) return 2;
    int wrong = 0;
    for (const fp4ref_vector *v = fp4ref_mxfp4; v < fp4ref_mxfp4 + fp4ref_mxfp4_count; v++) {
        size_t k = v->columns, width = (k + 1) / 2, blocks = (k + 31) / 32, bad = 0;
        memset(data, 0, sizeof data);
        for (size_t block = 0; block < v->rows * blocks; block++) {
            size_t row = block / blocks, from = block % blocks * 32, to = from + 32 < k ? from + 32 : k;
            float top = 0;
            for (size_t c = from; c < to; c++) {
                float a = number(bits(element(v, row * k + c)) & 0x7fffffff);
                if (a > top) top = a; /* a NaN is not */
            }
            uint32_t s = power_of_two_above(top * (1.0f / 6.0f));
            bad += s != file[v->scales.offset + block];
            for (size_t c = from; c < to; c++)
                data[row * width + c / 2] |= (uint8_t)(nearest(element(v, row * k + c) / number(s ? s << 23 : 0x400000)) << 4 * (c % 2));
        }
        bad += memcmp(data, file + v->data.offset, v->data.size) != 0;
        if (bad) printf("%s differs\n", v->name);
        wrong += bad != 0;
    }
    return printf("%d of %d vectors differ\n", wrong, fp4ref_mxfp4_count) < 0 || wrong;
}
