// Pooling: one thread per output. `LANES` is the number of channels that are adjacent in memory: 1 if row-major.

template <class W, int PLANES, int LANES, class X>
__device__ void pool_max(const X* x, X* y) {
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

/// The mean over the window's pixels. `PADDED` counts padding too; `ROWS_BEHIND` and `COLUMNS_BEHIND` are the padding at the end.
template <class W, int PLANES, int LANES, bool PADDED, int ROWS_BEHIND, int COLUMNS_BEHIND, class X>
__device__ void pool_mean(const X* x, X* y) {
    const unsigned at = element();
    if (PLANES * W::OUTPUT * LANES <= at) return;
    const int output = at / LANES % W::OUTPUT;
    const X* plane = x + (size_t)(at / LANES / W::OUTPUT) * W::INPUT * LANES + at % LANES;
    float sum = 0.0f;
    int count = 0;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(output, tap);
        if (0 <= pixel) sum += plane[pixel * LANES];
        count += PADDED ? W::counted(output, tap, ROWS_BEHIND, COLUMNS_BEHIND) : 0 <= pixel;
    }
    y[at] = sum / count;
}
