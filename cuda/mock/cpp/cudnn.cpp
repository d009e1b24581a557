// Mock of cuDNN, `libcudnn.so.9`, on the memory of the driver's mock. It has the part of the graph API that plans of
// convolutions need.
//
//   PRESTOW_MOCK_FAIL=CALL:N:E          the N-th call of a function (from 1) fails with status E
//   PRESTOW_MOCK_CUDNN_VERSION=91100    the version (default 91900); plans of another version are refused
//   PRESTOW_MOCK_CUDNN_ENGINES=none     no engines at all
//   PRESTOW_MOCK_CUDNN_ENGINES=large    one more valid engine at the front, with 4 MiB of workspace
//   PRESTOW_MOCK_CUDNN_SLOW=4           this engine takes a millisecond longer
//
// The heuristic returns engines that callers must skip, then a valid one with 131 bytes of workspace, of which it writes a part.
// Half precision and tensor cores need 4 MiB unless channels are adjacent. Tensor cores on adjacent channels need operands
// declared aligned to 16 bytes. Operands that are not aligned as declared are refused. A plan's text has the convolution's parameters and
// the device description; loading requires the same driver version.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "mock.h"
#include "shim.h"

namespace {

// From the header of cuDNN 9: statuses, descriptor types, attributes, values.
enum : int { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, VERSION = 1003, OTHER_DEVICE = 3007, NOT_LOADED = 5001 };
enum : int { POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5, OP_CONVOLUTION = 10, OP_POINTWISE = 13, GRAPH = 15, PACK = 16, TENSOR = 17, DEVICE = 38 };
enum : int { TYPE_OBJECT = 15 };
enum : int { MODE = 0, DILATIONS = 102, STRIDES = 103, BACK = 104, FRONT = 105, ASKED_MODE = 200, ASKED_GRAPH = 201, RESULTS = 202, ASKED_DEVICE = 204, CONFIG_ENGINE = 300, PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PLAN_TEXT = 405, PLAN_DEVICE = 407, CONV_HOW = 702, CONV_W = 703, CONV_X = 704, CONV_Y = 705, POINT_HOW = 750, POINT_X = 751, POINT_B = 752, POINT_Y = 753, GRAPH_OPS = 801, ALIGNMENT = 900, NUMBER = 901, EXTENTS = 902, TENSOR_STRIDES = 903, ID = 906, VIRTUAL = 907, PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003, ENGINE_INDEX = 1301, ENGINE_NUMERICS = 1303, ENGINE_BEHAVIOR = 1305, DEVICE_TEXT = 2702 };
enum : int { ADD = 0, RELU = 100 };
enum : int { F32 = 0, F16 = 2, BF16 = 9 };

struct Object {
    int kind;
    bool done = false;
    std::map<int, std::vector<char>> values;
    bool is_loaded = false;

    template <class T>
    std::vector<T> all(int name) {
        std::vector<T> items(values[name].size() / sizeof(T));
        std::memcpy(items.data(), values[name].data(), items.size() * sizeof(T));
        return items;
    }
    template <class T>
    T one(int name) {
        auto items = all<T>(name);
        return items.empty() ? T{} : items[0];
    }
    template <class T>
    void put(int name, std::vector<T> items) {
        const char* bytes = reinterpret_cast<const char*>(items.data());
        values[name].assign(bytes, bytes + items.size() * sizeof(T));
    }
};

// A convolution as in a plan's text: extents of x, weights and y, the window, and the identifiers of the operands; an absent
// bias or residual is 0. All operands have one data type and one declared alignment; strides give their layout.
struct Problem {
    int64_t x[4], w[4], y[4], x_at[4], w_at[4], y_at[4], stride[2], dilation[2], front[2], ids[5], relu, number, alignment;
};
constexpr int NUMBERS = sizeof(Problem) / sizeof(int64_t);

constexpr int64_t WORKSPACE = 131;
const char* last_error = "";

size_t version() { return variable("PRESTOW_MOCK_CUDNN_VERSION") ? std::atoi(variable("PRESTOW_MOCK_CUDNN_VERSION")) : 91900; }

int enter(const char* name) {
    last_error = "the mock was told to fail";
    return told(name);
}

int refuse(int status, const char* why) { return last_error = why, status; }

/// The integers after a name in a text.
struct Numbers : std::vector<int64_t> {
    int64_t operator*() const { return empty() ? 0 : front(); }
};
Numbers behind(const std::string& text, const char* name) {
    const std::string quoted = std::string("\"") + name + "\":";
    Numbers numbers;
    const size_t found = text.find(quoted);
    if (found == std::string::npos) return numbers;
    const char* at = text.c_str() + found + quoted.size();
    do {
        char* end;
        numbers.push_back(std::strtoll(at + (*at == '[' || *at == ','), &end, 10));
        at = end;
    } while (*at == ',' && (at[1] == '-' || ('0' <= at[1] && at[1] <= '9')));
    return numbers;
}

void copy4(int64_t* to, Object* tensor, int name) {
    auto extents = tensor->all<int64_t>(name);
    for (size_t at = 0; at < 4; at++) to[at] = extents[at];
}

/// The convolution of an operation graph, in the order of the fused engines: convolution, residual, bias, ReLU.
bool read(Object* graph, Problem& problem) {
    problem = {};
    auto ops = graph->all<Object*>(GRAPH_OPS);
    if (ops.empty() || ops[0]->kind != OP_CONVOLUTION) return false;
    Object* how = ops[0]->one<Object*>(CONV_HOW);
    Object *x = ops[0]->one<Object*>(CONV_X), *w = ops[0]->one<Object*>(CONV_W), *y = ops[0]->one<Object*>(CONV_Y);
    copy4(problem.x, x, EXTENTS), copy4(problem.w, w, EXTENTS), copy4(problem.y, y, EXTENTS);
    copy4(problem.x_at, x, TENSOR_STRIDES), copy4(problem.w_at, w, TENSOR_STRIDES), copy4(problem.y_at, y, TENSOR_STRIDES);
    problem.number = x->one<int>(NUMBER);
    if (w->one<int>(NUMBER) != problem.number) return false;
    problem.alignment = x->one<int64_t>(ALIGNMENT);
    if (problem.alignment < (problem.number == F32 ? 4 : 2) || w->one<int64_t>(ALIGNMENT) != problem.alignment) return false;
    for (int side = 0; side < 2; side++) {
        problem.stride[side] = how->all<int64_t>(STRIDES)[side];
        problem.dilation[side] = how->all<int64_t>(DILATIONS)[side];
        problem.front[side] = how->all<int64_t>(FRONT)[side];
        const int64_t padded = problem.x[2 + side] + problem.front[side] + how->all<int64_t>(BACK)[side];
        const int64_t window = (problem.w[2 + side] - 1) * problem.dilation[side] + 1;
        if (problem.y[2 + side] != (padded - window) / problem.stride[side] + 1) return false;
    }
    problem.ids[0] = x->one<int64_t>(ID), problem.ids[1] = w->one<int64_t>(ID);
    for (size_t at = 1; at < ops.size(); at++) {
        if (ops[at]->kind != OP_POINTWISE || !y->one<char>(VIRTUAL)) return false;
        if (ops[at]->one<Object*>(POINT_X)->one<int64_t>(ID) != y->one<int64_t>(ID)) return false;
        Object* b = ops[at]->one<Object*>(POINT_B);
        if (ops[at]->one<Object*>(POINT_HOW)->one<int>(MODE) != RELU) {
            if (b->one<int>(NUMBER) != problem.number || b->one<int64_t>(ALIGNMENT) != problem.alignment) return false;
        }
        if (ops[at]->one<Object*>(POINT_HOW)->one<int>(MODE) == RELU) {
            problem.relu = 1;
        } else if (b->all<int64_t>(EXTENTS)[2] == 1 && b->all<int64_t>(EXTENTS)[0] == 1 && b->all<int64_t>(EXTENTS)[3] == 1) {
            // A residual of one pixel has the shape of a bias; the residual comes first.
            if (problem.ids[2]) problem.ids[3] = problem.ids[2];
            problem.ids[2] = b->one<int64_t>(ID);
        } else {
            problem.ids[3] = b->one<int64_t>(ID);
        }
        y = ops[at]->one<Object*>(POINT_Y);
    }
    problem.ids[4] = y->one<int64_t>(ID);
    return !y->one<char>(VIRTUAL) && y->one<int>(NUMBER) == problem.number && y->one<int64_t>(ALIGNMENT) == problem.alignment;
}

float read_number(const void* from, int64_t at, int64_t number) {
    if (number == F32) return static_cast<const float*>(from)[at];
    const unsigned short bits = static_cast<const unsigned short*>(from)[at];
    return number == F16 ? float_of_f16(bits) : __int_as_float(int(bits) << 16);
}

void write_number(void* to, int64_t at, float value, int64_t number) {
    if (number == F32) return void(static_cast<float*>(to)[at] = value);
    const unsigned bits = unsigned(__float_as_int(value));
    static_cast<unsigned short*>(to)[at] = number == F16 ? f16_of_float(value) : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

void compute(const Problem& p, std::map<int64_t, void*> at) {
    const void *x = at[p.ids[0]], *w = at[p.ids[1]], *bias = at[p.ids[2]], *residual = at[p.ids[3]];
    void* y = at[p.ids[4]];
    const int64_t group = p.y[1] / (p.x[1] / p.w[1]);
    for (int64_t n = 0; n < p.y[0]; n++)
        for (int64_t k = 0; k < p.y[1]; k++)
            for (int64_t row = 0; row < p.y[2]; row++)
                for (int64_t column = 0; column < p.y[3]; column++) {
                    float sum = 0;
                    for (int64_t c = 0; c < p.w[1]; c++)
                        for (int64_t r = 0; r < p.w[2]; r++)
                            for (int64_t s = 0; s < p.w[3]; s++) {
                                const int64_t from_row = row * p.stride[0] + r * p.dilation[0] - p.front[0];
                                const int64_t from_column = column * p.stride[1] + s * p.dilation[1] - p.front[1];
                                if (from_row < 0 || p.x[2] <= from_row || from_column < 0 || p.x[3] <= from_column) continue;
                                const int64_t channel = k / group * p.w[1] + c;
                                const int64_t x_at = n * p.x_at[0] + channel * p.x_at[1] + from_row * p.x_at[2] + from_column * p.x_at[3];
                                const int64_t w_at = k * p.w_at[0] + c * p.w_at[1] + r * p.w_at[2] + s * p.w_at[3];
                                sum += read_number(x, x_at, p.number) * read_number(w, w_at, p.number);
                            }
                    const int64_t to = n * p.y_at[0] + k * p.y_at[1] + row * p.y_at[2] + column * p.y_at[3];
                    if (residual) sum += read_number(residual, to, p.number);
                    if (bias) sum += read_number(bias, k, p.number);
                    write_number(y, to, p.relu && sum < 0 ? 0 : sum, p.number);
                }
}

/// Bytes of workspace: more if half precision or tensor cores need a layout conversion, because channels are not adjacent.
int64_t wanted(const Problem& p, int64_t engine) { return (p.number != F32 || engine == 1) && p.x_at[1] != 1 ? 4 << 20 : WORKSPACE; }

/// A convolution with its addresses, as a captured call.
struct Work {
    Problem problem;
    std::map<int64_t, void*> at;
    char* workspace;
    bool slow;
};

void work(void* context) {
    Work* own = static_cast<Work*>(context);
    if (own->slow) driver<void (*)(float)>("mockPass")(1);
    std::memset(own->workspace, 7, 100);
    compute(own->problem, own->at);
}

struct Handle {
    uint64_t memory = 0;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion() { return version(); }
const char* cudnnGetErrorString(int status) { return status == VERSION ? "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH" : "CUDNN_STATUS_MOCK"; }
void cudnnGetLastErrorString(char* text, size_t size) { std::snprintf(text, size, "%s", last_error); }

int cudnnCreate(Handle** handle) {
    ENTER("cudnnCreate");
    auto allocate = driver<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
    Handle* own = new Handle;
    // A handle allocates device memory.
    if (!allocate || allocate(&own->memory, 1 << 20)) return delete own, refuse(NOT_SUPPORTED, "there is no driver");
    return *handle = own, SUCCESS;
}
int cudnnDestroy(Handle* handle) {
    driver<int (*)(uint64_t)>("cuMemFree_v2")(handle->memory);
    delete handle;
    return SUCCESS;
}
int cudnnSetStream(Handle*, void* stream) {
    ENTER("cudnnSetStream");
    return stream ? SUCCESS : refuse(BAD_PARAM, "no stream");
}
int cudnnBackendCreateDescriptor(int kind, Object** object) {
    ENTER("cudnnBackendCreateDescriptor");
    return *object = new Object{kind, false, {}, false}, SUCCESS;
}
int cudnnBackendDestroyDescriptor(Object* object) {
    delete object;
    return SUCCESS;
}
int cudnnBackendSetAttribute(Object* object, int name, int type, int64_t count, const void* values) {
    ENTER("cudnnBackendSetAttribute");
    if (object->done) return refuse(BAD_PARAM, "the object is finalized");
    static const std::map<int, size_t> sizes = {{0, 8}, {1, 4}, {2, 1}, {3, 8}, {4, 4}, {6, 8}, {7, 4}, {8, 4}, {14, 4}, {15, 8}, {24, 1}};
    auto size = sizes.find(type);
    if (size == sizes.end()) return refuse(BAD_PARAM, "a type that is not known");
    if (type == TYPE_OBJECT) {
        for (int64_t at = 0; at < count; at++) {
            if (!static_cast<Object* const*>(values)[at]->done) return refuse(BAD_PARAM, "an object that is not finalized");
        }
    }
    const char* bytes = static_cast<const char*>(values);
    object->values[name].assign(bytes, bytes + count * size->second);
    return SUCCESS;
}
int cudnnBackendFinalize(Object* object) {
    ENTER("cudnnBackendFinalize");
    object->done = true;
    Problem problem;
    switch (object->kind) {
        case DEVICE: {
            const std::string text(object->all<char>(DEVICE_TEXT).data());
            for (const char* fact : {"maxCtasPerSM", "multiProcessorCount", "deviceVer", "totalGlobalMem"}) {
                if (text.find(std::string("\"") + fact + "\"") == std::string::npos) return refuse(BAD_PARAM, fact);
            }
            return SUCCESS;
        }
        case GRAPH:
            return read(object, problem) ? SUCCESS : refuse(NOT_SUPPORTED, "not a convolution with its epilogue");
        case PLAN: {
            if (object->values.count(PLAN_CONFIG)) {
                // Planning: the engine's graph becomes text.
                Object* config = object->one<Object*>(PLAN_CONFIG);
                int64_t engine = config->one<int64_t>(ENGINE_INDEX);
                read(config->one<Object*>(ASKED_GRAPH), problem);
                if (engine == 1 && problem.x_at[1] == 1 && problem.alignment < 16) return refuse(NOT_SUPPORTED, "not aligned");
                std::string text = "{\"cudnnVersion\":" + std::to_string(version()) + ",\"workspace\":";
                text += std::to_string(engine == 3 ? int64_t(1) << 40 : engine == 5 ? 4 << 20 : wanted(problem, engine)) + ",\"numbers\":[";
                const int64_t* numbers = reinterpret_cast<const int64_t*>(&problem);
                for (int at = 0; at < NUMBERS; at++) text += (at ? "," : "") + std::to_string(numbers[at]);
                text += "],\"engine\":" + std::to_string(engine) + ",\"GPUProfile\":" + std::string(object->one<Object*>(PLAN_DEVICE)->all<char>(DEVICE_TEXT).data()) + "}";
                object->put(PLAN_TEXT, std::vector<char>(text.c_str(), text.c_str() + text.size() + 1));
                object->put(PLAN_WORKSPACE, std::vector<int64_t>{engine == 3 ? int64_t(1) << 40 : engine == 5 ? 4 << 20 : wanted(problem, engine)});
                return SUCCESS;
            }
            // A plan is loaded for the GPU at hand, or for a device description.
            const bool is_here = object->values.count(PLAN_HANDLE);
            if (!is_here && !object->values.count(PLAN_DEVICE)) return refuse(BAD_PARAM, "no handle");
            const std::string text(object->all<char>(PLAN_TEXT).data());
            if (size_t(*behind(text, "cudnnVersion")) != version()) return refuse(VERSION, "a plan of another version");
            int driver_version = 0;
            if (is_here) driver<int (*)(int*)>("cuDriverGetVersion")(&driver_version);
            else driver_version = *behind(object->one<Object*>(PLAN_DEVICE)->all<char>(DEVICE_TEXT).data(), "driverVer");
            if (*behind(text, "driverVer") != driver_version) return refuse(OTHER_DEVICE, "a plan for another driver");
            object->put(PLAN_WORKSPACE, std::vector<int64_t>{*behind(text, "workspace")});
            return SUCCESS;
        }
        default:
            return SUCCESS;
    }
}
int cudnnBackendGetAttribute(Object* object, int name, int type, int64_t room, int64_t* count, void* values) {
    ENTER("cudnnBackendGetAttribute");
    if (!object->done && object->kind != ENGINE && object->kind != CONFIG) return refuse(BAD_PARAM, "not finalized");
    if (type != TYPE_OBJECT) {
        static const std::map<int, size_t> sizes = {{3, 8}, {11, 4}, {19, 4}, {24, 1}};
        auto size = sizes.find(type);
        if (size == sizes.end()) return refuse(BAD_PARAM, "a type that is not known");
        const auto& bytes = object->values[name];
        *count = bytes.size() / size->second;
        if (values) std::memcpy(values, bytes.data(), std::min(room, *count) * size->second);
        return SUCCESS;
    }
    Object** others = static_cast<Object**>(values);
    if (name == RESULTS) {
        // Tensor cores, run-time compilation, a tebibyte of workspace, then the valid engine; the fallback mode has a slow one.
        const std::string told = variable("PRESTOW_MOCK_CUDNN_ENGINES") ? variable("PRESTOW_MOCK_CUDNN_ENGINES") : "";
        std::vector<int64_t> engines = {0};
        if (object->one<int>(ASKED_MODE) == 3) engines = {1, 2, 3, 4};
        if (told == "large") engines.insert(engines.begin(), 5);
        if (told == "none") engines.clear();
        *count = engines.size();
        for (int64_t at = 0; others && at < std::min(room, *count); at++) {
            others[at]->put(ENGINE_INDEX, std::vector<int64_t>{engines[at]});
            others[at]->put(ASKED_GRAPH, object->all<Object*>(ASKED_GRAPH));
            others[at]->done = true;
        }
        if (others) *count = std::min(room, *count);
    } else if (name == CONFIG_ENGINE) {
        const int64_t engine = object->one<int64_t>(ENGINE_INDEX);
        others[0]->put(ENGINE_INDEX, std::vector<int64_t>{engine});
        others[0]->put(ENGINE_NUMERICS, engine == 1 ? std::vector<int>{0} : std::vector<int>{});
        others[0]->put(ENGINE_BEHAVIOR, engine == 2 ? std::vector<int>{0} : std::vector<int>{});
        *count = 1;
    } else {
        return refuse(BAD_PARAM, "an attribute that is not known");
    }
    return SUCCESS;
}
int cudnnBackendExecute(Handle*, Object* plan, Object* pack) {
    ENTER("cudnnBackendExecute");
    if (!loaded("cudnn", plan->is_loaded)) return refuse(NOT_LOADED, "an engine cannot be loaded now");
    const std::string text(plan->all<char>(PLAN_TEXT).data());
    const std::vector<int64_t> given = behind(text, "numbers");
    Work* own = new Work;
    std::memcpy(&own->problem, given.data(), sizeof own->problem);
    const char* slow = variable("PRESTOW_MOCK_CUDNN_SLOW");
    own->slow = slow && *behind(text, "engine") == std::atoll(slow);
    auto ids = pack->all<int64_t>(PACK_IDS);
    auto pointers = pack->all<void*>(PACK_POINTERS);
    for (size_t ix = 0; ix < ids.size(); ix++) own->at[ids[ix]] = pointers[ix];
    own->workspace = pack->one<char*>(PACK_WORKSPACE);
    for (void* pointer : pointers) {
        if (reinterpret_cast<uintptr_t>(pointer) % own->problem.alignment) return delete own, refuse(BAD_PARAM, "not aligned as declared");
    }
    if (!own->workspace) return delete own, refuse(BAD_PARAM, "no workspace");
    std::vector<void*> places(pointers.begin(), pointers.end());
    places.push_back(own->workspace);
    auto enqueue = driver<int (*)(const char*, void (*)(void*), void*, void**, size_t)>("mockEnqueue");
    // Captured calls are never freed.
    return enqueue && !enqueue("cudnn", work, own, places.data(), places.size()) ? SUCCESS : refuse(BAD_PARAM, "an address outside");
}

}  // extern "C"
#pragma GCC visibility pop
