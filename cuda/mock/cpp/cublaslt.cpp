// Mock of cuBLASLt, `libcublasLt.so.13`, on the memory of the driver's mock. It has the functions that matrix products need.
//
//   PRESTOW_MOCK_FAIL=CALL:N:E            the N-th call of a function (from 1) fails with status E
//   PRESTOW_MOCK_CUBLAS_VERSION=120405    the version (default 130100)
//   PRESTOW_MOCK_CUBLAS_ALGORITHMS=none   no algorithms at all
//   PRESTOW_MOCK_CUBLAS_ALGORITHMS=two    one more valid algorithm at the end; the first valid one takes a millisecond longer
//
// The heuristic returns two algorithms that callers must skip, one that is not supported and one with too much workspace, then
// a valid one that uses a part of the workspace. The alignments that a caller declares are checked when the product runs.

#include <algorithm>
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

// From the header of cuBLASLt 13: statuses, data types, attributes, values.
enum : int { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum : int { F32 = 0, F16 = 2, BF16 = 14 };
enum : int { COMPUTE_F32 = 68, COMPUTE_PEDANTIC = 69, COMPUTE_TF32 = 77 };
enum : int { EPILOGUE = 7, BIAS_POINTER = 8 };
enum : int { BATCH_COUNT = 5, BATCH_STEP = 6 };
enum : int { WORKSPACE_MAX = 1, REDUCTION = 3, ALIGNMENT_A = 5, ALIGNMENT_D = 8 };
enum : int { RELU = 2, BIAS = 4, GELU = 32 };
enum : int { REDUCE_COMPUTE_TYPE = 2 };

constexpr size_t USED = 131;

struct Description {
    int compute, scale;
    uint32_t epilogue = 1;
    void* bias = nullptr;
    bool is_loaded = false;
};
struct Matrix {
    int type;
    uint64_t rows, columns;
    int64_t line;
    int32_t count = 1;
    int64_t step = 0;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t reduction = 7, alignment[4] = {256, 256, 256, 256};
};
/// As in the header: 64 opaque bytes.
struct Algorithm {
    uint64_t number, workspace;
    uint32_t alignment[4];
    uint64_t rest[4];
};
struct Result {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Algorithm) == 64 && sizeof(Result) == 96, "as the header has them");

int enter(const char* name) { return told(name); }

/// Reports the creation or destruction of an object to the driver's mock.
void alive(const char* what, int change) {
    if (auto tell = driver<void (*)(const char*, int)>("mockAlive")) tell(what, change);
}

float read_number(const void* from, int64_t at, int type) {
    if (type == F32) return static_cast<const float*>(from)[at];
    const unsigned short bits = static_cast<const unsigned short*>(from)[at];
    return type == F16 ? float_of_f16(bits) : __int_as_float(int(bits) << 16);
}

void write_number(void* to, int64_t at, float value, int type) {
    if (type == F32) return void(static_cast<float*>(to)[at] = value);
    const unsigned bits = unsigned(__float_as_int(value));
    static_cast<unsigned short*>(to)[at] = type == F16 ? f16_of_float(value) : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// A product with its addresses, as a captured call.
struct Work {
    Description how;
    Matrix a, b, c, d;
    const void *a_at, *b_at, *c_at;
    void *d_at, *workspace;
    float alpha, beta;
    bool slow;
};

/// The value of `PRESTOW_MOCK_CUBLAS_ALGORITHMS`.
bool has(const char* algorithms) {
    const char* told = variable("PRESTOW_MOCK_CUBLAS_ALGORITHMS");
    return told && std::string(told) == algorithms;
}

void work(void* context) {
    const Work& w = *static_cast<Work*>(context);
    if (w.slow) driver<void (*)(float)>("mockPass")(1);
    if (w.workspace) std::memset(w.workspace, 7, USED - 31);
    const auto factor = [&](const void* from, int64_t at, int type) {
        const float number = read_number(from, at, type);
        return w.how.compute == COMPUTE_TF32 ? __int_as_float(int(tf32_of_float(number))) : number;
    };
    for (int32_t ix = 0; ix < w.d.count; ix++)
        for (uint64_t column = 0; column < w.d.columns; column++)
            for (uint64_t row = 0; row < w.d.rows; row++) {
                float sum = 0;
                for (uint64_t k = 0; k < w.a.columns; k++) {
                    sum += factor(w.a_at, ix * w.a.step + row + k * w.a.line, w.a.type) * factor(w.b_at, ix * w.b.step + k + column * w.b.line, w.b.type);
                }
                sum *= w.alpha;
                if (w.beta != 0) sum += w.beta * read_number(w.c_at, ix * w.c.step + row + column * w.c.line, w.c.type);
                if (w.how.epilogue & BIAS) sum += read_number(w.how.bias, row, w.d.type);
                if (w.how.epilogue & RELU) sum = sum < 0 ? 0 : sum;
                if (w.how.epilogue & GELU) sum = 0.5f * sum * (1 + std::tanh(0.7978845608028654f * (sum + 0.044715f * sum * sum * sum)));
                write_number(w.d_at, ix * w.d.step + row + column * w.d.line, sum, w.d.type);
            }
}

bool is_half(int type) { return type == F16 || type == BF16; }

/// Whether the matrices are supported, by cuBLASLt's table of types and its rules for extents.
bool fits(const Description& how, const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d) {
    if (how.scale != F32 || a.type != b.type || c.type != d.type) return false;
    if (how.compute != COMPUTE_F32 && (is_half(a.type) || (how.compute != COMPUTE_PEDANTIC && how.compute != COMPUTE_TF32))) return false;
    if (d.type != a.type && !(is_half(a.type) && d.type == F32)) return false;
    if (a.rows != d.rows || b.columns != d.columns || a.columns != b.rows || c.rows != d.rows || c.columns != d.columns) return false;
    for (const Matrix* matrix : {&a, &b, &c, &d}) {
        if (matrix->line < int64_t(matrix->rows) || matrix->count != d.count || matrix->rows * matrix->columns == 0) return false;
    }
    if (d.count != 1 && d.step < int64_t(d.rows * d.columns)) return false;
    return !(how.epilogue & BIAS) || how.bias;
}

}  // namespace

/// Copies an attribute's value, whose size must match.
#define TAKE(place) \
    return size == sizeof(place) ? (std::memcpy(&(place), value, size), SUCCESS) : INVALID_VALUE

#pragma GCC visibility push(default)
extern "C" {

size_t cublasLtGetVersion() { return variable("PRESTOW_MOCK_CUBLAS_VERSION") ? std::atoi(variable("PRESTOW_MOCK_CUBLAS_VERSION")) : 130100; }
const char* cublasLtGetStatusName(int status) { return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_MOCK"; }

int cublasLtCreate(uint64_t** handle) {
    ENTER("cublasLtCreate");
    auto allocate = driver<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
    // A handle allocates device memory.
    uint64_t* memory = new uint64_t;
    if (!allocate || allocate(memory, 1 << 16)) return delete memory, ALLOC_FAILED;
    return *handle = memory, SUCCESS;
}
int cublasLtDestroy(uint64_t* handle) {
    driver<int (*)(uint64_t)>("cuMemFree_v2")(*handle);
    delete handle;
    return SUCCESS;
}
int cublasLtMatmulDescCreate(Description** description, int compute, int scale) {
    ENTER("cublasLtMatmulDescCreate");
    alive("description", 1);
    return *description = new Description{compute, scale}, SUCCESS;
}
int cublasLtMatmulDescDestroy(Description* description) {
    alive("description", -1);
    return delete description, SUCCESS;
}
int cublasLtMatmulDescSetAttribute(Description* description, int name, const void* value, size_t size) {
    ENTER("cublasLtMatmulDescSetAttribute");
    if (name == EPILOGUE) TAKE(description->epilogue);
    if (name == BIAS_POINTER) TAKE(description->bias);
    return INVALID_VALUE;
}
int cublasLtMatrixLayoutCreate(Matrix** matrix, int type, uint64_t rows, uint64_t columns, int64_t line) {
    ENTER("cublasLtMatrixLayoutCreate");
    alive("layout", 1);
    return *matrix = new Matrix{type, rows, columns, line}, SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Matrix* matrix) {
    alive("layout", -1);
    return delete matrix, SUCCESS;
}
int cublasLtMatrixLayoutSetAttribute(Matrix* matrix, int name, const void* value, size_t size) {
    ENTER("cublasLtMatrixLayoutSetAttribute");
    if (name == BATCH_COUNT) TAKE(matrix->count);
    if (name == BATCH_STEP) TAKE(matrix->step);
    return INVALID_VALUE;
}
int cublasLtMatmulPreferenceCreate(Preference** preference) {
    ENTER("cublasLtMatmulPreferenceCreate");
    alive("preference", 1);
    return *preference = new Preference, SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
    alive("preference", -1);
    return delete preference, SUCCESS;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int name, const void* value, size_t size) {
    ENTER("cublasLtMatmulPreferenceSetAttribute");
    if (name == WORKSPACE_MAX) TAKE(preference->workspace);
    if (name == REDUCTION) TAKE(preference->reduction);
    if (ALIGNMENT_A <= name && name <= ALIGNMENT_D) TAKE(preference->alignment[name - ALIGNMENT_A]);
    return INVALID_VALUE;
}
int cublasLtMatmulAlgoGetHeuristic(uint64_t*, Description* how, Matrix* a, Matrix* b, Matrix* c, Matrix* d, Preference* preference, int room, Result* results,
                                   int* count) {
    ENTER("cublasLtMatmulAlgoGetHeuristic");
    if (!fits(*how, *a, *b, *c, *d)) return NOT_SUPPORTED;
    // Partial sums must not be rounded to half precision.
    if (is_half(d->type) && preference->reduction != REDUCE_COMPUTE_TYPE) return NOT_SUPPORTED;
    *count = 0;
    if (has("none")) return SUCCESS;
    const size_t used = std::min<size_t>(preference->workspace, USED);
    const size_t wanted[] = {0, preference->workspace + 1, used, used};
    for (int at = 0; at < std::min(room, has("two") ? 4 : 3); at++) {
        Result& result = results[(*count)++];
        result = {{uint64_t(at), wanted[at], {}, {}}, wanted[at], at == 0 ? NOT_SUPPORTED : SUCCESS, 1.0f, {}};
        std::memcpy(result.algorithm.alignment, preference->alignment, sizeof preference->alignment);
    }
    return SUCCESS;
}
int cublasLtMatmul(uint64_t*, Description* how, const float* alpha, const void* a_at, Matrix* a, const void* b_at, Matrix* b, const float* beta,
                   const void* c_at, Matrix* c, void* d_at, Matrix* d, const Algorithm* algorithm, void* workspace, size_t size, void* stream) {
    ENTER("cublasLtMatmul");
    if (!stream || !fits(*how, *a, *b, *c, *d) || algorithm->number < 2 || size < algorithm->workspace) return INVALID_VALUE;
    if (!loaded("cublaslt", how->is_loaded)) return EXECUTION_FAILED;
    // The bias's alignment is not declared, so any vector width is allowed.
    if (how->epilogue & BIAS && reinterpret_cast<uint64_t>(how->bias) % 16) return INVALID_VALUE;
    const void* addresses[] = {a_at, b_at, c_at, d_at};
    for (int at = 0; at < 4; at++) {
        if (reinterpret_cast<uint64_t>(addresses[at]) % algorithm->alignment[at]) return INVALID_VALUE;
    }
    // In the order of a step's operands: the first operand here is the second one of the row-major product.
    std::vector<void*> places = {const_cast<void*>(b_at), const_cast<void*>(a_at)};
    if (how->epilogue & BIAS) places.push_back(how->bias);
    if (*beta != 0) places.push_back(const_cast<void*>(c_at));
    places.push_back(d_at);
    if (size) places.push_back(workspace);
    // Captured calls are never freed.
    Work* own = new Work{*how, *a, *b, *c, *d, a_at, b_at, c_at, d_at, algorithm->workspace < USED ? nullptr : workspace, *alpha, *beta, has("two") && algorithm->number == 2};
    auto enqueue = driver<int (*)(const char*, void (*)(void*), void*, void**, size_t)>("mockEnqueue");
    return enqueue && !enqueue("cublaslt", work, own, places.data(), places.size()) ? SUCCESS : INVALID_VALUE;
}

}  // extern "C"
#pragma GCC visibility pop
