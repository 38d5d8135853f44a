// Four warps compute one tile of d = c + a b, chained along K as in mma.cu. a and d are in registers, b in shared memory.
#include "instruction.h"

extern "C" __global__ void chain(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *d, int steps)
{
    const size_t thread = threadIdx.x, row = (size_t)blockIdx.x * gridDim.z + blockIdx.z;
    const size_t column = (size_t)blockIdx.x * gridDim.y + blockIdx.y, tile = row * gridDim.y + blockIdx.y;
    __shared__ __align__(128) unsigned shared[SHARED];
    const unsigned long long start = __cvta_generic_to_shared(shared);
    unsigned from_a[A], sum[D];
    for (int i = 0; i < D; i++)
        sum[i] = c[(tile * THREADS + thread) * D + i];
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < A; i++)
            from_a[i] = a[((row * steps + step) * THREADS + thread) * A + i];
        __syncthreads(); // the last instruction has read b
        for (int i = thread; i < SHARED; i += THREADS)
            shared[i] = b[(column * steps + step) * SHARED + i];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // what was written is there for wgmma, too
        __syncthreads();
        multiply(sum, from_a, DESCRIPTOR | (start & 0x3FFFF) >> 4);
    }
    for (int i = 0; i < D; i++)
        d[(tile * THREADS + thread) * D + i] = sum[i];
}
