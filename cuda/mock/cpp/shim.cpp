// Runs emitted kernels on a processor: `shim < JOB > RESULTS`. A job is a list of runs. All numbers are 64-bit little-endian;
// each list begins with its length.
//
//   runs, each:
//     blocks of memory, each: size, bytes
//     launches, each: kernel index, grid, block, arguments; an argument is a memory block and an offset, or all ones and a value
//     results, each: memory block, offset, size
//
// Each block of memory is an allocation of its own, so that the sanitizers report accesses outside of it. Results are written
// to standard output, concatenated.

#include "shim.h"

#include KERNELS

static uint64_t number() {
    uint64_t value;
    if (std::fread(&value, sizeof value, 1, stdin) != 1) std::fprintf(stderr, "the job ends too early\n"), std::exit(2);
    return value;
}

int main() {
    for (uint64_t run = 0, runs = number(); run < runs; run++) {
        std::vector<char*> blocks(number());
        std::vector<uint64_t> sizes(blocks.size());
        for (size_t at = 0; at < blocks.size(); at++) {
            sizes[at] = number();
            blocks[at] = static_cast<char*>(std::malloc(sizes[at] ? sizes[at] : 1));
            if (std::fread(blocks[at], 1, sizes[at], stdin) != sizes[at]) return 2;
        }
        for (uint64_t launch = 0, launches = number(); launch < launches; launch++) {
            const Kernel& kernel = kernels[number()];
            unsigned grid[3], block[3];
            for (unsigned& extent : grid) extent = number();
            for (unsigned& extent : block) extent = number();
            std::vector<void*> pointers(number());
            for (void*& pointer : pointers) {
                const uint64_t block = number();
                const uint64_t offset = number();
                pointer = block == ~0ull ? reinterpret_cast<void*>(offset) : blocks[block] + offset;
            }
            shim::launch(grid, block, [&] { kernel.call(pointers.data()); });
        }
        for (uint64_t result = 0, results = number(); result < results; result++) {
            const uint64_t block = number(), offset = number(), size = number();
            std::fwrite(blocks[block] + offset, 1, size, stdout);
        }
        for (char* block : blocks) std::free(block);
    }
    return 0;
}
