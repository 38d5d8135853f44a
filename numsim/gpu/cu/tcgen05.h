// What tcgen05.cu asks of the hardware: tensor memory, the barrier, the order of things.

static __device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

// One warp: 32 columns of all 128 lanes, waiting until there are some. Others may have theirs then.
static __device__ __forceinline__ void allocate(unsigned *start)
{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;"
                 ::"r"(shared_address(start)) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void release(unsigned start)
{
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(start) : "memory");
}

// A column of tensor memory: a word for each thread, in the lane of its number.
static __device__ __forceinline__ void store(unsigned column, unsigned word)
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(column), "r"(word) : "memory");
}

static __device__ __forceinline__ unsigned load(unsigned column)
{
    unsigned word;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\n"
                 "tcgen05.wait::ld.sync.aligned;" : "=r"(word) : "r"(column) : "memory");
    return word;
}

// What this thread has stored, in tensor and in shared memory, is there for tcgen05.mma after the next __syncthreads.
static __device__ __forceinline__ void hand_over()
{
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

static __device__ __forceinline__ void take_over()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

static __device__ __forceinline__ void prepare(unsigned long long *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The barrier's phase ends when the instructions so far are done.
static __device__ __forceinline__ void commit(unsigned long long *barrier)
{
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

// Wait for the end of the phase of this parity, the first one's being 0. One that never comes would hang the process
// with all that it has recorded: after some seconds the kernel fails instead.
static __device__ __forceinline__ void await(unsigned long long *barrier, unsigned parity)
{
    const long long start = clock64();
    unsigned done = 0;
    while (!done) {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
        if (clock64() - start > 1ll << 33)
            __trap();
    }
}
