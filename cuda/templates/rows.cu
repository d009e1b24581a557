// Kernels that reduce along rows, one block per row.

/// Softmax, or log-softmax if `LOG`, of `x: [OUTER, AXIS, INNER]` along `AXIS`.
template <int AXIS, int INNER, bool LOG>
__device__ void softmax(const float* x, float* y) {
    __shared__ float room[THREADS / 32];
    const size_t start = (size_t)(blockIdx.x / INNER) * AXIS * INNER + blockIdx.x % INNER;
    float top = -PRESTOW_INFINITY;
    bool none = false;
    for (int at = threadIdx.x; at < AXIS; at += THREADS) {
        const float item = x[start + (size_t)at * INNER];
        none |= item != item;
        top = item > top ? item : top;
    }
    top = join_block(none ? PRESTOW_INFINITY - PRESTOW_INFINITY : top, room, [](float a, float b) { return a != a || a > b ? a : b; });
    float sum = 0.0f;
    for (int at = threadIdx.x; at < AXIS; at += THREADS) sum += exp(x[start + (size_t)at * INNER] - top);
    sum = join_block(sum, room, [](float a, float b) { return a + b; });
    for (int at = threadIdx.x; at < AXIS; at += THREADS) {
        const float shifted = x[start + (size_t)at * INNER] - top;
        y[start + (size_t)at * INNER] = LOG ? shifted - log(sum) : exp(shifted) / sum;
    }
}

/// Normalizes rows of `x` to mean 0 and variance 1, then applies `finish(result, column)`.
template <int COLUMNS, class X, class Finish>
__device__ void layer_norm(const X* x, X* y, float epsilon, Finish finish) {
    __shared__ float room[THREADS / 32];
    const auto add = [](float a, float b) { return a + b; };
    const X* row = x + (size_t)blockIdx.x * COLUMNS;
    float sum = 0.0f;
    for (int at = threadIdx.x; at < COLUMNS; at += THREADS) sum += row[at];
    const float mean = join_block(sum, room, add) / COLUMNS;
    float squares = 0.0f;
    for (int at = threadIdx.x; at < COLUMNS; at += THREADS) squares += (row[at] - mean) * (row[at] - mean);
    const float factor = 1.0f / sqrt(join_block(squares, room, add) / COLUMNS + epsilon);
    for (int at = threadIdx.x; at < COLUMNS; at += THREADS) {
        y[(size_t)blockIdx.x * COLUMNS + at] = finish((row[at] - mean) * factor, at);
    }
}

/// The same, a warp a row, whose elements are in registers. `finish(results, column)` takes eight of them. `ALIGNED` states that rows
/// are aligned to 16 bytes.
template <int ROWS, int COLUMNS, bool ALIGNED, class X, class Finish>
__device__ void layer_norm_by_warps(const X* x, X* y, float epsilon, Finish finish) {
    constexpr int EIGHTS = COLUMNS / 8, OWN = (EIGHTS + 31) / 32;
    const int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const auto of_warp = [](float own) {
        for (int distance = 16; 0 < distance; distance /= 2) own += __shfl_xor_sync(0xffffffffu, own, distance);
        return own;
    };
    const bool is_row = row < ROWS;
    const size_t start = (size_t)(is_row ? row : 0) * COLUMNS;
    // A factor, since the slow path of a division spills a register on sm_90.
    constexpr float SHARE = 1.0f / COLUMNS;
    float items[OWN][8], sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        if (EIGHTS <= own * 32 + lane) continue;
        load_run<ALIGNED>(x + start + (own * 32 + lane) * 8, items[own]);
#pragma unroll
        for (int ix = 0; ix < 8; ix++) sum += items[own][ix];
    }
    const float mean = of_warp(sum) * SHARE;
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        if (EIGHTS <= own * 32 + lane) continue;
#pragma unroll
        for (int ix = 0; ix < 8; ix++) squares += (items[own][ix] - mean) * (items[own][ix] - mean);
    }
    const float factor = 1.0f / sqrt(of_warp(squares) * SHARE + epsilon);
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        if (EIGHTS <= own * 32 + lane || !is_row) continue;
#pragma unroll
        for (int ix = 0; ix < 8; ix++) items[own][ix] = (items[own][ix] - mean) * factor;
        finish(items[own], (own * 32 + lane) * 8);
        store_run<ALIGNED>(items[own], y + start + (own * 32 + lane) * 8);
    }
}

/// Reduces `load(i)` for `i < COUNT` across the block; every thread gets the result.
template <int COUNT, class T, class Load, class Join>
__device__ T reduced(T start, Load load, Join join) {
    __shared__ T room[THREADS / 32];
    T own = start;
    for (int at = threadIdx.x; at < COUNT; at += THREADS) own = join(own, load(at));
    return join_block(own, room, join);
}

/// Attention of one query: the mean of the values, weighted by softmax of the scores. `score(key)` is the scaled product with
/// a key, `value(key, i)` an element of a value; `store(i, result)` receives the result.
template <int KEYS, int WIDTH, class Score, class Value, class Store>
__device__ void attend(Score score, Value value, Store store) {
    __shared__ float scores[KEYS == 0 ? 1 : KEYS];
    __shared__ float room[THREADS / 32];
    float top = -PRESTOW_INFINITY;
    for (int key = threadIdx.x; key < KEYS; key += THREADS) {
        scores[key] = score(key);
        top = scores[key] > top ? scores[key] : top;
    }
    top = join_block(top, room, [](float a, float b) { return a > b ? a : b; });
    float sum = 0.0f;
    for (int key = threadIdx.x; key < KEYS; key += THREADS) {
        scores[key] = exp(scores[key] - top);
        sum += scores[key];
    }
    sum = join_block(sum, room, [](float a, float b) { return a + b; });
    for (int at = threadIdx.x; at < WIDTH; at += THREADS) {
        float mean = 0.0f;
        for (int key = 0; key < KEYS; key++) mean += scores[key] * value(key, at);
        store(at, KEYS == 0 ? 0.0f : mean / sum);
    }
}

/// Applies the updates of one row to `own`, in their order: `own[i] = join(own[i], item)` for each of `updates: [COUNT, INNER]`
/// whose index is that row. A negative index counts from the end; one outside `EXTENT` rows is clamped to them.
template <int COUNT, int EXTENT, int INNER, class Index, class T, class Join>
__device__ void scatter_row(const Index* indices, const T* updates, unsigned row, T* own, Join join) {
    __shared__ unsigned hits[THREADS / 32];
    const int lane = threadIdx.x % 32;
    for (int first = 0; first < COUNT; first += THREADS) {
        unsigned hit = 0;
        if (first + (int)threadIdx.x < COUNT) {
            long long to = indices[first + threadIdx.x];
            to += to < 0 ? EXTENT : 0;
            to = to < 0 ? 0 : to < EXTENT ? to : EXTENT - 1;
            hit = to == row ? 1u << lane : 0u;
        }
        for (int distance = 16; 0 < distance; distance /= 2) hit |= __shfl_xor_sync(0xffffffffu, hit, distance);
        if (lane == 0) hits[threadIdx.x / 32] = hit;
        __syncthreads();
        for (int warp = 0; warp < THREADS / 32; warp++) {
            for (unsigned left = hits[warp]; left != 0; left &= left - 1) {
                const T* items = updates + (size_t)(first + warp * 32 + __ffs((int)left) - 1) * INNER;
                for (int at = threadIdx.x; at < INNER; at += THREADS) own[at] = join(own[at], items[at]);
            }
        }
        __syncthreads();
    }
}

/// Rows of `data: [EXTENT, INNER]` joined with updates by index, one block a row. `y` may be `data`.
template <int COUNT, int EXTENT, int INNER, class Index, class T, class Join>
__device__ void scatter(const T* data, const Index* indices, const T* updates, T* y, Join join) {
    const size_t start = (size_t)blockIdx.x * INNER;
    for (int at = threadIdx.x; at < INNER; at += THREADS) y[start + at] = data[start + at];
    scatter_row<COUNT, EXTENT, INNER>(indices, updates, blockIdx.x, y + start, join);
}
