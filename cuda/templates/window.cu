// Windows over images `[batch, channels, rows, columns]`.

/// The geometry of a window, rows before columns.
template <int INPUT_ROWS, int INPUT_COLUMNS, int OUTPUT_ROWS, int OUTPUT_COLUMNS, int KERNEL_ROWS, int KERNEL_COLUMNS,
          int STRIDE_ROWS, int STRIDE_COLUMNS, int DILATION_ROWS, int DILATION_COLUMNS, int PAD_ROWS, int PAD_COLUMNS>
struct Window {
    static constexpr int INPUT = INPUT_ROWS * INPUT_COLUMNS;
    static constexpr int OUTPUT = OUTPUT_ROWS * OUTPUT_COLUMNS;
    static constexpr int TAPS = KERNEL_ROWS * KERNEL_COLUMNS;
    static constexpr int ROW_TAPS = KERNEL_ROWS, COLUMN_TAPS = KERNEL_COLUMNS;

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
