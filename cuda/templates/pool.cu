// Pooling: one thread per output. `LANES` is the number of channels that are adjacent in memory: 1 if row-major. Where `EIGHT`,
// a thread has eight of them; with `ALIGNED`, `x` and `y` are multiples of 16 bytes.

/// Reduces the pixels of the thread's window, eight channels at once: `join(result, item)`, then `end(result, output)`.
template <class W, int PLANES, int LANES, bool ALIGNED, class X, class Join, class End>
__device__ void pool_eight(const X* x, X* y, float start, Join join, End end) {
    const unsigned at = element();
    if (PLANES * W::OUTPUT * (LANES / 8) <= at) return;
    const int output = at / (LANES / 8) % W::OUTPUT, lane = at % (LANES / 8) * 8;
    const X* plane = x + (size_t)(at / (LANES / 8) / W::OUTPUT) * W::INPUT * LANES + lane;
    float results[8];
    for (int ix = 0; ix < 8; ix++) results[ix] = start;
#pragma unroll 4
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(output, tap);
        if (pixel < 0) continue;
        float items[8];
        load_run<ALIGNED>(plane + pixel * LANES, items);
#pragma unroll
        for (int ix = 0; ix < 8; ix++) results[ix] = join(results[ix], items[ix]);
    }
#pragma unroll
    for (int ix = 0; ix < 8; ix++) results[ix] = end(results[ix], output);
    store_run<ALIGNED>(results, y + (size_t)at * 8);
}

template <class W, int PLANES, int LANES, bool EIGHT = false, bool ALIGNED = false, class X>
__device__ void pool_max(const X* x, X* y) {
    if constexpr (EIGHT) {
        const auto larger = [](float largest, float item) { return item > largest || item != item ? item : largest; };
        pool_eight<W, PLANES, LANES, ALIGNED>(x, y, -PRESTOW_INFINITY, larger, [](float largest, int) { return largest; });
        return;
    }
    const unsigned at = element();
    if (PLANES * W::OUTPUT * LANES <= at) return;
    const int output = at / LANES % W::OUTPUT;
    const X* plane = x + (size_t)(at / LANES / W::OUTPUT) * W::INPUT * LANES + at % LANES;
    float largest = -PRESTOW_INFINITY;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(output, tap);
        if (pixel < 0) continue;
        const float item = plane[pixel * LANES];
        if (item > largest || item != item) largest = item;
    }
    y[at] = largest;
}

/// The largest pixel of a window: its tap, and the pixel. The first of equal ones; a NaN is not larger than any pixel. No tap
/// is in the image: -1.
struct Largest {
    int tap, pixel;
};
template <class W, int LANES, class X>
__device__ Largest largest_of(const X* plane, int output) {
    Largest largest = {-1, -1};
    float most = -PRESTOW_INFINITY;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(output, tap);
        if (pixel < 0) continue;
        const float item = plane[pixel * LANES];
        if (largest.tap < 0 || most < item) {
            largest = {tap, pixel};
            most = item != item ? most : item;
        }
    }
    return largest;
}

/// `pool_max`, and the tap of the largest pixel of each window.
template <class W, int PLANES, class X>
__device__ void pool_max_with_positions(const X* x, X* y, unsigned char* positions) {
    const unsigned at = element();
    if (PLANES * W::OUTPUT <= at) return;
    const Largest largest = largest_of<W, 1>(x + (size_t)(at / W::OUTPUT) * W::INPUT, at % W::OUTPUT);
    pool_max<W, PLANES, 1>(x, y);
    positions[at] = (unsigned char)(largest.tap < 0 ? 0 : largest.tap);
}

/// The number of pixels of a window. `PADDED` counts padding too; `BEHIND` is the padding at the end of each dimension.
template <class W, bool PADDED, int... BEHIND>
__device__ int pixels_of(int output) {
    int count = 0;
    for (int tap = 0; tap < W::TAPS; tap++) count += PADDED ? W::counted(output, tap, BEHIND...) : 0 <= W::pixel(output, tap);
    return count;
}

/// The mean over the window's pixels, which are counted as `pixels_of` does.
template <class W, int PLANES, int LANES, bool EIGHT, bool ALIGNED, bool PADDED, int... BEHIND, class X>
__device__ void pool_mean(const X* x, X* y) {
    if constexpr (EIGHT) {
        const auto mean = [](float sum, int output) { return sum / pixels_of<W, PADDED, BEHIND...>(output); };
        pool_eight<W, PLANES, LANES, ALIGNED>(x, y, 0.0f, [](float sum, float item) { return sum + item; }, mean);
        return;
    }
    const unsigned at = element();
    if (PLANES * W::OUTPUT * LANES <= at) return;
    const int output = at / LANES % W::OUTPUT;
    const X* plane = x + (size_t)(at / LANES / W::OUTPUT) * W::INPUT * LANES + at % LANES;
    float sum = 0.0f;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(output, tap);
        if (0 <= pixel) sum += plane[pixel * LANES];
    }
    y[at] = sum / pixels_of<W, PADDED, BEHIND...>(output);
}

// Gradients: one thread per pixel of the operand, which adds up the gradients of all windows that it belongs to. `W` is the
// pool's window, `B` the same with operand and result exchanged.

/// Calls `visit(output, tap)` for each window that has a pixel, and the tap at which it has it.
template <class B, class Visit>
__device__ void for_each_window(int pixel, Visit visit) {
    for (int tap = 0; tap < B::TAPS; tap++) {
        const int output = B::reaching(pixel, tap);
        if (0 <= output) visit(output, tap);
    }
}

/// Of maxima, whose largest pixels are searched again in `x`.
template <class W, class B, int PLANES, class X>
__device__ void pool_max_gradient(const X* dy, const X* x, X* dx) {
    const unsigned at = element();
    if (PLANES * W::INPUT <= at) return;
    const X* gradient = dy + (size_t)(at / W::INPUT) * W::OUTPUT;
    const X* plane = x + (size_t)(at / W::INPUT) * W::INPUT;
    const int pixel = at % W::INPUT;
    float sum = 0.0f;
    for_each_window<B>(pixel, [&](int output, int) {
        if (largest_of<W, 1>(plane, output).pixel == pixel) sum += gradient[output];
    });
    dx[at] = sum;
}

/// Of maxima with positions.
template <class W, class B, int PLANES, class X>
__device__ void pool_max_gradient_by_positions(const X* dy, const unsigned char* positions, X* dx) {
    const unsigned at = element();
    if (PLANES * W::INPUT <= at) return;
    const size_t first = (size_t)(at / W::INPUT) * W::OUTPUT;
    float sum = 0.0f;
    for_each_window<B>(at % W::INPUT, [&](int output, int tap) {
        if (positions[first + output] == tap) sum += dy[first + output];
    });
    dx[at] = sum;
}

/// Of means.
template <class W, class B, int PLANES, bool PADDED, int... BEHIND, class X>
__device__ void pool_mean_gradient(const X* dy, X* dx) {
    const unsigned at = element();
    if (PLANES * W::INPUT <= at) return;
    const X* gradient = dy + (size_t)(at / W::INPUT) * W::OUTPUT;
    float sum = 0.0f;
    for_each_window<B>(at % W::INPUT, [&](int output, int) {
        sum += gradient[output] / pixels_of<W, PADDED, BEHIND...>(output);
    });
    dx[at] = sum;
}
