// SPDX-License-Identifier: AGPL-3.0-or-later
// The element-wise parts of RWKV-4, on the vectors that GCC and Clang know on every machine.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#define LANES 8
#else
#define LANES 4
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))  // one copy: compiling must not take longer than talking
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef int32_t Bits __attribute__((vector_size(LANES * 4)));

INLINE Lanes all(float x) { return Lanes{} + x; }
INLINE Lanes load(const float* from, int count) {
    Lanes v = {};
    memcpy(&v, from, sizeof(float) * count);
    return v;
}
INLINE void save(float* to, Lanes v, int count) { memcpy(to, &v, sizeof(float) * count); }
#ifdef __aarch64__
INLINE Lanes larger(Lanes a, Lanes b) { return (Lanes)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b); }
#else
INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
#endif
INLINE Lanes size(Lanes a) { return (Lanes)((Bits)a & 0x7fffffff); }
INLINE float sum(Lanes v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}
INLINE float largest(Lanes v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}
// body(at, count): whole vectors, then what is left.
template <class F> INLINE void spread(int n, F body) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) body(i, LANES);
    if (i < n) body(i, n - i);
}

// exp(x) for x <= 0, relative error below 3e-7 near 0 and 2e-6 far from it: 2^(whole + rest), the rest by a
// polynomial of degree 5 (own fit), the whole part added to the exponent's bits.
INLINE Lanes quick_exp(Lanes x) {
    x = larger(x, all(-86.f));
    const Lanes y = x * 1.44269504f, shifted = y + 12582912.f, rest = y - (shifted - 12582912.f);
    Lanes p = 1.3264725e-3f * rest + 9.6715130e-3f;
    p = p * rest + 5.5507336e-2f;
    p = p * rest + 2.4022242e-1f;
    p = p * rest + 6.9314700e-1f;
    p = p * rest + 1.f;
    return (Lanes)((Bits)p + ((Bits)shifted << 23));
}
INLINE float quick_exp(float x) { return quick_exp(all(x))[0]; }
INLINE Lanes sigmoid(Lanes x) {
    const Lanes e = quick_exp(-size(x));
    return (x >= 0.f ? all(1.f) : e) / (1.f + e);
}

// The largest of(x), and not less than `least`; two chains, because one would wait for itself.
template <class F> INLINE float largest_of(const float* x, int n, float least, F of) {
    Lanes a = all(least), b = a;
    int i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        a = larger(of(load(x + i, LANES)), a), b = larger(of(load(x + i + LANES, LANES)), b);
    a = larger(a, b);
    for (; i < n; i++) a = larger(of(all(x[i])), a);
    return largest(a);
}
APART float largest_of(const float* x, int n, float least) {
    return largest_of(x, n, least, [](Lanes v) { return v; });
}

APART void layer_norm(const float* x, const float* weight, const float* bias, int n, float* y) {
    Lanes total = {}, square = {};
    spread(n, [&](int i, int k) { total += load(x + i, k); });
    const float mean = sum(total) / n;
    spread(n, [&](int i, int k) {
        Lanes d = load(x + i, k) - mean;
        for (int j = k; j < LANES; j++) d[j] = 0;
        square += d * d;
    });
    const float turn = 1.f / std::sqrt(sum(square) / n + 1e-5f);
    spread(n, [&](int i, int k) { save(y + i, (load(x + i, k) - mean) * turn * load(weight + i, k) + load(bias + i, k), k); });
}

APART void mix(const float* now, const float* before, const float* share, int n, float* y) {
    spread(n, [&](int i, int k) {
        const Lanes old = load(before + i, k);
        save(y + i, old + load(share + i, k) * (load(now + i, k) - old), k);
    });
}

// One step of the recurrence (w = -exp(time_decay), u = time_first), gated by r; the state carries its own
// running maximum pp, and of each pair of exponentials one is always 1.
APART void wkv(const float* key, const float* value, const float* r, const float* w, const float* u, float* aa, float* bb,
                float* pp, int n, float* y) {
    spread(n, [&](int i, int count) {
        const Lanes k = load(key + i, count), v = load(value + i, count), one = all(1.f);
        Lanes a = load(aa + i, count), b = load(bb + i, count), p = load(pp + i, count);
        Lanes d = p - (load(u + i, count) + k), e = quick_exp(-size(d));
        Lanes past = d >= 0.f ? one : e, now = d >= 0.f ? e : one;
        save(y + i, (past * a + now * v) / (past * b + now) * sigmoid(load(r + i, count)), count);
        p += load(w + i, count), d = p - k, e = quick_exp(-size(d));
        past = d >= 0.f ? one : e, now = d >= 0.f ? e : one;
        save(aa + i, past * a + now * v, count);
        save(bb + i, past * b + now, count);
        save(pp + i, larger(p, k), count);
    });
}

APART void square_relu(float* x, int n) {
    spread(n, [&](int i, int k) {
        const Lanes v = larger(load(x + i, k), Lanes{});
        save(x + i, v * v, k);
    });
}

APART void add_gated(float* x, const float* gate, const float* y, int n) {
    spread(n, [&](int i, int k) { save(x + i, load(x + i, k) + sigmoid(load(gate + i, k)) * load(y + i, k), k); });
}
