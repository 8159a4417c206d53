// CRC-32 (IEEE) of device memory, tile by tile; `crc_schedule.py` says what is in the arguments.
//
// Word i of a row belongs to thread i / 4. Each thread folds four words of every row: acc = acc * x^(8 * row bytes) + word
// over GF(2), by one look-up for each byte of acc. Each lane of a warp has its own copy of the tables in its own bank of
// shared memory, so no two lanes ever wait for each other. Folded words are shifted to their place and added up last.

#define WARPS (THREADS / 32)
#define ROW_BYTES (THREADS * 16)
#define ALL 0xffffffffu
#define POLYNOMIAL 0xedb88320u

struct Tile {
    long long start;  // bytes from the aligned base, a multiple of 16
    long long skip;   // bytes at its start that are another chunk's
    long long bytes;  // from `start` to past its last byte
    long long chunk;
};

// A look-up table for byte k of a word begins at k * 256 * 32 words; lane's copy of entry b is at b * 32 + lane.
__device__ __forceinline__ unsigned folded(const char* tables, unsigned lane4, unsigned acc, unsigned word) {
    const unsigned a = *(const unsigned*)(tables + (((acc << 7) & 0x7f80u) | lane4));
    const unsigned b = *(const unsigned*)(tables + 32768 + (((acc >> 1) & 0x7f80u) | lane4));
    const unsigned c = *(const unsigned*)(tables + 65536 + (((acc >> 9) & 0x7f80u) | lane4));
    const unsigned d = *(const unsigned*)(tables + 98304 + (((acc >> 17) & 0x7f80u) | lane4));
    return a ^ b ^ c ^ d ^ word;
}

__device__ __forceinline__ unsigned after_a_word(const unsigned* table, unsigned value) {
    return table[value & 255u] ^ table[256 + ((value >> 8) & 255u)] ^ table[512 + ((value >> 16) & 255u)] ^
           table[768 + (value >> 24)];
}

// Product of two polynomials; bit 31 is x^0.
__device__ __forceinline__ unsigned product(unsigned a, unsigned b) {
    unsigned result = 0;
#pragma unroll
    for (int bit = 31; bit >= 0; --bit) {
        result ^= b & (unsigned)((int)(a << (31 - bit)) >> 31);
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1u)));
    }
    return result;
}

// `value` times a constant of which lane i holds constant * x^i.
__device__ __forceinline__ unsigned product_by_lanes(unsigned value, unsigned share, unsigned lane) {
    return __reduce_xor_sync(ALL, share & (unsigned)((int)(value << lane) >> 31));
}

// The 16 bytes at `word`, with those outside [skip, bytes) as zeros.
__device__ __forceinline__ uint4 edge(const uint4* from, long long word, long long skip, long long bytes) {
    if (word * 16 >= bytes) return make_uint4(0, 0, 0, 0);
    uint4 value = __ldcs(from + word);
    unsigned parts[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
            const long long at = word * 16 + part * 4 + byte;
            if (at < skip || at >= bytes) parts[part] &= ~(255u << (8 * byte));
        }
    }
    return make_uint4(parts[0], parts[1], parts[2], parts[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
crc_tiles(const char* base, const Tile* tiles, const unsigned* ends, int first, int count, const unsigned* fold_table,
          const unsigned* word_table, const unsigned* lane_powers, const unsigned* warp_powers, unsigned* crcs) {
    extern __shared__ __align__(16) char shared[];
    unsigned* words = (unsigned*)(shared + 131072);
    const unsigned thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, lane4 = lane * 4;
    for (unsigned entry = warp; entry < 1024; entry += WARPS)
        *(unsigned*)(shared + entry * 128 + lane4) = fold_table[entry];
    for (unsigned entry = thread; entry < 1024; entry += THREADS) words[entry] = word_table[entry];
    const unsigned lane_power = lane_powers[lane], warp_share = warp_powers[thread];
    __syncthreads();

    for (int index = first + blockIdx.x; index < first + count; index += gridDim.x) {
        const Tile tile = tiles[index];
        const uint4* from = (const uint4*)(base + tile.start);
        const int rows = (int)((tile.bytes + ROW_BYTES - 1) / ROW_BYTES);
        // Every byte of these rows is the tile's, apart from those to skip in row 0.
        const int whole = (int)(tile.bytes / ROW_BYTES);
        uint4 acc = edge(from, thread, tile.skip, tile.bytes);
        int row = 1;
        for (; row + DEPTH <= whole; row += DEPTH) {
            uint4 next[DEPTH];
#pragma unroll
            for (int ahead = 0; ahead < DEPTH; ++ahead) next[ahead] = __ldcs(from + (row + ahead) * THREADS + thread);
#pragma unroll
            for (int ahead = 0; ahead < DEPTH; ++ahead) {
                acc.x = folded(shared, lane4, acc.x, next[ahead].x);
                acc.y = folded(shared, lane4, acc.y, next[ahead].y);
                acc.z = folded(shared, lane4, acc.z, next[ahead].z);
                acc.w = folded(shared, lane4, acc.w, next[ahead].w);
            }
        }
        for (; row < rows; ++row) {
            const uint4 next = edge(from, (long long)row * THREADS + thread, 0, tile.bytes);
            acc.x = folded(shared, lane4, acc.x, next.x);
            acc.y = folded(shared, lane4, acc.y, next.y);
            acc.z = folded(shared, lane4, acc.z, next.z);
            acc.w = folded(shared, lane4, acc.w, next.w);
        }
        unsigned sum = after_a_word(words, acc.x) ^ acc.y;
        sum = after_a_word(words, sum) ^ acc.z;
        sum = after_a_word(words, sum) ^ acc.w;
        sum = __reduce_xor_sync(ALL, product(sum, lane_power));
        sum = product_by_lanes(sum, warp_share, lane);
        sum = product_by_lanes(sum, ends[index * 32 + lane], lane);
        if (lane == 0) atomicXor(crcs + tile.chunk, sum);
    }
}

// whole = sum of crcs[i] * after[i]: the CRC-32 of all chunks together. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024, 1)
crc_whole(const unsigned* crcs, const unsigned* after, int count, unsigned* whole) {
    __shared__ unsigned sums[32];
    unsigned sum = 0;
    for (int index = threadIdx.x; index < count; index += 1024) sum ^= product(crcs[index], after[index]);
    sum = __reduce_xor_sync(ALL, sum);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = __reduce_xor_sync(ALL, sums[threadIdx.x]);
        if (threadIdx.x == 0) *whole = sum;
    }
}
