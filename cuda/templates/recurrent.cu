// Recurrent networks. A launch is a part of one step of the sequence, and launches come one after the other: what one wrote
// the next may read. A warp has one unit of one row of the batch, for one direction (`blockIdx.y`).

/// Where a warp is at a step.
template <int SEQ, int BATCH, int DIRECTIONS, int UNITS, int GATES, bool REVERSE>
struct Walk {
    const int step, unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int direction = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % 32;

    /// The position in the sequence that a step visits.
    __device__ int position(int step) const { return REVERSE || direction == 1 ? SEQ - 1 - step : step; }
    /// Where the state of the row begins.
    __device__ size_t state() const { return ((size_t)direction * BATCH + row) * UNITS; }
    /// Where the results of a step begin.
    __device__ size_t result(int step) const { return (size_t)position(step) * DIRECTIONS * BATCH * UNITS + state(); }
    /// The state before this step: the first one, or what the step before gave.
    __device__ const float* before(const float* first, const float* y) const {
        return step == 0 ? first + state() : y + result(step - 1);
    }
    /// The input's part of a gate.
    __device__ float gate(const float* gates, int gate) const {
        const size_t from = ((size_t)position(step) * BATCH + row) * DIRECTIONS + direction;
        return gates[(from * GATES + gate) * UNITS + unit];
    }
    /// One of the `COUNT` numbers that a unit has beside its weights.
    template <int COUNT>
    __device__ float extra(const float* extras, int which) const {
        return extras[(direction * COUNT + which) * UNITS + unit];
    }
    /// The state's part of a gate, for all lanes.
    __device__ float product(const float* weight, const float* h, int gate) const {
        const float* own = weight + (((size_t)direction * GATES + gate) * UNITS + unit) * UNITS;
        float sum = 0.0f;
        for (int at = lane; at < UNITS; at += 32) sum += h[at] * own[at];
        for (int distance = 16; 0 < distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    }
};
