// Training: normalization with the statistics of the batch, dropout, losses, sums by index, updates.

/// Elements of one channel of `[IMAGES, CHANNELS, CELLS]`, image by image.
template <int CHANNELS, int CELLS>
__device__ size_t of_channel(int channel, int ix) {
    return ((size_t)(ix / CELLS) * CHANNELS + channel) * CELLS + ix % CELLS;
}

/// Batch normalization of one channel per block, with its mean and its biased variance.
template <int IMAGES, int CHANNELS, int CELLS>
__device__ void batch_norm_training(const float* x, const float* scale, const float* shift, float* y, float* means, float* variances, float epsilon) {
    constexpr int COUNT = IMAGES * CELLS;
    const int channel = blockIdx.x;
    const auto item = [=](int ix) { return x[of_channel<CHANNELS, CELLS>(channel, ix)]; };
    const auto add = [](float a, float b) { return a + b; };
    const float mean = reduced<COUNT>(0.0f, item, add) / COUNT;
    const float variance = reduced<COUNT>(0.0f, [=](int ix) { return (item(ix) - mean) * (item(ix) - mean); }, add) / COUNT;
    const float deviation = sqrt(variance + epsilon);
    for (int ix = threadIdx.x; ix < COUNT; ix += THREADS) {
        y[of_channel<CHANNELS, CELLS>(channel, ix)] = (item(ix) - mean) / deviation * scale[channel] + shift[channel];
    }
    if (threadIdx.x == 0) means[channel] = mean, variances[channel] = variance;
}

/// Its gradients. `dx` may have the bytes of `dy` or of `x`: a thread reads its elements last right before it writes them.
template <int IMAGES, int CHANNELS, int CELLS>
__device__ void batch_norm_gradient(const float* dy, const float* x, const float* scale, const float* means, const float* variances, float* dx,
                                    float* dscale, float* dshift, float epsilon) {
    constexpr int COUNT = IMAGES * CELLS;
    const int channel = blockIdx.x;
    const float mean = means[channel], deviation = sqrt(variances[channel] + epsilon);
    const auto slope = [=](int ix) { return dy[of_channel<CHANNELS, CELLS>(channel, ix)]; };
    const auto normal = [=](int ix) { return (x[of_channel<CHANNELS, CELLS>(channel, ix)] - mean) / deviation; };
    const auto add = [](float a, float b) { return a + b; };
    const float of_shift = reduced<COUNT>(0.0f, slope, add);
    const float of_scale = reduced<COUNT>(0.0f, [=](int ix) { return slope(ix) * normal(ix); }, add);
    for (int ix = threadIdx.x; ix < COUNT; ix += THREADS) {
        const float own = slope(ix) - of_shift / COUNT - normal(ix) * (of_scale / COUNT);
        dx[of_channel<CHANNELS, CELLS>(channel, ix)] = scale[channel] / deviation * own;
    }
    if (threadIdx.x == 0) dscale[channel] = of_scale, dshift[channel] = of_shift;
}

/// Four numbers of 32 random bits, `types::Philox::block`.
struct Philox {
    unsigned numbers[4];
    __device__ Philox(unsigned block, unsigned stream, unsigned long long seed, unsigned long long step)
        : numbers{block, stream, (unsigned)step, (unsigned)(step >> 32)} {
        unsigned key[2] = {(unsigned)seed, (unsigned)(seed >> 32)};
        for (int round = 0; round < 10; round++) {
            const unsigned long long a = 0xd2511f53ull * numbers[0], b = 0xcd9e8d57ull * numbers[2];
            const unsigned first = (unsigned)(b >> 32) ^ numbers[1] ^ key[0], third = (unsigned)(a >> 32) ^ numbers[3] ^ key[1];
            numbers[0] = first, numbers[1] = (unsigned)b, numbers[2] = third, numbers[3] = (unsigned)a;
            key[0] += 0x9e3779b9u, key[1] += 0xbb67ae85u;
        }
    }
};

/// Dropout, four elements per thread. `y` may have the bytes of `x`.
template <int ELEMENTS>
__device__ void drop(const float* x, const long long* key, float* y, unsigned stream, unsigned threshold, float scale) {
    const unsigned block = element();
    if ((ELEMENTS + 3) / 4 <= block) return;
    const Philox random(block, stream, (unsigned long long)key[0], (unsigned long long)key[1]);
    for (int ix = 0; ix < 4; ix++) {
        const unsigned at = block * 4 + ix;
        if (at < ELEMENTS) y[at] = random.numbers[ix] < threshold ? 0.0f : x[at] * scale;
    }
}

/// The maximum of a row of logits and the sum of its shifted exponentials, in every thread of its block.
struct SoftmaxSums {
    float top, sum;
};
template <int CLASSES>
__device__ SoftmaxSums softmax_sums(const float* row) {
    const float top = reduced<CLASSES>(-PRESTOW_INFINITY, [=](int ix) { return row[ix]; }, [](float a, float b) { return b > a ? b : a; });
    return {top, reduced<CLASSES>(0.0f, [=](int ix) { return exp(row[ix] - top); }, [](float a, float b) { return a + b; })};
}

/// Cross-entropy of one row per block. `counts(label)` is whether a label is a class that is not ignored; `SMOOTH` spreads the
/// part `smoothing` of the target over all classes.
template <int CLASSES, bool SMOOTH, class Label, class Counts>
__device__ void cross_entropy(const float* logits, const Label* labels, float* losses, float smoothing, Counts counts) {
    const float* row = logits + (size_t)blockIdx.x * CLASSES;
    const long long label = labels[blockIdx.x];
    const SoftmaxSums sums = softmax_sums<CLASSES>(row);
    float spread = 0.0f;
    if constexpr (SMOOTH) {
        spread = smoothing * (reduced<CLASSES>(0.0f, [=](int ix) { return row[ix]; }, [](float a, float b) { return a + b; }) / CLASSES);
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = counts(label) ? sums.top + log(sums.sum) - (1.0f - smoothing) * row[label] - spread : 0.0f;
}

/// Its gradient. `dx` may have the bytes of `logits`: the sums are complete before the first result.
template <int CLASSES, class Label, class Counts>
__device__ void cross_entropy_gradient(const float* dlosses, const float* logits, const Label* labels, float* dx, float smoothing, Counts counts) {
    const size_t first = (size_t)blockIdx.x * CLASSES;
    const long long label = labels[blockIdx.x];
    const SoftmaxSums sums = softmax_sums<CLASSES>(logits + first);
    const float slope = dlosses[blockIdx.x];
    for (int ix = threadIdx.x; ix < CLASSES; ix += THREADS) {
        const float target = smoothing / CLASSES + (ix == label ? 1.0f - smoothing : 0.0f);
        dx[first + ix] = counts(label) ? slope * (exp(logits[first + ix] - sums.top) / sums.sum - target) : 0.0f;
    }
}

/// Sums of `updates: [outer, COUNT, INNER]` by index, one block per slice of `y: [outer, EXTENT, INNER]`. Slices with one index
/// are added in their order.
template <int COUNT, int EXTENT, int INNER, class Index>
__device__ void scatter_add(const Index* indices, const float* updates, float* y) {
    float* own = y + (size_t)blockIdx.x * INNER;
    for (int at = threadIdx.x; at < INNER; at += THREADS) own[at] = 0.0f;
    const float* from = updates + (size_t)(blockIdx.x / EXTENT) * COUNT * INNER;
    const auto add = [](float sum, float item) { return sum + item; };
    scatter_row<COUNT, EXTENT, INNER>(indices, from, blockIdx.x % EXTENT, own, add);
}

/// A product that is rounded before it is added to anything. Updates are the same bits on every device.
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }

/// `1 - beta ^ step`, the correction of a moment; steps count from 1.
__device__ inline double correction(float beta, long long step) { return 1.0 - pow((double)beta, (double)(step < 1 ? 1 : step)); }
