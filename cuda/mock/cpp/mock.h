// What the mocks of libraries beside the driver share: how they are told what to be, and when to fail.

#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

const char* variable(const char* name) { return std::getenv(name); }

/// Counts a call of a function; the status that `PRESTOW_MOCK_FAIL` says of it, or 0.
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

/// A function of the driver's mock, if that is there.
template <class F>
F driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

/// What a library has to load before something of its own is done first. Whether that could be loaded.
[[maybe_unused]] bool loaded(const char* library, bool& is_loaded) {
    auto load = driver<bool (*)(const char*)>("mockLoad");
    return is_loaded = is_loaded || (load && load(library));
}

}  // namespace

/// Each mock says with `enter` what a call begins with.
#define ENTER(name) \
    if (int error = enter(name)) return error
