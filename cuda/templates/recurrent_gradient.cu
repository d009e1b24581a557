// Gradients of recurrent layers. Each launch is one phase: launches of a stream run in order, so a launch may read the results
// of the one before. The states before each step are known from the layer's result, so the sums of all gates are computed at
// once; then the sequence is walked backwards, one launch or two per step.

/// A function's result and derivative.
struct Both {
    float y, slope;
};

/// Operands and workspace of a layer. `EXTRAS` is the number of further parameters per unit: 3 peepholes, or 1 bias.
template <int SEQ, int BATCH, int DIRECTIONS, int UNITS, int GATES, int EXTRAS, bool REVERSE>
struct Backward {
    static constexpr int STATES = DIRECTIONS * BATCH * UNITS;
    const float *gates, *weight, *first, *extra, *y;
    /// Of each position: the sums of the gates, then the gradients of the products with the state: `[SEQ, DIRECTIONS, BATCH, GATES, UNITS]`.
    float* sums;
    /// Of each position, the memory after the step or the state behind the reset gate: `[SEQ, DIRECTIONS, BATCH, UNITS]`.
    float* memory;
    /// The part of the gradient of the state before a step that does not come through products; of an LSTM, that of the memory.
    float* carry;

    __device__ int direction(int state) const { return state / (BATCH * UNITS); }
    __device__ int unit(int state) const { return state % UNITS; }
    /// The position of a step.
    __device__ int position(int direction, int step) const { return REVERSE || direction == 1 ? SEQ - 1 - step : step; }
    /// Offset of a state's element at a step, in `y` and `memory`.
    __device__ size_t at(int state, int step) const { return (size_t)position(direction(state), step) * STATES + state; }
    /// Offset of a gate of a state's unit at a step, in `sums`.
    __device__ size_t sum_at(int state, int step, int gate) const { return (at(state, step) - unit(state)) * GATES + gate * UNITS + unit(state); }
    /// Offset of the same gate in the layer's operand `gates` and its gradient.
    __device__ size_t gate_at(int state, int step, int gate) const {
        const int row = state / UNITS % BATCH;
        const size_t from = ((size_t)position(direction(state), step) * BATCH + row) * DIRECTIONS + direction(state);
        return (from * GATES + gate) * UNITS + unit(state);
    }
    /// An element of the state before a step.
    __device__ float before(int state, int step) const { return step == 0 ? first[state] : y[at(state, step - 1)]; }
    /// A further parameter of a state's unit.
    __device__ float more(int state, int which) const {
        if constexpr (EXTRAS == 0) return 0.0f;
        else return extra[(direction(state) * EXTRAS + which) * UNITS + unit(state)];
    }
    /// The first weight of a gate of a state's unit.
    __device__ const float* row_of(int state, int gate) const {
        return weight + (((size_t)direction(state) * GATES + gate) * UNITS + unit(state)) * UNITS;
    }
    __device__ int thread() const { return blockIdx.x * THREADS + threadIdx.x; }
    __device__ int threads() const { return gridDim.x * THREADS; }

    /// Calls `store(state, step, gate, product of the weights with item(state, step))` for gates `FIRST..END` of all positions, one
    /// warp each; `item` has an element of the vector for the state's unit.
    template <int FIRST, int END, class Item, class Store>
    __device__ void products(Item item, Store store) const {
        constexpr int COUNT = END - FIRST;
        const long long end = (long long)SEQ * STATES * COUNT;
        for (long long ix = thread() / 32; ix < end; ix += threads() / 32) {
            const int gate = FIRST + (int)(ix % COUNT), state = (int)(ix / COUNT % STATES), step = (int)(ix / COUNT / STATES);
            const float* own = row_of(state, gate);
            float sum = 0.0f;
            for (int k = threadIdx.x % 32; k < UNITS; k += 32) sum += item(state - unit(state) + k, step) * own[k];
            for (int distance = 16; 0 < distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (threadIdx.x % 32 == 0) store(state, step, gate, sum);
        }
    }

    /// Calls `visit(state)` for each element of the states, one thread each.
    template <class Visit>
    __device__ void for_each_state(Visit visit) const {
        for (int state = thread(); state < STATES; state += threads()) visit(state);
    }

    /// The gradient of the state before a step through the products of gates `FIRST..END`.
    template <int FIRST, int END>
    __device__ float through(int state, int step) const {
        const float* own = weight + (size_t)direction(state) * GATES * UNITS * UNITS + unit(state);
        const float* from = sums + sum_at(state - unit(state), step, 0);
        float sum = 0.0f;
        for (int row = FIRST * UNITS; row < END * UNITS; row++) sum += from[row] * own[(size_t)row * UNITS];
        return sum;
    }

    /// The gradient of the weights: `item(state, step, gate)` is the vector that a gate's product has read.
    template <class Item>
    __device__ void add_weights(float* to, Item item) const {
        const long long end = (long long)DIRECTIONS * GATES * UNITS * UNITS;
        for (long long ix = thread(); ix < end; ix += threads()) {
            const int k = (int)(ix % UNITS), own = (int)(ix / UNITS % UNITS), gate = (int)(ix / UNITS / UNITS % GATES);
            const int first = (int)(ix / UNITS / UNITS / GATES) * BATCH * UNITS;
            float sum = 0.0f;
            for (int step = 0; step < SEQ; step++) {
                for (int state = first; state < first + BATCH * UNITS; state += UNITS) sum += sums[sum_at(state + own, step, gate)] * item(state + k, step, gate);
            }
            to[ix] = sum;
        }
    }

    /// The gradient of the further parameters: the sum of `item(state, step, which)`.
    template <class Item>
    __device__ void add_extras(float* to, Item item) const {
        for (int ix = thread(); ix < DIRECTIONS * EXTRAS * UNITS; ix += threads()) {
            const int own = ix % UNITS, which = ix / UNITS % EXTRAS, first = ix / UNITS / EXTRAS * BATCH * UNITS;
            float sum = 0.0f;
            for (int step = 0; step < SEQ; step++) {
                for (int state = first + own; state < first + BATCH * UNITS; state += UNITS) sum += item(state, step, which);
            }
            to[ix] = sum;
        }
    }
};
