// Pooling: one thread an output.

template <class W, int PLANES, class X>
__device__ void pool_max(const X* x, X* y) {
    const unsigned at = element();
    if (PLANES * W::OUTPUT <= at) return;
    const X* plane = x + (size_t)(at / W::OUTPUT) * W::INPUT;
    float largest = -PRESTOW_INFINITY;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(at % W::OUTPUT, tap);
        if (pixel < 0) continue;
        const float item = plane[pixel];
        if (item > largest || item != item) largest = item;
    }
    y[at] = largest;
}

/// The mean of what lies inside; with `PADDED` of the padding too, of which so many rows and columns lie behind.
template <class W, int PLANES, bool PADDED, int ROWS_BEHIND, int COLUMNS_BEHIND, class X>
__device__ void pool_mean(const X* x, X* y) {
    const unsigned at = element();
    if (PLANES * W::OUTPUT <= at) return;
    const X* plane = x + (size_t)(at / W::OUTPUT) * W::INPUT;
    float sum = 0.0f;
    int count = 0;
    for (int tap = 0; tap < W::TAPS; tap++) {
        const int pixel = W::pixel(at % W::OUTPUT, tap);
        if (0 <= pixel) sum += plane[pixel];
        count += PADDED ? W::counted(at % W::OUTPUT, tap, ROWS_BEHIND, COLUMNS_BEHIND) : 0 <= pixel;
    }
    y[at] = sum / count;
}
