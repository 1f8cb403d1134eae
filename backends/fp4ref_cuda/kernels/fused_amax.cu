// Global maxima of rows and of Hadamard-transformed columns from one read of x: partial ones, per block of threads.
//
//   x         bfloat16  [rows, columns], columns a multiple of 64, 16 bytes apart; a member of a group is a range of rows
//   partials  float32   [2, members, parts]: of x, then of the transform of its columns; parts is the grid's width
//   early     the number of parts that start at once; those that start as others end share the last tenth of the boxes
//
// S comes before this file. Blocks (part, member). Rows of a member are a multiple of 16. A warp takes boxes of 16 rows
// and 64 columns in turn, alone; the next two are on their way to shared memory while it works on one. A lane has two
// columns. Multiprocessors differ in speed by a tenth: with a share of the boxes for all, most would wait for the
// slowest, so the hardware gives the last boxes to those that are free. The pass behind this one reads x again, from its end: of an x that is not much larger than the second-level
// cache, that end is kept there and the rest given up.
#include "copies.cuh"

constexpr unsigned ROWS = 16, PITCH = 128, BOX = ROWS * PITCH, STAGES = 2;
constexpr size KEPT = 20 << 20, MOST = 256 << 20;  // bytes of x: kept, and at most for any to be

extern "C" __global__ void __launch_bounds__(THREADS, 3) fused_amax(
    const byte* __restrict__ x, index_t rows, index_t columns, const Member* members, index_t early, float* partials,
    const unsigned* noop)
{
    __shared__ __align__(128) byte memory[THREADS / 32 * STAGES * BOX];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = (unsigned)(columns / 64);
    const bool is_early = blockIdx.x < (unsigned)early;
    const unsigned each = (unsigned)early * (THREADS / 32);  // boxes of a turn of the early ones
    const unsigned all = is_early ? each : (gridDim.x - (unsigned)early) * (THREADS / 32);
    const unsigned number = (blockIdx.x - (is_early ? 0 : (unsigned)early)) * (THREADS / 32) + warp;
    const size pitch = columns * 2;
    if (!members && is_early) {
        const unsigned box = number + lane / ROWS * all, row = box / across * ROWS + lane % ROWS;
        if (row < rows) fetch(x + (row * pitch + box % across * PITCH));
    }
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const Member member = members ? members[blockIdx.y] : Member{0, rows, 0, 0, 0, 0};
    const unsigned down = (unsigned)(member.rows / ROWS);

    // Boxes in turn, without a division; a lane copies a vector of every fourth row. The early ones take whole turns.
    const unsigned total = down * across, shared_out = early < gridDim.x ? total - total / 10 : total;
    const unsigned taken = early < gridDim.x ? shared_out - shared_out % each : total;
    const unsigned first = number + (is_early ? 0 : taken), boxes = is_early ? taken : total;
    const unsigned step_down = all / across, step_across = all % across;
    unsigned box_down = first / across, box_across = first % across;
    const byte* const from = x + (member.first_row + lane / 8) * pitch + lane % 8 * 16;
    byte* const mine = memory + warp * STAGES * BOX;
    const unsigned to = to_shared(mine) + lane * 16;
    const bool keeps = !members && rows * pitch <= MOST;
    unsigned ahead = first;
    const auto load = [&](unsigned stage) {
        if (ahead < boxes) {
            const byte* at = from + (size)box_down * ROWS * pitch + box_across * PITCH;
            const bool last = ahead + KEPT / BOX >= total;
            UNROLL
            for (unsigned i = 0; i < ROWS; i += 4) {
                if (keeps) copy_to_shared(to + stage + i * PITCH, at + i * pitch, last ? given_up_last() : given_up_first());
                else copy_to_shared(to + stage + i * PITCH, at + i * pitch, true);
            }
        }
        commit_copies();
        box_down += step_down, box_across += step_across, ahead += all;
        if (box_across >= across) box_across -= across, ++box_down;
    };
    UNROLL
    for (unsigned stage = 0; stage < STAGES; ++stage) load(stage * BOX);

    unsigned of_rows = 0, stage = 0;
    float of_columns = 0.0f;
    _Pragma("unroll 1")
    for (unsigned box = first; box < boxes; box += all) {
        wait_for_copies<STAGES - 1>();
        __syncwarp();
        unsigned words[ROWS];
        UNROLL
        for (unsigned i = 0; i < ROWS; ++i) words[i] = *(const unsigned*)(mine + stage + i * PITCH + lane * 4);
        __syncwarp();
        load(stage);
        stage = (STAGES - 1) * BOX - stage;
        UNROLL
        for (int i = 0; i < ROWS; ++i) of_rows = thresholds::running_amax_pair(of_rows, words[i]);
        UNROLL
        for (int half = 0; half < 2; ++half) {
            float y[ROWS];
            UNROLL
            for (int i = 0; i < ROWS; ++i) y[i] = fp4ref::float_of(half ? words[i] & 0xffff0000u : words[i] << 16);
            of_columns = fp4ref::hadamard_amax<S::signs>(of_columns, y);
        }
    }
    const unsigned low = of_rows & 0x7fffu, high = of_rows >> 16 & 0x7fffu;
    unsigned largest[2] = {fp4ref::larger(low, high) << 16, fp4ref::bits_of(In::narrow(of_columns))};
    block_maxima<2, THREADS>(largest);
    if (threadIdx.x == 0) {
        partials += blockIdx.y * gridDim.x + blockIdx.x;
        partials[0] = fp4ref::float_of(largest[0]);
        partials[gridDim.y * gridDim.x] = fp4ref::float_of(largest[1]);
    }
}
