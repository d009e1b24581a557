// Matrix products on tensor cores, and convolutions as implicit GEMM. Operands are half precision, or f32 rounded to eleven
// bits (TF32); their products are exact in f32, and accumulators are f32. A block computes 32 M x 32 N results. Its eight warps
// are arranged 2 x 4; each computes M x N tiles of 16 x 8.
//
// Operand tiles go through shared memory in three stages: one is multiplied while the others are filled. Stages are filled by
// `cp.async`, in the largest pieces that the operands' alignment permits. If only single halves are aligned, they are loaded
// before the products and stored after them instead.

#ifndef PRESTOW_SHIM
/// Rounds to eleven bits, to nearest, ties away from zero. The shim has the same in C++.
__device__ inline unsigned tf32_of_float(float number) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(number));
    return bits;
}
#endif

/// An f32 in the format of tensor cores.
struct tf32 {
    unsigned bits;
    tf32() = default;
    __device__ explicit tf32(float number) : bits(tf32_of_float(number)) {}
};

#ifndef PRESTOW_SHIM
/// `sums += a * b` of a warp: 16 x 8 accumulators, operands of 16 x 8 and 8 x 8 words; a word is two halves or one TF32 value.
/// The PTX ISA defines the elements of each lane ("Matrix Fragments for mma.m16n8k16", and for `mma.m16n8k8` of `.tf32`). The
/// first element of a word is in its low bits. The shim has the same in C++.
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
    // Tensor cores ignore the low 13 bits.
    multiply_tile_at<1>([](unsigned bits) { return __int_as_float(int(bits & ~0x1fffu)); }, sums, a, b);
}
#endif

/// Elements per 32-bit word.
template <class T>
constexpr int IN_WORD = sizeof(unsigned) / sizeof(T);

/// The type of operands in memory.
template <class T>
struct StoredAs {
    using Type = T;
};
template <>
struct StoredAs<tf32> {
    using Type = float;
};
template <class T>
using Stored = typename StoredAs<T>::Type;

#ifndef PRESTOW_SHIM
/// An address in the shared window, for instructions on shared memory.
__device__ __forceinline__ unsigned shared_address(const void* at) {
    unsigned address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(at));
    return address;
}

/// Starts an asynchronous copy of 4, 8 or 16 bytes, or of zeros, to shared memory. The bytes are visible to this thread after
/// `wait_for_groups`, and to others after a barrier. The shim has copies and matrices in C++.
template <int BYTES>
__device__ __forceinline__ void copy_later(void* to, const void* from, bool inside) {
    const int size = inside ? BYTES : 0;
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(size) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(size) : "memory");
}

/// Ends the group of copies that were started since the previous call.
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups except the last `LEFT`.
template <int LEFT>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/// `ldmatrix`: a warp reads four matrices of eight lines of four words. Each lane gives the address of one line, and receives
/// word `lane % 4` of line `lane / 4` of each matrix.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const unsigned* line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(line))
                 : "memory");
}

/// The same, transposed, for lines of eight halves: element `lane / 4` of two neighboring lines.
__device__ __forceinline__ void load_turned(unsigned (&to)[4], const unsigned* line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(line))
                 : "memory");
}
#endif

/// Stages of shared memory.
constexpr int STAGES = 3;
/// Words per line of a left tile: two tensor-core steps.
constexpr int WORDS = 16;

// Lines consist of chunks of four words. The chunks are swizzled by line, so that eight lines read at once use different banks.

/// Position of a word in a left tile, in which terms are adjacent.
__device__ __forceinline__ int in_left(int line, int word) { return line * WORDS + ((word / 4 ^ (line / 2 & 3)) * 4 + word % 4); }

/// Position of a word in a right tile with lines of `LINE` words, in which columns are adjacent.
template <class T, int LINE>
__device__ __forceinline__ int in_right(int term, int word) {
    const int order = IN_WORD<T> == 2 ? term & 7 : (term & 3) * 2;
    return term * LINE + ((word / 4 ^ order) * 4 + word % 4);
}

/// The bits of an element, or 0 for a null pointer.
template <class T>
__device__ __forceinline__ unsigned bits_at(const Stored<T>* at) {
    if constexpr (IN_WORD<T> == 2) return at ? at->bits : 0u;
    else return at ? (unsigned)__float_as_int(*at) : 0u;
}

/// Transfer of an operand tile of `COUNT` words to shared memory, in pieces of `BYTES` bytes.
template <class T, int COUNT, int BYTES>
struct Pieces {
    static constexpr bool LATER = 4 <= BYTES;
    static constexpr int SIZE = LATER ? BYTES / 4 : 1;
    static constexpr int OWN = COUNT / SIZE / THREADS;
    /// More addresses in flight would spill accumulators.
    static constexpr int AT_ONCE = LATER && 2 < OWN ? 2 : OWN;
    /// Words between load and store, if copies are not asynchronous.
    unsigned words[LATER ? 1 : OWN];

    /// Starts the transfer of a tile with lines of `LINE` words. `item(line, word, ix)` is the address of an element, or null
    /// for zero; `place(line, word)` is the word's position in the tile.
    template <int LINE, class Item, class Place>
    __device__ __forceinline__ void begin(unsigned* tile, Item item, Place place) {
#pragma unroll(AT_ONCE)
        for (int own = 0; own < OWN; own++) {
            const int piece = own * THREADS + threadIdx.x, line = piece / (LINE / SIZE), word = piece % (LINE / SIZE) * SIZE;
            if constexpr (LATER) {
                const Stored<T>* from = item(line, word, 0);
                copy_later<BYTES>(tile + place(line, word), from ? from : item(0, 0, -1), from);
            } else {
                words[own] = bits_at<T>(item(line, word, 0)) | bits_at<T>(item(line, word, 1)) << 16;
            }
        }
    }

    /// Stores the words that `begin` loaded into registers.
    template <int LINE, class Place>
    __device__ __forceinline__ void end(unsigned* tile, Place place) {
        if constexpr (!LATER) {
#pragma unroll
            for (int own = 0; own < OWN; own++) {
                const int piece = own * THREADS + threadIdx.x;
                tile[place(piece / LINE, piece % LINE)] = words[own];
            }
        }
    }
};

/// Calls `store(row, column, sum of left(row, k) * right(k, column))` for each element of the block's tile, where `k` runs over
/// one of `PARTS` equal parts of the inner dimension. `left` and `right` return addresses, or null for zero. Runs of `LEFT`
/// bytes in a row of the left operand, and of `RIGHT` bytes in a line of the right one, are contiguous and aligned to their size.
template <class T, int M, int N, int ROWS, int COLUMNS, int TERMS, int PARTS, int LEFT, int RIGHT, class Left, class Right, class Store>
__device__ void product_by_cores(int part, Left left, Right right, Store store) {
    // Words per line of a right tile, and terms per stage.
    constexpr int LINE = 32 * N / IN_WORD<T>, DEPTH = WORDS * IN_WORD<T>;
    constexpr int ALL = (TERMS + DEPTH - 1) / DEPTH, SHARE = (ALL + PARTS - 1) / PARTS;
    // This part's first tile and its number of tiles; the last part may be shorter, or empty.
    const int origin = PARTS == 1 ? 0 : part * SHARE;
    const int TILES = PARTS == 1 ? ALL : ALL < origin + SHARE ? ALL - origin : SHARE;
    alignas(128) __shared__ unsigned left_tiles[STAGES][32 * M * WORDS];
    alignas(128) __shared__ unsigned right_tiles[STAGES][DEPTH * LINE];
    const int first_row = blockIdx.y * (32 * M), first_column = blockIdx.x * (32 * N);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    const int row = warp / 4 * (16 * M), column = warp % 4 * (8 * N);
    const auto to_left = [](int line, int word) { return in_left(line, word); };
    const auto to_right = [](int term, int word) { return in_right<T, LINE>(term, word); };
    Pieces<T, 32 * M * WORDS, LEFT> lefts;
    Pieces<T, DEPTH * LINE, RIGHT> rights;
    const auto begin = [&](int tile, int stage) {
        const int first = (origin + tile) * DEPTH;
        // `ix == -1` must return any valid address: a copy of zeros does not read it.
        lefts.template begin<WORDS>(left_tiles[stage], [&](int line, int word, int ix) -> const Stored<T>* {
            if (ix < 0) return left(0, 0);
            const int at = first_row + line, k = first + word * IN_WORD<T> + ix;
            return at < ROWS && k < TERMS ? left(at, k) : nullptr;
        }, to_left);
        rights.template begin<LINE>(right_tiles[stage], [&](int term, int word, int ix) -> const Stored<T>* {
            if (ix < 0) return right(0, 0) ? right(0, 0) : left(0, 0);
            const int at = first_column + word * IN_WORD<T> + ix, k = first + term;
            return at < COLUMNS && k < TERMS ? right(k, at) : nullptr;
        }, to_right);
    };
    const auto end = [&](int stage) {
        lefts.template end<WORDS>(left_tiles[stage], to_left);
        rights.template end<LINE>(right_tiles[stage], to_right);
    };
    float sums[M][N][4] = {};
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < TILES) {
            begin(tile, tile);
            end(tile);
        }
        end_group();
    }
    int stage = 0;
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        wait_for_groups<STAGES - 2>();
        // After the barrier every thread sees this stage, and no thread reads the previous one, which is refilled.
        __syncthreads();
        const int next = tile + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < TILES) begin(next, free);
        end_group();
        const unsigned *left_tile = left_tiles[stage], *right_tile = right_tiles[stage];
#pragma unroll
        for (int step = 0; step < 2; step++) {
            unsigned b[N][2];
            if constexpr (IN_WORD<T> == 2) {
#pragma unroll
                for (int n = 0; n < N; n += 2) {
                    unsigned four[4];
                    const int term = step * 16 + lane % 16, chunk = column / 8 + n + lane / 16;
                    load_turned(four, right_tile + in_right<T, LINE>(term, chunk * 4));
                    b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
                }
            } else {
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const unsigned bits = right_tile[in_right<T, LINE>(step * 8 + half * 4 + pair, column + n * 8 + group)];
                        b[n][half] = tf32(__int_as_float((int)bits)).bits;
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                unsigned a[4];
                load_matrices(a, left_tile + in_left(row + m * 16 + lane % 16, step * 8 + lane / 16 * 4));
                if constexpr (IN_WORD<T> == 1) {
#pragma unroll
                    for (int ix = 0; ix < 4; ix++) a[ix] = tf32(__int_as_float((int)a[ix])).bits;
                }
#pragma unroll
                for (int n = 0; n < N; n++) multiply_tile(T(), sums[m][n], a, b[n]);
            }
        }
        if (next < TILES) end(free);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int ix = 0; ix < 4; ix++) {
                const int at = first_row + row + m * 16 + group + ix / 2 * 8;
                const int to = first_column + column + n * 8 + pair * 2 + ix % 2;
                if (at < ROWS && to < COLUMNS) store(at, to, sums[m][n][ix]);
            }
        }
    }
}

/// Implicit GEMM as in `convolution.cu`: output channels by pixels, for each image and group. `LEFT` and `RIGHT` are the
/// contiguous bytes of weights and pixels, as in `product_by_cores`.
template <class T, class W, int M, int N, int INS, int OUTS, int GROUPS, int PARTS, int LEFT, int RIGHT, class X, class Y, class Finish>
__device__ void convolve_by_cores(const X* x, const X* weights, Y* y, Finish finish, float* parts = nullptr, int iteration = 0) {
    const int item = blockIdx.z / PARTS, group = item % GROUPS;
    const X* input = x + (size_t)item * INS * W::INPUT;
    const X* kernel = weights + (size_t)group * OUTS * INS * W::TAPS;
    const auto left = [=](int out, int term) { return kernel + out * (INS * W::TAPS) + term; };
    const auto right = [=](int term, int output) -> const X* {
        const int pixel = W::pixel(output, term % W::TAPS);
        return pixel < 0 ? nullptr : input + term / W::TAPS * W::INPUT + pixel;
    };
    const auto store = [=](int out, int output, float sum) {
        const size_t at = ((size_t)item * OUTS + out) * W::OUTPUT + output;
        y[at] = finish(sum, group * OUTS + out, at);
    };
    constexpr int TERMS = INS * W::TAPS;
    if constexpr (PARTS == 1) product_by_cores<T, M, N, OUTS, W::OUTPUT, TERMS, 1, LEFT, RIGHT>(0, left, right, store);
    else if (iteration == 0) product_by_cores<T, M, N, OUTS, W::OUTPUT, TERMS, PARTS, LEFT, RIGHT>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, W::OUTPUT>(parts));
    else reduce_splits<32 * M, PARTS, OUTS, W::OUTPUT>(parts, store);
}

/// The gradient of weights as in `convolution.cu`. `LEFT` and `RIGHT` are the contiguous bytes of the gradient and of pixels.
template <class T, class W, int M, int N, int BATCH, int INS, int OUTS, int GROUPS, int PARTS, int LEFT, int RIGHT, class X, class Y>
__device__ void weight_gradient_by_cores(const X* x, const X* dy, Y* y, float* parts = nullptr, int iteration = 0) {
    const int group = blockIdx.z / PARTS;
    const X* input = x + (size_t)group * INS * W::INPUT;
    const X* gradient = dy + (size_t)group * OUTS * W::OUTPUT;
    const auto left = [=](int out, int term) {
        return gradient + ((size_t)(term / W::OUTPUT) * (GROUPS * OUTS) + out) * W::OUTPUT + term % W::OUTPUT;
    };
    const auto right = [=](int term, int column) -> const X* {
        const int pixel = W::pixel(term % W::OUTPUT, column % W::TAPS);
        const size_t plane = (size_t)(term / W::OUTPUT) * (GROUPS * INS) + column / W::TAPS;
        return pixel < 0 ? nullptr : input + plane * W::INPUT + pixel;
    };
    constexpr int COLUMNS = INS * W::TAPS, TERMS = BATCH * W::OUTPUT;
    const auto store = [=](int out, int column, float sum) { y[((size_t)group * OUTS + out) * COLUMNS + column] = sum; };
    if constexpr (PARTS == 1) product_by_cores<T, M, N, OUTS, COLUMNS, TERMS, 1, LEFT, RIGHT>(0, left, right, store);
    else if (iteration == 0) product_by_cores<T, M, N, OUTS, COLUMNS, TERMS, PARTS, LEFT, RIGHT>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, COLUMNS>(parts));
    else reduce_splits<32 * M, PARTS, OUTS, COLUMNS>(parts, store);
}
