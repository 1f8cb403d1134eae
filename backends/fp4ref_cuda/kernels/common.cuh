// What the kernels share: index types, members of a group, and reductions over a block of threads.
#pragma once
#include <fp4ref/fp4ref.h>

#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")

using byte = unsigned char;
using index_t = long long;

constexpr int THREADS = 256;

// One member of a group: a range of rows of the tensor. Starts are bytes from the beginning of the group's buffers;
// first_tile counts the blocks of threads of the members before it.
struct Member {
    index_t first_row, rows, first_tile, row_scales, column_data, column_scales;
};

// The member that a tile belongs to, by bisection; the whole tensor if there is no group.
DEVICE Member member_of(const Member* members, index_t count, index_t rows, index_t tile, int& which)
{
    which = 0;
    if (!members) return {0, rows, 0, 0, 0, 0};
    for (index_t above = count; above - which > 1;) {
        const int middle = (int)((which + above) / 2);
        if (members[middle].first_tile <= tile) which = middle;
        else above = middle;
    }
    return members[which];
}

// The largest value of a block of threads, in thread 0.
DEVICE unsigned block_max(unsigned value)
{
    __shared__ unsigned of_warp[THREADS / 32];
    value = __reduce_max_sync(~0u, value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    UNROLL
    for (int i = 0; i < THREADS / 32; ++i) value = fp4ref::larger(value, of_warp[i]);
    return value;
}

// Those of each of Count values, in all threads.
template <int Count, int Threads> DEVICE void block_maxima(unsigned (&value)[Count])
{
    __shared__ unsigned of_warp[Count][Threads / 32];
    const unsigned lane = threadIdx.x % 32;
    UNROLL
    for (int i = 0; i < Count; ++i) {
        value[i] = __reduce_max_sync(~0u, value[i]);
        if (lane == 0) of_warp[i][threadIdx.x / 32] = value[i];
    }
    __syncthreads();
    UNROLL
    for (int i = 0; i < Count; ++i)
        value[i] = __reduce_max_sync(~0u, lane < Threads / 32 ? of_warp[i][lane] : 0);
}

// A pointer and a row pitch that both allow accesses of `size` bytes.
DEVICE bool aligned(const void* pointer, index_t pitch, int size)
{
    return ((index_t)pointer | pitch) % size == 0;
}

// 16 bytes of what no kernel in flight writes. Through the first-level cache: past it, rows reach 5 % less bandwidth.
DEVICE uint4 load_vector(const void* from) { return __ldg((const uint4*)from); }

// What the second-level cache does with lines that are read.
#if __CUDA_ARCH__ >= 800
DEVICE unsigned long long given_up_last()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE unsigned long long given_up_first()
{
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
#endif

// Asks for a line of 128 bytes that may not be read yet, so that it is near when it may: the second-level cache is where
// the kernel before this one writes, hence what it holds is never old. Measured kernel by kernel; it slows some.
DEVICE void fetch(const void* line)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" :: "l"(line));
#endif
}

// What the kernel before this one wrote may be read from here on; before, only what was there when that one started. The
// next kernel may start as soon as all blocks have come here: it finds what was there before the previous one.
DEVICE void wait_for_previous_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The largest of partial maxima, in all of a block's threads.
template <int Threads> DEVICE float amax_of_parts(const float* partials, index_t parts)
{
    unsigned largest[1] = {0};
    for (index_t i = threadIdx.x; i < parts; i += Threads)
        largest[0] = fp4ref::larger(largest[0], fp4ref::bits_of(partials[i]));
    block_maxima<1, Threads>(largest);
    return fp4ref::float_of(largest[0]);
}

// The same of two lists, which are on their way together.
template <int Threads> DEVICE float2 amaxes_of_parts(const float* one, const float* other, index_t parts)
{
    unsigned largest[2] = {0, 0};
    _Pragma("unroll 1")  // most often there is one turn, and all else waits for it
    for (unsigned i = threadIdx.x; i < (unsigned)parts; i += Threads) {
        const unsigned a = fp4ref::bits_of(one[i]), b = fp4ref::bits_of(other[i]);
        largest[0] = fp4ref::larger(largest[0], a), largest[1] = fp4ref::larger(largest[1], b);
    }
    block_maxima<2, Threads>(largest);
    return {fp4ref::float_of(largest[0]), fp4ref::float_of(largest[1])};
}
