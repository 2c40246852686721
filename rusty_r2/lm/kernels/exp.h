// SPDX-License-Identifier: AGPL-3.0-or-later
// The exponential of the kernels here: branchless, so that loops around it become vectors.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// exp(x) for x <= 0 to about 2 ulp: Cody-Waite reduction and a polynomial of degree 6
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    const int32_t n = (int32_t)(x * 1.44269504088896341f - 0.5f);
    const float f = (float)n;
    float r = x - f * 0.693359375f;
    r -= f * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const int32_t bits = (n + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}
static inline double exp_negative(double x) { return std::exp(x); }
