// Definitions that every emitted source needs. No header is included, so NVRTC needs no include path.

#ifndef PRESTOW_SHIM
typedef unsigned char uint8;
#endif

/// Positive infinity, without headers.
#define PRESTOW_INFINITY __int_as_float(0x7f800000)

/// Threads per block of every kernel.
constexpr int THREADS = 256;

/// Waits for the end of the previous launch, whose results this one may read, and permits the next one to start: its blocks take the
/// place of those that have ended, and wait here (CUDA C++ Programming Guide, "Programmatic Dependent Launch"). Every kernel
/// begins with it.
__device__ __forceinline__ void begin_kernel() {
#if 900 <= __CUDA_ARCH__ && !defined(PRESTOW_SHIM)
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The index of the element that this thread computes.
__device__ inline unsigned element() { return blockIdx.x * THREADS + threadIdx.x; }

#ifndef PRESTOW_SHIM
/// 2 to the power of a number, with a relative error of 2^-22.
__device__ __forceinline__ float exp2_of(float number) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(number));
    return power;
}
/// The reciprocal, with an error of one unit in the last place; 0 of infinity.
__device__ __forceinline__ float reciprocal_of(float number) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(number));
    return reciprocal;
}
#endif

// Half precision is storage only: loads widen to f32, stores round to nearest even. The shim has the f16 conversions in C++.
#ifndef PRESTOW_SHIM
__device__ inline float float_of_f16(unsigned short bits) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
}
__device__ inline unsigned short f16_of_float(float number) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(number));
    return bits;
}
#endif
__device__ inline float float_of_bf16(unsigned short bits) { return __int_as_float((int)bits << 16); }
__device__ inline unsigned short bf16_of_float(float number) {
    const unsigned bits = (unsigned)__float_as_int(number);
    // Truncation could turn a NaN into an infinity; setting the quiet bit keeps it a NaN.
    return (unsigned short)(number != number ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct f16 {
    unsigned short bits;
    f16() = default;
    __device__ explicit f16(float number) : bits(f16_of_float(number)) {}
    __device__ operator float() const { return float_of_f16(bits); }
    __device__ f16& operator=(float number) { return *this = f16(number); }
};
struct bf16 {
    unsigned short bits;
    bf16() = default;
    __device__ explicit bf16(float number) : bits(bf16_of_float(number)) {}
    __device__ operator float() const { return float_of_bf16(bits); }
    __device__ bf16& operator=(float number) { return *this = bf16(number); }
};

/// Reads eight numbers at an address that is a multiple of their size, or of 16 bytes.
__device__ __forceinline__ void load_eight(const float* from, float (&to)[8]) {
    const uint4* words = (const uint4*)from;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 four = words[half];
        to[half * 4] = __int_as_float((int)four.x), to[half * 4 + 1] = __int_as_float((int)four.y);
        to[half * 4 + 2] = __int_as_float((int)four.z), to[half * 4 + 3] = __int_as_float((int)four.w);
    }
}
template <class T>
__device__ __forceinline__ T half_of_bits(unsigned bits) {
    T number;
    number.bits = (unsigned short)bits;
    return number;
}
template <class T>
__device__ __forceinline__ void load_eight(const T* from, float (&to)[8]) {
    const uint4 eight = *(const uint4*)from;
    const unsigned words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int word = 0; word < 4; word++) to[word * 2] = half_of_bits<T>(words[word]), to[word * 2 + 1] = half_of_bits<T>(words[word] >> 16);
}

/// Two numbers in half precision as a word, the first one in its low bits.
template <class T>
__device__ __forceinline__ unsigned word_of(float low, float high) {
    return T(low).bits | (unsigned)T(high).bits << 16;
}

#ifndef PRESTOW_SHIM
/// Stores four words at a multiple of 16 bytes in global memory by one instruction. The compiler splits an assignment if its words are
/// not in neighboring registers.
__device__ __forceinline__ void store_four(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
#endif

/// Stores eight numbers, as `load_eight` reads them.
__device__ __forceinline__ void store_eight(const float (&from)[8], float* to) {
#pragma unroll
    for (int at = 0; at < 8; at += 4) {
        store_four(to + at, (unsigned)__float_as_int(from[at]), (unsigned)__float_as_int(from[at + 1]), (unsigned)__float_as_int(from[at + 2]), (unsigned)__float_as_int(from[at + 3]));
    }
}
template <class T>
__device__ __forceinline__ void store_eight(const float (&from)[8], T* to) {
    store_four(to, word_of<T>(from[0], from[1]), word_of<T>(from[2], from[3]), word_of<T>(from[4], from[5]), word_of<T>(from[6], from[7]));
}

/// Eight neighboring numbers, which are `ALIGNED` to 16 bytes or not.
template <bool ALIGNED, class T>
__device__ __forceinline__ void load_run(const T* from, float (&to)[8]) {
    if constexpr (ALIGNED) load_eight(from, to);
    else for (int ix = 0; ix < 8; ix++) to[ix] = from[ix];
}
template <bool ALIGNED, class T>
__device__ __forceinline__ void store_run(const float (&from)[8], T* to) {
    if constexpr (ALIGNED) store_eight(from, to);
    else for (int ix = 0; ix < 8; ix++) to[ix] = T(from[ix]);
}

/// A piece of a number of bytes, which is copied at once.
template <int BYTES>
struct PieceOf;
template <>
struct PieceOf<4> {
    using Type = unsigned;
};
template <>
struct PieceOf<8> {
    using Type = uint2;
};
template <>
struct PieceOf<16> {
    using Type = uint4;
};

/// Adds eight numbers in memory to others, or multiplies others by them.
template <bool ALIGNED, class T>
__device__ __forceinline__ void add_run(const T* from, float (&sums)[8]) {
    float items[8];
    load_run<ALIGNED>(from, items);
#pragma unroll
    for (int ix = 0; ix < 8; ix++) sums[ix] += items[ix];
}
template <bool ALIGNED, class T>
__device__ __forceinline__ void multiply_run(const T* from, float (&products)[8]) {
    float items[8];
    load_run<ALIGNED>(from, items);
#pragma unroll
    for (int ix = 0; ix < 8; ix++) products[ix] *= items[ix];
}
template <class T>
__device__ __forceinline__ void add_eight(const T* from, float (&sums)[8]) {
    add_run<true>(from, sums);
}

/// Reduces one value per thread across the block; every thread gets the result. `room` has one element per warp.
template <class T, class Join>
__device__ T join_block(T own, T* room, Join join) {
    for (int distance = 16; 0 < distance; distance /= 2) own = join(own, __shfl_xor_sync(0xffffffffu, own, distance));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = own;
    __syncthreads();
    T all = room[0];
    for (int warp = 1; warp < THREADS / 32; warp++) all = join(all, room[warp]);
    __syncthreads();
    return all;
}
