// SPDX-License-Identifier: AGPL-3.0-or-later
// Eight output rows at a time: the few vector operations that engine.cpp is written in, for ARM with SDOT,
// for x86 with AVX2 (and VNNI where the processor has it), and in plain C++ for everything else.
//
//   Floats   eight fp32 numbers, one of each output row
//   Sums     eight int32 sums, one of each output row
//   Bytes    32 weights: eight rows of four neighbours along the input
//   Quad     four activations (fp32), or four groups of four (int8): lane L is multiplied with all eight rows
//
// -DRUSTY_PORTABLE chooses the plain form on any machine, which is how it is tested.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float half_to_float(uint16_t h) {  // IEEE binary16, without help from the processor
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = rest >= 0x0f800000 ? rest + 0x70000000 : rest + 0x38000000;
    float value;
    if (rest < 0x00800000) value = (float)(rest >> 13) * 5.9604644775390625e-8f;  // subnormal: steps of 2^-24
    else memcpy(&value, &bits, 4);
    return sign ? -value : value;
}
static inline float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
struct Half { uint16_t bits; };
struct Brain { uint16_t bits; };

#if defined(__ARM_FEATURE_DOTPROD) && !defined(RUSTY_PORTABLE)
#include <arm_neon.h>
#define RUSTY_SIMD "neon+sdot"
#define RUSTY_NEON 1
struct Floats { float32x4_t a, b; };
struct Sums { int32x4_t a, b; };
struct Bytes { int8x16_t a, b; };
typedef float32x4_t QuadF;
typedef int8x16_t QuadI;
static inline Floats zero_f() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
static inline Sums zero_i() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
static inline QuadF quad(const float* x) { return vld1q_f32(x); }
static inline QuadI quad(const int8_t* x) { return vld1q_s8(x); }
static inline Bytes bytes(const int8_t* w) { return {vld1q_s8(w), vld1q_s8(w + 16)}; }
static inline Floats eight(const float* w) { return {vld1q_f32(w), vld1q_f32(w + 4)}; }
static inline Floats eight(const Brain* w) {
    uint16x8_t v = vld1q_u16(&w->bits);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))};
}
static inline Floats eight(const Half* w) {
    float16x8_t v = vreinterpretq_f16_u16(vld1q_u16(&w->bits));
    return {vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
}
template <int L> static inline Floats fma(Floats c, Floats w, QuadF x) {
    return {vfmaq_laneq_f32(c.a, w.a, x, L), vfmaq_laneq_f32(c.b, w.b, x, L)};
}
template <int L> static inline Sums dot(Sums c, Bytes w, QuadI x) {
    return {vdotq_laneq_s32(c.a, w.a, x, L), vdotq_laneq_s32(c.b, w.b, x, L)};
}
static inline Floats add_scaled(Floats y, Sums c, float s) {
    return {vfmaq_n_f32(y.a, vcvtq_f32_s32(c.a), s), vfmaq_n_f32(y.b, vcvtq_f32_s32(c.b), s)};
}
static inline Sums plus(Sums c, Sums d) { return {vaddq_s32(c.a, d.a), vaddq_s32(c.b, d.b)}; }
static inline void store(float* to, Floats y) { vst1q_f32(to, y.a); vst1q_f32(to + 4, y.b); }
static inline void store_times(float* to, Floats y, const float* s) {
    vst1q_f32(to, vmulq_f32(y.a, vld1q_f32(s)));
    vst1q_f32(to + 4, vmulq_f32(y.b, vld1q_f32(s + 4)));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(RUSTY_PORTABLE)
#include <immintrin.h>
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define RUSTY_SIMD "avx512-vnni"
#define RUSTY_DPBUSD _mm256_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define RUSTY_SIMD "avx-vnni"
#define RUSTY_DPBUSD _mm256_dpbusd_avx_epi32
#else
#define RUSTY_SIMD "avx2"
#endif
struct Floats { __m256 v; };
struct Sums { __m256i v; };
struct Bytes { __m256i v; };
typedef const float* QuadF;
typedef const int8_t* QuadI;
static inline Floats zero_f() { return {_mm256_setzero_ps()}; }
static inline Sums zero_i() { return {_mm256_setzero_si256()}; }
static inline QuadF quad(const float* x) { return x; }
static inline QuadI quad(const int8_t* x) { return x; }
static inline Bytes bytes(const int8_t* w) { return {_mm256_loadu_si256((const __m256i*)w)}; }
static inline Floats eight(const float* w) { return {_mm256_loadu_ps(w)}; }
static inline Floats eight(const Brain* w) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)w));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
static inline Floats eight(const Half* w) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)w))}; }
template <int L> static inline Floats fma(Floats c, Floats w, QuadF x) {
    return {_mm256_fmadd_ps(w.v, _mm256_broadcast_ss(x + L), c.v)};
}
// The instruction multiplies unsigned by signed bytes: |w| * (x with w's sign). Neither is ever -128, so
// the 16-bit halves of the AVX2 form hold at most 2 * 127 * 127 and cannot overflow.
template <int L> static inline Sums dot(Sums c, Bytes w, QuadI x) {
    int32_t four;
    memcpy(&four, x + 4 * L, 4);
    __m256i size = _mm256_abs_epi8(w.v), turned = _mm256_sign_epi8(_mm256_set1_epi32(four), w.v);
#ifdef RUSTY_DPBUSD
    return {RUSTY_DPBUSD(c.v, size, turned)};
#else
    __m256i pairs = _mm256_maddubs_epi16(size, turned);
    return {_mm256_add_epi32(c.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#endif
}
static inline Floats add_scaled(Floats y, Sums c, float s) {
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(c.v), _mm256_set1_ps(s), y.v)};
}
static inline Sums plus(Sums c, Sums d) { return {_mm256_add_epi32(c.v, d.v)}; }
static inline void store(float* to, Floats y) { _mm256_storeu_ps(to, y.v); }
static inline void store_times(float* to, Floats y, const float* s) {
    _mm256_storeu_ps(to, _mm256_mul_ps(y.v, _mm256_loadu_ps(s)));
}

#else
#define RUSTY_SIMD "portable"
struct Floats { float v[8]; };
struct Sums { int32_t v[8]; };
struct Bytes { const int8_t* v; };
typedef const float* QuadF;
typedef const int8_t* QuadI;
#define EACH for (int i = 0; i < 8; i++)
static inline Floats zero_f() { return Floats{}; }
static inline Sums zero_i() { return Sums{}; }
static inline QuadF quad(const float* x) { return x; }
static inline QuadI quad(const int8_t* x) { return x; }
static inline Bytes bytes(const int8_t* w) { return {w}; }
static inline Floats eight(const float* w) { Floats y; EACH y.v[i] = w[i]; return y; }
static inline Floats eight(const Brain* w) { Floats y; EACH y.v[i] = bf16_to_float(w[i].bits); return y; }
static inline Floats eight(const Half* w) { Floats y; EACH y.v[i] = half_to_float(w[i].bits); return y; }
template <int L> static inline Floats fma(Floats c, Floats w, QuadF x) {
    EACH c.v[i] += w.v[i] * x[L];
    return c;
}
template <int L> static inline Sums dot(Sums c, Bytes w, QuadI x) {
    EACH for (int k = 0; k < 4; k++) c.v[i] += (int)w.v[4 * i + k] * x[4 * L + k];
    return c;
}
static inline Floats add_scaled(Floats y, Sums c, float s) { EACH y.v[i] += (float)c.v[i] * s; return y; }
static inline Sums plus(Sums c, Sums d) { EACH c.v[i] += d.v[i]; return c; }
static inline void store(float* to, Floats y) { EACH to[i] = y.v[i]; }
static inline void store_times(float* to, Floats y, const float* s) { EACH to[i] = y.v[i] * s[i]; }
#undef EACH
#endif
