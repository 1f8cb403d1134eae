// Stands in for CUDA where kernels run on the host. The threads of a block are fibers of one thread of the process, which
// take turns where they wait for each other, upwards or downwards; blocks follow each other. A program traps where lanes
// that exchange values never meet, where a barrier never fills, and where shared memory is used that was not asked for.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ thread_local  // one for all fibers; dynamic shared memory is `memory` or `held`, below
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
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, gridDim;
constexpr unsigned SHARED = 228 << 10;
extern "C" {
thread_local __align__(128) unsigned char memory[SHARED], held[SHARED];
}

namespace host {
constexpr unsigned char UNSET = 0x5b;
constexpr unsigned MOST = 1024, STACK = 1 << 16;

// A copy to shared memory that nobody has waited for yet: until then, its place contains other bytes.
struct Copy {
    void* to;
    const void* from;
    bool exists;
    void done() const { exists ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); }
};
struct Fiber {
    std::vector<char> stack;
    jmp_buf at;
    bool begun, ended;
    std::vector<std::vector<Copy>> copies;  // groups of them, the last one open
};
// Where some of the lanes of a warp exchange values.
struct Meeting {
    unsigned here, left, values[32];
    bool full;
};
struct Barrier {
    unsigned here, turn;
};
static Fiber fibers[MOST];
static jmp_buf next_turn, stop;
static const char* fault;
static unsigned me, threads, idle;  // idle: turns of all since one of them went on
static std::map<std::pair<unsigned, unsigned>, Meeting> meetings;  // by warp and lanes
static Barrier barriers[16];
static void (*run)(const void*);
static const void* kernel_of_grid;

[[noreturn]] static void fail(const char* what)
{
    fault = what;
    _longjmp(stop, 1);
}
static void pass_on()
{
    if (!_setjmp(fibers[me].at)) _longjmp(next_turn, 1);
}
static void barrier(unsigned number, unsigned count)
{
    Barrier& of = barriers[number];
    const unsigned turn = of.turn;
    if (++of.here == count) of.here = 0, ++of.turn;
    for (idle = 0; of.turn == turn;) pass_on();
    idle = 0;
}
// The values of all lanes of a mask, which are all here.
static Meeting meet(unsigned mask, unsigned value)
{
    const unsigned lane = me % 32;
    Meeting& of = meetings[{me / 32, mask}];
    if (!(mask >> lane & 1)) fail("a lane is not among those that exchange values");
    while (of.full) pass_on();
    of.values[lane] = value;
    of.full = (of.here |= 1u << lane) == mask;
    for (idle = 0; !of.full;) pass_on();
    idle = 0;
    const Meeting seen = of;
    if ((of.left |= 1u << lane) == mask) of = {};
    return seen;
}
template <class T> T from_lane(unsigned mask, T value, unsigned other)
{
    static_assert(sizeof(T) == 4, "a register");
    const Meeting seen = meet(mask, __builtin_bit_cast(unsigned, value));
    if (!(mask >> other & 1)) fail("a lane reads from one that is not there");
    return __builtin_bit_cast(T, seen.values[other]);
}
}  // namespace host

// What -fsanitize=alignment calls: a device stops at such an access.
extern "C" void __ubsan_handle_type_mismatch_v1(void*, size_t) { host::fail("an access that is not aligned"); }

static void __syncthreads() { host::barrier(0, host::threads); }
static void team_barrier(unsigned team) { host::barrier(team + 1, 256); }
static void __syncwarp(unsigned mask = ~0u) { host::meet(mask, 0); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int by) { return host::from_lane(mask, value, host::me % 32 ^ by); }
template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    return host::from_lane(mask, value, host::me % 32 / width * width + lane % width);
}
static unsigned __reduce_max_sync(unsigned mask, unsigned value)
{
    const host::Meeting seen = host::meet(mask, value);
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1) value = std::max(value, seen.values[i]);
    return value;
}
static bool __any_sync(unsigned mask, bool value) { return __reduce_max_sync(mask, value); }
static bool __all_sync(unsigned mask, bool value) { return !__any_sync(mask, !value); }

#define KEEP(value)
#define KEEP_ADDRESS(value)
static unsigned long long given_up_first() { return 0; }
static unsigned long long given_up_last() { return 0; }
static size_t __cvta_generic_to_shared(const void* pointer) { return (const unsigned char*)pointer - memory; }
static void copy_to_shared(unsigned to, const void* from, bool exists)
{
    unsigned char* const at = memory + (int)to;
    if (((size_t)at | (exists ? (size_t)from : 0)) % 16) host::fail("a copy of 16 bytes from or to another address");
    std::memset(at, host::UNSET, 16);
    host::fibers[host::me].copies.back().push_back({at, from, exists});
}
static void copy_to_shared(unsigned to, const void* from, unsigned long long) { copy_to_shared(to, from, true); }
static void commit_copies() { host::fibers[host::me].copies.emplace_back(); }
template <int Groups> void wait_for_copies()
{
    for (auto& of = host::fibers[host::me].copies; of.size() > Groups + 1; of.erase(of.begin()))
        for (const host::Copy& each : of.front()) each.done();
}

template <class Act> unsigned of_halves(const Act& act)
{
    return (act(0) & 0xffffu) | act(16) << 16;
}
inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    return of_halves([=](int h) { return std::max(a >> h & 0xffffu, b >> h & 0xffffu); });
}
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) { return __vmaxu2(__vmaxu2(a, b), c); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
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

// What the header has for devices alone: here as it is meant, an element at a time.
#include <fp4ref/drawn.h>
namespace fp4ref::thresholds {
constexpr unsigned MINUS_ZERO = 0x80008000u;

inline unsigned packed_codes(const unsigned (&pairs)[4], const unsigned (&magnitudes)[4], const Entry& t)
{
    unsigned packed = 0;
    for (int e = 0; e < 8; ++e) {
        const int h = e / 4 * 16;
        const unsigned code = (codes(magnitudes[e % 4], t) >> h & 0xffffu) - (BASE & 0xffffu), sign = pairs[e % 4] >> h >> 15 & 1u;
        packed |= (code | sign << 3) << 4 * e;
    }
    return packed;
}
inline unsigned largest_lanes(const unsigned (&magnitudes)[8])
{
    unsigned most = 0;
    for (const unsigned each : magnitudes) most = __vmaxu2(most, each);
    return most;
}
inline unsigned largest(const unsigned (&magnitudes)[8])
{
    const unsigned two = largest_lanes(magnitudes);
    return larger(two & 0xffffu, two >> 16);
}
inline unsigned magnitudes_of(unsigned pair, unsigned)  // a pattern above COVERED for what lies beyond
{
    return of_halves([=](int h) { return (pair >> h & 0x7fffu) > COVERED ? 0x7fffu : pair >> h & 0x7fffu; });
}
inline unsigned bfloat16_pair(float low, float high)
{
    const auto half = [](float x) -> unsigned { return is_nan(x) ? 0x7fffu : bfloat16::round_number(x); };
    return half(low) | half(high) << 16;
}
template <bool KeepNaN = false> unsigned running_amax_pair(unsigned amax, unsigned pair)
{
    return of_halves([=](int h) {
        const unsigned most = amax >> h & 0x7fffu, magnitude = pair >> h & 0x7fffu;
        return !KeepNaN && magnitude > bfloat16::infinity ? most : larger(most, magnitude);
    });
}
}  // namespace fp4ref::thresholds

namespace host {
static void fiber()
{
    run(kernel_of_grid);
    fibers[me].ended = true;
    idle = 0;
    _longjmp(next_turn, 1);
}
// Has a thread go on until it waits. Result: whether it was still there.
static bool turn_of(unsigned thread)
{
    me = threadIdx.x = thread;
    Fiber& of = fibers[thread];
    if (of.ended) return false;
    if (_setjmp(next_turn)) return true;
    if (of.begun) _longjmp(of.at, 1);
    ucontext_t context;
    getcontext(&context);
    of.stack.resize(STACK);
    of.begun = true, of.copies.assign(1, {});
    context.uc_stack.ss_sp = of.stack.data(), context.uc_stack.ss_size = STACK;
    makecontext(&context, fiber, 0);
    setcontext(&context);
    return false;
}
static void run_blocks(const Index& grid, unsigned shared)
{
    if (_setjmp(stop)) return;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
        blockIdx = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        std::memset(memory, UNSET, SHARED), std::memset(held, UNSET, SHARED), std::memset(barriers, 0, sizeof barriers);
        meetings.clear();
        for (unsigned t = 0; t < threads; ++t) fibers[t].begun = fibers[t].ended = false;
        idle = 0;
        for (bool going = true; going;) {
            going = false;
            for (unsigned t = 0; t < threads; ++t) going |= turn_of(i % 2 ? threads - 1 - t : t);
            if (++idle > 3) fail("threads wait for others that do not come");
        }
        for (const unsigned char* of : {memory, held})
            if (std::count(of + shared, of + SHARED, UNSET) != SHARED - shared) fail("more shared memory than asked for");
    }
}
}  // namespace host

// Runs a kernel's threads, block after block, with so many bytes of dynamic shared memory. Result: what was wrong, or null.
template <class Kernel> const char* on_host(const Index& grid, unsigned threads, unsigned shared, Kernel kernel)
{
    if (threads > host::MOST || shared > SHARED) return "a larger block than a device takes";
    gridDim = grid, host::threads = threads, host::kernel_of_grid = &kernel, host::fault = nullptr;
    host::run = [](const void* of) { (*(const Kernel*)of)(); };
    host::run_blocks(grid, shared);
    return host::fault;
}
template <class T> T taken(const unsigned long long*& words)
{
    std::remove_const_t<T> of;
    std::memcpy(&of, words, sizeof of);
    words += (sizeof of + 7) / 8;
    return of;
}
// The same of a kernel whose arguments begin at words of 64 bits.
template <class... Of> const char* on_host(
    const Index& grid, unsigned threads, unsigned shared, void (*kernel)(Of...), const unsigned long long* words)
{
    const std::tuple<Of...> arguments = {taken<Of>(words)...};
    return on_host(grid, threads, shared, [&] { std::apply(kernel, arguments); });
}
// The same of a kernel that asks for no shared memory, of `lines` rows of blocks.
template <class Kernel> void on_host(unsigned blocks, unsigned threads, Kernel kernel, unsigned lines = 1)
{
    if (on_host({blocks, lines, 1}, threads, 0, kernel)) std::abort();
}
