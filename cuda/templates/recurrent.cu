// Recurrent cells. Each launch computes one phase of one step of the sequence; launches of a stream run in order, so a launch
// may read the results of the one before. A warp computes one unit of one batch row in one direction (`blockIdx.y`).

/// Indices of a warp at one step.
template <int SEQ, int BATCH, int DIRECTIONS, int UNITS, int GATES, bool REVERSE>
struct Walk {
    const int step, unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int direction = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % 32;

    /// The sequence position of a step.
    __device__ int position(int step) const { return REVERSE || direction == 1 ? SEQ - 1 - step : step; }
    /// Offset of the batch row's state.
    __device__ size_t state() const { return ((size_t)direction * BATCH + row) * UNITS; }
    /// Offset of a step's results.
    __device__ size_t result(int step) const { return (size_t)position(step) * DIRECTIONS * BATCH * UNITS + state(); }
    /// The state before this step: the initial state, or the result of the previous step.
    __device__ const float* before(const float* first, const float* y) const {
        return step == 0 ? first + state() : y + result(step - 1);
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
    /// The state's contribution to a gate, in every lane.
    __device__ float product(const float* weight, const float* h, int gate) const {
        const float* own = weight + (((size_t)direction * GATES + gate) * UNITS + unit) * UNITS;
        float sum = 0.0f;
        for (int at = lane; at < UNITS; at += 32) sum += h[at] * own[at];
        for (int distance = 16; 0 < distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    }
};
