// Unary and binary functions, as `types::pointwise` defines them. Floats are computed in their own type, integers in wrapping
// 64-bit arithmetic.

template <class T> __device__ T f_abs(T x) { return fabs(x); }
template <class T> __device__ T f_acos(T x) { return acos(x); }
template <class T> __device__ T f_acosh(T x) { return acosh(x); }
template <class T> __device__ T f_affine(T x, T scale, T shift) { return scale * x + shift; }
template <class T> __device__ T f_asin(T x) { return asin(x); }
template <class T> __device__ T f_asinh(T x) { return asinh(x); }
template <class T> __device__ T f_atan(T x) { return atan(x); }
template <class T> __device__ T f_atanh(T x) { return atanh(x); }
template <class T> __device__ T f_ceil(T x) { return ceil(x); }
template <class T> __device__ T f_celu(T x, T alpha) { return x < T(0) ? alpha * expm1(x / alpha) : x; }
template <class T> __device__ T f_clip(T x, T low, T high) {
    const T raised = x < low ? low : x;
    return raised > high ? high : raised;
}
template <class T> __device__ T f_cos(T x) { return cos(x); }
template <class T> __device__ T f_cosh(T x) { return cosh(x); }
template <class T> __device__ T f_elu(T x, T alpha) { return x < T(0) ? alpha * expm1(x) : x; }
template <class T> __device__ T f_erf(T x) { return erf(x); }
template <class T> __device__ T f_exp(T x) { return exp(x); }
template <class T> __device__ T f_floor(T x) { return floor(x); }
template <class T> __device__ T f_gelu(T x) { return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752))); }
template <class T> __device__ T f_gelu_tanh(T x) {
    return T(0.5) * x * (T(1) + tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
}
template <class T> __device__ T f_hard_sigmoid(T x, T alpha, T beta) { return f_clip(alpha * x + beta, T(0), T(1)); }
template <class T> __device__ T f_hard_swish(T x) { return x * f_clip(x / T(6) + T(0.5), T(0), T(1)); }
template <class T> __device__ bool f_is_nan(T x) { return x != x; }
template <class T> __device__ bool f_is_inf(T x, bool negative, bool positive) {
    return x == x && x - x != x - x && (x < T(0) ? negative : positive);
}
template <class T> __device__ T f_leaky_relu(T x, T alpha) { return x < T(0) ? alpha * x : x; }
template <class T> __device__ T f_log(T x) { return log(x); }
template <class T> __device__ T f_softplus(T x) { return fmax(x, T(0)) + log1p(exp(-fabs(x))); }
template <class T> __device__ T f_mish(T x) { return x * tanh(f_softplus(x)); }
template <class T> __device__ T f_neg(T x) { return -x; }
template <class T> __device__ T f_reciprocal(T x) { return T(1) / x; }
template <class T> __device__ T f_relu(T x) { return x < T(0) ? T(0) : x; }
template <class T> __device__ T f_round(T x) { return rint(x); }
template <class T> __device__ T f_selu(T x, T alpha, T gamma) { return gamma * (x <= T(0) ? alpha * expm1(x) : x); }
template <class T> __device__ T f_sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> __device__ T f_sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
template <class T> __device__ T f_silu(T x) { return x * f_sigmoid(x); }
template <class T> __device__ T f_shrink(T x, T bias, T lambda) {
    return x < -lambda ? x + bias : x > lambda ? x - bias : T(0);
}
template <class T> __device__ T f_sin(T x) { return sin(x); }
template <class T> __device__ T f_sinh(T x) { return sinh(x); }
template <class T> __device__ T f_softsign(T x) { return x / (T(1) + fabs(x)); }
template <class T> __device__ T f_sqrt(T x) { return sqrt(x); }
template <class T> __device__ T f_tan(T x) { return tan(x); }
template <class T> __device__ T f_tanh(T x) { return tanh(x); }
template <class T> __device__ T f_thresholded_relu(T x, T alpha) { return x > alpha ? x : T(0); }

template <class T> __device__ T f_add(T a, T b) { return a + b; }
template <class T> __device__ T f_sub(T a, T b) { return a - b; }
template <class T> __device__ T f_mul(T a, T b) { return a * b; }
template <class T> __device__ T f_div(T a, T b) { return a / b; }
template <class T> __device__ T f_max(T a, T b) { return a != a || a > b ? a : b; }
template <class T> __device__ T f_min(T a, T b) { return a != a || a < b ? a : b; }
template <class T> __device__ T f_rem(T a, T b) { return fmod(a, b); }
template <class T> __device__ T f_mod(T a, T b) {
    const T rest = fmod(a, b);
    return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}
template <class T> __device__ T f_pow(T a, T b) { return pow(a, b); }
template <class T> __device__ T f_prelu(T a, T b) { return a < T(0) ? a * b : a; }

// The same of `float` for results in half precision, with a relative error of 2^-14 or less. They have no branches, and so cost
// little in the epilogue of a product.
__device__ inline float h_sigmoid(float x) { return reciprocal_of(1.0f + exp2_of(x * -1.44269504f)); }
__device__ inline float h_silu(float x) { return x * h_sigmoid(x); }
__device__ inline float h_gelu_tanh(float x) { return x * h_sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }
/// `x` less its product with the normal distribution's tail, which is `exp(-x^2 / 2)` by a polynomial of `t` that was fitted to
/// the least relative error for `x` up to 14.
__device__ inline float h_gelu(float x) {
    const float size = fabs(x) < 14.0f ? fabs(x) : 14.0f, t = reciprocal_of(1.0f + 0.38f * size);
    const float tail = ((((-0.0899282061f * t + 0.188876224f) * t + 0.0919798599f) * t + 0.15782947f) * t + 0.151225134f) * t;
    return f_relu(x) - size * tail * exp2_of(size * size * -0.72134752f);
}

// Integers. Undefined results, such as division by zero, are 0.
typedef long long i64;
typedef unsigned long long u64;
__device__ inline i64 i_abs(i64 x) { return x < 0 ? i64(0 - u64(x)) : x; }
__device__ inline i64 i_neg(i64 x) { return i64(0 - u64(x)); }
__device__ inline i64 i_not(i64 x) { return x == 0; }
__device__ inline i64 i_relu(i64 x) { return x < 0 ? 0 : x; }
__device__ inline i64 i_sign(i64 x) { return (0 < x) - (x < 0); }
__device__ inline i64 i_same(i64 x) { return x; }
__device__ inline i64 i_clip(i64 x, float low, float high) {
    return double(x) <= double(low) ? i64(low) : double(high) <= double(x) ? i64(high) : x;
}
__device__ inline i64 i_add(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
__device__ inline i64 i_sub(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
__device__ inline i64 i_mul(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
// The negation of the least value overflows.
__device__ inline i64 i_div(i64 a, i64 b) { return b == 0 || (b == -1 && a == i_neg(a) && a != 0) ? 0 : a / b; }
__device__ inline i64 i_rem(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
__device__ inline i64 i_mod(i64 a, i64 b) {
    const i64 rest = i_rem(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
__device__ inline i64 i_max(i64 a, i64 b) { return a < b ? b : a; }
__device__ inline i64 i_min(i64 a, i64 b) { return b < a ? b : a; }
__device__ inline i64 i_and(i64 a, i64 b) { return a & b; }
__device__ inline i64 i_or(i64 a, i64 b) { return a | b; }
__device__ inline i64 i_xor(i64 a, i64 b) { return a ^ b; }
__device__ inline i64 i_prelu(i64 a, i64 b) { return a < 0 ? i_mul(a, b) : a; }
__device__ inline i64 i_shift_left(i64 a, i64 by) { return by < 0 || 63 < by ? 0 : i64(u64(a) << by); }
__device__ inline i64 i_shift_right(i64 a, i64 by) { return by < 0 || 63 < by ? 0 : i64(u64(a) >> by); }
__device__ inline i64 i_pow(i64 a, i64 b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    i64 power = 1;
    for (i64 factor = a; 0 < b; b /= 2, factor = i_mul(factor, factor)) {
        if (b % 2 != 0) power = i_mul(power, factor);
    }
    return power;
}

/// Converts a float to a 64-bit integer: towards zero, saturating, NaN to 0.
__device__ inline i64 truncated(double x) {
    return x != x ? 0 : x <= -9223372036854775808.0 ? i64(1ull << 63) : 9223372036854775808.0 <= x ? i64(~0ull >> 1) : i64(x);
}

/// Converts a float to an integer, saturating at `low` and `high`.
__device__ inline i64 truncated(double x, i64 low, i64 high) { return i_min(i_max(truncated(x), low), high); }

/// The same for unsigned integers.
__device__ inline u64 truncated_unsigned(double x) { return x != x || x <= 0 ? 0 : 18446744073709551616.0 <= x ? ~0ull : u64(x); }
