// SPDX-License-Identifier: AGPL-3.0-or-later
// The element-wise parts of RWKV-4, in plain loops that compilers turn into vectors.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

static inline __attribute__((always_inline)) float quick_exp(float x) {  // relative error below 2e-7
    x = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
    float shifted = x * 1.44269504f + 12582912.f, whole = shifted - 12582912.f;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.f;
    bits = (bits - 0x4B400000 + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}
static inline __attribute__((always_inline)) float sigmoid(float x) { return 1.f / (1.f + quick_exp(-x)); }

static void layer_norm(const float* x, const float* weight, const float* bias, int n, float* y) {
    float sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += x[i];
    const float mean = sum / n;
#pragma omp simd reduction(+ : square)
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const float turn = 1.f / std::sqrt(square / n + 1e-5f);
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) * turn * weight[i] + bias[i];
}

static void mix(const float* now, const float* before, const float* share, int n, float* y) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = before[i] + share[i] * (now[i] - before[i]);
}

// One step of the recurrence (w = -exp(time_decay), u = time_first), gated by r; the state carries its own
// running maximum pp, and of each pair of exponentials one is always 1.
static void wkv(const float* k, const float* v, const float* r, const float* w, const float* u, float* aa, float* bb,
                float* pp, int n, float* y) {
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float d = pp[i] - (u[i] + k[i]), e = quick_exp(-std::fabs(d));
        float past = d >= 0 ? 1.f : e, now = d >= 0 ? e : 1.f;
        y[i] = (past * aa[i] + now * v[i]) / (past * bb[i] + now) * sigmoid(r[i]);
        d = w[i] + pp[i] - k[i], e = quick_exp(-std::fabs(d));
        past = d >= 0 ? 1.f : e, now = d >= 0 ? e : 1.f;
        aa[i] = past * aa[i] + now * v[i];
        bb[i] = past * bb[i] + now;
        pp[i] = d >= 0 ? w[i] + pp[i] : k[i];
    }
}
