// The shim: CUDA's keywords and intrinsics in C++, so that emitted kernels run on a processor under its sanitizers.
//
// Each thread of a block is a fiber; blocks run one after the other. A fiber runs until it synchronizes: with its block at
// `__syncthreads`, with its warp at a shuffle or a tensor-core operation. If a fiber waits for one that has ended, or at
// another place than the others, a GPU would hang or give undefined results; the shim reports it and stops.

#pragma once
#define PRESTOW_SHIM
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define SHARED_OF_LAUNCH(name, bytes) alignas(1024) static unsigned name[(bytes) / 4]
#define __launch_bounds__(...)
using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atanh, std::ceil, std::cos, std::cosh, std::erf, std::exp,
    std::expm1, std::fabs, std::floor, std::fmax, std::fmin, std::fmod, std::log, std::log1p, std::pow, std::rint, std::sin,
    std::sinh, std::sqrt, std::tan, std::tanh, std::size_t;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
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
// Shims are compiled without contraction, so a product is rounded before it is added to anything.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float exp2_of(float number) { return std::exp2(number); }
inline float reciprocal_of(float number) { return 1.0f / number; }
inline void __trap() { std::abort(); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
/// IEEE 754 binary16: 1 sign bit, 5 exponent bits, 10 fraction bits.
inline float float_of_f16(unsigned short bits) {
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const float size = exponent == 31 ? (rest ? NAN : INFINITY) : exponent ? std::ldexp(1024.0f + rest, exponent - 25) : std::ldexp(float(rest), -24);
    return bits >> 15 ? -size : size;
}
inline unsigned short f16_of_float(float number) {
    const unsigned short sign = std::signbit(number) ? 0x8000 : 0;
    const float size = std::fabs(number);
    if (size != size) return 0x7fff;
    // Values from here on round to infinity.
    if (65520.0f <= size) return sign | 0x7c00;
    int exponent = 0;
    if (size != 0) std::frexp(size, &exponent);
    else return sign;
    // Spacing is constant within one exponent, and in the subnormal range.
    const int last = (exponent < -13 ? -13 : exponent) - 11;
    const unsigned short steps = (unsigned short)std::rint(std::ldexp(size, -last));
    return sign | (unsigned short)(((last + 24) << 10) + steps);
}

/// Rounds to eleven bits like `cvt.rna.tf32.f32`: to nearest, ties away from zero.
inline unsigned tf32_of_float(float number) {
    const unsigned bits = unsigned(__float_as_int(number));
    const bool finite = (bits >> 23 & 255) != 255;
    return finite ? (bits + 0x1000) & ~0x1fffu : bits;
}

namespace shim {

enum class State { Ready, AtBarrier, InWarp, Done };

/// Values that a fiber exchanges with its warp. Two buffers alternate: before one is reused, a synchronization has followed
/// every read of it.
struct Given {
    double number;
    unsigned a[4], b[2];
    const unsigned* line;
};

/// A pending `cp.async`.
struct Copy {
    char* to;
    int size;
    char bytes[16];
};

#ifdef __x86_64__
// A stopped fiber is its stack pointer; the registers that a function preserves are on its stack (System V ABI for x86-64,
// section 3.2.1). `swapcontext` enters the kernel each time, and AddressSanitizer clears the shadow of the whole stack there.
void switch_stacks(void** from, void* to) asm("switch_stacks");
asm(R"(
    .pushsection .text
    .type switch_stacks, @function
switch_stacks:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size switch_stacks, . - switch_stacks
    .popsection
)");

struct Context {
    void* top;

    void start(char* stack, size_t bytes, void (*function)()) {
        // Above the address to return to is where `function` would find its caller: it never returns.
        void** end = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t(15));
        end[-1] = nullptr;
        end[-2] = reinterpret_cast<void*>(function);
        top = end - 8;
        for (int ix = 3; ix <= 8; ix++) end[-ix] = nullptr;
    }

    void switch_to(Context& other) { switch_stacks(&top, other.top); }
};
#else
struct Context {
    ucontext_t context;

    void start(char* stack, size_t bytes, void (*function)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = bytes;
        makecontext(&context, function, 0);
    }

    void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

struct Fiber {
    Context context;
    std::vector<char> stack;
    State state;
    int place;
    Given given[2];
    int turn;
    /// Products that have not been waited for.
    std::vector<std::function<void()>> products;
    /// Groups of copies; the last one is still open.
    std::vector<std::vector<Copy>> copies;

    Given& give() { return given[turn ^= 1]; }
};

/// As many as a block may have threads. The first `started` have a stack.
inline Fiber fibers[1024];
inline unsigned started;
inline Context scheduler;
inline unsigned current;
inline std::function<void()> kernel;

inline void stop(const char* why) {
    std::fprintf(stderr, "block (%u,%u,%u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, current, why);
    std::exit(3);
}

inline void wait(State state, int place) {
    Fiber& fiber = fibers[current];
    fiber.state = state;
    fiber.place = place;
    fiber.context.switch_to(scheduler);
}

/// A fiber runs one thread of a block after the other.
inline void body() {
    for (;;) {
        kernel();
        wait(State::Done, 0);
    }
}

/// Checks a synchronization: returns whether fibers of a range wait in `state`, and stops if they wait at different places or
/// for a fiber that has ended.
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

/// Runs the fibers of a warp until all have ended or wait for the block.
inline void run_warp(unsigned first, unsigned end) {
    for (bool released = true; released;) {
        bool whole = true;
        for (unsigned at = first; at < end; at++) {
            if (fibers[at].state == State::Ready) {
                current = at;
                threadIdx = {at, 0, 0};
                scheduler.switch_to(fibers[at].context);
            }
            whole &= fibers[at].state != State::AtBarrier;
        }
        released = whole && settle(first, end, State::InWarp);
        for (unsigned at = first; released && at < end; at++) fibers[at].state = State::Ready;
    }
}

inline void run_block(unsigned threads) {
    for (unsigned at = 0; at < threads; at++) {
        fibers[at].state = State::Ready;
        fibers[at].copies.resize(1);
        fibers[at].copies[0].clear();
        fibers[at].products.clear();
    }
    // Each warp runs as far as possible before the next one starts. The order of warps alternates, so that a read without a
    // barrier happens before the write at least once, and gives a wrong result.
    const unsigned warps = (threads + 31) / 32;
    for (bool forward = true;; forward = !forward) {
        for (unsigned ix = 0; ix < warps; ix++) {
            const unsigned first = (forward ? ix : warps - 1 - ix) * 32;
            run_warp(first, first + 32 < threads ? first + 32 : threads);
        }
        for (unsigned at = 0; at < threads; at++) {
            if (fibers[at].state == State::InWarp) current = at, stop("waits for its warp, of which some wait for the block");
        }
        if (!settle(0, threads, State::AtBarrier)) return;
        for (unsigned at = 0; at < threads; at++) fibers[at].state = State::Ready;
    }
}

/// Runs a kernel on a grid.
inline void launch(const unsigned grid[3], const unsigned block[3], std::function<void()> call) {
    const unsigned threads = block[0] * block[1] * block[2];
    if (std::size(fibers) < threads) stop("a block has more than 1,024 threads");
    for (; started < threads; started++) {
        Fiber& fiber = fibers[started];
        fiber.stack.resize(64 << 10);
        fiber.context.start(fiber.stack.data(), fiber.stack.size(), body);
    }
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
    shim::fibers[self].give().number = double(own);
    shim::wait(shim::State::InWarp, line);
    const shim::Fiber& other = shim::fibers[self / 32 * 32 + (self % 32 ^ lanes)];
    return T(other.given[shim::fibers[self].turn].number);
}
#define __shfl_xor_sync(mask, own, lanes) shuffle_at(mask, own, lanes, __LINE__)

/// A warp's tensor-core product (`tensor.cu`), lane by lane. A word has `TERMS` elements, and `number` widens one to f32.
template <int TERMS, class Number>
void multiply_tile_at(Number number, float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const unsigned self = shim::current, first = self / 32 * 32, group = self % 32 / 4, pair = self % 4;
    shim::Given& own = shim::fibers[self].give();
    for (int ix = 0; ix < 4; ix++) own.a[ix] = a[ix];
    for (int ix = 0; ix < 2; ix++) own.b[ix] = b[ix];
    shim::wait(shim::State::InWarp, __LINE__);
    const int turn = shim::fibers[self].turn;
    for (int ix = 0; ix < 4; ix++) {
        const unsigned row = group + ix / 2 * 8, column = pair * 2 + ix % 2;
        for (unsigned word = 0; word < 8; word++) {
            // A lane holds a word of row `r`, of row `r + 8`, and the words four columns further of both.
            const unsigned left = shim::fibers[first + row % 8 * 4 + word % 4].given[turn].a[row / 8 + word / 4 * 2];
            const unsigned right = shim::fibers[first + column * 4 + word % 4].given[turn].b[word / 4];
            for (unsigned term = 0; term < TERMS; term++) {
                const unsigned shift = term * 16, mask = TERMS == 1 ? ~0u : 0xffffu;
                sums[ix] += number(left >> shift & mask) * number(right >> shift & mask);
            }
        }
    }
}

/// Four words are stored by one instruction.
inline void store_four(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {
    if (reinterpret_cast<uintptr_t>(to) % 16) shim::stop("stores four words that do not lie at a multiple of 16 bytes");
    const unsigned words[4] = {a, b, c, d};
    std::memcpy(to, words, sizeof words);
}

/// `cp.async`: the bytes are read at once and written at the wait for their group. Until then the destination is undefined: NaN
/// here.
template <int BYTES>
void copy_later(void* to, const void* from, bool inside) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "there are no other copies");
    const auto apart = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % BYTES; };
    if (apart(to) || apart(from)) shim::stop("copies bytes that do not lie at a multiple of as many");
    shim::Copy copy = {static_cast<char*>(to), BYTES, {}};
    if (inside) std::memcpy(copy.bytes, from, BYTES);
    std::memset(to, 0xff, BYTES);
    shim::fibers[shim::current].copies.back().push_back(copy);
}

inline void end_group() { shim::fibers[shim::current].copies.emplace_back(); }

template <int LEFT>
void wait_for_groups() {
    auto& copies = shim::fibers[shim::current].copies;
    // The last group is still open.
    while (LEFT + 1 < int(copies.size())) {
        for (const shim::Copy& copy : copies.front()) std::memcpy(copy.to, copy.bytes, copy.size);
        copies.erase(copies.begin());
    }
}

/// `ldmatrix`: each lane gives the address of a line, eight lines per matrix. `item` selects a lane's word of a matrix.
template <class Item>
void load_matrices_at(unsigned (&to)[4], const unsigned* line, int place, Item item) {
    const unsigned self = shim::current, first = self / 32 * 32;
    shim::fibers[self].give().line = line;
    shim::wait(shim::State::InWarp, place);
    const int turn = shim::fibers[self].turn;
    for (int matrix = 0; matrix < 4; matrix++) {
        const unsigned* lines[8];
        unsigned banks = 0;
        for (int ix = 0; ix < 8; ix++) {
            lines[ix] = shim::fibers[first + matrix * 8 + ix].given[turn].line;
            const uintptr_t at = reinterpret_cast<uintptr_t>(lines[ix]);
            if (at % 16) shim::stop("reads a line that does not lie at a multiple of 16 bytes");
            banks |= 1u << at / 16 % 8;
        }
        // Bank conflicts would be correct but slow.
        if (banks != 255) shim::stop("reads lines that meet in banks of shared memory");
        to[matrix] = item(lines, self % 32);
    }
}

inline void load_matrices(unsigned (&to)[4], const unsigned* line) {
    load_matrices_at(to, line, __LINE__, [](const unsigned* const* lines, unsigned lane) { return lines[lane / 4][lane % 4]; });
}

inline void load_turned(unsigned (&to)[4], const unsigned* line) {
    load_matrices_at(to, line, __LINE__, [](const unsigned* const* lines, unsigned lane) {
        unsigned short halves[2];
        for (int ix = 0; ix < 2; ix++) std::memcpy(halves + ix, reinterpret_cast<const char*>(lines[lane % 4 * 2 + ix]) + lane / 4 * 2, 2);
        return halves[0] | unsigned(halves[1]) << 16;
    });
}

/// A warpgroup's product (`wgmma`): it reads its operands as late as it may, when it is waited for. `number` widens half of a word.
template <class Number, int N>
void multiply_lines_at(Number number, float (&sums)[N][4], const unsigned* left, const unsigned* right, int step) {
    const unsigned self = shim::current, row = self / 32 * 16 + self % 32 / 4, pair = self % 4;
    const auto word = [step](const unsigned* lines, unsigned line, unsigned ix) {
        const unsigned at = step * 8 + ix;
        return lines[line * 16 + ((at / 4 ^ (line / 2 & 3)) * 4 + at % 4)];
    };
    shim::fibers[self].products.push_back([=, &sums] {
        for (unsigned n = 0; n < N; n++) {
            for (unsigned ix = 0; ix < 4; ix++) {
                for (unsigned of = 0; of < 8; of++) {
                    const unsigned a = word(left, row + ix / 2 * 8, of), b = word(right, n * 8 + pair * 2 + ix % 2, of);
                    sums[n][ix] += number(a & 0xffffu) * number(b & 0xffffu);
                    sums[n][ix] += number(a >> 16) * number(b >> 16);
                }
            }
        }
    });
}

inline void publish_to_products() {}
inline void begin_products() {}
inline void end_products() {}
inline void wait_for_products() {
    auto& products = shim::fibers[shim::current].products;
    for (const auto& product : products) product();
    products.clear();
}

/// A kernel for programs that launch it by name: the number of its parameters, and of those that are numbers and not pointers.
struct Kernel {
    const char* name;
    int parameters, numbers;
    void (*call)(void**);
};

/// The kernels of a source, as `Source::for_shim` writes them. The last one has no name.
extern const Kernel kernels[];
