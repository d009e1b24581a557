// A compiler that compiles nothing, `libnvrtc.so.13`: what it gives is not machine code. Built as a shared library of its
// own. For tests of whatever asks NVIDIA's compiler, where that is not there.
//
//   PRESTOW_MOCK_FAIL=CALL:N:E          the N-th call of a function (from 1 on) fails with error E
//   PRESTOW_MOCK_NVRTC_VERSION=1108     its version (1300 if not said)
//   PRESTOW_MOCK_NVRTC_ARCHS=80,90      the architectures that it knows (80, 90, 100 and 120 if not said)

#include <cstring>
#include <vector>

#include "mock.h"

namespace {

int enter(const char* name) { return told(name); }

std::vector<int> architectures() {
    const char* said = variable("PRESTOW_MOCK_NVRTC_ARCHS");
    if (!said) return {80, 90, 100, 120};
    std::vector<int> all;
    for (char* at = const_cast<char*>(said); *at; at += *at == ',') all.push_back(int(std::strtol(at, &at, 10)));
    return all;
}

constexpr char CODE[] = "code", LOG[] = "the mock was told to fail";

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvrtcVersion(int* major, int* minor) {
    ENTER("nvrtcVersion");
    const char* said = variable("PRESTOW_MOCK_NVRTC_VERSION");
    const int version = said ? std::atoi(said) : 1300;
    return *major = version / 100, *minor = version % 100, 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
    ENTER("nvrtcGetNumSupportedArchs");
    return *count = int(architectures().size()), 0;
}
int nvrtcGetSupportedArchs(int* all) {
    ENTER("nvrtcGetSupportedArchs");
    for (int arch : architectures()) *all++ = arch;
    return 0;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    ENTER("nvrtcCreateProgram");
    return *program = const_cast<char*>(CODE), 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
    ENTER("nvrtcCompileProgram");
    return 0;
}
int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = sizeof LOG, 0; }
int nvrtcGetProgramLog(void*, char* log) { return std::memcpy(log, LOG, sizeof LOG), 0; }
int nvrtcGetCUBINSize(void*, size_t* size) {
    ENTER("nvrtcGetCUBINSize");
    return *size = sizeof CODE, 0;
}
int nvrtcGetCUBIN(void*, char* code) {
    ENTER("nvrtcGetCUBIN");
    return std::memcpy(code, CODE, sizeof CODE), 0;
}
int nvrtcDestroyProgram(void**) { return 0; }

}  // extern "C"
#pragma GCC visibility pop
