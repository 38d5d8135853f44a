// A warp computes one tile of d = c + a b: `steps` instructions in a row, each adding to what the last one made.
// Words go from memory to registers and back as they lie. Where elements lie in them is the host's business.
#include "instruction.h"

// a (batch, tile rows, steps, threads, A), b (batch, tile columns, steps, threads, B),
// c and d (batch, tile rows, tile columns, threads, C or D); the grid is (batch, tile columns, tile rows).
extern "C" __global__ void chain(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d, int steps)
{
    const size_t thread = threadIdx.x, row = (size_t)blockIdx.x * gridDim.z + blockIdx.z;
    const size_t column = (size_t)blockIdx.x * gridDim.y + blockIdx.y, tile = row * gridDim.y + blockIdx.y;
    unsigned from_a[A], from_b[B], before[C], after[D];
    for (int i = 0; i < C; i++)
        before[i] = c[(tile * THREADS + thread) * C + i];
#pragma unroll 1 // the instruction stands in the program once
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < A; i++)
            from_a[i] = a[((row * steps + step) * THREADS + thread) * A + i];
        for (int i = 0; i < B; i++)
            from_b[i] = b[((column * steps + step) * THREADS + thread) * B + i];
        for (int i = 0; i < C && step; i++) // where c and d are of different types, the host asks for one step only
            before[i] = after[i];
        multiply(after, from_a, from_b, before);
    }
    for (int i = 0; i < D; i++)
        d[(tile * THREADS + thread) * D + i] = after[i];
}
