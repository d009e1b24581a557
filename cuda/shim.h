// CUDA's words for a C++ compiler, so that emitted kernels run on a processor without a GPU, under its sanitizers.
//
// A thread of a block is a fiber; blocks run one after the other. A fiber runs until it meets others: at `__syncthreads`
// all of its block, at a shuffle those of its warp. Whoever waits for one that has ended, or at another place than the
// others, would hang a GPU or give nonsense there: here the program says so and stops.

#pragma once
#define PRESTOW_SHIM
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atanh, std::ceil, std::cos, std::cosh, std::erf, std::exp,
    std::expm1, std::fabs, std::floor, std::fmax, std::fmin, std::fmod, std::log, std::log1p, std::pow, std::rint, std::sin,
    std::sinh, std::sqrt, std::tan, std::tanh, std::size_t;

struct Three {
    unsigned x, y, z;
};
inline Three threadIdx, blockIdx, gridDim, blockDim;

inline float __int_as_float(int bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline int __float_as_int(float number) {
    int bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}
/// By IEEE 754's binary16: one bit, five of exponent, ten.
inline float float_of_f16(unsigned short bits) {
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const float size = exponent == 31 ? (rest ? NAN : INFINITY) : exponent ? std::ldexp(1024.0f + rest, exponent - 25) : std::ldexp(float(rest), -24);
    return bits >> 15 ? -size : size;
}
inline unsigned short f16_of_float(float number) {
    const unsigned short sign = std::signbit(number) ? 0x8000 : 0;
    const float size = std::fabs(number);
    if (size != size) return 0x7fff;
    // From here on it is nearer to what comes behind the largest one.
    if (65520.0f <= size) return sign | 0x7c00;
    int exponent = 0;
    if (size != 0) std::frexp(size, &exponent);
    else return sign;
    // Numbers of one exponent lie at one distance, and those below the least exponent as well.
    const int last = (exponent < -13 ? -13 : exponent) - 11;
    const unsigned short steps = (unsigned short)std::rint(std::ldexp(size, -last));
    return sign | (unsigned short)(((last + 24) << 10) + steps);
}

/// To eleven bits, as `cvt.rna.tf32.f32` rounds: to the nearest, and of two to the one farther from zero.
inline unsigned tf32_of_float(float number) {
    const unsigned bits = unsigned(__float_as_int(number));
    const bool finite = (bits >> 23 & 255) != 255;
    return finite ? (bits + 0x1000) & ~0x1fffu : bits;
}

namespace shim {

enum class State { Ready, AtBarrier, InWarp, Done };

struct Fiber {
    ucontext_t context;
    State state;
    int place;
    double given;
    unsigned a[4], b[2];
};

inline std::vector<Fiber> fibers;
inline std::vector<std::vector<char>> stacks;
inline ucontext_t scheduler;
inline unsigned current;
inline std::function<void()> kernel;

inline void stop(const char* why) {
    std::fprintf(stderr, "block (%u,%u,%u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, current, why);
    std::exit(3);
}

inline void body() {
    kernel();
    fibers[current].state = State::Done;
}

inline void wait(State state, int place) {
    fibers[current].state = state;
    fibers[current].place = place;
    swapcontext(&fibers[current].context, &scheduler);
}

/// Runs fibers until all of a range are done or wait as `state` says; whether some do.
inline bool settle(unsigned first, unsigned end, State state) {
    bool waits = false;
    int place = 0;
    for (unsigned at = first; at < end; at++) {
        if (fibers[at].state != state) continue;
        if (waits && fibers[at].place != place) current = at, stop("waits elsewhere than the others");
        waits = true;
        place = fibers[at].place;
    }
    for (unsigned at = first; waits && at < end; at++) {
        if (fibers[at].state == State::Done) current = at, stop("has ended, and others wait for it");
    }
    return waits;
}

inline void run_block(unsigned threads) {
    for (unsigned at = 0; at < threads; at++) {
        Fiber& fiber = fibers[at];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks[at].data();
        fiber.context.uc_stack.ss_size = stacks[at].size();
        fiber.context.uc_link = &scheduler;
        fiber.state = State::Ready;
        makecontext(&fiber.context, body, 0);
    }
    for (;;) {
        bool ran = false;
        for (unsigned at = 0; at < threads; at++) {
            if (fibers[at].state != State::Ready) continue;
            current = at;
            threadIdx = {at, 0, 0};
            ran = true;
            swapcontext(&scheduler, &fibers[at].context);
        }
        if (ran) continue;
        bool released = false;
        for (unsigned warp = 0; warp < threads; warp += 32) {
            const unsigned end = warp + 32 < threads ? warp + 32 : threads;
            bool whole = true;
            for (unsigned at = warp; at < end; at++) whole &= fibers[at].state != State::AtBarrier;
            if (whole && settle(warp, end, State::InWarp)) {
                for (unsigned at = warp; at < end; at++) fibers[at].state = State::Ready;
                released = true;
            }
        }
        if (released) continue;
        for (unsigned at = 0; at < threads; at++) {
            if (fibers[at].state == State::InWarp) current = at, stop("waits for its warp, of which some wait for the block");
        }
        if (!settle(0, threads, State::AtBarrier)) return;
        for (unsigned at = 0; at < threads; at++) fibers[at].state = State::Ready;
    }
}

/// Runs a kernel for a grid.
inline void launch(const unsigned grid[3], const unsigned block[3], std::function<void()> call) {
    const unsigned threads = block[0] * block[1] * block[2];
    fibers.resize(threads);
    while (stacks.size() < threads) stacks.emplace_back(64 << 10);
    kernel = std::move(call);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                run_block(threads);
            }
}

}  // namespace shim

inline void sync_at(int line) { shim::wait(shim::State::AtBarrier, line); }
#define __syncthreads() sync_at(__LINE__)

template <class T>
T shuffle_at(unsigned mask, T own, int lanes, int line) {
    if (mask != 0xffffffffu) shim::stop("shuffles with a part of its warp");
    const unsigned self = shim::current;
    // Twice: nobody gives a new number before all have read the old one.
    shim::fibers[self].given = double(own);
    shim::wait(shim::State::InWarp, line);
    const T other = T(shim::fibers[self / 32 * 32 + (self % 32 ^ lanes)].given);
    shim::wait(shim::State::InWarp, line);
    return other;
}
#define __shfl_xor_sync(mask, own, lanes) shuffle_at(mask, own, lanes, __LINE__)

/// What tensor cores compute for a warp (`cuda/tensor.cu`), lane by lane. A word has `TERMS` terms, and `number` widens one.
template <int TERMS, class Number>
void multiply_tile_at(Number number, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const unsigned self = shim::current, first = self / 32 * 32, group = self % 32 / 4, pair = self % 4;
    shim::Fiber& own = shim::fibers[self];
    for (int ix = 0; ix < 4; ix++) own.a[ix] = a[ix];
    for (int ix = 0; ix < 2; ix++) own.b[ix] = b[ix];
    shim::wait(shim::State::InWarp, __LINE__);
    for (int ix = 0; ix < 4; ix++) {
        const unsigned row = group + ix / 2 * 8, column = pair * 2 + ix % 2;
        for (unsigned word = 0; word < 8; word++) {
            // A lane has a word of a row and of the row eight below it, and the same four words on.
            const unsigned left = shim::fibers[first + row % 8 * 4 + word % 4].a[row / 8 + word / 4 * 2];
            const unsigned right = shim::fibers[first + column * 4 + word % 4].b[word / 4];
            for (unsigned term = 0; term < TERMS; term++) {
                const unsigned shift = term * 16, mask = TERMS == 1 ? ~0u : 0xffffu;
                sums[ix] += number(left >> shift & mask) * number(right >> shift & mask);
            }
        }
    }
    shim::wait(shim::State::InWarp, __LINE__);
}
