// Brings the rows of one call into all static buffers at once: live rows copied, column margins and pad rows filled.
// Compiled by tsgraph.backends.nvrtc, with LANES as the number of sources that a launch can tell of, and DEPTH. The
// structs are written by tsgraph.backends.stager and trays, byte for byte.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// What `columns` says beside a number of bytes.
#define NOTHING -1   // no row is brought: live rows stay
#define MIRRORED -2  // the rows of another lane are taken

// One static buffer, of one slot size. An entry is one row's or one token's, a line runs along the last dimension.
struct Lane {
    uint4 pad, column_pad;  // an element's bytes, repeated
    u64 target;             // address of the first entry
    u32 room;               // where its rows lie in a tray; 0: it has no place there
    u32 bytes;              // of all entries up to the slot's size
    u32 entry, line, item;  // bytes of each
    u32 entries;            // for each row
    u32 unit;               // bytes that one thread writes at once: a power of two that divides a line
    int mirrors;            // the lane whose rows it may take
};

// The head of a tray, and of a launch. In a tray one int of `columns` follows for each lane.
struct Head {
    i64 number;
    int size, live;  // fewer than 0 live rows: there is nothing to do
};

// Where the rows of a lane lie. `at` 0: in the tray, dense. `columns`: bytes of each line that are brought.
struct Source {
    u64 at;
    i64 entry;
    int line, element, columns, unused;
};

struct Call {
    Head head;
    u64 tray, unused;
    Source sources[LANES];
};

static_assert(sizeof(Lane) == 80 && sizeof(Head) == 16 && sizeof(Source) == 32 && sizeof(Call) == 32 + 32 * LANES,
              "the host packs these");

// Device memory: the number of the tray that was taken last, how many blocks are done with the next one, and whether
// that one was found.
struct State {
    i64 taken;
    u32 arrived, found;
};

__device__ uint4 load(u64 at, u32 bytes) {
    uint4 value = {0, 0, 0, 0};
    switch (bytes) {
        case 16: value = __ldcv((const uint4*)at); break;
        case 8: { uint2 half = __ldcv((const uint2*)at); value.x = half.x; value.y = half.y; break; }
        case 4: value.x = __ldcv((const u32*)at); break;
        case 2: value.x = __ldcv((const unsigned short*)at); break;
        default: value.x = __ldcv((const u8*)at);
    }
    return value;
}

__device__ void store(u64 at, uint4 value, u32 bytes) {
    switch (bytes) {
        case 16: *(uint4*)at = value; break;
        case 8: *(uint2*)at = make_uint2(value.x, value.y); break;
        case 4: *(u32*)at = value.x; break;
        case 2: *(unsigned short*)at = (unsigned short)value.x; break;
        default: *(u8*)at = (u8)value.x;
    }
}

// Dense rows at an address, `columns` bytes of each line.
__device__ Source dense(const Lane& lane, u64 at, int columns) {
    Source source = {at, (i64)(lane.entry / lane.line) * columns, columns, (int)lane.item, columns, 0};
    return source;
}

// Fills one unit of a lane. A source without an address brings nothing. `ahead`: what a dense source has for the unit.
__device__ void bring(const Lane& lane, const Source& source, u32 live, u32 unit, const uint4* ahead) {
    const u32 byte = unit * lane.unit, line = byte / lane.line, column = byte - line * lane.line;
    const u32 lines = lane.entry / lane.line, entry = line / lines;
    const u64 to = lane.target + byte;
    if (entry >= live * lane.entries) { store(to, lane.pad, lane.unit); return; }
    if (ahead) { store(to, *ahead, lane.unit); return; }
    if (source.at == 0) return;
    const u64 from = source.at + (i64)entry * source.entry + (i64)(line - entry * lines) * source.line;
    const u64 first = from + (i64)(column / lane.item) * source.element;
    const bool whole = (int)(column + lane.unit) <= source.columns, packed = source.element == (int)lane.item;
    if (whole && packed && first % lane.unit == 0) { store(to, load(first, lane.unit), lane.unit); return; }
    for (u32 done = 0; done < lane.unit; done += lane.item) {
        const bool there = (int)(column + done) < source.columns;
        const uint4 value = there ? load(first + (i64)(done / lane.item) * source.element, lane.item) : lane.column_pad;
        store(to + done, value, lane.item);
    }
}

__device__ u32 first_unit() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ void bring_all(const Lane& lane, const Source& source, u32 live, const uint4* ahead) {
    for (u32 unit = first_unit(); unit < lane.bytes / lane.unit; unit += gridDim.x * blockDim.x) {
        bring(lane, source, live, unit, unit == first_unit() ? ahead : 0);
    }
}

// The last block of all says that tray `number` was read, or, if it was not found, that there was none for this graph.
// `told` is pinned memory: how far trays were read, and how often one was missed.
__device__ void leave(State* state, volatile i64* told, i64 number) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(&state->arrived, 1u) != gridDim.x * gridDim.y - 1) return;
    __threadfence();
    const bool found = ((volatile State*)state)->found != 0;
    state->arrived = 0;
    if (found) state->taken = number;
    __threadfence_system();
    if (found) told[0] = number;
    else told[1] = told[1] + 1;
}

// A node of a graph: takes the next tray of the ring, if it was filled for slots of `size`. Pinned memory is far away:
// all that may be needed of it is asked for at once, before it is known whether it is; and reads of one place wait for
// each other, so one thread of each block that has work reads what a tray begins with.
extern "C" __global__ void tsgraph_take(const Lane* lanes, u64 trays, u32 stride, u32 last, u32 size, State* state,
                                        volatile i64* told) {
    __shared__ uint4 words;
    __shared__ int own, its;
    const Lane lane = lanes[blockIdx.y];
    const u32 units = lane.bytes ? lane.bytes / lane.unit : 0;
    const i64 number = ((volatile State*)state)->taken + 1;
    const bool first = blockIdx.x == 0 && blockIdx.y == 0;
    if (first || blockIdx.x * blockDim.x < units) {
        const bool mirrors = lane.mirrors >= 0;
        const u32 room = mirrors ? lanes[lane.mirrors].room : lane.room;
        const u64 tray = trays + (u64)((u32)number & last) * stride, all = tray + sizeof(Head);
        if (threadIdx.x == blockDim.x - 1) {
            words = load(tray, 16);
            own = (int)load(all + 4 * blockIdx.y, 4).x;
            its = mirrors ? (int)load(all + 4 * lane.mirrors, 4).x : own;
        }
        uint4 ahead = {0, 0, 0, 0};
        if (room && first_unit() < units) ahead = load(tray + room + first_unit() * lane.unit, lane.unit);
        __syncthreads();
        const int live = (int)words.w;
        const bool found = (i64)((u64)words.y << 32 | words.x) == number && (live < 0 || words.z == size);
        if (first && threadIdx.x == blockDim.x - 1) state->found = found;
        if (found && live >= 0 && units) {
            const bool borrows = own == MIRRORED;
            const int columns = borrows ? its : own;
            u64 at = tray + (borrows ? room : lane.room);
            if (columns == NOTHING) at = borrows ? lanes[lane.mirrors].target : 0;
            const Source source = dense(lane, at, columns == NOTHING ? lane.line : columns);
            bring_all(lane, source, live, at == tray + room && columns == (int)lane.line ? &ahead : 0);
        }
    }
    leave(state, told, number);
}

__device__ u32 units_of(const Lane& lane) { return lane.bytes >> (31 - __clz(lane.unit)); }

// The rows that the lanes may take lie in the tray from there on: its own, or those that it mirrors.
__device__ u32 room_of(const Lane* lanes, const Lane& lane) {
    return lane.mirrors >= 0 ? lanes[lane.mirrors].room : lane.room;
}

// The same where one block can do it, of which each thread has DEPTH units at most: nothing is counted among blocks,
// and one read brings all that the tray begins with.
extern "C" __global__ void __launch_bounds__(1024) tsgraph_take_at_once(const Lane* lanes, u64 trays, u32 stride,
                                                                        u32 last, u32 size, State* state,
                                                                        volatile i64* told, u32 count) {
    __shared__ Lane all[LANES];
    __shared__ u32 head[4 + LANES];
    const u32 thread = threadIdx.x;
    const i64 number = ((volatile State*)state)->taken + 1;
    for (u32 word = thread; word < count * (sizeof(Lane) / 16); word += blockDim.x) {
        ((uint4*)all)[word] = ((const uint4*)lanes)[word];
    }
    const u64 tray = trays + (u64)((u32)number & last) * stride;
    const bool reads = thread < 4 + count;
    u32 begins = 0;
    if (reads) begins = load(tray + 4 * thread, 4).x;
    __syncthreads();
    int of[DEPTH];
    u32 units[DEPTH];
    uint4 ahead[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        u32 unit = k * blockDim.x + thread, lane = 0;
        while (lane < count && unit >= units_of(all[lane])) unit -= units_of(all[lane++]);
        of[k] = lane < count ? (int)lane : -1;
        units[k] = unit;
        const u32 room = of[k] < 0 ? 0 : room_of(all, all[lane]);
        if (room) ahead[k] = load(tray + room + unit * all[lane].unit, all[lane].unit);
    }
    if (reads) head[thread] = begins;
    __syncthreads();
    const int live = (int)head[3];
    const bool found = (i64)((u64)head[1] << 32 | head[0]) == number && (live < 0 || head[2] == size);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        if (!found || live < 0 || of[k] < 0) continue;
        const Lane& lane = all[of[k]];
        const bool borrows = (int)head[4 + of[k]] == MIRRORED;
        const int columns = (int)head[4 + (borrows ? lane.mirrors : of[k])];
        const u32 room = room_of(all, lane);
        u64 at = tray + (borrows ? room : lane.room);
        if (columns == NOTHING) at = borrows ? all[lane.mirrors].target : 0;
        const Source source = dense(lane, at, columns == NOTHING ? lane.line : columns);
        const bool is_ahead = room && at == tray + room && columns == (int)lane.line;
        bring(lane, source, live, units[k], is_ahead ? &ahead[k] : 0);
    }
    __syncthreads();  // every row was read by now
    if (thread != 0) return;
    if (found) state->taken = number;
    if (found) told[0] = number;
    else told[1] = told[1] + 1;
}

// A launch of its own. Head number 0: it has no tray, and nothing is told.
extern "C" __global__ void tsgraph_bring(const Lane* lanes, State* state, volatile i64* told,
                                         const __grid_constant__ Call call) {
    const u32 mine = blockIdx.y;
    const Lane lane = lanes[mine];
    const u32 from = call.sources[mine].columns == MIRRORED ? (u32)lane.mirrors : mine;
    Source source = call.sources[from];
    if (lane.bytes) {
        if (source.columns == NOTHING) source = dense(lane, from == mine ? 0 : lanes[from].target, lane.line);
        else if (source.at == 0) source = dense(lane, call.tray + lanes[from].room, source.columns);
        bring_all(lane, source, call.head.live, 0);
    }
    if (call.head.number == 0) return;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == blockDim.x - 1) state->found = 1;
    leave(state, told, call.head.number);
}
