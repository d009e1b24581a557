// Convolutions of `x: [batch, GROUPS * INS, ..]` with `weights: [GROUPS * OUTS, INS, taps]`. `finish(sum, channel, index)` is
// the epilogue; `index` is the position in the output.

/// Implicit GEMM: output channels by pixels, for each image and group (`blockIdx.z`), with split-K into `PARTS`.
template <class W, int INS, int OUTS, int GROUPS, int PARTS, class X, class K, class Y, class Finish>
__device__ void convolve(const X* x, const K* weights, Y* y, Finish finish, float* parts = nullptr, int iteration = 0) {
    const int item = blockIdx.z / PARTS, group = item % GROUPS;
    const X* input = x + (size_t)item * INS * W::INPUT;
    const K* kernel = weights + (size_t)group * OUTS * INS * W::TAPS;
    const auto left = [=](int out, int term) { return (float)kernel[out * (INS * W::TAPS) + term]; };
    const auto right = [=](int term, int output) {
        const int pixel = W::pixel(output, term % W::TAPS);
        return pixel < 0 ? 0.0f : (float)input[term / W::TAPS * W::INPUT + pixel];
    };
    const auto store = [=](int out, int output, float sum) {
        const size_t at = ((size_t)item * OUTS + out) * W::OUTPUT + output;
        y[at] = finish(sum, group * OUTS + out, at);
    };
    constexpr int TERMS = INS * W::TAPS;
    if constexpr (PARTS == 1) product<OUTS, W::OUTPUT, TERMS, 1>(0, left, right, store);
    else if (iteration == 0) product<OUTS, W::OUTPUT, TERMS, PARTS>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, W::OUTPUT>(parts));
    else reduce_splits<TILE, TILE, PARTS, OUTS, W::OUTPUT>(parts, store);
}

/// One thread per output, for groups of few channels.
template <class W, int BATCH, int INS, int OUTS, int GROUPS, class X, class K, class Y, class Finish>
__device__ void convolve_each(const X* x, const K* weights, Y* y, Finish finish) {
    const unsigned at = element();
    if (BATCH * GROUPS * OUTS * W::OUTPUT <= at) return;
    const int output = at % W::OUTPUT, channel = at / W::OUTPUT % (GROUPS * OUTS);
    const int image = at / W::OUTPUT / (GROUPS * OUTS), group = channel / OUTS;
    const X* input = x + (size_t)(image * GROUPS + group) * INS * W::INPUT;
    float sum = 0.0f;
    for (int in = 0; in < INS; in++) {
        for (int tap = 0; tap < W::TAPS; tap++) {
            const int pixel = W::pixel(output, tap);
            if (0 <= pixel) sum += input[in * W::INPUT + pixel] * weights[(channel * INS + in) * W::TAPS + tap];
        }
    }
    y[at] = finish(sum, channel, at);
}

/// Transposed convolution with `weights: [GROUPS * INS, OUTS, taps]`. Each output sums over the inputs that reach it.
template <class W, int BATCH, int INS, int OUTS, int GROUPS, class X, class K, class Y, class Finish>
__device__ void convolve_transposed(const X* x, const K* weights, Y* y, Finish finish) {
    const unsigned at = element();
    if (BATCH * GROUPS * OUTS * W::OUTPUT <= at) return;
    const int output = at % W::OUTPUT, channel = at / W::OUTPUT % (GROUPS * OUTS);
    const int image = at / W::OUTPUT / (GROUPS * OUTS), group = channel / OUTS;
    float sum = 0.0f;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::reaching(output, tap);
        if (pixel < 0) continue;
        for (int in = group * INS; in < (group + 1) * INS; in++) {
            const float weight = weights[(in * OUTS + channel % OUTS) * W::TAPS + tap];
            sum += x[(size_t)(image * GROUPS * INS + in) * W::INPUT + pixel] * weight;
        }
    }
    y[at] = finish(sum, channel, at);
}

// Gradients of weights, for `x` as above and `dy: [batch, GROUPS * OUTS, ..]`: sums over images and output pixels. Terms are
// image by image.

/// A product per group (`blockIdx.z`): output channels by input channels and taps, with split-K into `PARTS`.
template <class W, int BATCH, int INS, int OUTS, int GROUPS, int PARTS, class X, class Y>
__device__ void weight_gradient(const X* x, const X* dy, Y* y, float* parts = nullptr, int iteration = 0) {
    const int group = blockIdx.z / PARTS;
    const X* input = x + (size_t)group * INS * W::INPUT;
    const X* gradient = dy + (size_t)group * OUTS * W::OUTPUT;
    const auto left = [=](int out, int term) {
        return (float)gradient[((size_t)(term / W::OUTPUT) * (GROUPS * OUTS) + out) * W::OUTPUT + term % W::OUTPUT];
    };
    const auto right = [=](int term, int column) {
        const int pixel = W::pixel(term % W::OUTPUT, column % W::TAPS);
        const size_t plane = (size_t)(term / W::OUTPUT) * (GROUPS * INS) + column / W::TAPS;
        return pixel < 0 ? 0.0f : (float)input[plane * W::INPUT + pixel];
    };
    constexpr int COLUMNS = INS * W::TAPS, TERMS = BATCH * W::OUTPUT;
    const auto store = [=](int out, int column, float sum) { y[((size_t)group * OUTS + out) * COLUMNS + column] = sum; };
    if constexpr (PARTS == 1) product<OUTS, COLUMNS, TERMS, 1>(0, left, right, store);
    else if (iteration == 0) product<OUTS, COLUMNS, TERMS, PARTS>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, COLUMNS>(parts));
    else reduce_splits<TILE, TILE, PARTS, OUTS, COLUMNS>(parts, store);
}

/// One block per weight, for groups of few channels.
template <class W, int BATCH, int INS, int OUTS, int GROUPS, class X, class Y>
__device__ void weight_gradient_each(const X* x, const X* dy, Y* y) {
    __shared__ float room[THREADS / 32];
    const int tap = blockIdx.x % W::TAPS, channel = blockIdx.x / W::TAPS / INS;
    const int in = channel / OUTS * INS + blockIdx.x / W::TAPS % INS;
    float sum = 0.0f;
    for (int term = threadIdx.x; term < BATCH * W::OUTPUT; term += THREADS) {
        const int image = term / W::OUTPUT, output = term % W::OUTPUT, pixel = W::pixel(output, tap);
        if (pixel < 0) continue;
        const size_t to = ((size_t)image * (GROUPS * OUTS) + channel) * W::OUTPUT + output;
        sum += x[((size_t)image * (GROUPS * INS) + in) * W::INPUT + pixel] * dy[to];
    }
    sum = join_block(sum, room, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
