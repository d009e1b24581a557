// Products of matrices, and convolutions as such. A block computes 64 x 64 results; each of its 256 threads a square of
// 4 x 4, from tiles of both factors in shared memory.

constexpr int TILE = 64;
constexpr int DEPTH = 16;
constexpr int SIDE = 4;

/// For each row and column of the block's tile `store(row, column, sum of left(row, k) * right(k, column))`.
template <int ROWS, int COLUMNS, int TERMS, class Left, class Right, class Store>
__device__ void product(Left left, Right right, Store store) {
    // Rows of one more place, so that threads that write a column do not meet in one bank.
    __shared__ float left_tile[DEPTH][TILE + 1];
    __shared__ float right_tile[DEPTH][TILE + 1];
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    const int row = threadIdx.x / (TILE / SIDE) * SIDE, column = threadIdx.x % (TILE / SIDE) * SIDE;
    float sums[SIDE][SIDE] = {};
    for (int first = 0; first < TERMS; first += DEPTH) {
        for (int cell = threadIdx.x; cell < DEPTH * TILE; cell += THREADS) {
            const int k = cell % DEPTH, at = cell / DEPTH;
            const bool inside = first_row + at < ROWS && first + k < TERMS;
            left_tile[k][at] = inside ? left(first_row + at, first + k) : 0.0f;
        }
        for (int cell = threadIdx.x; cell < DEPTH * TILE; cell += THREADS) {
            const int k = cell / TILE, at = cell % TILE;
            const bool inside = first_column + at < COLUMNS && first + k < TERMS;
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
