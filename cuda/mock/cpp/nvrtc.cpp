// Mock of NVRTC, `libnvrtc.so.13`. By default its result is a placeholder for machine code. With the shim it compiles for this
// processor, to a shared library that the driver's mock loads.
//
//   PRESTOW_MOCK_NVRTC_SHIM=FOLDER      compiles with the C++ compiler; FOLDER has `shim.h`
//   PRESTOW_MOCK_NVRTC_REPLACE=A=>B     replaces A by B in sources
//   PRESTOW_MOCK_FAIL=CALL:N:E          the N-th call of a function (from 1) fails with error E
//   PRESTOW_MOCK_NVRTC_VERSION=1108     the version (default 1300)
//   PRESTOW_MOCK_NVRTC_ARCHS=80,90      the supported architectures (default 80, 90, 100, 120)

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include <unistd.h>

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

struct Program {
    std::string source, code = "code", log = "the mock was told to fail";
};

std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

/// The table of a source's kernels, as `Source::for_shim` writes it, from their declarations.
std::string table(const std::string& source) {
    const std::string head = "extern \"C\" __global__ void __launch_bounds__(";
    std::string rows;
    for (size_t at = source.find(head); at != std::string::npos; at = source.find(head, at + 1)) {
        const size_t start = source.find(") ", at) + 2, open = source.find('(', start), close = source.find(") {", open);
        const std::string name = source.substr(start, open - start);
        std::istringstream parameters(source.substr(open + 1, close - open - 1));
        std::string arguments;
        int count = 0, numbers = 0;
        for (std::string one; std::getline(parameters, one, ','); count++) {
            one = one.substr(one.find_first_not_of(' '));
            const std::string type = one.substr(0, one.rfind(' '));
            numbers += type == "unsigned long long";
            arguments += (count ? ", (" : "(") + type + ")a[" + std::to_string(count) + "]";
        }
        rows += "    {\"" + name + "\", " + std::to_string(count) + ", " + std::to_string(numbers) + ", [](void** a) { " + name + "(" + arguments + "); }},\n";
    }
    return rows;
}

/// The interface of a compiled library to the driver's mock: its kernels, and a function that runs one.
constexpr char CALLS[] = R"(
#define CALL extern "C" __attribute__((visibility("default")))
const Kernel kernels[] = {
KERNELS
    {nullptr, 0, 0, nullptr},
};
CALL const Kernel* mockKernels() { return kernels; }
CALL void mockRun(const Kernel* kernel, const unsigned* grid, const unsigned* block, void** arguments) {
    unsigned grids[3], blocks[3];
    for (int axis = 0; axis < 3; axis++) grids[axis] = grid[axis], blocks[axis] = block[axis];
    shim::launch(grids, blocks, [&] { kernel->call(arguments); });
}
)";

void replace(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
}

/// Compiles for this processor. Returns NVRTC's status.
int build(Program& program, const char* shim) {
    if (const char* said = variable("PRESTOW_MOCK_NVRTC_REPLACE")) {
        const std::string words = said;
        const size_t arrow = words.find("=>");
        replace(program.source, words.substr(0, arrow), words.substr(arrow + 2));
    }
    std::string calls = CALLS;
    replace(calls, "KERNELS\n", table(program.source));
    char folder[] = "/tmp/prestow-mock-XXXXXX";
    if (!mkdtemp(folder)) return 9;
    const std::string base = folder, source = base + "/kernels.cpp", library = base + "/kernels.so", log = base + "/log";
    std::ofstream(source) << "#include \"" << shim << "/shim.h\"\n" << program.source << calls;
    const std::string flags = "-std=c++17 -O1 -shared -fPIC -fvisibility=hidden -fno-gnu-unique -ffp-contract=off -w";
    const int status = std::system((COMPILER " " + flags + " -o " + library + " " + source + " > " + log + " 2>&1").c_str());
    program.code = read(library), program.log = read(log);
    for (const std::string& file : {source, library, log}) std::remove(file.c_str());
    rmdir(folder);
    return status ? 6 : 0;
}

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
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
    ENTER("nvrtcCreateProgram");
    return *program = new Program{source}, 0;
}
int nvrtcCompileProgram(void* program, int, const char* const*) {
    ENTER("nvrtcCompileProgram");
    const char* shim = variable("PRESTOW_MOCK_NVRTC_SHIM");
    return shim ? build(*static_cast<Program*>(program), shim) : 0;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) { return *size = static_cast<Program*>(program)->log.size() + 1, 0; }
int nvrtcGetProgramLog(void* program, char* log) {
    const std::string& own = static_cast<Program*>(program)->log;
    return std::memcpy(log, own.c_str(), own.size() + 1), 0;
}
int nvrtcGetCUBINSize(void* program, size_t* size) {
    ENTER("nvrtcGetCUBINSize");
    return *size = static_cast<Program*>(program)->code.size() + 1, 0;
}
int nvrtcGetCUBIN(void* program, char* code) {
    ENTER("nvrtcGetCUBIN");
    const std::string& own = static_cast<Program*>(program)->code;
    return std::memcpy(code, own.c_str(), own.size() + 1), 0;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), 0; }

}  // extern "C"
#pragma GCC visibility pop
