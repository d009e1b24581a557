// Mock of NVML, `libnvidia-ml.so.1`, for the GPU of the driver's mock.
//
//   PRESTOW_MOCK_FAIL=CALL:N:E               the N-th call of a function (from 1) fails with status E
//   PRESTOW_MOCK_NVML=self:BYTES,4711:-1     processes and their memory; `self` is this process, -1 is unavailable memory.
//                                            Default: this process, with its allocations from the driver's mock and 300 MiB
//                                            for a context
//   PRESTOW_MOCK_NVML_GPUS=0                 the number of GPUs. Default: 1
//
// The utilization grows by 10 % with each call up to 100 %, and power is 100 W plus 1 W for each percent.
// A process list that is too short is refused, as in the header.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "mock.h"

namespace {

enum : int { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

constexpr uint64_t CONTEXT = 300ull << 20, RESERVED = 5ull << 20;

struct Memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct Process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
};

struct Utilization {
    unsigned gpu, memory;
};

int users = 0;
unsigned busy = 0;

int enter(const char* name) {
    if (int error = told(name)) return error;
    return users == 0 && std::string(name) != "nvmlInit_v2" ? UNINITIALIZED : SUCCESS;
}

/// Total and allocated memory of the driver's mock.
void figures(uint64_t& total, uint64_t& given) {
    size_t free = 0, all = 0;
    if (auto info = driver<int (*)(size_t*, size_t*)>("cuMemGetInfo_v2")) info(&free, &all);
    total = all, given = all - free;
}

std::vector<Process> processes() {
    uint64_t total, given;
    figures(total, given);
    const char* said = variable("PRESTOW_MOCK_NVML");
    if (!said) return {{unsigned(getpid()), given + CONTEXT, {}}};
    std::vector<Process> all;
    for (const char* at = said; *at;) {
        const bool self = !std::strncmp(at, "self:", 5);
        const unsigned pid = self ? unsigned(getpid()) : unsigned(std::strtoul(at, nullptr, 10));
        at = std::strchr(at, ':') + 1;
        char* end = nullptr;
        const long long bytes = std::strtoll(at, &end, 10);
        all.push_back({pid, static_cast<unsigned long long>(bytes), {}});
        at = *end ? end + 1 : end;
    }
    return all;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() {
    ENTER("nvmlInit_v2");
    if (auto alive = driver<void (*)(const char*, int)>("mockAlive")) alive("management", 1);
    return users++, SUCCESS;
}
int nvmlShutdown() {
    if (auto alive = driver<void (*)(const char*, int)>("mockAlive")) alive("management", -1);
    return users--, SUCCESS;
}
const char* nvmlErrorString(int status) { return status == 4 ? "Insufficient Permissions" : status == NOT_FOUND ? "Not Found" : "the mock was told to fail"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion");
    return std::snprintf(text, size, "580.65.06") < int(size) ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
    ENTER("nvmlDeviceGetCount_v2");
    const char* said = variable("PRESTOW_MOCK_NVML_GPUS");
    return *count = said ? unsigned(std::strtoul(said, nullptr, 10)) : 1, SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    ENTER("nvmlDeviceGetHandleByIndex_v2");
    if (index) return NOT_FOUND;
    return *device = &users, SUCCESS;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
    ENTER("nvmlDeviceGetName");
    if (device != &users) return INVALID_ARGUMENT;
    return std::snprintf(text, size, "Mock GPU") < int(size) ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    ENTER("nvmlDeviceGetPowerUsage");
    if (device != &users) return INVALID_ARGUMENT;
    return *milliwatts = 1000 * (100 + busy), SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
    ENTER("nvmlDeviceGetUtilizationRates");
    if (device != &users) return INVALID_ARGUMENT;
    busy = busy < 100 ? busy + 10 : 100;
    return *rates = {busy, busy / 2}, SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
    ENTER("nvmlDeviceGetHandleByPciBusId_v2");
    if (std::strcmp(bus, "0000:65:00.0")) return NOT_FOUND;
    return *device = &users, SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, Memory* memory) {
    ENTER("nvmlDeviceGetMemoryInfo_v2");
    if (memory->version != (sizeof(Memory) | 2u << 24)) return VERSION_MISMATCH;
    if (device != &users) return INVALID_ARGUMENT;
    uint64_t total, given;
    figures(total, given);
    memory->total = total, memory->reserved = RESERVED, memory->used = 0;
    for (const Process& process : processes()) memory->used += process.bytes == ~0ull ? 0 : process.bytes;
    memory->free = total < RESERVED + memory->used ? 0 : total - RESERVED - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* list) {
    ENTER("nvmlDeviceGetComputeRunningProcesses_v3");
    if (device != &users || !count) return INVALID_ARGUMENT;
    const std::vector<Process> all = processes();
    const unsigned room = *count;
    *count = unsigned(all.size());
    if (room < all.size()) return INSUFFICIENT_SIZE;
    std::memcpy(list, all.data(), all.size() * sizeof(Process));
    return SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
