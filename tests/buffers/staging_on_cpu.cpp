// staging.cu for a CPU: block by block, and of a block one thread after the other, each up to where all must meet.
#include <functional>
#include <memory>
#include <vector>
#include <ucontext.h>

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Place { unsigned x, y, z; };
static Place gridDim, blockDim, blockIdx, threadIdx;

#define __device__ static
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static  // there is one block at a time
extern "C" { int misaligned; }  // how often a GPU would have refused a load
template <class T> static T __ldcv(const T* at) {
    misaligned += (unsigned long)at % sizeof(T) != 0;
    return *at;
}
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static unsigned __clz(unsigned word) { return __builtin_clz(word); }

struct Thread {
    ucontext_t context;
    bool done = false;
    std::unique_ptr<char[]> stack{new char[STACK]};
    static const unsigned long STACK = 1 << 15;
};
static ucontext_t block;
static std::vector<Thread> threads_of_block;
static std::function<void()> kernel_of_block;
static void __syncthreads() { swapcontext(&threads_of_block[threadIdx.x].context, &block); }
static void begin() {
    kernel_of_block();
    threads_of_block[threadIdx.x].done = true;
}

// Every thread up to the next barrier, the last one first; and again, until all are done.
static void run_block(unsigned threads) {
    threads_of_block = std::vector<Thread>(threads);
    for (Thread& thread : threads_of_block) {
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = Thread::STACK;
        thread.context.uc_link = &block;
        makecontext(&thread.context, begin, 0);
    }
    for (unsigned left = threads; left > 0;) {
        left = 0;
        for (threadIdx.x = threads; threadIdx.x-- > 0;) {
            Thread& thread = threads_of_block[threadIdx.x];
            const unsigned at = threadIdx.x;
            if (!thread.done) swapcontext(&block, &thread.context);
            threadIdx.x = at;
            left += !thread.done;
        }
    }
}

static void __threadfence() {}
static void __threadfence_system() {}
static unsigned atomicAdd(unsigned* at, unsigned by) { unsigned was = *at; *at += by; return was; }

#define LANES 24
#define DEPTH 4
#include "staging.cu"

template <class Kernel> static void run(unsigned blocks, unsigned lanes, unsigned threads, Kernel kernel) {
    gridDim = {blocks, lanes, 1};
    blockDim = {threads, 1, 1};
    kernel_of_block = kernel;
    for (blockIdx.y = 0; blockIdx.y < lanes; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block(threads);
}

extern "C" void take(unsigned blocks, unsigned lanes, unsigned threads, const Lane* table, u64 trays, u32 stride,
                     u32 last, u32 size, State* state, i64* told) {
    run(blocks, lanes, threads, [=] { tsgraph_take(table, trays, stride, last, size, state, told); });
}

extern "C" void take_at_once(unsigned threads, const Lane* table, u64 trays, u32 stride, u32 last, u32 size,
                             State* state, i64* told, u32 count) {
    run(1, 1, threads, [=] { tsgraph_take_at_once(table, trays, stride, last, size, state, told, count); });
}

extern "C" void bring(unsigned blocks, unsigned lanes, unsigned threads, const Lane* table, State* state, i64* told,
                      const Call* call) {
    run(blocks, lanes, threads, [=] { tsgraph_bring(table, state, told, *call); });
}

// What launches them: the driver's calls, as cuda.h has them. `refusals` are what the next launches answer.
struct Config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};

extern "C" {
int refusals[8], asked, pushed;
void* last_stream;

int cuInit(unsigned) { return 0; }
int cuCtxGetCurrent(void** context) { *context = &pushed; return 0; }
int cuCtxPushCurrent_v2(void* context) { pushed += context == &pushed; return 0; }
int cuCtxPopCurrent_v2(void**) { pushed -= 1; return 0; }
int cuModuleLoadData(void** module, const char* code) { *module = (void*)code; return code[0] == 'C' ? 0 : 200; }
int cuModuleGetFunction(void** function, void*, const char* name) {
    *function = name[8] != 't' ? (void*)2 : name[12] ? (void*)3 : (void*)1;
    return name[0] == 't' ? 0 : 500;
}
int cuGetErrorName(int code, const char** name) { *name = "CUDA_ERROR_OF_A_TEST"; return code != 77; }

int cuLaunchKernelEx(const Config* config, void* function, void** given, void** extra) {
    last_stream = config->stream;
    int refusal = refusals[asked++ % 8];
    if (refusal || extra || config->count || config->attributes || config->shared) return refusal ? refusal : 1;
    const unsigned blocks = config->grid[0], lanes = config->grid[1], threads = config->block[0];
    const Lane* table = *(const Lane**)given[0];
    if (function == (void*)1)
        take(blocks, lanes, threads, table, *(u64*)given[1], *(u32*)given[2], *(u32*)given[3], *(u32*)given[4],
             *(State**)given[5], *(i64**)given[6]);
    else if (function == (void*)3)
        take_at_once(threads, table, *(u64*)given[1], *(u32*)given[2], *(u32*)given[3], *(u32*)given[4],
                     *(State**)given[5], *(i64**)given[6], *(u32*)given[7]);
    else
        bring(blocks, lanes, threads, table, *(State**)given[1], *(i64**)given[2], (const Call*)given[3]);
    return 0;
}

int cuMemcpyHtoDAsync_v2(u64 target, const void* source, unsigned long count, void* stream) {
    int refusal = refusals[asked++ % 8];
    if (refusal) return refusal;
    last_stream = stream;
    __builtin_memcpy((void*)target, source, count);
    return 0;
}
}
