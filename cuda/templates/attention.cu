// Attention on tensor cores (Dao 2023, "FlashAttention-2"): keys and values go through shared memory tile by tile, and the softmax is
// corrected as its maximum grows, so that scores never leave registers. A warp has sixteen queries; blocks of several warps share the
// tiles. `tensor.cu` has the products.

/// Words per line of a tile of rows with `WIDTH` elements: a power of two, so that swizzled chunks stay within their line.
template <class T, int WIDTH>
__device__ constexpr int line_of() {
    int line = WORDS;
    while (line * IN_WORD<T> < WIDTH) line *= 2;
    return line;
}

/// Position of a word in a tile with lines of `LINE` words.
template <int LINE>
__device__ __forceinline__ int in_line(int line, int word) {
    const int order = LINE == 16 ? line / 2 & 3 : line & 7;
    return line * LINE + ((word / 4 ^ order) * 4 + word % 4);
}

/// Starts the transfer of `KEYS_OF_TILE` rows of `WIDTH` elements, `STRIDE` elements apart, to a tile; rows from `rows` on are zeros.
/// Pieces of `BYTES` bytes are aligned to their size.
template <class T, int THREADS, int KEYS_OF_TILE, int WIDTH, int STRIDE, int BYTES>
__device__ __forceinline__ void copy_rows(unsigned* tile, const Stored<T>* from, int rows) {
    constexpr int LINE = line_of<T, WIDTH>(), SIZE = 4 <= BYTES ? BYTES / 4 : 1, PIECES = LINE / SIZE;
#pragma unroll 4
    for (int piece = threadIdx.x; piece < KEYS_OF_TILE * PIECES; piece += THREADS) {
        const int row = piece / PIECES, word = piece % PIECES * SIZE;
        const bool inside = row < rows && word * IN_WORD<T> < WIDTH;
        const Stored<T>* at = inside ? from + ((size_t)row * STRIDE + word * IN_WORD<T>) : from;
        if constexpr (4 <= BYTES) copy_later<BYTES>(tile + in_line<LINE>(row, word), at, inside);
        else tile[in_line<LINE>(row, word)] = inside ? bits_at<T>(at) | bits_at<T>(word * 2 + 1 < WIDTH ? at + 1 : nullptr) << 16 : 0u;
    }
}

/// One word of a tensor-core operand for a number, or for two.
template <class T>
__device__ __forceinline__ unsigned operand_of(float low, float high) {
    if constexpr (IN_WORD<T> == 2) return word_of<T>(low, high);
    else return tf32(low).bits;
}

/// Attention of one head: `y = softmax(q k' * scale + mask) v`, with `q: [QUERIES, WIDTH]`, `k: [KEYS, WIDTH]`,
/// `v: [KEYS, VALUE_WIDTH]` and `y: [QUERIES, VALUE_WIDTH]`, whose rows are `Q_ROW`, `K_ROW`, `V_ROW` and `Y_ROW` elements apart.
/// `first` is the block's first query; `mask(query, key)` is added to a score. Runs of `BYTES` bytes in rows of operands are aligned,
/// and with `WIDE` whole rows of the result are.
template <class T, int WARPS, int QUERIES, int KEYS, int WIDTH, int VALUE_WIDTH, int Q_ROW, int K_ROW, int V_ROW, int Y_ROW, int BYTES, bool WIDE, class Y, class Mask>
__device__ void attend_by_cores(int first, const Stored<T>* q, const Stored<T>* k, const Stored<T>* v, Y* y, float scale, Mask mask) {
    constexpr int THREADS = 32 * WARPS, K_LINE = line_of<T, WIDTH>(), V_LINE = line_of<T, VALUE_WIDTH>();
    // Two stages of keys and values within 32 KiB.
    constexpr int FITTING = 2048 / (K_LINE < V_LINE ? V_LINE : K_LINE), TILE_KEYS = FITTING < 64 ? FITTING : 64, TILES = (KEYS + TILE_KEYS - 1) / TILE_KEYS;
    constexpr int IN_STEP = 8 * IN_WORD<T>, STEPS = (WIDTH + IN_STEP - 1) / IN_STEP, COLUMNS = (VALUE_WIDTH + 15) / 16 * 2;
    static_assert(16 <= TILE_KEYS, "a tile has at least one step of keys");
    alignas(128) __shared__ unsigned key_tiles[2][TILE_KEYS * K_LINE];
    alignas(128) __shared__ unsigned value_tiles[2][TILE_KEYS * V_LINE];
    const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4, row = first + threadIdx.x / 32 * 16 + group;
    const auto begin = [&](int tile) {
        const int from = tile * TILE_KEYS;
        copy_rows<T, THREADS, TILE_KEYS, WIDTH, K_ROW, BYTES>(key_tiles[tile & 1], k + (size_t)from * K_ROW, KEYS - from);
        copy_rows<T, THREADS, TILE_KEYS, VALUE_WIDTH, V_ROW, BYTES>(value_tiles[tile & 1], v + (size_t)from * V_ROW, KEYS - from);
        end_group();
    };
    begin(0);
    // Queries, as operands of 16 rows: words of rows `row` and `row + 8`, and those four words further.
    unsigned queries[STEPS][4];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int ix = 0; ix < 4; ix++) {
            const int of = row + ix % 2 * 8, at = (step * 8 + pair + ix / 2 * 4) * IN_WORD<T>;
            const Stored<T>* from = of < QUERIES && at < WIDTH ? q + (size_t)of * Q_ROW + at : nullptr;
            if constexpr (IN_WORD<T> == 1) queries[step][ix] = tf32(__int_as_float((int)bits_at<T>(from))).bits;
            else if constexpr (4 <= BYTES) queries[step][ix] = from ? *(const unsigned*)from : 0u;
            else queries[step][ix] = bits_at<T>(from) | bits_at<T>(from && at + 1 < WIDTH ? from + 1 : nullptr) << 16;
        }
    }
    float means[COLUMNS][4] = {}, tops[2] = {-PRESTOW_INFINITY, -PRESTOW_INFINITY}, totals[2] = {};
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        if (tile + 1 < TILES) {
            begin(tile + 1);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        const unsigned *keys = key_tiles[tile & 1], *values = value_tiles[tile & 1];
        float scores[TILE_KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n += 2) {
                unsigned four[4];
                load_matrices(four, keys + in_line<K_LINE>(n * 8 + lane / 16 * 8 + lane % 8, step * 8 + lane / 8 % 2 * 4));
                if constexpr (IN_WORD<T> == 1) {
#pragma unroll
                    for (int ix = 0; ix < 4; ix++) four[ix] = tf32(__int_as_float((int)four[ix])).bits;
                }
                const unsigned b[2][2] = {{four[0], four[1]}, {four[2], four[3]}};
                multiply_tile(T(), scores[n], queries[step], b[0]);
                multiply_tile(T(), scores[n + 1], queries[step], b[1]);
            }
        }
        // Lane `pair` has keys `2 pair` and `2 pair + 1` of each eight, of two queries.
        float top[2] = {tops[0], tops[1]};
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (int ix = 0; ix < 4; ix++) {
                const int key = tile * TILE_KEYS + n * 8 + pair * 2 + ix % 2, query = row + ix / 2 * 8;
                const bool inside = (KEYS % TILE_KEYS == 0 || key < KEYS) && query < QUERIES;
                scores[n][ix] = inside ? scores[n][ix] * scale + mask(query, key) : -PRESTOW_INFINITY;
                top[ix / 2] = scores[n][ix] > top[ix / 2] ? scores[n][ix] : top[ix / 2];
            }
        }
        constexpr float LOG2_E = 1.44269504f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int distance = 1; distance <= 2; distance *= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, top[half], distance);
                top[half] = other > top[half] ? other : top[half];
            }
            // Keys that are all masked so far weigh nothing: their maximum of minus infinity is taken as 0.
            const float base = top[half] == -PRESTOW_INFINITY ? 0.0f : top[half];
            const float factor = exp2_of((tops[half] - base) * LOG2_E);
            tops[half] = top[half], top[half] = base;
            totals[half] *= factor;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) means[n][half * 2] *= factor, means[n][half * 2 + 1] *= factor;
        }
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (int ix = 0; ix < 4; ix++) {
                scores[n][ix] = exp2_of((scores[n][ix] - top[ix / 2]) * LOG2_E);
                totals[ix / 2] += scores[n][ix];
            }
        }
        // The sum over keys may take them in any order. TF32's operand has two keys of a lane four columns apart, so values are read in
        // that order too.
#pragma unroll
        for (int step = 0; step < TILE_KEYS / IN_STEP; step++) {
            unsigned weights[4];
            if constexpr (IN_WORD<T> == 2) {
#pragma unroll
                for (int ix = 0; ix < 4; ix++) {
                    const float(&own)[4] = scores[step * 2 + ix / 2];
                    weights[ix] = operand_of<T>(own[ix % 2 * 2], own[ix % 2 * 2 + 1]);
                }
            } else {
                const float(&own)[4] = scores[step];
                weights[0] = operand_of<T>(own[0], 0.0f), weights[1] = operand_of<T>(own[2], 0.0f);
                weights[2] = operand_of<T>(own[1], 0.0f), weights[3] = operand_of<T>(own[3], 0.0f);
            }
#pragma unroll
            for (int n = 0; n < COLUMNS; n += 2) {
                unsigned b[2][2];
                if constexpr (IN_WORD<T> == 2) {
                    unsigned four[4];
                    load_turned(four, values + in_line<V_LINE>(step * 16 + lane % 16, (n + lane / 16) * 4));
                    b[0][0] = four[0], b[0][1] = four[1], b[1][0] = four[2], b[1][1] = four[3];
                } else {
#pragma unroll
                    for (int ix = 0; ix < 4; ix++) {
                        const unsigned bits = values[in_line<V_LINE>(step * 8 + pair * 2 + ix % 2, (n + ix / 2) * 8 + group)];
                        b[ix / 2][ix % 2] = tf32(__int_as_float((int)bits)).bits;
                    }
                }
                multiply_tile(T(), means[n], weights, b[0]);
                multiply_tile(T(), means[n + 1], weights, b[1]);
            }
        }
        // The next tile but one takes the place of this one.
        if (tile + 1 < TILES) __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int distance = 1; distance <= 2; distance *= 2) totals[half] += __shfl_xor_sync(0xffffffffu, totals[half], distance);
        const int query = row + half * 8;
        Y* to = y + (size_t)query * Y_ROW;
        if constexpr (WIDE) {
            static_assert(COLUMNS % 4 == 0, "four tiles are exchanged at once");
            const float share = 1.0f / totals[half];
#pragma unroll
            for (int n = 0; n < COLUMNS; n += 4) {
                float eight[8];
                gather_eight(eight, means, n, half, pair);
#pragma unroll
                for (int ix = 0; ix < 8; ix++) eight[ix] *= share;
                if (query < QUERIES) store_eight(eight, to + (n + pair) * 8);
            }
            continue;
        }
        if (QUERIES <= query) continue;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            const int column = n * 8 + pair * 2;
            if (column < VALUE_WIDTH) to[column] = Y(means[n][half * 2] / totals[half]);
            if (column + 1 < VALUE_WIDTH) to[column + 1] = Y(means[n][half * 2 + 1] / totals[half]);
        }
    }
}
