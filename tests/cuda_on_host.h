// Stands in for CUDA where kernels run on the host: a block's threads are threads of the process, blocks follow each other.
// For kernels that exchange nothing between lanes.
#include <pthread.h>

#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define asm(...)  // of one target, in branches that are not taken

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x, y;
};
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static pthread_barrier_t barrier;

static void __syncthreads() { pthread_barrier_wait(&barrier); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}
inline int __dp4a(int a, int b, int sum)
{
    for (int i = 0; i < 32; i += 8) sum += (int)(signed char)(a >> i) * (signed char)(b >> i);
    return sum;
}
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __shfl_xor_sync(unsigned, T value, int) { __builtin_trap(); return value; }
template <class T> T __shfl_sync(unsigned, T value, int, int = 32) { __builtin_trap(); return value; }
inline bool __all_sync(unsigned, bool value) { __builtin_trap(); return value; }
inline bool __any_sync(unsigned, bool value) { __builtin_trap(); return value; }
inline unsigned __reduce_max_sync(unsigned, unsigned value) { __builtin_trap(); return value; }

// Runs a kernel's threads, block after block, of a grid with `lines` rows of blocks.
template <class Kernel> void on_host(unsigned blocks, unsigned threads, Kernel kernel, unsigned lines = 1)
{
    pthread_barrier_init(&barrier, nullptr, threads);
    gridDim = {blocks, lines};
    for (unsigned i = 0; i < blocks * lines; ++i) {
        blockIdx = {i % blocks, i / blocks};
        std::vector<std::thread> running;
        for (unsigned t = 0; t < threads; ++t) running.emplace_back([&, t] { threadIdx.x = t; kernel(); });
        for (std::thread& each : running) each.join();
    }
    pthread_barrier_destroy(&barrier);
}
