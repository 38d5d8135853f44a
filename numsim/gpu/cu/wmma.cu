// A warp computes one tile of d = c + a b, chained along K as in mma.cu. Tiles lie in memory row by row.
#include "instruction.h"

extern "C" __global__ void chain(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d, int steps)
{
    const size_t row = (size_t)blockIdx.x * gridDim.z + blockIdx.z;
    const size_t column = (size_t)blockIdx.x * gridDim.y + blockIdx.y, tile = row * gridDim.y + blockIdx.y;
    const unsigned *before = c + tile * THREADS * C;
    unsigned *after = d + tile * THREADS * D;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        multiply(after, a + (row * steps + step) * THREADS * A, b + (column * steps + step) * THREADS * B, before);
        __syncwarp(); // every thread has stored its part of d before the next instruction loads it
        before = after;
    }
}
