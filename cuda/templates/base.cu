// What every emitted file begins with: the words of the kernels. No header is included, so that NVRTC needs none.

#ifndef PRESTOW_SHIM
typedef unsigned char uint8;
#endif

/// The largest finite f32 and the infinities, without headers.
#define PRESTOW_INFINITY __int_as_float(0x7f800000)

/// Threads of a block, for all kernels.
constexpr int THREADS = 256;

/// The element of the grid that a thread computes.
__device__ inline unsigned element() { return blockIdx.x * THREADS + threadIdx.x; }

// What is stored in two bytes: it becomes an f32 where it is read, and is rounded where it is written, to the nearest and of
// two to the even one. The shim has the conversions of f16 in C++.
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
    // What is no number stays none, also where the bits that are left say infinity.
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

/// Joins one number a thread of a block by a function; all threads get the result. `room` has a place for each warp.
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
