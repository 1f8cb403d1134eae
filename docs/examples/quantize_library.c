/* MXFP4 as a C function: x float32 [rows, columns], rows of codes [rows, (columns + 1) / 2], a scale for each 32.
 *   cc -O2 -ffp-contract=off -shared -fPIC quantize_library.c -o libmine.so
 *   fp4ref verify --library ./libmine.so:quantize --signature quantize_library.toml --spec mxfp4 */
#include <math.h>
#include <stdint.h>
#include <string.h>

int quantize(const float *x, int64_t rows, int64_t columns, uint8_t *data, uint8_t *scales)
{
    const int64_t width = (columns + 1) / 2, blocks = (columns + 31) / 32;
    memset(data, 0, (size_t)(rows * width));
    for (int64_t b = 0; b < rows * blocks; b++) {
        int64_t row = b / blocks, from = b % blocks * 32, to = from + 32 < columns ? from + 32 : columns;
        float top = 0;
        for (int64_t c = from; c < to; c++) top = fmaxf(top, fabsf(x[row * columns + c]));
        float share = fminf(top * (1.0f / 6.0f), 0x1p127f); /* the scale is the next power of two */
        int e = share > 0x1p-127f ? ilogbf(share) + (scalbnf(1, ilogbf(share)) < share) : -127;
        scales[b] = (uint8_t)(e + 127);
        for (int64_t c = from; c < to; c++) {
            float y = scalbnf(x[row * columns + c], -e), a = fabsf(y);
            int code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
            data[row * width + c / 2] |= (uint8_t)((y != y ? 7 : code | (signbit(y) ? 8 : 0)) << 4 * (c % 2));
        }
    }
    return 0;
}
