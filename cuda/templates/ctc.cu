// Connectionist temporal classification, one block per sequence. Sums over alignments are logarithms in `double`: over hundreds of
// steps, products of probabilities are below the smallest `float`.

/// `log(exp(a) + exp(b))`
__device__ inline double log_add(double a, double b) {
    const double top = a < b ? b : a, other = a < b ? a : b;
    return top == -PRESTOW_INFINITY ? top : top + log1p(exp(other - top));
}

/// The alignments of a block's sequence, for `logits: [STEPS, BATCH, CLASSES]`. States are the labels with blanks in front of,
/// between and behind them. `ROWS` is how many steps of `forward` are kept: 2 or all.
template <int STEPS, int BATCH, int CLASSES, int LENGTH, int BLANK, int ROWS>
struct Alignments {
    static constexpr int STATES = 2 * LENGTH + 1;
    /// Numbers of the workspace of a sequence: `log_sums`, `forward`, two rows of `backward`, `classes` and their count.
    static constexpr int NUMBERS = STEPS + ROWS * STATES + 2 * STATES + (STATES + 2) / 2;

    const float* logits;
    double *log_sums, *forward, *backward;
    /// The class of each state, then the number of states.
    int* classes;

    __device__ Alignments(const float* logits, double* workspace)
        : logits(logits + (size_t)blockIdx.x * CLASSES), log_sums(workspace + (size_t)blockIdx.x * NUMBERS), forward(log_sums + STEPS),
          backward(forward + ROWS * STATES), classes((int*)(backward + 2 * STATES)) {}

    __device__ int count() const { return classes[STATES]; }
    __device__ double* row(int step) const { return forward + (size_t)(step % ROWS) * STATES; }
    __device__ double log_softmax(int step, int which) const { return (double)logits[(size_t)step * BATCH * CLASSES + which] - log_sums[step]; }
    /// Whether a state is reached from the second one before it.
    __device__ bool skips(int state) const { return 2 <= state && classes[state] != BLANK && classes[state] != classes[state - 2]; }

    /// Computes everything but `backward`. Labels that are the blank or no class are padding.
    template <class Label>
    __device__ void align(const Label* labels) {
        // Sequences with padding leave states without a label, so that not all of the workspace would be written.
        for (int at = threadIdx.x; at < NUMBERS; at += THREADS) log_sums[at] = 0.0;
        __syncthreads();
        if (threadIdx.x == 0) {
            int states = 0;
            classes[states++] = BLANK;
            for (int ix = 0; ix < LENGTH; ix++) {
                const long long label = labels[(size_t)blockIdx.x * LENGTH + ix];
                if (label < 0 || CLASSES <= label || label == BLANK) continue;
                classes[states++] = (int)label;
                classes[states++] = BLANK;
            }
            classes[STATES] = states;
        }
        // A warp per step.
        for (int step = threadIdx.x / 32; step < STEPS; step += THREADS / 32) {
            const float* own = logits + (size_t)step * BATCH * CLASSES;
            float top = -PRESTOW_INFINITY;
            for (int ix = threadIdx.x % 32; ix < CLASSES; ix += 32) top = own[ix] > top ? own[ix] : top;
            for (int distance = 16; 0 < distance; distance /= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, top, distance);
                top = other > top ? other : top;
            }
            double sum = 0.0;
            for (int ix = threadIdx.x % 32; ix < CLASSES; ix += 32) sum += exp((double)own[ix] - (double)top);
            for (int distance = 16; 0 < distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (threadIdx.x % 32 == 0) log_sums[step] = top + log(sum);
        }
        __syncthreads();
        for (int step = 0; step < STEPS; step++) {
            const double* before = row(step + ROWS - 1);
            for (int state = threadIdx.x; state < count(); state += THREADS) {
                double reached = state < 2 ? 0.0 : (double)-PRESTOW_INFINITY;
                if (0 < step) {
                    reached = before[state];
                    if (1 <= state) reached = log_add(reached, before[state - 1]);
                    if (skips(state)) reached = log_add(reached, before[state - 2]);
                }
                row(step)[state] = reached + log_softmax(step, classes[state]);
            }
            __syncthreads();
        }
    }

    /// The logarithm of the probability of all alignments.
    __device__ double total() const {
        if (STEPS == 0) return count() == 1 ? 0.0 : (double)-PRESTOW_INFINITY;
        const double* last = row(STEPS + ROWS - 1);
        return count() == 1 ? last[0] : log_add(last[count() - 1], last[count() - 2]);
    }
};

template <int STEPS, int BATCH, int CLASSES, int LENGTH, int BLANK, class Label>
__device__ void ctc(const float* logits, const Label* labels, float* losses, double* workspace) {
    Alignments<STEPS, BATCH, CLASSES, LENGTH, BLANK, 2> own(logits, workspace);
    own.align(labels);
    if (threadIdx.x == 0) losses[blockIdx.x] = (float)-own.total();
}

template <int STEPS, int BATCH, int CLASSES, int LENGTH, int BLANK, class Label>
__device__ void ctc_gradient(const float* dlosses, const float* logits, const Label* labels, float* dx, double* workspace) {
    using Own = Alignments<STEPS, BATCH, CLASSES, LENGTH, BLANK, STEPS == 0 ? 1 : STEPS>;
    Own own(logits, workspace);
    own.align(labels);
    const double total = own.total();
    const float slope = dlosses[blockIdx.x];
    const bool none = total == -PRESTOW_INFINITY;
    // All ends that begin behind a state, at a step and with the step's own class.
    double *after = own.backward, *next = own.backward + Own::STATES;
    for (int state = threadIdx.x; state < own.count(); state += THREADS) {
        after[state] = own.count() <= state + 2 ? 0.0 : (double)-PRESTOW_INFINITY;
    }
    __syncthreads();
    for (int step = STEPS - 1; 0 <= step; step--) {
        for (int ix = threadIdx.x; ix < CLASSES; ix += THREADS) {
            double here = -PRESTOW_INFINITY;
            for (int state = 0; state < own.count(); state++) {
                if (own.classes[state] == ix) here = log_add(here, own.row(step)[state] + after[state]);
            }
            const double difference = exp(own.log_softmax(step, ix)) - exp(here - total);
            dx[((size_t)step * BATCH + blockIdx.x) * CLASSES + ix] = none ? 0.0f : (float)(slope * difference);
        }
        for (int state = threadIdx.x; state < own.count(); state += THREADS) {
            next[state] = after[state] + own.log_softmax(step, own.classes[state]);
        }
        __syncthreads();
        for (int state = threadIdx.x; state < own.count(); state += THREADS) {
            double reached = next[state];
            if (state + 1 < own.count()) reached = log_add(reached, next[state + 1]);
            if (state + 2 < own.count() && own.skips(state + 2)) reached = log_add(reached, next[state + 2]);
            after[state] = reached;
        }
        __syncthreads();
    }
}
