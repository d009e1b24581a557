// Convolutions of channels-last values `x: [IMAGES, pixels, channels]`, on tensor cores and by channel. Output pixels of all images are the rows of one product, so that small images leave no part of a tile empty.

/// A loader of rows of pixels in the order of taps, then channels, in pieces of `BYTES` bytes, for `product_by_cores`. `INS` channels
/// are a multiple of a piece.
template <class T, class S, class W, int IMAGES, int INS, int BYTES>
struct WindowCopies {
    static constexpr bool TURNED = false;
    static constexpr int DEPTH = DEPTH_OF<T>, SIZE = BYTES / 4, PIECES = WORDS / SIZE, STEP = S::THREADS / PIECES, OWN = S::ROWS / STEP;
    static_assert(STEP % 8 == 0 && S::ROWS % STEP == 0, "a thread's lines have the same place in the swizzle");
    static_assert(W::ROW_TAPS + W::COLUMN_TAPS < W::Taps::BITS && INS % (SIZE * IN_WORD<T>) == 0, "taps have a bit each, and a piece has one tap");
    const Stored<T>* x;
    /// Of each own row the first tap's element, which may lie in the padding, and which taps' rows and columns are inside.
    int corners[OWN];
    typename W::Taps::Type inside[OWN];
    int tap, channel, place;
    __device__ __forceinline__ WindowCopies(const Stored<T>* x, int first_row, int tile) : x(x) {
        const int line = threadIdx.x / PIECES, word = threadIdx.x % PIECES * SIZE, term = tile * DEPTH + word * IN_WORD<T>;
        tap = term / INS, channel = term % INS, place = in_left(line, word);
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const int row = first_row + line + own * STEP, output = row % W::OUTPUT;
            corners[own] = (row / W::OUTPUT * W::INPUT + W::corner(output)) * INS;
            inside[own] = row < IMAGES * W::OUTPUT ? W::taps_inside(output) : 0;
        }
    }
    __device__ __forceinline__ void begin(unsigned* tile) {
        const int row = tap / W::COLUMN_TAPS, column = tap % W::COLUMN_TAPS, offset = W::from_corner(row, column) * INS + channel;
        // The highest bit is never set.
        using Taps = typename W::Taps::Type;
        const Taps wanted = tap < W::TAPS ? Taps(1) << row | Taps(1) << (W::ROW_TAPS + column) : Taps(1) << (W::Taps::BITS - 1);
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const bool reads = (inside[own] & wanted) == wanted;
            copy_later<BYTES>(tile + place + own * STEP * WORDS, reads ? x + (corners[own] + offset) : x, reads);
        }
        channel += DEPTH % INS, tap += DEPTH / INS;
        if (DEPTH % INS != 0 && INS <= channel) channel -= INS, tap++;
    }
    __device__ __forceinline__ void end(unsigned*) {}
};

/// Loaders of a convolution with `weights: [OUTS, TERMS]`, where a line has the inputs of each tap, then zeros. A window of one pixel without padding or stride is a matrix of pixels by channels (`PLAIN`).
template <class T, class S, class W, int IMAGES, int INS, int OUTS, int TERMS, int BYTES, bool PLAIN>
struct Windows {
    const Stored<T>*x, *weights;
    __device__ __forceinline__ auto left(int first_row, int tile) const {
        if constexpr (PLAIN && BYTES == 16) {
            return LineCopies<T, S::THREADS, S::ROWS, IMAGES * W::OUTPUT, INS, INS>(x, first_row, tile);
        } else if constexpr (4 <= BYTES) {
            return WindowCopies<T, S, W, IMAGES, INS, BYTES>(x, first_row, tile);
        } else {
            const auto item = [x = x](int row, int term) -> const Stored<T>* {
                const int tap = term / INS, pixel = tap < W::TAPS ? W::pixel(row % W::OUTPUT, tap) : -1;
                return pixel < 0 ? nullptr : x + ((row / W::OUTPUT * W::INPUT + pixel) * INS + term % INS);
            };
            return GatheredLines<T, S::THREADS, S::ROWS, IMAGES * W::OUTPUT, TERMS, BYTES, decltype(item)>(item, first_row, tile);
        }
    }
    __device__ __forceinline__ auto right(int first_column, int tile) const {
        return LineCopies<T, S::THREADS, S::COLUMNS, OUTS, TERMS, TERMS>(weights, first_column, tile);
    }
};

/// Depthwise convolution with `weights: [taps, CHANNELS]`: a thread computes eight channels of `RUN` neighboring pixels of a row, and
/// reads each of their inputs once. `ALIGNED` states that `x`, `y` and the operands of `finish` are multiples of 16 bytes.
template <class W, int IMAGES, int CHANNELS, int RUN, bool ALIGNED, class X, class K, class Y, class Finish, class FinishEight>
__device__ void convolve_by_channel(const X* x, const K* weights, Y* y, Finish finish, FinishEight finish_eight) {
    constexpr int RUNS = (W::OUTPUT_COLUMNS + RUN - 1) / RUN, GROUPS = CHANNELS / 8, REACH = (RUN - 1) * W::COLUMN_STRIDE + (W::COLUMN_TAPS - 1) * W::COLUMN_DILATION + 1;
    const unsigned at = element();
    if ((unsigned)IMAGES * W::OUTPUT_ROWS * RUNS * GROUPS <= at) return;
    const int channel = at % GROUPS * 8, run = at / GROUPS % RUNS * RUN, row = at / (GROUPS * RUNS) % W::OUTPUT_ROWS;
    const int image = at / (GROUPS * RUNS) / W::OUTPUT_ROWS;
    const X* input = x + (size_t)image * W::INPUT * CHANNELS + channel;
    float sums[RUN][8] = {};
#pragma unroll
    for (int down = 0; down < W::ROW_TAPS; down++) {
        const int from = row * W::ROW_STRIDE + down * W::ROW_DILATION - W::ROW_PAD;
        if (from < 0 || W::INPUT_ROWS <= from) continue;
        float factors[W::COLUMN_TAPS][8];
#pragma unroll
        for (int tap = 0; tap < W::COLUMN_TAPS; tap++) load_eight(weights + (down * W::COLUMN_TAPS + tap) * CHANNELS + channel, factors[tap]);
#pragma unroll
        for (int reach = 0; reach < REACH; reach++) {
            const int column = run * W::COLUMN_STRIDE + reach - W::COLUMN_PAD;
            if (column < 0 || W::INPUT_COLUMNS <= column) continue;
            float items[8];
            const X* eight = input + (from * W::INPUT_COLUMNS + column) * CHANNELS;
            if constexpr (ALIGNED) load_eight(eight, items);
            else for (int ix = 0; ix < 8; ix++) items[ix] = eight[ix];
#pragma unroll
            for (int own = 0; own < RUN; own++) {
                const int apart = reach - own * W::COLUMN_STRIDE, tap = apart / W::COLUMN_DILATION;
                if (apart < 0 || apart % W::COLUMN_DILATION != 0 || W::COLUMN_TAPS <= tap) continue;
#pragma unroll
                for (int ix = 0; ix < 8; ix++) sums[own][ix] += items[ix] * factors[tap][ix];
            }
        }
    }
    const size_t first = ((size_t)image * W::OUTPUT + row * W::OUTPUT_COLUMNS + run) * CHANNELS + channel;
    // Epilogues come before all stores, as in `product_by_cores`.
#pragma unroll
    for (int own = 0; own < RUN; own++) {
        if (run + own < W::OUTPUT_COLUMNS && ALIGNED) finish_eight(sums[own], channel, first + own * CHANNELS);
    }
#pragma unroll
    for (int own = 0; own < RUN; own++) {
        if (W::OUTPUT_COLUMNS <= run + own) continue;
        const size_t to = first + own * CHANNELS;
        if constexpr (ALIGNED) store_eight(sums[own], y + to);
        else for (int ix = 0; ix < 8; ix++) y[to + ix] = finish(sums[own][ix], channel + ix, to + ix);
    }
}
