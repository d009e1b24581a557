// Mock of the CUDA driver, `libcuda.so.1`: device memory is host memory, and kernels run by the shim. A module that is a shared
// library for this processor, as the mock of NVRTC makes them, has its own kernels; any other module uses the kernels that the
// mock was linked with.
//
//   PRESTOW_MOCK_TRACE=FILE       a line for every call with an effect
//   PRESTOW_MOCK_FAIL=CALL:N:E    the N-th call of a function (from 1) fails with error E; a capture with a failed call
//                                 ends with 901 and without a graph, as with the real driver
//   PRESTOW_MOCK_CALLS=FILE       the number of calls of each function, written at exit
//   PRESTOW_MOCK_VERSION=12040    the driver's version (default 13000)
//   PRESTOW_MOCK_ALLOCATE=BYTES   each launch of a graph allocates and frees this size
//   PRESTOW_MOCK_DEVICES=2        the number of GPUs, which share everything except their contexts; the trace then has each
//                                 change of a thread's current context
//   PRESTOW_MOCK_MEMORY=BYTES     the GPU's memory (default 1 GiB)
//   PRESTOW_MOCK_UUID=8           the last byte of the first GPU's UUID (default 1); the others follow
//   PRESTOW_MOCK_EARLY=1          waits for events return at once, as if the caller had forgotten them
//
// After a failure that corrupts the context (of a kernel, of memory, of the bus), all its calls return that error.
//
// Memory that processes share is a memfd: an exported handle is its descriptor, and a mapping has the kernel's protection, so a
// write to memory that was mapped read-only is a fault, of this process alone.
//
// The clock of events advances by a quarter of a millisecond with each kernel and each library call.
//
// Addresses in the trace are relative to their allocation. At exit, each object that was not freed is a line `leaked ...`.

#include "shim.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

enum : int { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901 };

/// Runs a kernel of a module.
using Run = void (*)(const Kernel*, const unsigned*, const unsigned*, void**);

/// A loaded module. Without a library it has the kernels that the mock was linked with, and no function that runs them.
struct Module {
    void* library;
    const Kernel* kernels;
    Run run;
};

/// `CUlaunchAttribute` and `CUlaunchConfig`.
struct Attribute {
    int id;
    char pad[4];
    alignas(8) char value[64];
};
struct Config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void* stream;
    Attribute* attributes;
    unsigned attribute_count;
};

/// A kernel, and the function that runs it; null for a kernel that the mock was linked with.
struct Function {
    const Kernel* kernel;
    Run run;
    /// The most shared memory of a launch, in bytes.
    int shared_max = 48 * 1024;
};

/// Loads a shared library from memory. Any other bytes are a module of the kernels that the mock was linked with.
Module loaded(const void* image) {
    const Module linked = {nullptr, kernels, nullptr};
    Elf64_Ehdr head, own;
    if (std::memcmp(image, ELFMAG, SELFMAG)) return linked;
    std::memcpy(&head, image, sizeof head);
    FILE* self = std::fopen("/proc/self/exe", "rb");
    const bool read = self && std::fread(&own, sizeof own, 1, self) == 1;
    if (self) std::fclose(self);
    if (!read || head.e_machine != own.e_machine) return linked;
    // The size follows from the section table, which linkers put at the end.
    const size_t size = head.e_shoff + size_t(head.e_shentsize) * head.e_shnum;
    // `dlopen` returns the loaded library for a known name, so each one needs its own.
    char path[] = "/tmp/prestow-module-XXXXXX";
    const int file = mkstemp(path);
    void* library = nullptr;
    if (0 <= file && write(file, image, size) == ssize_t(size)) library = dlopen(path, RTLD_NOW);
    if (0 <= file) close(file), unlink(path);
    if (!library) return linked;
    const auto table = reinterpret_cast<const Kernel* (*)()>(dlsym(library, "mockKernels"));
    return {library, table(), reinterpret_cast<Run>(dlsym(library, "mockRun"))};
}

struct Launch {
    /// Null for library calls.
    const Kernel* kernel;
    unsigned grid[3], block[3];
    std::vector<void*> arguments;
    const char* library = nullptr;
    void (*work)(void*) = nullptr;
    void* context = nullptr;
    /// Null for kernels that the mock was linked with.
    Run run = nullptr;
};

struct Graph {
    std::vector<Launch> launches;
};

struct Event {
    bool has_clock, recorded, reached;
    float ms;
    /// The number of copies that were started before it.
    size_t copies;
};

/// An asynchronous copy. It is executed as late as possible: when the host waits for the stream, or at the next launch.
struct Copy {
    char* to;
    const char* from;
    size_t size;
    /// The source's bytes at the start. Pinned memory must not change before the copy is executed, so it is compared with them;
    /// from pageable memory the driver has read them already, so they are copied. Empty for copies to the host.
    std::string bytes;
    bool is_pinned, to_host;
};

const char* variable(const char* name) { return std::getenv(name); }

/// The addresses of the devices' contexts, and this thread's current context.
char contexts[16];
thread_local void* current = nullptr;

int devices() { return variable("PRESTOW_MOCK_DEVICES") ? std::atoi(variable("PRESTOW_MOCK_DEVICES")) : 1; }

struct Driver {
    FILE* trace = variable("PRESTOW_MOCK_TRACE") ? std::fopen(variable("PRESTOW_MOCK_TRACE"), "w") : nullptr;
    std::map<std::string, int> calls;
    std::map<uint64_t, size_t> allocations;
    std::map<std::string, int> alive;
    /// Mappings in reserved ranges: start, and the size and descriptor of the memory. 0: the access is not set yet.
    std::map<uint64_t, std::pair<size_t, int>> mappings;
    std::deque<Function> functions;
    size_t used = 0;
    float clock_ms = 0;
    /// Recorded events that no wait has reached.
    std::vector<Event*> ahead;
    std::map<const char*, size_t> pinned;
    std::vector<Copy> begun;
    size_t copied = 0;
    /// Copies of the default stream. Non-blocking streams do not wait for them.
    std::vector<Copy> by_default;
    Graph* recording = nullptr;
    /// A call failed during the capture, which is thereby invalid.
    bool invalidated = false;
    /// The error that corrupted the context.
    int lost = SUCCESS;
    /// Observer of allocations (1) and releases (2).
    void (*observer)(int, uint64_t, size_t) = nullptr;

    ~Driver() {
        for (auto& [what, count] : alive) {
            if (count != 0) say("leaked %s %d", what.c_str(), count);
        }
        if (trace) std::fclose(trace);
        if (FILE* file = variable("PRESTOW_MOCK_CALLS") ? std::fopen(variable("PRESTOW_MOCK_CALLS"), "w") : nullptr) {
            for (auto& [name, count] : calls) std::fprintf(file, "%s %d\n", name.c_str(), count);
            std::fclose(file);
        }
    }

    template <class... Parts>
    void say(const char* form, Parts... parts) {
        if (!trace) return;
        std::fprintf(trace, form, parts...);
        std::fputc('\n', trace);
        std::fflush(trace);
    }

    /// Begins a call: counts it and returns an injected failure.
    int enter(const char* name) {
        const int number = ++calls[name];
        const char* fail = variable("PRESTOW_MOCK_FAIL");
        char wanted[64];
        int at, error;
        if (fail && std::sscanf(fail, "%63[^:]:%d:%d", wanted, &at, &error) == 3 && wanted == std::string(name) && at == number) {
            say("%s fails with %d", name, error);
            invalidated = recording;
            static const std::set<int> deadly = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 911};
            if (deadly.count(error)) lost = error;
            // Destinations of pending copies may be freed already.
            for (Copy& copy : begun) copy.size = copy.to_host ? 0 : copy.size;
            return error;
        }
        // Calls that wait, load or allocate are invalid during a capture, and invalidate it.
        static const std::set<std::string> unsupported = {"cuStreamSynchronize", "cuEventSynchronize", "cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadData", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"};
        if (recording && unsupported.count(name)) return invalidated = true, say("%s in a record", name), CAPTURE_UNSUPPORTED;
        const auto begins = [name](const char* word) { return !std::strncmp(name, word, std::strlen(word)); };
        // Queries that need no context keep working.
        return begins("cuInit") || begins("cuDriver") || begins("cuDevice") || begins("cuCtx") ? SUCCESS : lost;
    }

    size_t memory() { return variable("PRESTOW_MOCK_MEMORY") ? std::strtoull(variable("PRESTOW_MOCK_MEMORY"), nullptr, 10) : 1ull << 30; }

    /// The allocation with a range, or `end()`.
    std::map<uint64_t, size_t>::iterator allocation(uint64_t address, size_t size) {
        auto after = allocations.upper_bound(address);
        if (after == allocations.begin()) return allocations.end();
        --after;
        return address + size <= after->first + after->second ? after : allocations.end();
    }

    void copy(const Copy& own) {
        const bool has_changed = own.is_pinned && std::memcmp(own.bytes.data(), own.from, own.size) != 0;
        if (has_changed) say("changed while it is read");
        std::memcpy(own.to, own.is_pinned || own.to_host ? own.from : own.bytes.data(), own.size);
    }

    /// Executes pending copies up to a given one.
    void copy(size_t end) {
        for (; copied < end; copied++) copy(begun[copied]);
    }

    /// Executes the copies that the next operation on a stream must wait for.
    void settle(const void* stream) {
        if (stream != non_blocking()) finish_default();
        copy(begun.size());
    }

    void finish_default() {
        for (const Copy& own : by_default) copy(own);
        by_default.clear();
    }

    /// The handle of all non-blocking streams. Other streams wait for the default stream.
    void* non_blocking() { return &by_default; }

    /// The host waits for the stream, up to an event or completely.
    void reach(const Event* last) {
        copy(last ? last->copies : begun.size());
        size_t count = 0;
        while (count < ahead.size()) {
            Event* event = ahead[count++];
            event->reached = true;
            if (event == last) break;
        }
        ahead.erase(ahead.begin(), ahead.begin() + count);
    }

    int run(const Launch& launch) {
        clock_ms += 0.25f;
        std::string places;
        const size_t pointers = launch.arguments.size() - (launch.kernel ? launch.kernel->numbers : 0);
        for (size_t at = 0; at < launch.arguments.size(); at++) {
            const uint64_t address = reinterpret_cast<uint64_t>(launch.arguments[at]);
            if (pointers <= at) {
                places += " turn " + std::to_string(address);
                continue;
            }
            auto found = allocation(address, 0);
            if (found == allocations.end()) return INVALID_VALUE;
            places += " " + std::to_string(address - found->first);
        }
        if (!launch.kernel) {
            say("%s%s", launch.library, places.c_str());
            return launch.work(launch.context), SUCCESS;
        }
        say("%s %u %u %u of %u%s", launch.kernel->name, launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], places.c_str());
        std::vector<void*> arguments = launch.arguments;
        if (launch.run) return launch.run(launch.kernel, launch.grid, launch.block, arguments.data()), SUCCESS;
        shim::launch(launch.grid, launch.block, [&] { launch.kernel->call(arguments.data()); });
        return SUCCESS;
    }

    int add(const Launch& launch, const void* stream) {
        if (!recording) return settle(stream), run(launch);
        recording->launches.push_back(launch);
        return SUCCESS;
    }
};

Driver& driver() {
    static Driver own;
    return own;
}

}  // namespace

#define ENTER(name) \
    if (int error = driver().enter(name)) return error

#pragma GCC visibility push(default)
extern "C" {

int cuDriverGetVersion(int* version) {
    ENTER("cuDriverGetVersion");
    const char* told = variable("PRESTOW_MOCK_VERSION");
    *version = told ? std::atoi(told) : 13000;
    return SUCCESS;
}
int cuInit(unsigned) {
    ENTER("cuInit");
    return SUCCESS;
}
// NVRTC queries the driver for a table of functions. This one is empty except for its size.
int cuGetExportTable(const void** table, const void*) {
    static const size_t empty[1] = {sizeof empty};
    return *table = empty, SUCCESS;
}
int cuGetErrorName(int, const char** text) { return *text = "MOCK_ERROR", SUCCESS; }
int cuGetErrorString(int error, const char** text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == INVALID_IMAGE ? "device kernel image is invalid" : "the mock was told to fail";
    return SUCCESS;
}
int cuDeviceGetCount(int* count) {
    ENTER("cuDeviceGetCount");
    return *count = devices(), SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) {
    ENTER("cuDeviceGet");
    return *device = ordinal, SUCCESS;
}
int cuDeviceGetName(char* name, int size, int) {
    ENTER("cuDeviceGetName");
    std::snprintf(name, size, "Mock GPU");
    return SUCCESS;
}
int cuDeviceGetPCIBusId(char* text, int size, int) {
    ENTER("cuDeviceGetPCIBusId");
    return std::snprintf(text, size, "0000:65:00.0") < size ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER("cuDeviceGetAttribute");
    // Properties of an H200, by `CUdevice_attribute`, as far as they are queried.
    static const std::map<int, int> values = {
        {1, 1024},  {2, 1024},     {3, 1024},     {4, 64},     {5, 2147483647}, {6, 65535},    {7, 65535}, {8, 49152},
        {10, 32},   {12, 65536},   {13, 1980000}, {16, 132},   {34, 1},         {36, 3201000}, {38, 62914560},
        {39, 2048}, {75, 9},       {82, 65536},   {95, 1},     {97, 232448},    {106, 32},     {111, 1024},
    };
    auto found = values.find(attribute);
    return *value = found == values.end() ? 0 : found->second, SUCCESS;
}
int cuDeviceTotalMem_v2(size_t* total, int) {
    ENTER("cuDeviceTotalMem_v2");
    return *total = driver().memory(), SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    driver().alive["context"]++;
    return *context = contexts + device, SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    driver().alive["context"]--;
    return SUCCESS;
}
int cuCtxSetCurrent(void* context) {
    ENTER("cuCtxSetCurrent");
    if (1 < devices() && current != context) driver().say("takes up %s", context ? std::to_string(static_cast<char*>(context) - contexts).c_str() : "none");
    return current = context, SUCCESS;
}
int cuCtxGetCurrent(void** context) {
    ENTER("cuCtxGetCurrent");
    return *context = current, SUCCESS;
}
int cuStreamCreate(void** stream, unsigned flags) {
    ENTER("cuStreamCreate");
    driver().alive["stream"]++;
    return *stream = flags & 1 ? driver().non_blocking() : &driver(), SUCCESS;
}
// The next two functions are for programs that use cust.
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return SUCCESS; }
int cuStreamDestroy_v2(void*) {
    driver().alive["stream"]--;
    return SUCCESS;
}
int cuStreamSynchronize(void*) {
    ENTER("cuStreamSynchronize");
    return driver().reach(nullptr), SUCCESS;
}
int cuEventCreate(void** event, unsigned flags) {
    ENTER("cuEventCreate");
    driver().alive["event"]++;
    return *event = new Event{!(flags & 2), false, false, 0, 0}, SUCCESS;
}
int cuEventDestroy_v2(void* event) {
    auto& ahead = driver().ahead;
    ahead.erase(std::remove(ahead.begin(), ahead.end(), event), ahead.end());
    driver().alive["event"]--;
    return delete static_cast<Event*>(event), SUCCESS;
}
int cuEventRecord(void* handle, void* stream) {
    ENTER("cuEventRecord");
    if (!stream) return INVALID_HANDLE;
    Event* event = static_cast<Event*>(handle);
    auto& ahead = driver().ahead;
    ahead.erase(std::remove(ahead.begin(), ahead.end(), event), ahead.end());
    ahead.push_back(event);
    event->recorded = true, event->reached = false, event->ms = driver().clock_ms, event->copies = driver().begun.size();
    return SUCCESS;
}
int cuEventSynchronize(void* handle) {
    ENTER("cuEventSynchronize");
    Event* event = static_cast<Event*>(handle);
    if (variable("PRESTOW_MOCK_EARLY")) return event->reached = true, SUCCESS;
    if (event->recorded && !event->reached) driver().reach(event);
    return SUCCESS;
}
int cuEventElapsedTime_v2(float* ms, void* first, void* last) {
    ENTER("cuEventElapsedTime_v2");
    const Event *start = static_cast<Event*>(first), *end = static_cast<Event*>(last);
    if (!start->has_clock || !end->has_clock || !start->recorded || !end->recorded) return INVALID_HANDLE;
    if (!start->reached || !end->reached) return NOT_READY;
    return *ms = end->ms - start->ms, SUCCESS;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER("cuMemGetInfo_v2");
    *total = driver().memory();
    *free = *total - driver().used;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t* address, size_t size) {
    ENTER("cuMemAlloc_v2");
    if (driver().memory() - driver().used < size) return OUT_OF_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, size)) return OUT_OF_MEMORY;
    // Uninitialized memory reads as NaN.
    std::memset(memory, 0xff, size);
    *address = reinterpret_cast<uint64_t>(memory);
    driver().allocations[*address] = size;
    driver().used += size;
    driver().alive["memory"]++;
    driver().say("alloc %zu", size);
    if (driver().observer) driver().observer(1, *address, size);
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
    auto found = driver().allocations.find(address);
    if (found == driver().allocations.end()) return INVALID_VALUE;
    if (driver().observer) driver().observer(2, address, found->second);
    driver().used -= found->second;
    driver().allocations.erase(found);
    driver().alive["memory"]--;
    std::free(reinterpret_cast<void*>(address));
    return SUCCESS;
}
int cuDeviceGetUuid_v2(char* uuid, int device) {
    ENTER("cuDeviceGetUuid_v2");
    const char* first = variable("PRESTOW_MOCK_UUID");
    std::memset(uuid, 0, 16);
    uuid[15] = char((first ? std::atoi(first) : 1) + device);
    return SUCCESS;
}
// As `CUmemAllocationProp` and `CUmemAccessDesc` begin: the kind, the type of handle, and the location's kind and number.
struct MockProperties {
    int kind, handle, location, device;
};
struct MockAccess {
    int location, device, flags;
};
int cuMemGetAllocationGranularity(size_t* unit, const MockProperties*, int) {
    ENTER("cuMemGetAllocationGranularity");
    return *unit = 2 << 20, SUCCESS;
}
int cuMemCreate(uint64_t* handle, size_t size, const MockProperties* properties, unsigned long long) {
    ENTER("cuMemCreate");
    if (!size || size % (2 << 20) || properties->handle != 1 || properties->location != 1) return INVALID_VALUE;
    if (driver().memory() - driver().used < size) return OUT_OF_MEMORY;
    const int file = memfd_create("mock-device-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size)) return OUT_OF_MEMORY;
    driver().alive["physical"]++;
    driver().say("create %zu", size);
    return *handle = 1 + file, SUCCESS;
}
int cuMemRelease(uint64_t handle) {
    driver().alive["physical"]--;
    return close(int(handle) - 1) ? INVALID_VALUE : SUCCESS;
}
int cuMemExportToShareableHandle(void* out, uint64_t handle, int type, unsigned long long) {
    ENTER("cuMemExportToShareableHandle");
    const int file = type == 1 ? fcntl(int(handle) - 1, F_DUPFD_CLOEXEC, 0) : -1;
    if (file < 0) return INVALID_VALUE;
    driver().say("export");
    return std::memcpy(out, &file, sizeof file), SUCCESS;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* bits, int type) {
    ENTER("cuMemImportFromShareableHandle");
    // Only memory of the mock, not any descriptor.
    char link[64], target[64] = {};
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", int(reinterpret_cast<intptr_t>(bits)));
    const bool is_ours = 0 < readlink(link, target, sizeof target - 1) && std::strstr(target, "memfd:mock-device-memory");
    const int file = is_ours && type == 1 ? fcntl(int(reinterpret_cast<intptr_t>(bits)), F_DUPFD_CLOEXEC, 0) : -1;
    if (file < 0) return INVALID_VALUE;
    driver().alive["physical"]++;
    driver().say("import");
    return *handle = 1 + file, SUCCESS;
}
int cuMemAddressReserve(uint64_t* address, size_t size, size_t, uint64_t, unsigned long long) {
    ENTER("cuMemAddressReserve");
    // The start is a multiple of the unit: the rest, before and behind it, stays reserved until the process ends.
    const size_t unit = 2 << 20;
    void* start = size % unit ? MAP_FAILED : mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return INVALID_VALUE;
    *address = (reinterpret_cast<uint64_t>(start) + unit - 1) / unit * unit;
    driver().allocations[*address] = size;
    driver().alive["range"]++;
    driver().say("reserve %zu", size);
    return SUCCESS;
}
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long) {
    ENTER("cuMemMap");
    struct stat status;
    if (driver().allocation(address, size) == driver().allocations.end() || offset || fstat(int(handle) - 1, &status)) return INVALID_VALUE;
    if (size_t(status.st_size) != size) return INVALID_VALUE;
    // Memory of another process is in use once, not by each of its users.
    driver().mappings[address] = {size, fcntl(int(handle) - 1, F_DUPFD_CLOEXEC, 0)};
    driver().alive["mapping"]++;
    return SUCCESS;
}
int cuMemSetAccess(uint64_t address, size_t size, const MockAccess* access, size_t count) {
    ENTER("cuMemSetAccess");
    auto found = driver().mappings.find(address);
    if (found == driver().mappings.end() || found->second.first != size || count != 1) return INVALID_VALUE;
    const int protection = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : PROT_NONE;
    void* at = mmap(reinterpret_cast<void*>(address), size, protection, MAP_SHARED | MAP_FIXED, found->second.second, 0);
    driver().say("map %zu at %llu %s", size, static_cast<unsigned long long>(address - driver().allocation(address, size)->first),
                 access->flags == 3 ? "to write" : "to read");
    return at == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}
int cuMemUnmap(uint64_t address, size_t size) {
    auto found = driver().mappings.find(address);
    if (found == driver().mappings.end() || found->second.first != size) return INVALID_VALUE;
    close(found->second.second);
    driver().mappings.erase(found);
    driver().alive["mapping"]--;
    mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return SUCCESS;
}
int cuMemAddressFree(uint64_t address, size_t size) {
    auto found = driver().allocations.find(address);
    if (found == driver().allocations.end() || found->second != size) return INVALID_VALUE;
    driver().allocations.erase(found);
    driver().alive["range"]--;
    return munmap(reinterpret_cast<void*>(address), size), SUCCESS;
}
int cuMemHostAlloc(void** memory, size_t size, unsigned) {
    ENTER("cuMemHostAlloc");
    *memory = std::malloc(size);
    driver().pinned[static_cast<char*>(*memory)] = size;
    driver().alive["pinned"]++;
    driver().say("pin %zu", size);
    return SUCCESS;
}
int cuMemFreeHost(void* memory) {
    if (!driver().pinned.erase(static_cast<char*>(memory))) return INVALID_VALUE;
    driver().alive["pinned"]--;
    // Pinned memory that is freed too early loses its bytes. A corrupted context reads no more.
    if (!driver().lost && driver().copied < driver().begun.size()) driver().say("unpin while it is read");
    driver().copied = driver().begun.size();
    driver().say("unpin");
    return std::free(memory), SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* memory, size_t size, void* stream) {
    ENTER("cuMemcpyHtoDAsync_v2");
    auto found = driver().allocation(to, size);
    if (found == driver().allocations.end() || !stream) return INVALID_VALUE;
    const char* from = static_cast<const char*>(memory);
    auto after = driver().pinned.upper_bound(from);
    if (after == driver().pinned.begin() || std::prev(after)->first + std::prev(after)->second < from + size) {
        // Pageable memory is read before this returns.
        driver().begun.push_back({reinterpret_cast<char*>(to), nullptr, size, std::string(from, size), false, false});
        driver().say("write %zu at %llu", size, static_cast<unsigned long long>(to - found->first));
        return SUCCESS;
    }
    const char* start = std::prev(after)->first;
    driver().begun.push_back({reinterpret_cast<char*>(to), from, size, std::string(from, size), true, false});
    driver().say("stage %zu from %zu at %llu", size, static_cast<size_t>(from - start), static_cast<unsigned long long>(to - found->first));
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
    ENTER("cuMemcpyDtoHAsync_v2");
    auto found = driver().allocation(from, size);
    if (found == driver().allocations.end() || !stream) return INVALID_VALUE;
    driver().begun.push_back({static_cast<char*>(to), reinterpret_cast<const char*>(from), size, {}, false, true});
    driver().say("read %zu at %llu", size, static_cast<unsigned long long>(from - found->first));
    return SUCCESS;
}
// Copies without a stream use the default stream. The host's bytes are read before a copy returns, and arrive before the next
// copy starts.
int cuMemcpyHtoD_v2(uint64_t to, const void* memory, size_t size) {
    ENTER("cuMemcpyHtoD_v2");
    if (driver().allocation(to, size) == driver().allocations.end()) return INVALID_VALUE;
    driver().finish_default();
    const char* from = static_cast<const char*>(memory);
    return driver().by_default.push_back({reinterpret_cast<char*>(to), nullptr, size, std::string(from, size), false, false}), SUCCESS;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
    ENTER("cuMemcpyDtoH_v2");
    if (driver().allocation(from, size) == driver().allocations.end()) return INVALID_VALUE;
    driver().finish_default();
    return std::memcpy(to, reinterpret_cast<void*>(from), size), SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void* stream) {
    ENTER("cuMemcpyDtoDAsync_v2");
    auto source = driver().allocation(from, size), target = driver().allocation(to, size);
    if (source == driver().allocations.end() || target == driver().allocations.end() || !stream) return INVALID_VALUE;
    driver().settle(stream);
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
    driver().say("copy %zu from %llu to %llu", size, static_cast<unsigned long long>(from - source->first),
                 static_cast<unsigned long long>(to - target->first));
    return SUCCESS;
}
int cuModuleLoadData(void** module, const void* image) {
    ENTER("cuModuleLoadData");
    driver().alive["module"]++;
    return *module = new Module(loaded(image)), SUCCESS;
}
int cuModuleUnload(void* handle) {
    Module* module = static_cast<Module*>(handle);
    if (module->library) dlclose(module->library);
    driver().alive["module"]--;
    return delete module, SUCCESS;
}
int cuModuleGetFunction(void** function, void* handle, const char* name) {
    ENTER("cuModuleGetFunction");
    // Functions are never freed.
    const Module& module = *static_cast<Module*>(handle);
    for (const Kernel* kernel = module.kernels; kernel->name; kernel++) {
        if (std::string(kernel->name) == name) return *function = &driver().functions.emplace_back(Function{kernel, module.run}), SUCCESS;
    }
    return NOT_FOUND;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    ENTER("cuFuncSetAttribute");
    constexpr int MAX_DYNAMIC_SHARED = 8, SHARED_CARVEOUT = 9;
    if (attribute == MAX_DYNAMIC_SHARED && 0 <= value && value <= 227 * 1024) return static_cast<Function*>(function)->shared_max = value, SUCCESS;
    return attribute == SHARED_CARVEOUT && 0 <= value && value <= 100 ? SUCCESS : INVALID_VALUE;
}
int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
    ENTER("cuLaunchKernel");
    const auto [gx, gy, gz, bx, by, bz, shared, stream, attributes, attribute_count] = *config;
    if (static_cast<const Function*>(function)->shared_max < int(shared)) return INVALID_VALUE;
    constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;
    for (unsigned ix = 0; ix < attribute_count; ix++) {
        if (attributes[ix].id != PROGRAMMATIC_STREAM_SERIALIZATION) return INVALID_VALUE;
    }
    // As in `cuDeviceGetAttribute`.
    const bool is_empty = !gx || !gy || !gz || !bx || !by || !bz;
    if (is_empty || 0x7fffffff < gx || 65535 < gy || 65535 < gz || 1024 < bx || 1024 < by || 64 < bz || 1024 < bx * by * bz) return INVALID_VALUE;
    const auto [kernel, run, shared_max] = *static_cast<const Function*>(function);
    Launch launch = {kernel, {gx, gy, gz}, {bx, by, bz}, {}, nullptr, nullptr, nullptr, run};
    for (int at = 0; at < kernel->parameters; at++) launch.arguments.push_back(*static_cast<void**>(arguments[at]));
    return driver().add(launch, stream);
}
// For the mocks of libraries (`cudnn.cpp`, `cublaslt.cpp`, `nvml.cpp`): their calls on the stream, with the operands' addresses.
int mockEnqueue(const char* library, void (*work)(void*), void* context, void** addresses, size_t count) {
    Launch launch = {nullptr, {}, {}, std::vector<void*>(addresses, addresses + count), library, work, context};
    return driver().add(launch, driver().non_blocking());
}
// Advances the clock by milliseconds.
void mockPass(float ms) { driver().clock_ms += ms; }
// Lazy loading by a library. Returns whether loading is possible now.
bool mockLoad(const char* library) {
    if (driver().recording) driver().invalidated = true, driver().say("%s loads in a record", library);
    return !driver().recording;
}
// Objects of a library, which must all be freed.
void mockAlive(const char* what, int change) { driver().alive[what] += change; }
// For the observer of allocations (`cupti.cpp`).
void mockObserve(void (*observer)(int, uint64_t, size_t)) { driver().observer = observer; }
int cuStreamBeginCapture_v2(void*, int) {
    ENTER("cuStreamBeginCapture_v2");
    driver().recording = new Graph;
    driver().invalidated = false;
    return SUCCESS;
}
int cuStreamEndCapture(void*, void** graph) {
    *graph = driver().recording;
    const int told = driver().enter("cuStreamEndCapture");
    const int error = told ? told : driver().invalidated ? CAPTURE_INVALIDATED : SUCCESS;
    driver().recording = nullptr;
    if (error) {
        // The driver frees an invalid capture.
        delete static_cast<Graph*>(*graph);
        return *graph = nullptr, error;
    }
    driver().alive["graph"]++;
    return SUCCESS;
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    ENTER("cuGraphInstantiateWithFlags");
    *exec = new Graph(*static_cast<Graph*>(graph));
    driver().alive["exec"]++;
    driver().say("record of %zu", static_cast<Graph*>(graph)->launches.size());
    return SUCCESS;
}
int cuGraphLaunch(void* exec, void* stream) {
    ENTER("cuGraphLaunch");
    driver().settle(stream);
    driver().say("launch");
    if (const char* size = variable("PRESTOW_MOCK_ALLOCATE")) {
        uint64_t address;
        if (int error = cuMemAlloc_v2(&address, std::strtoull(size, nullptr, 10))) return error;
        cuMemFree_v2(address);
    }
    for (const Launch& launch : static_cast<Graph*>(exec)->launches) {
        if (int error = driver().run(launch)) return error;
    }
    return SUCCESS;
}
int cuGraphExecDestroy(void* exec) {
    delete static_cast<Graph*>(exec);
    driver().alive["exec"]--;
    return SUCCESS;
}
int cuGraphDestroy(void* graph) {
    delete static_cast<Graph*>(graph);
    driver().alive["graph"]--;
    return SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
