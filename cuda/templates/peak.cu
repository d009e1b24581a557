// Probes of a GPU's peak bandwidth and arithmetic. `rounds`, the trip count, comes from memory, so that it is not a constant.

/// The unit of a copy: 16 bytes.
struct alignas(16) Line {
    unsigned words[4];
};

/// Copies four lines per thread; neighboring threads access neighboring lines.
extern "C" __global__ void __launch_bounds__(THREADS) peak_copy(const Line* from, Line* to) {
    Line lines[4];
#pragma unroll
    for (int ix = 0; ix < 4; ix++) lines[ix] = from[((size_t)blockIdx.x * 4 + ix) * THREADS + threadIdx.x];
#pragma unroll
    for (int ix = 0; ix < 4; ix++) to[((size_t)blockIdx.x * 4 + ix) * THREADS + threadIdx.x] = lines[ix];
}

/// Eight accumulators per thread, one multiply-add each per iteration.
extern "C" __global__ void __launch_bounds__(THREADS) peak_f32(const unsigned* rounds, float* y) {
    const float factor = 1.0f - 1.0f / (1 << 20), more = 1.0f / (1 << 20);
    float sums[8];
#pragma unroll
    for (int ix = 0; ix < 8; ix++) sums[ix] = (float)(threadIdx.x % 32 + ix);
    const unsigned count = *rounds;
#pragma unroll 4
    for (unsigned round = 0; round < count; round++) {
#pragma unroll
        for (int ix = 0; ix < 8; ix++) sums[ix] = sums[ix] * factor + more;
    }
    float sum = 0.0f;
#pragma unroll
    for (int ix = 0; ix < 8; ix++) sum += sums[ix];
    y[element()] = sum;
}

/// Eight accumulator tiles per warp, one tile product each per iteration. All operands are 1.
template <class T>
__device__ __forceinline__ void peak_of_cores(const unsigned* rounds, float* y, unsigned ones) {
    float sums[8][4] = {};
    const unsigned a[4] = {ones, ones, ones, ones}, b[2] = {ones, ones};
    const unsigned count = *rounds;
#pragma unroll 4
    for (unsigned round = 0; round < count; round++) {
#pragma unroll
        for (int tile = 0; tile < 8; tile++) multiply_tile(T(), sums[tile], a, b);
    }
    float sum = 0.0f;
#pragma unroll
    for (int tile = 0; tile < 8; tile++) sum += sums[tile][0] + sums[tile][1] + sums[tile][2] + sums[tile][3];
    y[element()] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) peak_f16(const unsigned* rounds, float* y) {
    peak_of_cores<f16>(rounds, y, 0x3c003c00u);
}
extern "C" __global__ void __launch_bounds__(THREADS) peak_bf16(const unsigned* rounds, float* y) {
    peak_of_cores<bf16>(rounds, y, 0x3f803f80u);
}
extern "C" __global__ void __launch_bounds__(THREADS) peak_tf32(const unsigned* rounds, float* y) {
    peak_of_cores<tf32>(rounds, y, 0x3f800000u);
}
