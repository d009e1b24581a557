// Windows over images `[batch, channels, rows, columns]`.

/// A set of taps' rows and columns, a bit each.
template <bool WIDE>
struct TapSet {
    using Type = unsigned;
    static constexpr int BITS = 32;
};
template <>
struct TapSet<true> {
    using Type = unsigned long long;
    static constexpr int BITS = 64;
};

/// The geometry of a window, rows before columns.
template <int INPUT_ROWS_, int INPUT_COLUMNS_, int OUTPUT_ROWS_, int OUTPUT_COLUMNS_, int KERNEL_ROWS, int KERNEL_COLUMNS,
          int STRIDE_ROWS, int STRIDE_COLUMNS, int DILATION_ROWS, int DILATION_COLUMNS, int PAD_ROWS, int PAD_COLUMNS>
struct Window {
    static constexpr int INPUT_ROWS = INPUT_ROWS_, INPUT_COLUMNS = INPUT_COLUMNS_, INPUT = INPUT_ROWS * INPUT_COLUMNS;
    static constexpr int OUTPUT_ROWS = OUTPUT_ROWS_, OUTPUT_COLUMNS = OUTPUT_COLUMNS_, OUTPUT = OUTPUT_ROWS * OUTPUT_COLUMNS;
    static constexpr int ROW_TAPS = KERNEL_ROWS, COLUMN_TAPS = KERNEL_COLUMNS, TAPS = KERNEL_ROWS * KERNEL_COLUMNS;
    static constexpr int ROW_STRIDE = STRIDE_ROWS, COLUMN_STRIDE = STRIDE_COLUMNS, ROW_DILATION = DILATION_ROWS;
    static constexpr int COLUMN_DILATION = DILATION_COLUMNS, ROW_PAD = PAD_ROWS, COLUMN_PAD = PAD_COLUMNS;

    using Taps = TapSet<32 <= ROW_TAPS + COLUMN_TAPS>;

    /// The pixel that the first tap of `output` reads, counted on into the padding.
    static __device__ int corner(int output) {
        return (output / OUTPUT_COLUMNS * STRIDE_ROWS - PAD_ROWS) * INPUT_COLUMNS + output % OUTPUT_COLUMNS * STRIDE_COLUMNS - PAD_COLUMNS;
    }

    /// The distance of a tap from the first one, in pixels.
    static __device__ int from_corner(int row, int column) { return row * DILATION_ROWS * INPUT_COLUMNS + column * DILATION_COLUMNS; }

    /// A bit for each row of taps of `output` that is inside the image, then one for each column.
    static __device__ typename Taps::Type taps_inside(int output) {
        typename Taps::Type bits = 0;
#pragma unroll
        for (int tap = 0; tap < KERNEL_ROWS; tap++) {
            const int row = output / OUTPUT_COLUMNS * STRIDE_ROWS + tap * DILATION_ROWS - PAD_ROWS;
            bits |= typename Taps::Type(0 <= row && row < INPUT_ROWS) << tap;
        }
#pragma unroll
        for (int tap = 0; tap < KERNEL_COLUMNS; tap++) {
            const int column = output % OUTPUT_COLUMNS * STRIDE_COLUMNS + tap * DILATION_COLUMNS - PAD_COLUMNS;
            bits |= typename Taps::Type(0 <= column && column < INPUT_COLUMNS) << (KERNEL_ROWS + tap);
        }
        return bits;
    }

    /// The pixel that `tap` of `output` reads, or -1 in padding.
    static __device__ int pixel(int output, int tap) {
        const int row = output / OUTPUT_COLUMNS * STRIDE_ROWS + tap / KERNEL_COLUMNS * DILATION_ROWS - PAD_ROWS;
        const int column = output % OUTPUT_COLUMNS * STRIDE_COLUMNS + tap % KERNEL_COLUMNS * DILATION_COLUMNS - PAD_COLUMNS;
        const bool inside = 0 <= row && row < INPUT_ROWS && 0 <= column && column < INPUT_COLUMNS;
        return inside ? row * INPUT_COLUMNS + column : -1;
    }

    /// Whether `tap` of `output` lies within the image and its padding, which has these rows and columns at the end.
    static __device__ bool counted(int output, int tap, int rows_behind, int columns_behind) {
        const int row = output / OUTPUT_COLUMNS * STRIDE_ROWS + tap / KERNEL_COLUMNS * DILATION_ROWS;
        const int column = output % OUTPUT_COLUMNS * STRIDE_COLUMNS + tap % KERNEL_COLUMNS * DILATION_COLUMNS;
        return row < PAD_ROWS + INPUT_ROWS + rows_behind && column < PAD_COLUMNS + INPUT_COLUMNS + columns_behind;
    }

    /// Transposed convolution: the input pixel that reaches `output` through `tap`, or -1.
    static __device__ int reaching(int output, int tap) {
        const int row = output / OUTPUT_COLUMNS + PAD_ROWS - tap / KERNEL_COLUMNS * DILATION_ROWS;
        const int column = output % OUTPUT_COLUMNS + PAD_COLUMNS - tap % KERNEL_COLUMNS * DILATION_COLUMNS;
        const bool inside = 0 <= row && row % STRIDE_ROWS == 0 && row / STRIDE_ROWS < INPUT_ROWS && 0 <= column &&
                            column % STRIDE_COLUMNS == 0 && column / STRIDE_COLUMNS < INPUT_COLUMNS;
        return inside ? row / STRIDE_ROWS * INPUT_COLUMNS + column / STRIDE_COLUMNS : -1;
    }
};

/// A window over three dimensions: `D` slides over planes, which are the rows of its one column, and `W` over each plane.
template <class D, class W>
struct DeepWindow {
    static constexpr int INPUT = D::INPUT * W::INPUT;
    static constexpr int OUTPUT = D::OUTPUT * W::OUTPUT;
    static constexpr int TAPS = D::TAPS * W::TAPS;

    /// As in `Window`.
    static __device__ int pixel(int output, int tap) {
        const int plane = D::pixel(output / W::OUTPUT, tap / W::TAPS), pixel = W::pixel(output % W::OUTPUT, tap % W::TAPS);
        return plane < 0 || pixel < 0 ? -1 : plane * W::INPUT + pixel;
    }
    static __device__ bool counted(int output, int tap, int planes_behind, int rows_behind, int columns_behind) {
        return D::counted(output / W::OUTPUT, tap / W::TAPS, planes_behind, 0) &&
               W::counted(output % W::OUTPUT, tap % W::TAPS, rows_behind, columns_behind);
    }
    static __device__ int reaching(int output, int tap) {
        const int plane = D::reaching(output / W::OUTPUT, tap / W::TAPS), pixel = W::reaching(output % W::OUTPUT, tap % W::TAPS);
        return plane < 0 || pixel < 0 ? -1 : plane * W::INPUT + pixel;
    }
};
