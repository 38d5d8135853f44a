// Enough of CUDA C++ to run numsim's kernels on a CPU: a thread for every thread of a block, one block after another.
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Index {
    unsigned x, y, z;
};
static thread_local Index threadIdx;
static Index blockIdx, gridDim, blockDim;
static std::unique_ptr<std::barrier<>> barrier;
static inline void __syncthreads() { barrier->arrive_and_wait(); }
static inline void __syncwarp() { barrier->arrive_and_wait(); }

// The kernel's body runs once in every thread of every block.
template <class Body> static void launch(Index grid, unsigned threads, Body body)
{
    gridDim = grid;
    blockDim = {threads, 1, 1};
    barrier = std::make_unique<std::barrier<>>(threads);
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            threadIdx = {t, 0, 0};
            for (unsigned z = 0; z < grid.z; z++)
                for (unsigned y = 0; y < grid.y; y++)
                    for (unsigned x = 0; x < grid.x; x++) {
                        if (t == 0)
                            blockIdx = {x, y, z};
                        __syncthreads();
                        body();
                        __syncthreads();
                    }
        });
    for (auto &t : all)
        t.join();
}
