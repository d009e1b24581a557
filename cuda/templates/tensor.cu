// Products by tensor cores, and convolutions as such: of halves, which are multiplied exactly, and of f32 rounded to eleven
// bits (TF32), whose products an f32 holds too. Sums are f32. A block computes 32 M x 32 N results; each of its warps, two
// below each other and four side by side, M x N tiles of 16 x 8.
//
// Factors come through shared memory, a tile of either at a time, and of three such stages one is multiplied while the others
// are filled: by copies that the threads do not wait for (`cp.async`), of as many bytes at once as lie behind each other at a
// multiple of them; or, where that is a single half, by loads before the products and stores behind them.

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

/// How many terms a word has.
template <class T>
constexpr int IN_WORD = sizeof(unsigned) / sizeof(T);

/// What factors are stored as.
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
/// The address of shared memory as its own instructions have it.
__device__ __forceinline__ unsigned shared_address(const void* at) {
    unsigned address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(address) : "l"(at));
    return address;
}

/// Begins a copy of 4, 8 or 16 bytes to shared memory, or of as many zeros. Whoever began it may read them, and others behind
/// a barrier, when its group is waited for. The shim has copies and matrices in C++.
template <int BYTES>
__device__ __forceinline__ void copy_later(void* to, const void* from, bool inside) {
    const int size = inside ? BYTES : 0;
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(size) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(size) : "memory");
}

/// What was begun since the last one is a group.
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups but the last so many.
template <int LEFT>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/// A warp reads four matrices of eight lines of four words; each lane says where a line is, of which a word becomes its own:
/// in each matrix of the line `lane / 4` the word `lane % 4`.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const unsigned* line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(line))
                 : "memory");
}

/// The same of matrices of eight lines of eight halves, turned around: the halves `lane / 4` of two neighbouring lines.
__device__ __forceinline__ void load_turned(unsigned (&to)[4], const unsigned* line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(line))
                 : "memory");
}
#endif

/// Stages of shared memory.
constexpr int STAGES = 3;
/// Words of a line of a left tile: two steps of tensor cores.
constexpr int WORDS = 16;

// Words lie in chunks of four, and lines have theirs in different orders, so that eight lines that are read at once are in
// different banks.

/// Where a left tile has a word of a line: terms are neighbours.
__device__ __forceinline__ int in_left(int line, int word) { return line * WORDS + ((word / 4 ^ (line / 2 & 3)) * 4 + word % 4); }

/// Where a right tile has a word of the line of a term, with so many words: columns are neighbours.
template <class T, int LINE>
__device__ __forceinline__ int in_right(int term, int word) {
    const int order = IN_WORD<T> == 2 ? term & 7 : (term & 3) * 2;
    return term * LINE + ((word / 4 ^ order) * 4 + word % 4);
}

/// The bits of what is stored at a place, or zero where that is none.
template <class T>
__device__ __forceinline__ unsigned bits_at(const Stored<T>* at) {
    if constexpr (IN_WORD<T> == 2) return at ? at->bits : 0u;
    else return at ? (unsigned)__float_as_int(*at) : 0u;
}

/// A part of a factor's tile on its way to shared memory: `COUNT` words of it, by pieces of so many bytes. `at` gives the
/// place of an item in memory, or none.
template <class T, int COUNT, int BYTES>
struct Pieces {
    static constexpr bool LATER = 4 <= BYTES;
    static constexpr int SIZE = LATER ? BYTES / 4 : 1;
    static constexpr int OWN = COUNT / SIZE / THREADS;
    /// More addresses at once would take the registers of sums.
    static constexpr int AT_ONCE = LATER && 2 < OWN ? 2 : OWN;
    /// What is kept in registers.
    unsigned words[LATER ? 1 : OWN];

    /// Begins with a tile in which a line has so many words. `item(line, word)` is the place of a word's first item and `place`
    /// where that word goes.
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

    /// Stores what was kept.
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

/// For each row and column of the block's tile `store(row, column, sum of left(row, k) * right(k, column))`, where `left` and
/// `right` give places in memory, or none for zero, and terms `k` are those of a part of `PARTS`. Items whose places begin at a multiple of `LEFT` bytes from the first of a
/// row, or `RIGHT` bytes of a line, lie behind each other and at a multiple of as many.
template <class T, int M, int N, int ROWS, int COLUMNS, int TERMS, int PARTS, int LEFT, int RIGHT, class Left, class Right, class Store>
__device__ void product_by_cores(int part, Left left, Right right, Store store) {
    // A line of a right tile, and the terms of a stage.
    constexpr int LINE = 32 * N / IN_WORD<T>, DEPTH = WORDS * IN_WORD<T>;
    constexpr int ALL = (TERMS + DEPTH - 1) / DEPTH, SHARE = (ALL + PARTS - 1) / PARTS;
    // Stages of this part, and the one that it begins with; the last part may have fewer, or none.
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
        // An item of -1 asks for some place that is there: who copies zeros looks at none.
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
        // From here on all see this stage, and nobody reads the one before it, which is filled again.
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

/// A convolution as in `cuda/convolution.cu`: output channels by pixels, for each picture and group. `LEFT` and `RIGHT` are
/// what a product asks of its factors, for weights and pixels.
template <class T, class W, int M, int N, int INS, int OUTS, int GROUPS, int PARTS, int LEFT, int RIGHT, class X, class Y, class Finish>
__device__ void convolve_by_cores(const X* x, const X* weights, Y* y, Finish finish, float* parts = nullptr, int turn = 0) {
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
    else if (turn == 0) product_by_cores<T, M, N, OUTS, W::OUTPUT, TERMS, PARTS, LEFT, RIGHT>(blockIdx.z % PARTS, left, right, OfPart<OUTS, W::OUTPUT>(parts));
    else join_parts<32 * M, PARTS, OUTS, W::OUTPUT>(parts, store);
}
