// 128 threads compute one tile of d = c + a b, chained along K as in mma.cu. The sum stays in tensor memory, a row of
// the tile in a lane and a column in a column; a and b lie in shared memory, their block scales in tensor memory, too.
#include "instruction.h"

extern "C" __global__ void chain(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d, int steps)
{
    const size_t row = (size_t)blockIdx.x * gridDim.z + blockIdx.z;
    const size_t column = (size_t)blockIdx.x * gridDim.y + blockIdx.y, tile = row * gridDim.y + blockIdx.y;
    const int thread = threadIdx.x, lane = thread % 32;
    __shared__ __align__(128) unsigned shared[SHARED_A + SHARED_B];
    __shared__ unsigned long long barrier;
    __shared__ unsigned start;
    if (thread == 0)
        prepare(&barrier);
    __syncwarp(); // tensor memory is for whole warps
    if (thread < 32)
        allocate(&start);
    hand_over();
    __syncthreads();
    take_over();
    const unsigned sum = start, scales_a = sum + COLUMNS, scales_b = scales_a + SCALES_A;
    const unsigned own = (unsigned)(thread - lane) << 16; // a warp reaches its own 32 lanes only
    const unsigned long long operand = DESCRIPTOR | (__cvta_generic_to_shared(shared) & 0x3FFFF) >> 4;
    for (int i = 0; i < COLUMNS; i++)
        store(own + sum + i, c[(tile * THREADS + thread) * COLUMNS + i]);
    for (int step = 0; step < steps; step++) {
        const unsigned *from_a = a + (row * steps + step) * (SHARED_A + 32 * SCALES_A);
        const unsigned *from_b = b + (column * steps + step) * (SHARED_B + 32 * SCALES_B);
        for (int i = thread; i < SHARED_A; i += THREADS)
            shared[i] = from_a[i];
        for (int i = thread; i < SHARED_B; i += THREADS)
            shared[SHARED_A + i] = from_b[i];
        for (int i = 0; i < SCALES_A; i++) // the same for each warp: scales are wanted in each quarter of the lanes
            store(own + scales_a + i, from_a[SHARED_A + lane * SCALES_A + i]);
        for (int i = 0; i < SCALES_B; i++)
            store(own + scales_b + i, from_b[SHARED_B + lane * SCALES_B + i]);
        hand_over();
        __syncthreads();
        if (thread == 0) {
            take_over();
            multiply(sum, operand, operand + SHARED_A / 4, scales_a, scales_b); // addresses count 16 bytes
            commit(&barrier);
        }
        await(&barrier, step & 1);
        take_over();
        __syncwarp();
    }
    for (int i = 0; i < COLUMNS; i++)
        d[(tile * THREADS + thread) * COLUMNS + i] = load(own + sum + i) & MASK; // above an FP16 lies anything
    hand_over();
    __syncthreads();
    take_over();
    if (thread < 32)
        release(start);
}
