// Copies to shared memory that run beside the computation, and teams of threads that wait for each other.
#pragma once
#include "common.cuh"
#include <fp4ref/drawn.h>

namespace thresholds = fp4ref::thresholds;
using size = unsigned long long;

DEVICE unsigned to_shared(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

#if defined(__CUDA_ARCH__)  // where kernels run on the host, `cuda_on_host.h` has these
// The compiler would compute these again in every turn.
#define KEEP(value) asm volatile("" : "+r"(value))
#define KEEP_ADDRESS(value) asm volatile("" : "+l"(value))

// 16 bytes from global to shared memory, zeros where the source does not exist.
DEVICE void copy_to_shared(unsigned to, const void* from, bool exists)
{
    const unsigned bytes = exists ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same, of what exists, with a policy of the second-level cache.
DEVICE void copy_to_shared(unsigned to, const void* from, size policy)
{
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "l"(policy) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Groups> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(Groups) : "memory"); }

// All 256 threads of a team have come here.
DEVICE void team_barrier(unsigned team) { asm volatile("bar.sync %0, 256;" :: "r"(team + 1) : "memory"); }
#endif

// Boxes of a matrix, two down, then one across, so that neighbouring pieces of a column's codes are written close in time:
// what is `inside` a strip of two rows of boxes. `tall` strips are whole; the last one of an odd number of rows is not.
struct Box {
    unsigned down, across;
};
DEVICE Box box_of(unsigned strip, unsigned inside, unsigned tall)
{
    const unsigned two = strip < tall;
    return {strip * 2 + (inside & two), inside >> two};
}
