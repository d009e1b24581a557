// Products by tensor cores, and convolutions as such: of halves, which are multiplied exactly, and of f32 rounded to eleven
// bits (TF32), whose products an f32 holds too. Sums are f32. A block computes 32 M x 32 N results; each of its warps, two
// below each other and four side by side, M x N tiles of 16 x 8.

#ifndef PRESTOW_SHIM
/// To eleven bits, to the nearest and of two to the one farther from zero. The shim has the same in C++.
__device__ inline unsigned tf32_of_float(float number) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(number));
    return bits;
}
#endif

/// An f32 as tensor cores take it.
struct tf32 {
    unsigned bits;
    tf32() = default;
    __device__ explicit tf32(float number) : bits(tf32_of_float(number)) {}
};

#ifndef PRESTOW_SHIM
/// A warp's `sums += a * b`: 16 x 8 sums, and factors of 16 x 8 and 8 x 8 words, of two halves or one number each. A lane has
/// those that the PTX ISA gives it ("Matrix Fragments for mma.m16n8k16", and for `mma.m16n8k8` of `.tf32`); of neighbours in a
/// word the first is the lower half. The shim has the same in C++.
__device__ inline void multiply_tile(f16, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_tile(bf16, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_tile(tf32, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
inline void multiply_tile(f16, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_tile_at<2>(float_of_f16, sums, a, b);
}
inline void multiply_tile(bf16, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    multiply_tile_at<2>(float_of_bf16, sums, a, b);
}
inline void multiply_tile(tf32, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    // Tensor cores do not look at the other bits.
    multiply_tile_at<1>([](unsigned bits) { return __int_as_float(int(bits & ~0x1fffu)); }, sums, a, b);
}
#endif

/// Words of terms that are in shared memory at a time.
constexpr int WORDS = 16;
/// A line of a tile has so many words that eight lines begin in different banks, four words apart.
constexpr int LINE = WORDS + 4;

/// How many terms a word has.
template <class T>
constexpr int IN_WORD = sizeof(unsigned) / sizeof(T);

/// A word of neighbouring terms, of which `item` gives the bits.
template <class T, class Item>
__device__ __forceinline__ unsigned word_of(Item item) {
    if constexpr (IN_WORD<T> == 1) return item(0);
    else return item(0) | item(1) << 16;
}

/// For each row and column of the block's tile `store(row, column, sum of left(row, k) * right(k, column))`, where `left` and
/// `right` give the bits of a `T`.
template <class T, int M, int N, int ROWS, int COLUMNS, int TERMS, class Left, class Right, class Store>
__device__ void product_by_cores(Left left, Right right, Store store) {
    __shared__ unsigned left_tile[32 * M][LINE];
    __shared__ unsigned right_tile[32 * N][LINE];
    const int first_row = blockIdx.y * (32 * M), first_column = blockIdx.x * (32 * N);
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    const int row = warp / 4 * (16 * M) + group, column = warp % 4 * (8 * N) + group;
    float sums[M][N][4] = {};
    // Words that are read at once: four numbers in all. More, or as many beside large tiles, would take more registers than two
    // blocks of a multiprocessor have.
    [[maybe_unused]] constexpr int AHEAD = IN_WORD<T> == 1 && M < 4 ? 4 : 2;
    for (int first = 0; first < TERMS; first += IN_WORD<T> * WORDS) {
        // Neighbours in memory are read by neighbours: terms of the left factor, columns of the right one.
#pragma unroll(AHEAD)
        for (int cell = threadIdx.x; cell < 32 * M * WORDS; cell += THREADS) {
            const int word = cell % WORDS, at = cell / WORDS;
            left_tile[at][word] = word_of<T>([=](int ix) {
                const int k = first + IN_WORD<T> * word + ix;
                return first_row + at < ROWS && k < TERMS ? (unsigned)left(first_row + at, k) : 0u;
            });
        }
#pragma unroll(AHEAD)
        for (int cell = threadIdx.x; cell < 32 * N * WORDS; cell += THREADS) {
            const int word = cell / (32 * N), at = cell % (32 * N);
            right_tile[at][word] = word_of<T>([=](int ix) {
                const int k = first + IN_WORD<T> * word + ix;
                return first_column + at < COLUMNS && k < TERMS ? (unsigned)right(k, first_column + at) : 0u;
            });
        }
        __syncthreads();
#pragma unroll
        for (int word = 0; word < WORDS; word += 8) {
            unsigned b[N][2];
#pragma unroll
            for (int n = 0; n < N; n++) {
                const unsigned* line = right_tile[column + n * 8] + word + pair;
                b[n][0] = line[0];
                b[n][1] = line[4];
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                const unsigned *line = left_tile[row + m * 16] + word + pair, *below = left_tile[row + m * 16 + 8] + word + pair;
                const unsigned a[4] = {line[0], below[0], line[4], below[4]};
#pragma unroll
                for (int n = 0; n < N; n++) multiply_tile(T(), sums[m][n], a, b[n]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int ix = 0; ix < 4; ix++) {
                const int at = first_row + row + m * 16 + ix / 2 * 8;
                const int to = first_column + column - group + n * 8 + pair * 2 + ix % 2;
                if (at < ROWS && to < COLUMNS) store(at, to, sums[m][n][ix]);
            }
        }
    }
}

/// A convolution as in `cuda/convolution.cu`: output channels by pixels, for each picture and group.
template <class T, class W, int M, int N, int INS, int OUTS, int GROUPS, class X, class Y, class Finish>
__device__ void convolve_by_cores(const X* x, const X* weights, Y* y, Finish finish) {
    const int group = blockIdx.z % GROUPS;
    const X* input = x + (size_t)blockIdx.z * INS * W::INPUT;
    const X* kernel = weights + (size_t)group * OUTS * INS * W::TAPS;
    const auto left = [=](int out, int term) { return T(kernel[out * (INS * W::TAPS) + term]).bits; };
    const auto right = [=](int term, int output) {
        const int pixel = W::pixel(output, term % W::TAPS);
        return pixel < 0 ? 0u : (unsigned)T(input[term / W::TAPS * W::INPUT + pixel]).bits;
    };
    product_by_cores<T, M, N, OUTS, W::OUTPUT, INS * W::TAPS>(left, right, [=](int out, int output, float sum) {
        const size_t at = ((size_t)blockIdx.z * OUTS + out) * W::OUTPUT + output;
        y[at] = finish(sum, group * OUTS + out, at);
    });
}
