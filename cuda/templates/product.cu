// Matrix products in f32, and convolutions as implicit GEMM. A block computes 64 x 64 results from tiles of both operands in
// shared memory; each of its 256 threads computes 4 x 4 of them.

constexpr int TILE = 64;
constexpr int DEPTH = 16;
constexpr int SIDE = 4;

// Split-K: if there are fewer tiles than multiprocessors, the inner dimension is divided into `PARTS`. A first launch writes
// the partial sums to `parts: [gridDim.z, ROWS, COLUMNS]`. A second one adds them in a fixed order, so results are
// deterministic. `blockIdx.z` is `item * PARTS + part`.

/// A store of single elements.
template <class F>
struct Each {
    static constexpr bool WIDE = false;
    F store;
    __device__ void operator()(int row, int column, float sum) const { store(row, column, sum); }
};
template <class F>
__device__ Each<F> each(F store) {
    return {store};
}

/// Stores a block's partial sums.
template <int ROWS, int COLUMNS>
struct SplitSums {
    static constexpr bool WIDE = false;
    float* sums;
    __device__ explicit SplitSums(float* parts) : sums(parts + blockIdx.z * ((size_t)ROWS * COLUMNS)) {}
    __device__ void operator()(int row, int column, float sum) const { sums[(size_t)row * COLUMNS + column] = sum; }
};

/// Split-K reduction: calls `store(row, column, sum over all parts)` for each element of a tile. The blocks of the tile's parts
/// share its elements.
template <int TILE_ROWS, int TILE_COLUMNS, int PARTS, int ROWS, int COLUMNS, class Store>
__device__ void reduce_splits(const float* parts, Store store) {
    constexpr size_t SUMS = (size_t)ROWS * COLUMNS;
    const int part = blockIdx.z % PARTS;
    const float* first = parts + (blockIdx.z - part) * SUMS;
    for (int cell = part * blockDim.x + threadIdx.x; cell < TILE_ROWS * TILE_COLUMNS; cell += PARTS * blockDim.x) {
        const int row = blockIdx.y * TILE_ROWS + cell / TILE_COLUMNS, column = blockIdx.x * TILE_COLUMNS + cell % TILE_COLUMNS;
        if (ROWS <= row || COLUMNS <= column) continue;
        const float* at = first + (size_t)row * COLUMNS + column;
        float sum = at[0];
#pragma unroll
        for (int other = 1; other < PARTS; other++) sum += at[other * SUMS];
        store(row, column, sum);
    }
}

/// Calls `store(row, column, sum of left(row, k) * right(k, column))` for each element of the block's tile, where `k` runs over
/// one of `PARTS` equal parts of the inner dimension.
template <int ROWS, int COLUMNS, int TERMS, int PARTS, class Left, class Right, class Store>
__device__ void product(int part, Left left, Right right, Store store) {
    // Parts are multiples of `DEPTH`; the last one may be shorter, or empty.
    constexpr int SHARE = (TERMS + DEPTH * PARTS - 1) / (DEPTH * PARTS) * DEPTH;
    const int begin = PARTS == 1 ? 0 : part * SHARE, end = PARTS == 1 || TERMS < begin + SHARE ? TERMS : begin + SHARE;
    // Rows are padded by one element, so that threads that write a column use different banks.
    __shared__ float left_tile[DEPTH][TILE + 1];
    __shared__ float right_tile[DEPTH][TILE + 1];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int row = threadIdx.x / (TILE / SIDE) * SIDE, column = threadIdx.x % (TILE / SIDE) * SIDE;
    float sums[SIDE][SIDE] = {};
    for (int first = begin; first < end; first += DEPTH) {
        for (int cell = threadIdx.x; cell < DEPTH * TILE; cell += THREADS) {
            const int k = cell % DEPTH, at = cell / DEPTH;
            const bool inside = first_row + at < ROWS && first + k < end;
            left_tile[k][at] = inside ? left(first_row + at, first + k) : 0.0f;
        }
        for (int cell = threadIdx.x; cell < DEPTH * TILE; cell += THREADS) {
            const int k = cell / TILE, at = cell % TILE;
            const bool inside = first_column + at < COLUMNS && first + k < end;
            right_tile[k][at] = inside ? right(first + k, first_column + at) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            float a[SIDE], b[SIDE];
            for (int at = 0; at < SIDE; at++) {
                a[at] = left_tile[k][row + at];
                b[at] = right_tile[k][column + at];
            }
            for (int r = 0; r < SIDE; r++) {
                for (int c = 0; c < SIDE; c++) sums[r][c] += a[r] * b[c];
            }
        }
        __syncthreads();
    }
    for (int r = 0; r < SIDE; r++) {
        for (int c = 0; c < SIDE; c++) {
            const int at = first_row + row + r, to = first_column + column + c;
            if (at < ROWS && to < COLUMNS) store(at, to, sums[r][c]);
        }
    }
}
