// Steps of recurrent cells on tensor cores. States are rounded for them as they are stored: each row of the batch is a line of
// `K` terms, which are its units, then zeros up to whole pieces of 16 bytes.

/// Copies initial states to the lines that the first step reads, and zeros the padding of the lines of `BUFFERS` buffers.
template <class T, class At, int DIRECTIONS, int K, int BUFFERS>
__device__ void round_states(const float* first, Stored<T>* lines) {
    const int threads = gridDim.x * gridDim.y * gridDim.z * blockDim.x;
    const int thread = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    for (int ix = thread; ix < BUFFERS * DIRECTIONS * At::BATCH_ * K; ix += threads) {
        const int unit = ix % K, line = ix / K;
        if (At::UNITS_ <= unit) lines[ix] = Stored<T>(0.0f);
        else if (line < DIRECTIONS * At::BATCH_) lines[ix] = Stored<T>(first[(size_t)line * At::UNITS_ + unit]);
    }
}

/// A loader of the weights of a tile: columns are eight units of a gate, then of the next one, then those of the next eight units.
/// `weight` has lines of `K` terms.
template <class T, class S, class At, int COUNT, int K>
struct GateLines {
    static constexpr bool TURNED = false;
    static constexpr int DEPTH = DEPTH_OF<T>, STEP = S::THREADS / (WORDS / 4), OWN = (S::COLUMNS + STEP - 1) / STEP;
    static_assert(STEP % 8 == 0, "a thread's lines have the same place in the swizzle");
    const Stored<T>*weight, *from[OWN];
    int line, term, place;
    bool inside[OWN];
    __device__ __forceinline__ GateLines(const Stored<T>* weight, int first_unit) : weight(weight) {
        const int word = threadIdx.x % (WORDS / 4) * 4;
        line = threadIdx.x / (WORDS / 4), term = word * IN_WORD<T>, place = in_left(line, word);
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const int eight = (line + own * STEP) / 8, unit = first_unit + eight / COUNT * 8 + line % 8;
            inside[own] = line + own * STEP < S::COLUMNS && unit < At::UNITS_;
            from[own] = weight + ((size_t)(eight % COUNT) * At::UNITS_ + (inside[own] ? unit : 0)) * K + term;
        }
    }
    __device__ __forceinline__ void begin(unsigned* tile) {
        const bool in_terms = K % DEPTH == 0 || term < K;
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            if (S::COLUMNS % STEP != 0 && S::COLUMNS <= line + own * STEP) continue;
            const bool reads = in_terms && inside[own];
            copy_later<16>(tile + place + own * STEP * WORDS, reads ? from[own] : weight, reads);
            from[own] += DEPTH;
        }
        term += DEPTH;
    }
    __device__ __forceinline__ void end(unsigned*) {}
};

/// A phase of a step. The block's tile has rows of the batch (`blockIdx.z`) and `S::COLUMNS / COUNT` units (`blockIdx.x`); a
/// lane has the sums of all `COUNT` gates of its units, from `FIRST` on. `lines` has the vectors of all rows.
template <class T, class S, class At, int FIRST, int COUNT, int K, class Cell, class Store>
__device__ __forceinline__ void step_by_cores(int step, const Stored<T>* weight, const Stored<T>* lines, Cell cell, Store store) {
    static_assert(S::N % COUNT == 0, "a warp has all gates of its units");
    constexpr int BATCH = At::BATCH_, UNITS = At::UNITS_, EIGHTS = S::N / COUNT;
    const int direction = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / S::ACROSS * (16 * S::M), column = warp % S::ACROSS * (8 * S::N);
    const int first_row = blockIdx.z * S::ROWS, first_unit = blockIdx.x * (S::COLUMNS / COUNT);
    // The grid is that of the phase with the most gates.
    if (UNITS <= first_unit) return;
    const Stored<T>* own = weight + ((size_t)direction * At::GATES_ + FIRST) * UNITS * K;
    const LineCopies<T, S::THREADS, S::ROWS, BATCH, K, K> lefts(lines + (size_t)direction * BATCH * K, first_row, 0);
    const GateLines<T, S, At, COUNT, K> rights(own, first_unit);
    float sums[S::M][S::N][4] = {};
    add_products<T, S>((K + DEPTH_OF<T> - 1) / DEPTH_OF<T>, lefts, rights, row, column, sums);
    // All cells come before their stores, so that their operands are read at once: the compiler must assume that a store changes them.
    Computed computed[S::M][EIGHTS][4];
#pragma unroll
    for (int stored = 0; stored < 2; stored++) {
#pragma unroll
        for (int ix = 0; ix < S::M * EIGHTS * 4; ix++) {
            const int m = ix / (EIGHTS * 4), eight = ix / 4 % EIGHTS, of = ix % 4;
            const int unit = first_unit + (warp % S::ACROSS * EIGHTS + eight) * 8 + lane % 4 * 2 + of % 2;
            const At at{step, direction, first_row + row + m * 16 + lane / 4 + of / 2 * 8, unit};
            if (BATCH <= at.row || UNITS <= at.unit) continue;
            if (stored == 0) {
                float gates[COUNT];
#pragma unroll
                for (int gate = 0; gate < COUNT; gate++) gates[gate] = sums[m][eight * COUNT + gate][of];
                computed[m][eight][of] = cell(at, gates);
            } else {
                store(at, computed[m][eight][of]);
            }
        }
    }
}
