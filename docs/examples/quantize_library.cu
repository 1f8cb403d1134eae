// MXFP4 on a device, with a stream: a thread for each block of 32.
//   nvcc -O2 --fmad=false -shared -Xcompiler -fPIC quantize_library.cu -o libmine.so
//   fp4ref verify --library ./libmine.so:quantize --signature quantize_library_cuda.toml --spec mxfp4 --device cuda
#include <cstdint>
#include <cuda_runtime.h>

__global__ void blocks_of_32(const float *x, int64_t rows, int64_t columns, uint8_t *data, uint8_t *scales)
{
    const int64_t blocks = (columns + 31) / 32, b = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (b >= rows * blocks) return;
    const int64_t row = b / blocks, from = b % blocks * 32, to = min(from + 32, columns);
    float top = 0;
    for (int64_t c = from; c < to; c++) top = fmaxf(top, fabsf(x[row * columns + c]));
    const float share = fminf(top * (1.0f / 6.0f), ldexpf(1, 127));  // the scale is the next power of two
    const int e = share > ldexpf(1, -127) ? ilogbf(share) + (ldexpf(1, ilogbf(share)) < share) : -127;
    scales[b] = uint8_t(e + 127);
    uint8_t *bytes = data + row * ((columns + 1) / 2);
    for (int64_t c = from; c < to; c++) {
        const float y = scalbnf(x[row * columns + c], -e), a = fabsf(y);
        const int code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
        const int nibble = (y != y ? 7 : code | (signbit(y) ? 8 : 0)) << 4 * (c % 2);
        bytes[c / 2] = uint8_t(c % 2 ? bytes[c / 2] | nibble : nibble);
    }
}

extern "C" int quantize(const float *x, int64_t rows, int64_t columns, uint8_t *data, uint8_t *scales, cudaStream_t stream)
{
    const int64_t count = rows * ((columns + 31) / 32);
    if (count) blocks_of_32<<<unsigned((count + 127) / 128), 128, 0, stream>>>(x, rows, columns, data, scales);
    return cudaGetLastError();
}
