// An MXFP4 kernel in CUDA C++, and its test: the header of fp4ref computes the expected bytes on the device beside it.
//
//   fp4ref header --dir include
//   nvcc -std=c++17 --fmad=false -Iinclude check_kernel.cu -o check_kernel && ./check_kernel
//
// A host compiler compiles the same functions, and runs them one block after the other:
//
//   c++ -x c++ -std=c++17 -ffp-contract=off -DFP4_CONTRACTION_IS_OFF -Iinclude check_kernel.cu -o check_kernel
//
// -DTIES_AWAY compiles the kernel with a mistake.
#include <fp4ref/specs.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#ifndef __CUDACC__
#define __host__
#define __device__
#define __global__
#endif

using Spec = fp4ref::specs::mxfp4;
constexpr int BLOCK = 32;

struct Bytes {
    uint8_t scale, codes[BLOCK / 2];
};

// The kernel's arithmetic: the scale is the power of two at or above amax / 6.
__host__ __device__ Bytes by_kernel(const float *x)
{
    float top = 0;
    for (int i = 0; i < BLOCK; ++i) top = fmaxf(top, fabsf(x[i]));
    const float share = fminf(top * (1.0f / 6.0f), ldexpf(1, 127));
    const int e = share > ldexpf(1, -127) ? ilogbf(share) + (ldexpf(1, ilogbf(share)) < share) : -127;

    Bytes bytes{uint8_t(e + 127), {}};
    for (int i = 0; i < BLOCK; ++i) {
        const float y = scalbnf(x[i], -e), a = fabsf(y);
#ifdef TIES_AWAY
        const int code = (a >= .25f) + (a >= .75f) + (a >= 1.25f) + (a >= 1.75f) + (a >= 2.5f) + (a >= 3.5f) + (a >= 5);
#else
        const int code = (a > .25f) + (a >= .75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
#endif
        bytes.codes[i / 2] |= (y != y ? 7 : code | (std::signbit(y) ? 8 : 0)) << i % 2 * 4;
    }
    return bytes;
}

// The same block by the header.
__host__ __device__ Bytes by_header(const float *x)
{
    unsigned amax = 0;
    for (int i = 0; i < BLOCK; ++i) amax = fp4ref::running_amax<false>(amax, fp4ref::magnitude_bits(x[i]));
    const auto element = [&](int, int column) { return x[column]; };
    const fp4ref::Scale scale = fp4ref::choose_scale<Spec, float>(fp4ref::float_of(amax), 1.0f, 0.0f, element);

    Bytes bytes{uint8_t(scale.byte), {}};
    for (int i = 0; i < BLOCK; ++i) bytes.codes[i / 2] |= fp4ref::encode<Spec, float>(x[i], scale, 1.0f) << i % 2 * 4;
    return bytes;
}

__host__ __device__ void both(const float *x, int64_t b, Bytes *kernel, Bytes *header)
{
    kernel[b] = by_kernel(x + b * BLOCK);
    header[b] = by_header(x + b * BLOCK);
}

#ifdef __CUDACC__
__global__ void a_thread_for_each(const float *x, int64_t blocks, Bytes *kernel, Bytes *header)
{
    const int64_t b = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (b < blocks) both(x, b, kernel, header);
}

template <class T>
T *managed(int64_t count)
{
    T *data = nullptr;
    return cudaMallocManaged(&data, count * sizeof(T)) == cudaSuccess ? data : nullptr;
}

const char *run(const std::vector<float> &x, std::vector<Bytes> &kernel, std::vector<Bytes> &header)
{
    const int64_t blocks = int64_t(kernel.size());
    float *in = managed<float>(int64_t(x.size()));
    Bytes *out = managed<Bytes>(2 * blocks);
    if (!in || !out) return cudaGetErrorString(cudaGetLastError());
    std::memcpy(in, x.data(), x.size() * sizeof(float));
    a_thread_for_each<<<unsigned((blocks + 127) / 128), 128>>>(in, blocks, out, out + blocks);
    if (const cudaError_t error = cudaDeviceSynchronize()) return cudaGetErrorString(error);
    kernel.assign(out, out + blocks);
    header.assign(out + blocks, out + 2 * blocks);
    return nullptr;
}
#else
const char *run(const std::vector<float> &x, std::vector<Bytes> &kernel, std::vector<Bytes> &header)
{
    for (int64_t b = 0; b < int64_t(kernel.size()); ++b) both(x.data(), b, kernel.data(), header.data());
    return nullptr;
}

// The kernel with the signature of a C library, for `fp4ref verify --library`; the last block of a row may be short.
extern "C" int quantize(const float *x, int64_t rows, int64_t columns, uint8_t *data, uint8_t *scales)
{
    const int64_t blocks = (columns + BLOCK - 1) / BLOCK, width = (columns + 1) / 2;
    for (int64_t b = 0; b < rows * blocks; ++b) {
        const int64_t row = b / blocks, from = b % blocks * BLOCK, count = columns - from < BLOCK ? columns - from : BLOCK;
        float block[BLOCK] = {};
        std::memcpy(block, x + row * columns + from, size_t(count) * sizeof(float));
        const Bytes bytes = by_kernel(block);
        scales[b] = bytes.scale;
        std::memcpy(data + row * width + from / 2, bytes.codes, size_t(count + 1) / 2);
    }
    return 0;
}
#endif

int main()
{
    // Multiples of 1/16 up to 16: every tie of E2M1, with scales from 2^-5 to 4.
    std::vector<float> x(4096 * BLOCK);
    for (size_t i = 0; i < x.size(); ++i) {
        const unsigned drawn = unsigned(i) * 2654435761u >> 16, largest = 1u << i / BLOCK % 9;
        x[i] = float(int(drawn % (2 * largest + 1)) - int(largest)) / 16;
    }
    std::vector<Bytes> kernel(x.size() / BLOCK), header(x.size() / BLOCK);
    if (const char *error = run(x, kernel, header)) return std::fprintf(stderr, "%s\n", error), 2;

    size_t wrong = 0;
    for (size_t b = 0; b < kernel.size(); ++b) {
        if (!std::memcmp(&kernel[b], &header[b], sizeof(Bytes))) continue;
        if (wrong++) continue;
        std::printf("block %zu: scale %02x, expected %02x\n", b, kernel[b].scale, header[b].scale);
        for (int i = 0; i < BLOCK; ++i) {
            const int shift = i % 2 * 4, code = kernel[b].codes[i / 2] >> shift & 15, need = header[b].codes[i / 2] >> shift & 15;
            if (code != need) std::printf("  x[%d] = %g: code %x, expected %x\n", i, x[b * BLOCK + i], code, need);
        }
    }
    std::printf("%zu of %zu blocks differ\n", wrong, kernel.size());
    return wrong > 0;
}
