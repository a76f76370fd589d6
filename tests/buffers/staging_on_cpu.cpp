// staging.cu for a CPU: one thread after the other, block by block. Thread 0 comes last, as behind __syncthreads().
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Place { unsigned x, y, z; };
static Place gridDim, blockDim, blockIdx, threadIdx;

#define __device__ static
#define __global__
#define __grid_constant__
#define __shared__ static  // the last thread of a block, which comes first, fills it
extern "C" { int misaligned; }  // how often a GPU would have refused a load
template <class T> static T __ldcv(const T* at) {
    misaligned += (unsigned long)at % sizeof(T) != 0;
    return *at;
}
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static void __syncthreads() {}
static void __threadfence() {}
static void __threadfence_system() {}
static unsigned atomicAdd(unsigned* at, unsigned by) { unsigned was = *at; *at += by; return was; }

#define LANES 24
#include "staging.cu"

template <class Kernel> static void run(unsigned blocks, unsigned lanes, unsigned threads, Kernel kernel) {
    gridDim = {blocks, lanes, 1};
    blockDim = {threads, 1, 1};
    for (blockIdx.y = 0; blockIdx.y < lanes; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
            for (threadIdx.x = threads; threadIdx.x-- > 0;) kernel();
}

extern "C" void take(unsigned blocks, unsigned lanes, unsigned threads, const Lane* table, u64 trays, u32 stride,
                     u32 last, u32 size, State* state, i64* told) {
    run(blocks, lanes, threads, [=] { tsgraph_take(table, trays, stride, last, size, state, told); });
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
    *function = name[8] == 't' ? (void*)1 : (void*)2;
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
