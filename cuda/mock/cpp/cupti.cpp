// Mock of CUPTI, `libcupti.so.13`: activity records of the driver mock's allocations.
//
//   PRESTOW_MOCK_FAIL=CALL:N:E          the N-th call of a function (from 1) fails with status E
//   PRESTOW_MOCK_CUPTI_VERSION=26       the interface's version (default 130001)
//   PRESTOW_MOCK_CUPTI_PINNED=1         allocations are reported as pinned host memory
//   PRESTOW_MOCK_CUPTI_DROPPED=3        the number of dropped records
//
// Records of other kinds are interleaved with those of memory.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "mock.h"

namespace {

enum : int { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12, INVALID_KIND = 21 };
enum : int { KIND_DRIVER = 4, KIND_MEMORY2 = 49 };

/// As in the header, for 64 bits.
struct Memory {
    int kind, operation, memory_kind;
    uint32_t correlation;
    uint64_t address, bytes, timestamp, pc;
    uint32_t process, device, context, stream;
    const char* name;
    uint32_t asynchronous, pad;
    uint64_t pool[5];
    const char* source;
};
static_assert(sizeof(Memory) == 128, "as the header has it");
/// A record of another kind, of any length.
struct Other {
    int kind, rest[5];
};

void (*request)(uint8_t**, size_t*, size_t*) = nullptr;
void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t) = nullptr;
std::vector<Memory> records;

int enter(const char* name) { return told(name); }

void observe(int operation, uint64_t address, size_t bytes) {
    Memory record = {};
    record.kind = KIND_MEMORY2, record.operation = operation, record.memory_kind = variable("PRESTOW_MOCK_CUPTI_PINNED") ? 2 : 3, record.address = address, record.bytes = bytes;
    records.push_back(record);
}

void listen(void (*observer)(int, uint64_t, size_t)) {
    if (auto set = driver<void (*)(void (*)(int, uint64_t, size_t))>("mockObserve")) set(observer);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cuptiGetVersion(uint32_t* version) {
    ENTER("cuptiGetVersion");
    return *version = variable("PRESTOW_MOCK_CUPTI_VERSION") ? std::atoi(variable("PRESTOW_MOCK_CUPTI_VERSION")) : 130001, SUCCESS;
}
int cuptiGetResultString(int status, const char** text) {
    return *text = status == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_MOCK", SUCCESS;
}
int cuptiActivityRegisterCallbacks(void (*first)(uint8_t**, size_t*, size_t*), void (*second)(void*, uint32_t, uint8_t*, size_t, size_t)) {
    ENTER("cuptiActivityRegisterCallbacks");
    if (!first || !second) return INVALID_PARAMETER;
    return request = first, complete = second, SUCCESS;
}
int cuptiActivityEnable(int kind) {
    ENTER("cuptiActivityEnable");
    if (kind != KIND_MEMORY2) return INVALID_KIND;
    return records.clear(), listen(observe), SUCCESS;
}
int cuptiActivityDisable(int) {
    ENTER("cuptiActivityDisable");
    return listen(nullptr), SUCCESS;
}
int cuptiActivityFlushAll(uint32_t) {
    ENTER("cuptiActivityFlushAll");
    if (!request) return INVALID_PARAMETER;
    for (size_t at = 0; at < records.size();) {
        uint8_t* buffer = nullptr;
        size_t size = 0, most = 0, valid = 0;
        request(&buffer, &size, &most);
        while (at < records.size() && valid + sizeof(Other) + sizeof(Memory) <= size) {
            const Other other = {KIND_DRIVER, {}};
            std::memcpy(buffer + valid, &other, sizeof other);
            std::memcpy(buffer + valid + sizeof other, &records[at++], sizeof(Memory));
            valid += sizeof other + sizeof(Memory);
        }
        complete(nullptr, 0, buffer, size, valid);
    }
    records.clear();
    return SUCCESS;
}
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
    ENTER("cuptiActivityGetNextRecord");
    uint8_t* next = buffer;
    if (*record) next = *record + (*reinterpret_cast<int*>(*record) == KIND_MEMORY2 ? sizeof(Memory) : sizeof(Other));
    if (buffer + valid <= next) return MAX_LIMIT_REACHED;
    return *record = next, SUCCESS;
}
int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
    ENTER("cuptiActivityGetNumDroppedRecords");
    if (!dropped) return INVALID_PARAMETER;
    return *dropped = variable("PRESTOW_MOCK_CUPTI_DROPPED") ? std::atoi(variable("PRESTOW_MOCK_CUPTI_DROPPED")) : 0, SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
