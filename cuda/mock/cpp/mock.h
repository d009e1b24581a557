// Shared by the mocks of libraries: configuration and failures by environment variables.

#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

const char* variable(const char* name) { return std::getenv(name); }

/// Counts a call of a function. Returns the status that `PRESTOW_MOCK_FAIL` gives it, or 0.
int told(const char* name) {
    static std::map<std::string, int> calls;
    static std::mutex alone;
    std::lock_guard<std::mutex> guard(alone);
    const int number = ++calls[name];
    const char* fail = variable("PRESTOW_MOCK_FAIL");
    char wanted[64];
    int at, error;
    return fail && std::sscanf(fail, "%63[^:]:%d:%d", wanted, &at, &error) == 3 && wanted == std::string(name) && at == number ? error : 0;
}

/// A function of the driver's mock, or null if the mock is not loaded.
template <class F>
F driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

/// Lazy loading: reports to the driver's mock that a library loads code. Returns whether it may.
[[maybe_unused]] bool loaded(const char* library, bool& is_loaded) {
    auto load = driver<bool (*)(const char*)>("mockLoad");
    return is_loaded = is_loaded || (load && load(library));
}

}  // namespace

/// Begins a call. Each mock defines `enter`.
#define ENTER(name) \
    if (int error = enter(name)) return error
