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
