// Recurrent cells. Each launch computes one phase of one step of the sequence; launches of a stream run in order, so a launch
// may read the results of the one before. `blockIdx.y` is the direction.

/// One unit of a row of the batch in one direction, at a step.
template <int SEQ, int BATCH, int DIRECTIONS, int UNITS, int GATES, bool REVERSE>
struct Unit {
    static constexpr int BATCH_ = BATCH, UNITS_ = UNITS, GATES_ = GATES, STATES = DIRECTIONS * BATCH * UNITS;
    int step, direction, row, unit;

    /// The sequence position of a step.
    __device__ int position(int step) const { return REVERSE || direction == 1 ? SEQ - 1 - step : step; }
    /// Offset of its state.
    __device__ size_t state() const { return ((size_t)direction * BATCH + row) * UNITS + unit; }
    /// Offset of its result.
    __device__ size_t result() const { return (size_t)position(step) * STATES + state(); }
    /// Its state before the step: the initial state, or the result of the previous step.
    __device__ const float* before(const float* first, const float* y) const {
        return (step == 0 ? first : y + (size_t)position(step - 1) * STATES) + state();
    }
    /// The input's contribution to a gate.
    __device__ float gate(const float* gates, int gate) const {
        const size_t from = ((size_t)position(step) * BATCH + row) * DIRECTIONS + direction;
        return gates[(from * GATES + gate) * UNITS + unit];
    }
    /// One of `COUNT` additional parameters per unit: a bias or a peephole.
    template <int COUNT>
    __device__ float extra(const float* extras, int which) const {
        return extras[(direction * COUNT + which) * UNITS + unit];
    }
};

/// What a phase computes for a unit: its state, and the memory of an LSTM or another intermediate result.
struct Computed {
    float state, other;
};

/// A phase of a step without tensor cores. A warp computes a unit for `ROWS` rows of the batch (`blockIdx.z`): the products of weights
/// of gates `FIRST..FIRST + COUNT` with the vector of each row, whose first element is `vector(unit 0)`. Then lanes of different rows
/// compute `cell(unit, sums)` and store it.
template <class At, int ROWS, int FIRST, int COUNT, class Vector, class Cell, class Store>
__device__ void step_by_warps(int step, const float* weight, Vector vector, Cell cell, Store store) {
    constexpr int UNITS = At::UNITS_;
    const int unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, direction = blockIdx.y, lane = threadIdx.x % 32;
    if (UNITS <= unit) return;
    const int first_row = blockIdx.z * ROWS;
    const float* vectors[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        const int inside = first_row + row < At::BATCH_ ? first_row + row : At::BATCH_ - 1;
        vectors[row] = vector(At{step, direction, inside, 0});
    }
    const float* own = weight + (((size_t)direction * At::GATES_ + FIRST) * UNITS + unit) * UNITS;
    float sums[ROWS][COUNT] = {};
    for (int at = lane; at < UNITS; at += 32) {
        float factors[COUNT];
#pragma unroll
        for (int gate = 0; gate < COUNT; gate++) factors[gate] = own[(size_t)gate * UNITS * UNITS + at];
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float item = vectors[row][at];
#pragma unroll
            for (int gate = 0; gate < COUNT; gate++) sums[row][gate] += item * factors[gate];
        }
    }
    float mine[COUNT];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
        for (int gate = 0; gate < COUNT; gate++) {
            float sum = sums[row][gate];
            for (int distance = 16; 0 < distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (row == 0 || row == lane) mine[gate] = sum;
        }
    }
    if (ROWS <= lane || At::BATCH_ <= first_row + lane) return;
    const At place{step, direction, first_row + lane, unit};
    store(place, cell(place, mine));
}
