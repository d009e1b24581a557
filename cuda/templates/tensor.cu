// Matrix products on tensor cores. Operands are half precision, or f32 rounded to eleven bits (TF32); their products are exact
// in f32, and accumulators are f32. A block computes a tile of the result, each of its warps M x N tiles of 16 x 8.
//
// Tiles of the operands go through shared memory in stages: one is multiplied while the others are filled. A loader fills
// the stages of an operand. `LineCopies` and `RightLines` copy lines of a matrix by `cp.async` in pieces of 16 bytes;
// `channels_last.cu` has one for windows. `GatheredLines` and `GatheredColumns` take any operand, element by element if they
// must.

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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(PRESTOW_SHIM)
#define PRESTOW_GROUPS
#endif

#if defined(PRESTOW_GROUPS) && !defined(PRESTOW_SHIM)
/// `sums += left * right'` of a warpgroup: 64 x 8 N accumulators, whose elements a lane has as those of `multiply_tile`, and sixteen
/// terms of 64 and of 8 N lines in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). It reads
/// them until `wait_for_products`.
__device__ __forceinline__ void multiply_group(f16, float (&sums)[4][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3])
                 : "l"(left), "l"(right));
}

__device__ __forceinline__ void multiply_group(bf16, float (&sums)[4][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3])
                 : "l"(left), "l"(right));
}

__device__ __forceinline__ void multiply_group(f16, float (&sums)[8][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
                 : "l"(left), "l"(right));
}

__device__ __forceinline__ void multiply_group(bf16, float (&sums)[8][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
                 : "l"(left), "l"(right));
}

__device__ __forceinline__ void multiply_group(f16, float (&sums)[16][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]), "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]), "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]), "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]), "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]), "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]), "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]), "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]), "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
                 : "l"(left), "l"(right));
}

__device__ __forceinline__ void multiply_group(bf16, float (&sums)[16][4], unsigned long long left, unsigned long long right) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
                 : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]), "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]), "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]), "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]), "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]), "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]), "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]), "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]), "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3])
                 : "l"(left), "l"(right));
}

/// The descriptor of lines of 64 bytes whose chunks are swizzled as `in_left` does (PTX ISA, "Matrix Descriptor"): groups of eight
/// lines are 512 bytes apart, and the swizzle is that of 64 bytes.
__device__ __forceinline__ unsigned long long lines_at(const unsigned* lines) {
    return (unsigned long long)(shared_address(lines) >> 4 & 0x3fff) | 1ull << 16 | 512ull >> 4 << 32 | 2ull << 62;
}

/// Step `step` of a product of lines, which are multiples of eight from the beginning of their tile.
template <class T, int N>
__device__ __forceinline__ void multiply_lines(float (&sums)[N][4], const unsigned* left, const unsigned* right, int step) {
    multiply_group(T(), sums, lines_at(left + step * 8), lines_at(right + step * 8));
}

/// Orders this thread's writes to shared memory before the products of the group that follow a barrier.
__device__ __forceinline__ void publish_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Orders writes to accumulators before the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits for all products.
__device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
#endif

#ifdef PRESTOW_SHIM
template <class T, int N>
void multiply_lines(float (&sums)[N][4], const unsigned* left, const unsigned* right, int step) {
    const auto number = [](unsigned bits) { return float(half_of_bits<T>(bits)); };
    multiply_lines_at(number, sums, left, right, step);
}
#endif

/// Words per line of a tile in which terms are adjacent: two tensor-core steps.
constexpr int WORDS = 16;
/// Terms per stage.
template <class T>
constexpr int DEPTH_OF = WORDS * IN_WORD<T>;

/// A block's tile: `DOWN` x `ACROSS` warps, each with `M` x `N` tensor-core tiles.
template <int DOWN_, int ACROSS_, int M_, int N_>
struct Tile {
    static constexpr int DOWN = DOWN_, ACROSS = ACROSS_, M = M_, N = N_;
    static constexpr int THREADS = 32 * DOWN * ACROSS, ROWS = 16 * M * DOWN, COLUMNS = 8 * N * ACROSS;
    static constexpr bool BY_GROUP = false;
};

/// A tile that four warps compute together (`wgmma`): `M` parts of 64 rows, sixteen for each warp.
template <int M_, int N_>
struct GroupTile {
    static constexpr int M = M_, N = N_, THREADS = 128, ROWS = 64 * M, COLUMNS = 8 * N;
    static constexpr bool BY_GROUP = true;
};

#ifndef PRESTOW_SHIM
/// Declares the shared memory that the launch provides, which may exceed the 48 KiB of declared arrays. The shim declares an array.
#define SHARED_OF_LAUNCH(name, bytes) extern __shared__ __align__(1024) unsigned name[]
#endif

/// Stages of a tile's operands in shared memory: as many as fit into 48 KiB, up to six.
template <class S>
constexpr int STAGES = 48 * 1024 / 6 < (S::ROWS + S::COLUMNS) * WORDS * 4 ? 48 * 1024 / ((S::ROWS + S::COLUMNS) * WORDS * 4) : 6;

// Lines consist of chunks of four words. The chunks are swizzled by line, so that eight lines read at once use different banks.

/// Position of a word in a tile in which terms are adjacent.
__device__ __forceinline__ int in_left(int line, int word) { return line * WORDS + ((word / 4 ^ (line / 2 & 3)) * 4 + word % 4); }

/// Position of a word in a right tile with lines of `LINE` words, in which columns are adjacent.
template <class T, int LINE>
__device__ __forceinline__ int in_right(int term, int word) {
    const int order = LINE == 16 ? term / 2 & 3 : IN_WORD<T> == 2 ? term & 7 : (term & 3) * 2;
    return term * LINE + ((word / 4 ^ order) * 4 + word % 4);
}

/// The bits of an element, or 0 for a null pointer.
template <class T>
__device__ __forceinline__ unsigned bits_at(const Stored<T>* at) {
    if constexpr (IN_WORD<T> == 2) return at ? at->bits : 0u;
    else return at ? (unsigned)__float_as_int(*at) : 0u;
}

/// Transfer of an operand tile of `COUNT` words to shared memory by a number of threads, in pieces of `BYTES` bytes.
template <class T, int COUNT, int BYTES, int THREADS>
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

/// A loader of tiles in which terms are adjacent. `item(line, k)` is the address of an element, or null for zero; runs of
/// `BYTES` bytes along a line are contiguous and aligned to their size. `LINES` lines make a tile, of `EXTENT` in all.
template <class T, int THREADS, int LINES, int EXTENT, int TERMS, int BYTES, class Item>
struct GatheredLines {
    static constexpr bool TURNED = false;
    Item item;
    int first_line, term;
    Pieces<T, LINES * WORDS, BYTES, THREADS> pieces;
    __device__ __forceinline__ GatheredLines(Item item, int first_line, int tile) : item(item), first_line(first_line), term(tile * DEPTH_OF<T>) {}
    __device__ __forceinline__ void begin(unsigned* tile) {
        // `ix == -1` must return any valid address: a copy of zeros does not read it.
        pieces.template begin<WORDS>(tile, [&](int line, int word, int ix) -> const Stored<T>* {
            if (ix < 0) return item(0, 0);
            const int at = first_line + line, k = term + word * IN_WORD<T> + ix;
            return at < EXTENT && k < TERMS ? item(at, k) : nullptr;
        }, in_left);
        term += DEPTH_OF<T>;
    }
    __device__ __forceinline__ void end(unsigned* tile) { pieces.template end<WORDS>(tile, in_left); }
};

/// A loader of right tiles in which columns are adjacent, as `GatheredLines`: `item(k, column)` is the address of an element, and
/// `valid` any address.
template <class T, int THREADS, int TILE_COLUMNS, int COLUMNS, int TERMS, int BYTES, class Item>
struct GatheredColumns {
    static constexpr bool TURNED = true;
    static constexpr int LINE = TILE_COLUMNS / IN_WORD<T>;
    Item item;
    const Stored<T>* valid;
    int first_column, term;
    Pieces<T, DEPTH_OF<T> * LINE, BYTES, THREADS> pieces;
    __device__ __forceinline__ GatheredColumns(Item item, const Stored<T>* valid, int first_column, int tile)
        : item(item), valid(valid), first_column(first_column), term(tile * DEPTH_OF<T>) {}
    __device__ __forceinline__ void begin(unsigned* tile) {
        pieces.template begin<LINE>(tile, [&](int line, int word, int ix) -> const Stored<T>* {
            if (ix < 0) return valid;
            const int at = first_column + word * IN_WORD<T> + ix, k = term + line;
            return at < COLUMNS && k < TERMS ? item(k, at) : nullptr;
        }, in_right<T, LINE>);
        term += DEPTH_OF<T>;
    }
    __device__ __forceinline__ void end(unsigned* tile) { pieces.template end<LINE>(tile, in_right<T, LINE>); }
};

/// A loader of tiles in which terms are adjacent, from lines of a matrix `STRIDE` elements apart, in pieces of 16 bytes. `EXTENT`
/// is the number of lines, `LINES` that of a tile. `TERMS` and `STRIDE` are multiples of 16 bytes, and the matrix is aligned.
template <class T, int THREADS, int LINES, int EXTENT, int TERMS, int STRIDE>
struct LineCopies {
    static constexpr bool TURNED = false;
    static constexpr int DEPTH = DEPTH_OF<T>, STEP = THREADS / (WORDS / 4), OWN = (LINES + STEP - 1) / STEP;
    static_assert(STEP % 8 == 0 && (LINES % STEP == 0 || LINES < STEP), "a thread's lines have the same place in the swizzle");
    const Stored<T>*matrix, *from;
    int line, term, place;
    __device__ __forceinline__ LineCopies(const Stored<T>* matrix, int first_line, int tile) : matrix(matrix) {
        const int own = threadIdx.x / (WORDS / 4), word = threadIdx.x % (WORDS / 4) * 4;
        line = first_line + own, term = tile * DEPTH + word * IN_WORD<T>, place = in_left(own, word);
        from = matrix + (size_t)line * STRIDE + term;
    }
    __device__ __forceinline__ void begin(unsigned* tile) {
        // Groups fill two tiles at once.
        const bool in_terms = TERMS % (2 * DEPTH) == 0 || term < TERMS, in_tile = STEP <= LINES || (int)threadIdx.x / (WORDS / 4) < LINES;
#pragma unroll
        for (int own = 0; own < OWN && in_tile; own++) {
            const bool inside = in_terms && (EXTENT % LINES == 0 || line + own * STEP < EXTENT);
            copy_later<16>(tile + place + own * STEP * WORDS, inside ? from + own * STEP * STRIDE : matrix, inside);
        }
        from += DEPTH, term += DEPTH;
    }
    __device__ __forceinline__ void end(unsigned*) {}
};

/// A loader of right tiles in which columns are adjacent, as `LineCopies`: `COLUMNS` and `STRIDE` are multiples of 16 bytes.
template <class T, int THREADS, int TILE_COLUMNS, int COLUMNS, int TERMS, int STRIDE>
struct RightLines {
    static constexpr bool TURNED = true;
    static constexpr int DEPTH = DEPTH_OF<T>, LINE = TILE_COLUMNS / IN_WORD<T>, STEP = THREADS / (LINE / 4), OWN = DEPTH / STEP;
    static_assert(STEP % 4 == 0 && (IN_WORD<T> == 1 || STEP % 8 == 0) && DEPTH % STEP == 0, "a thread's lines have the same place in the swizzle");
    const Stored<T>*matrix, *from;
    int term, place;
    bool in_columns;
    __device__ __forceinline__ RightLines(const Stored<T>* matrix, int first_column, int tile) : matrix(matrix) {
        const int own = threadIdx.x / (LINE / 4), word = threadIdx.x % (LINE / 4) * 4, column = first_column + word * IN_WORD<T>;
        term = tile * DEPTH + own, place = in_right<T, LINE>(own, word), in_columns = COLUMNS % TILE_COLUMNS == 0 || column < COLUMNS;
        from = matrix + (size_t)term * STRIDE + column;
    }
    __device__ __forceinline__ void begin(unsigned* tile) {
#pragma unroll
        for (int own = 0; own < OWN; own++) {
            const bool inside = in_columns && (TERMS % DEPTH == 0 || term + own * STEP < TERMS);
            copy_later<16>(tile + place + own * STEP * LINE, inside ? from + own * STEP * STRIDE : matrix, inside);
        }
        from += (size_t)DEPTH * STRIDE, term += DEPTH;
    }
    __device__ __forceinline__ void end(unsigned*) {}
};

/// Reads the `N` right operands of a warp's tensor-core step from a tile whose columns, or with `TURNED == false` whose terms, are
/// adjacent. The warp's first column is `column`.
template <class T, int N, bool TURNED, int LINE>
__device__ __forceinline__ void load_right(unsigned (&b)[N][2], const unsigned* tile, int step, int column) {
    const int lane = threadIdx.x % 32;
    if constexpr (!TURNED || IN_WORD<T> == 2) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned four[4];
            if constexpr (TURNED) {
                load_turned(four, tile + in_right<T, LINE>(step * 16 + lane % 16, (column / 8 + n + lane / 16) * 4));
            } else {
                load_matrices(four, tile + in_left(column + n * 8 + lane / 16 * 8 + lane % 8, step * 8 + lane / 8 % 2 * 4));
            }
            b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
        }
    } else {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) b[n][half] = tile[in_right<T, LINE>(step * 8 + half * 4 + lane % 4, column + n * 8 + lane / 4)];
        }
    }
    if constexpr (IN_WORD<T> == 1) {
#pragma unroll
        for (int n = 0; n < N; n++) b[n][0] = tf32(__int_as_float((int)b[n][0])).bits, b[n][1] = tf32(__int_as_float((int)b[n][1])).bits;
    }
}

/// Exchanges four accumulator tiles of a row, two columns of each in a lane, so that each of the four lanes has the eight columns of
/// the tile of its number. `half` selects the upper or lower row.
template <int N>
__device__ __forceinline__ void gather_eight(float (&eight)[8], const float (&tiles)[N][4], int n, int half, int pair) {
    float own[4][2];
#pragma unroll
    for (int tile = 0; tile < 4; tile++) own[tile][0] = tiles[n + tile][half * 2], own[tile][1] = tiles[n + tile][half * 2 + 1];
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = pair & bit;
#pragma unroll
        for (int low = 0; low < 4; low++) {
            if (low & bit) continue;
#pragma unroll
            for (int column = 0; column < 2; column++) {
                const float got = __shfl_xor_sync(0xffffffffu, upper ? own[low][column] : own[low | bit][column], bit);
                if (upper) own[low][column] = got;
                else own[low | bit][column] = got;
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) eight[tile * 2] = own[tile][0], eight[tile * 2 + 1] = own[tile][1];
}

/// Stores the sums of a warp, whose first row and column these are. `STEP` rows lie between its tiles. A store with `WIDE` takes eight
/// columns at once.
template <class S, int ROWS, int COLUMNS, int STEP, class Store>
__device__ __forceinline__ void store_sums(const float (&sums)[S::M][S::N][4], int first_row, int first_column, Store store) {
    constexpr int M = S::M, N = S::N;
    const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
    if constexpr (Store::WIDE) {
        static_assert(N % 4 == 0 && COLUMNS % 8 == 0, "four tiles are exchanged, and eight columns are stored, at once");
        // Epilogues of several runs of eight come before their stores, so that their operands are read at once: the compiler must
        // assume that a store changes them. The largest tile has no registers for many.
        constexpr int OF_ROWS = N / 4 * 2, ALL = M * OF_ROWS, CHUNK = M == 3 ? 4 : M % 2 == 0 && Store::HALVES ? 2 * OF_ROWS : OF_ROWS;
        static_assert(ALL % CHUNK == 0, "chunks are whole");
#pragma unroll
        for (int first = 0; first < ALL; first += CHUNK) {
            float eights[CHUNK][8];
#pragma unroll
            for (int ix = 0; ix < CHUNK; ix++) gather_eight(eights[ix], sums[(first + ix) / OF_ROWS], (first + ix) / 2 % (N / 4) * 4, ix % 2, pair);
#pragma unroll
            for (int stored = 0; stored < 2; stored++) {
#pragma unroll
                for (int ix = 0; ix < CHUNK; ix++) {
                    const int m = (first + ix) / OF_ROWS, four = (first + ix) / 2 % (N / 4);
                    const int at = first_row + m * STEP + ix % 2 * 8 + group, to = first_column + (four * 4 + pair) * 8;
                    if ((ROWS % S::ROWS != 0 && ROWS <= at) || (COLUMNS % S::COLUMNS != 0 && COLUMNS <= to)) continue;
                    if (stored == 0) store.finish(at, to, eights[ix]);
                    else store(at, to, eights[ix]);
                }
            }
        }
    } else {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int ix = 0; ix < 4; ix++) {
                    const int at = first_row + m * STEP + group + ix / 2 * 8, to = first_column + n * 8 + pair * 2 + ix % 2;
                    if (at < ROWS && to < COLUMNS) store(at, to, sums[m][n][ix]);
                }
            }
        }
    }
}

/// Transfers the next tile of both operands.
template <class Left, class Right>
__device__ __forceinline__ void fill(Left& lefts, Right& rights, unsigned* left_tile, unsigned* right_tile) {
    lefts.begin(left_tile);
    rights.begin(right_tile);
    lefts.end(left_tile);
    rights.end(right_tile);
}

/// Adds `left(row, k) * right(k, column)` to a warp's sums, from its first row and column in the block's tile on; `k` runs over the
/// terms of the loaders. `tiles` is the number of tiles that they have.
template <class T, class S, class Left, class Right>
__device__ __forceinline__ void add_products(int tiles, Left lefts, Right rights, int row, int column, float (&sums)[S::M][S::N][4]) {
    constexpr int M = S::M, N = S::N, LINE = S::COLUMNS / IN_WORD<T>, STAGES = ::STAGES<S>;
    alignas(128) __shared__ unsigned left_tiles[STAGES][S::ROWS * WORDS];
    alignas(128) __shared__ unsigned right_tiles[STAGES][S::COLUMNS * WORDS];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles) fill(lefts, rights, left_tiles[tile], right_tiles[tile]);
        end_group();
    }
    int stage = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        wait_for_groups<STAGES - 2>();
        // After the barrier every thread sees this stage, and no thread reads the previous one, which is refilled.
        __syncthreads();
        const int next = tile + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < tiles) {
            lefts.begin(left_tiles[free]);
            rights.begin(right_tiles[free]);
        }
        end_group();
        const unsigned *left_tile = left_tiles[stage], *right_tile = right_tiles[stage];
#pragma unroll
        for (int step = 0; step < 2; step++) {
            unsigned b[N][2];
            load_right<T, N, Right::TURNED, LINE>(b, right_tile, step, column);
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
        if (next < tiles) {
            lefts.end(left_tiles[free]);
            rights.end(right_tiles[free]);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}

/// Calls `store(row, column, sum of left(row, k) * right(k, column))` for each element of the block's tile.
template <class T, class S, int ROWS, int COLUMNS, class Left, class Right, class Store>
__device__ __forceinline__ void product_by_cores(int tiles, Left lefts, Right rights, Store store) {
    const int warp = threadIdx.x / 32, row = warp / S::ACROSS * (16 * S::M), column = warp % S::ACROSS * (8 * S::N);
    float sums[S::M][S::N][4] = {};
    add_products<T, S>(tiles, lefts, rights, row, column, sums);
    store_sums<S, ROWS, COLUMNS, 16>(sums, blockIdx.y * S::ROWS + row, blockIdx.x * S::COLUMNS + column, store);
}

/// The bytes of a stage of a group: two tiles of each operand.
template <class S>
constexpr int PAIR_BYTES = 2 * (S::ROWS + S::COLUMNS) * WORDS * 4;

#ifdef PRESTOW_GROUPS
/// The same by a warpgroup, which multiplies `EACH` tiles at once. Both loaders fill lines of terms, and zeros after the last one.
/// Shared memory of the launch has `STAGES` stages, and `AHEAD` stages are filled while one is multiplied.
template <class T, class S, int ROWS, int COLUMNS, int EACH, int STAGES, int AHEAD, class Left, class Right, class Store>
__device__ __forceinline__ void product_by_group(int tiles, Left lefts, Right rights, Store store) {
    static_assert(!Right::TURNED && IN_WORD<T> == 2, "descriptors are of lines of halves");
    constexpr int M = S::M, N = S::N, LEFT = S::ROWS * WORDS, TILE = LEFT + S::COLUMNS * WORDS;
    // The swizzle repeats after 512 bytes.
    SHARED_OF_LAUNCH(stages, STAGES * TILE * EACH * 4);
    const auto fill_stage = [&](int stage) {
#pragma unroll
        for (int tile = 0; tile < EACH; tile++) {
            unsigned* to = stages + (stage * EACH + tile) * TILE;
            fill(lefts, rights, to, to + LEFT);
        }
    };
    float sums[M][N][4] = {};
#pragma unroll
    for (int first = 0; first < AHEAD; first++) {
        if (first * EACH < tiles) fill_stage(first);
        end_group();
    }
    int stage = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += EACH) {
        wait_for_groups<AHEAD - 1>();
        wait_for_products();
        publish_to_products();
        // After the barrier every thread's part of this stage is there, and no product reads the previous one, which is refilled.
        __syncthreads();
        begin_products();
#pragma unroll
        for (int step = 0; step < 2 * EACH; step++) {
            const unsigned* from = stages + (stage * EACH + step / 2) * TILE;
#pragma unroll
            for (int m = 0; m < M; m++) multiply_lines<T>(sums[m], from + m * 64 * WORDS, from + LEFT, step % 2);
        }
        end_products();
        if (tile + EACH * AHEAD < tiles) fill_stage(stage == 0 ? STAGES - 1 : stage - 1);
        end_group();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    wait_for_products();
    store_sums<S, ROWS, COLUMNS, 64>(sums, blockIdx.y * S::ROWS + threadIdx.x / 32 * 16, blockIdx.x * S::COLUMNS, store);
}
#endif

/// The product of a tile, by whichever instructions it is for. The loaders have at most `TILES` tiles, and the launch provides
/// `SHARED` bytes of shared memory.
template <class T, class S, int ROWS, int COLUMNS, int TILES, int SHARED, class Left, class Right, class Store>
__device__ __forceinline__ void multiply(int tiles, Left lefts, Right rights, Store store) {
    constexpr int STAGES = SHARED / PAIR_BYTES<S>;
    static_assert(!S::BY_GROUP || 2 <= STAGES || (STAGES == 1 && TILES <= 2), "the launch provides stages");
#ifdef PRESTOW_GROUPS
    if constexpr (S::BY_GROUP) product_by_group<T, S, ROWS, COLUMNS, TILES == 1 ? 1 : 2, STAGES, TILES <= 2 * STAGES ? STAGES : STAGES - 1>(tiles, lefts, rights, store);
    else product_by_cores<T, S, ROWS, COLUMNS>(tiles, lefts, rights, store);
#else
    // Plans for other architectures have no tiles of groups.
    if constexpr (S::BY_GROUP) __trap();
    else product_by_cores<T, S, ROWS, COLUMNS>(tiles, lefts, rights, store);
#endif
}

/// The first tile of one of `PARTS` parts of `TERMS` terms, and the number of its tiles. The last part may be shorter, or empty. Parts
/// before it are multiples of `EACH` tiles.
template <class T, int TERMS, int PARTS, int EACH = 1>
struct Part {
    static constexpr int ALL = (TERMS + DEPTH_OF<T> - 1) / DEPTH_OF<T>, SHARE = (ALL + PARTS * EACH - 1) / (PARTS * EACH) * EACH;
    int first, tiles;
    __device__ explicit Part(int part) : first(part * SHARE), tiles(ALL < part * SHARE + SHARE ? ALL - part * SHARE : SHARE) {}
};

/// The product of two operands by their elements' addresses, or null for zero, with the gathering loaders. Runs of `LEFT` bytes in a
/// row of the left operand, and of `RIGHT` bytes in a line of the right one, are contiguous and aligned to their size.
template <class T, class S, int ROWS, int COLUMNS, int TERMS, int PARTS, int LEFT, int RIGHT, class Left, class Right, class Store>
__device__ void product_of_gathered(int part, Left left, Right right, Store store) {
    const Part<T, TERMS, PARTS> own(part);
    const Stored<T>* valid = right(0, 0) ? right(0, 0) : left(0, 0);
    const GatheredLines<T, S::THREADS, S::ROWS, ROWS, TERMS, LEFT, Left> lefts(left, blockIdx.y * S::ROWS, own.first);
    const GatheredColumns<T, S::THREADS, S::COLUMNS, COLUMNS, TERMS, RIGHT, Right> rights(right, valid, blockIdx.x * S::COLUMNS, own.first);
    product_by_cores<T, S, ROWS, COLUMNS>(own.tiles, lefts, rights, store);
}

/// A store of a row-major matrix `y: [.., COLUMNS]`, eight elements at once. `epilogue(sums, column, index)` comes before it.
template <int COLUMNS, class Y, class Epilogue>
struct Eights {
    static constexpr bool WIDE = true, HALVES = sizeof(Y) == 2;
    Y* y;
    Epilogue epilogue;
    size_t first;
    __device__ __forceinline__ void finish(int row, int column, float (&sums)[8]) const { epilogue(sums, column, first + (size_t)row * COLUMNS + column); }
    __device__ __forceinline__ void operator()(int row, int column, float (&sums)[8]) const { store_eight(sums, y + (first + (size_t)row * COLUMNS + column)); }
};

/// Stores a product of loaders to item `item` of `y: [.., ROWS, COLUMNS]`, with split-K into `PARTS`. The epilogue of one element is
/// `finish`, and with `WIDE` that of eight is `finish_eight`. `SHARED` is the shared memory of the launch in bytes.
template <class T, class S, int ROWS, int COLUMNS, int TERMS, int PARTS, int SHARED, bool WIDE, class Loaders, class Y, class Finish, class FinishEight>
__device__ __forceinline__ void store_product(Loaders loaders, Y* y, int item, Finish finish, FinishEight finish_eight, float* parts, int iteration) {
    const size_t first = (size_t)item * ((size_t)ROWS * COLUMNS);
    const auto store = each([=](int row, int column, float sum) {
        const size_t at = first + (size_t)row * COLUMNS + column;
        y[at] = finish(sum, column, at);
    });
    if (PARTS != 1 && iteration != 0) {
        reduce_splits<S::ROWS, S::COLUMNS, PARTS, ROWS, COLUMNS>(parts, store);
        return;
    }
    using Own = Part<T, TERMS, PARTS, S::BY_GROUP ? 2 : 1>;
    const Own own(PARTS == 1 ? 0 : blockIdx.z % PARTS);
    const auto lefts = loaders.left(blockIdx.y * S::ROWS, own.first);
    const auto rights = loaders.right(blockIdx.x * S::COLUMNS, own.first);
    if constexpr (PARTS != 1) multiply<T, S, ROWS, COLUMNS, Own::SHARE, SHARED>(own.tiles, lefts, rights, SplitSums<ROWS, COLUMNS>(parts));
    else if constexpr (WIDE) multiply<T, S, ROWS, COLUMNS, Own::SHARE, SHARED>(own.tiles, lefts, rights, Eights<COLUMNS, Y, FinishEight>{y, finish_eight, first});
    else multiply<T, S, ROWS, COLUMNS, Own::SHARE, SHARED>(own.tiles, lefts, rights, store);
}

/// Loaders of two matrices: `a: [ROWS, TERMS]` and `b: [TERMS, COLUMNS]`, or with `TRANSPOSED` `[COLUMNS, TERMS]`. Runs of `LEFT` and
/// `RIGHT` bytes in their lines are contiguous and aligned to their size.
template <class T, class S, int ROWS, int COLUMNS, int TERMS, int LEFT, int RIGHT, bool TRANSPOSED>
struct Matrices {
    const Stored<T>*a, *b;
    __device__ __forceinline__ auto left(int first_row, int tile) const {
        if constexpr (LEFT == 16) {
            return LineCopies<T, S::THREADS, S::ROWS, ROWS, TERMS, TERMS>(a, first_row, tile);
        } else {
            const auto item = [a = a](int row, int k) { return a + ((size_t)row * TERMS + k); };
            return GatheredLines<T, S::THREADS, S::ROWS, ROWS, TERMS, LEFT, decltype(item)>(item, first_row, tile);
        }
    }
    __device__ __forceinline__ auto right(int first_column, int tile) const {
        if constexpr (TRANSPOSED && RIGHT == 16) {
            return LineCopies<T, S::THREADS, S::COLUMNS, COLUMNS, TERMS, TERMS>(b, first_column, tile);
        } else if constexpr (TRANSPOSED) {
            const auto item = [b = b](int column, int k) { return b + ((size_t)column * TERMS + k); };
            return GatheredLines<T, S::THREADS, S::COLUMNS, COLUMNS, TERMS, RIGHT, decltype(item)>(item, first_column, tile);
        } else if constexpr (RIGHT == 16) {
            return RightLines<T, S::THREADS, S::COLUMNS, COLUMNS, TERMS, COLUMNS>(b, first_column, tile);
        } else {
            const auto item = [b = b](int k, int column) { return b + ((size_t)k * COLUMNS + column); };
            return GatheredColumns<T, S::THREADS, S::COLUMNS, COLUMNS, TERMS, RIGHT, decltype(item)>(item, b, first_column, tile);
        }
    }
};

/// Implicit GEMM as in `convolution.cu`: output channels by pixels, for each image and group. `LEFT` and `RIGHT` are the
/// contiguous bytes of weights and pixels, as in `product_of_gathered`.
template <class T, class W, class S, int INS, int OUTS, int GROUPS, int PARTS, int LEFT, int RIGHT, class X, class Y, class Finish>
__device__ void convolve_by_cores(const X* x, const X* weights, Y* y, Finish finish, float* parts = nullptr, int iteration = 0) {
    const int item = blockIdx.z / PARTS, group = item % GROUPS;
    const X* input = x + (size_t)item * INS * W::INPUT;
    const X* kernel = weights + (size_t)group * OUTS * INS * W::TAPS;
    const auto left = [=](int out, int term) { return kernel + out * (INS * W::TAPS) + term; };
    const auto right = [=](int term, int output) -> const X* {
        const int pixel = W::pixel(output, term % W::TAPS);
        return pixel < 0 ? nullptr : input + term / W::TAPS * W::INPUT + pixel;
    };
    const auto store = each([=](int out, int output, float sum) {
        const size_t at = ((size_t)item * OUTS + out) * W::OUTPUT + output;
        y[at] = finish(sum, group * OUTS + out, at);
    });
    constexpr int TERMS = INS * W::TAPS;
    if constexpr (PARTS == 1) product_of_gathered<T, S, OUTS, W::OUTPUT, TERMS, 1, LEFT, RIGHT>(0, left, right, store);
    else if (iteration == 0) product_of_gathered<T, S, OUTS, W::OUTPUT, TERMS, PARTS, LEFT, RIGHT>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, W::OUTPUT>(parts));
    else reduce_splits<S::ROWS, S::COLUMNS, PARTS, OUTS, W::OUTPUT>(parts, store);
}

/// The gradient of weights as in `convolution.cu`. `LEFT` and `RIGHT` are the contiguous bytes of the gradient and of pixels.
template <class T, class W, class S, int BATCH, int INS, int OUTS, int GROUPS, int PARTS, int LEFT, int RIGHT, class X, class Y>
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
    const auto store = each([=](int out, int column, float sum) { y[((size_t)group * OUTS + out) * COLUMNS + column] = sum; });
    if constexpr (PARTS == 1) product_of_gathered<T, S, OUTS, COLUMNS, TERMS, 1, LEFT, RIGHT>(0, left, right, store);
    else if (iteration == 0) product_of_gathered<T, S, OUTS, COLUMNS, TERMS, PARTS, LEFT, RIGHT>(blockIdx.z % PARTS, left, right, SplitSums<OUTS, COLUMNS>(parts));
    else reduce_splits<S::ROWS, S::COLUMNS, PARTS, OUTS, COLUMNS>(parts, store);
}
