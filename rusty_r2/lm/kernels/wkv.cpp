// SPDX-License-Identifier: AGPL-3.0-or-later
// RWKV-4's weighted average, forward and backward, for processors. Plain C ABI, loaded by wkv.py.
//
// w: log decay < 0, u: bonus, both [C]; k, v, y: [B,T,C]; state: [3,B,C] = (aa, bb, pp), the sums
// A = aa*exp(pp) and B = bb*exp(pp); reset: [B,T] bytes, true where the state is emptied
// before that token (reset and start may be null, g_end too). All tensors are contiguous. Work is divided over (row, block of channels) and
// the inner loop runs over the channels of a block, so the compiler turns it into vectors.
//
// Of the two exponentials of a step exp(a-max), exp(b-max) one is always 1: only exp(-|a-b|) is
// computed. The forward sweep also carries d(A,B)/dw, so that the backward is one reverse sweep.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "exp.h"

namespace {

constexpr int BLOCK = 64;        // channels per block: 4 cache lines of floats
constexpr double EMPTY = -1e38;  // pp of a state that has seen nothing

// a and b brought under their common maximum: weights of both and that maximum
template <class R> struct Pair { R a, b, top; };
template <class R> inline Pair<R> under_maximum(R a, R b) {
    const R d = a - b, e = exp_negative(-std::fabs(d));
    return {d >= 0 ? R(1) : e, d >= 0 ? e : R(1), d >= 0 ? a : b};
}

template <class R> struct Forward {
    int64_t B, T, C;
    const R *w, *u, *k, *v, *start;
    const uint8_t *reset;
    R *y, *inverse, *top, *slope, *end, *end_slope;
};

template <class R, bool TRAIN, bool FULL> void forward_block(const Forward<R> &p, int64_t b, int64_t c0, int tail) {
    const int n = FULL ? BLOCK : tail;
    R w[BLOCK], u[BLOCK], aa[BLOCK], bb[BLOCK], pp[BLOCK], da[BLOCK] = {}, db[BLOCK] = {};
    for (int i = 0; i < n; i++) {
        const int64_t at = b * p.C + c0 + i, plane = p.B * p.C;
        w[i] = p.w[c0 + i], u[i] = p.u[c0 + i];
        aa[i] = p.start ? p.start[at] : R(0);
        bb[i] = p.start ? p.start[plane + at] : R(0);
        pp[i] = p.start ? p.start[2 * plane + at] : R(EMPTY);
    }
    for (int64_t t = 0; t < p.T; t++) {
        if (p.reset && p.reset[b * p.T + t])
            for (int i = 0; i < n; i++) aa[i] = bb[i] = da[i] = db[i] = 0, pp[i] = R(EMPTY);
        const int64_t at = (b * p.T + t) * p.C + c0;
        const R *k = p.k + at, *v = p.v + at;
        R *y = p.y + at, *inverse = p.inverse + at, *top = p.top + at, *slope = p.slope + at;
#pragma omp simd
        for (int i = 0; i < n; i++) {
            const R kk = k[i], vv = v[i];
            const Pair<R> now = under_maximum<R>(pp[i], u[i] + kk);
            const R inv = R(1) / (now.a * bb[i] + now.b);
            const R out = (now.a * aa[i] + now.b * vv) * inv;
            y[i] = out;
            const Pair<R> next = under_maximum<R>(w[i] + pp[i], kk);
            if (TRAIN) {
                inverse[i] = inv;
                top[i] = now.top;
                slope[i] = (da[i] - db[i] * out) * now.a * inv;
                da[i] = next.a * (aa[i] + da[i]);
                db[i] = next.a * (bb[i] + db[i]);
            }
            aa[i] = next.a * aa[i] + next.b * vv;
            bb[i] = next.a * bb[i] + next.b;
            pp[i] = next.top;
        }
    }
    for (int i = 0; i < n; i++) {
        const int64_t at = b * p.C + c0 + i, plane = p.B * p.C;
        p.end[at] = aa[i], p.end[plane + at] = bb[i], p.end[2 * plane + at] = pp[i];
        if (TRAIN) p.end_slope[at] = da[i], p.end_slope[plane + at] = db[i];
    }
}

template <class R> struct Backward {
    int64_t B, T, C;
    const R *w, *u, *k, *v, *y, *inverse, *top, *slope, *gy, *start, *end, *end_slope, *g_end;
    const uint8_t *reset;
    R *gw, *gu, *gk, *gv, *g_start;
};

template <class R, bool FULL> void backward_block(const Backward<R> &p, int64_t b, int64_t c0, int tail) {
    const int n = FULL ? BLOCK : tail;
    const int64_t plane = p.B * p.C, row = b * p.C + c0;
    R w[BLOCK], u[BLOCK], ga[BLOCK], gb[BLOCK], pp[BLOCK], gw[BLOCK], gu[BLOCK] = {};
    for (int i = 0; i < n; i++) {
        w[i] = p.w[c0 + i], u[i] = p.u[c0 + i];
        ga[i] = gb[i] = gw[i] = 0, pp[i] = R(EMPTY);
        if (!p.g_end) continue;
        ga[i] = p.g_end[row + i], gb[i] = p.g_end[plane + row + i], pp[i] = -p.end[2 * plane + row + i];
        gw[i] = ga[i] * p.end_slope[row + i] + gb[i] * p.end_slope[plane + row + i];
    }
    for (int64_t t = p.T - 1; t >= 0; t--) {
        const int64_t at = (b * p.T + t) * p.C + c0;
        const R *k = p.k + at, *v = p.v + at, *y = p.y + at, *gy = p.gy + at;
        const R *inverse = p.inverse + at, *top = p.top + at, *slope = p.slope + at;
        R *gk = p.gk + at, *gv = p.gv + at;
#pragma omp simd
        for (int i = 0; i < n; i++) {
            const R kk = k[i], vv = v[i], out = y[i], g = gy[i], q = top[i];
            const R scaled = g * inverse[i];
            const R own = scaled * exp_negative(std::min(u[i] + kk - q, R(0)));
            const R later = exp_negative(std::min(kk + pp[i], R(0)));
            const R lift = own * (vv - out);
            gk[i] = lift + later * (ga[i] * vv + gb[i]);
            gv[i] = own + later * ga[i];
            gu[i] += lift;
            gw[i] += g * slope[i];
            const Pair<R> next = under_maximum<R>(w[i] + pp[i], -q);
            ga[i] = next.a * ga[i] + next.b * scaled;
            gb[i] = next.a * gb[i] - next.b * scaled * out;
            pp[i] = next.top;
        }
        if (p.reset && p.reset[b * p.T + t])
            for (int i = 0; i < n; i++) ga[i] = gb[i] = 0, pp[i] = R(EMPTY);
    }
    for (int i = 0; i < n; i++) {
        p.gw[row + i] = gw[i], p.gu[row + i] = gu[i];
        if (!p.g_start) continue;
        const R e = exp_negative(std::min(p.start[2 * plane + row + i] + pp[i], R(0)));
        const R a = e * ga[i], c = e * gb[i];
        p.g_start[row + i] = a, p.g_start[plane + row + i] = c;
        p.g_start[2 * plane + row + i] = a * p.start[row + i] + c * p.start[plane + row + i];
    }
}

template <class R> void forward(const Forward<R> &p, bool train) {
    const int64_t blocks = (p.C + BLOCK - 1) / BLOCK;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t b = 0; b < p.B; b++)
        for (int64_t j = 0; j < blocks; j++) {
            const int64_t c0 = j * BLOCK;
            const int n = (int)std::min<int64_t>(BLOCK, p.C - c0);
            if (n == BLOCK) train ? forward_block<R, true, true>(p, b, c0, n) : forward_block<R, false, true>(p, b, c0, n);
            else train ? forward_block<R, true, false>(p, b, c0, n) : forward_block<R, false, false>(p, b, c0, n);
        }
}

template <class R> void backward(const Backward<R> &p) {
    const int64_t blocks = (p.C + BLOCK - 1) / BLOCK;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t b = 0; b < p.B; b++)
        for (int64_t j = 0; j < blocks; j++) {
            const int64_t c0 = j * BLOCK;
            const int n = (int)std::min<int64_t>(BLOCK, p.C - c0);
            n == BLOCK ? backward_block<R, true>(p, b, c0, n) : backward_block<R, false>(p, b, c0, n);
        }
}

}  // namespace

#define FORWARD(NAME, R)                                                                                         \
    extern "C" void NAME(int64_t B, int64_t T, int64_t C, int train, const R *w, const R *u, const R *k,         \
                         const R *v, const R *start, const uint8_t *reset, R *y, R *inverse, R *top, R *slope,   \
                         R *end, R *end_slope) {                                                                 \
        forward<R>({B, T, C, w, u, k, v, start, reset, y, inverse, top, slope, end, end_slope}, train != 0);     \
    }
#define BACKWARD(NAME, R)                                                                                        \
    extern "C" void NAME(int64_t B, int64_t T, int64_t C, const R *w, const R *u, const R *k, const R *v,        \
                         const R *y, const R *inverse, const R *top, const R *slope, const R *gy,                \
                         const R *start, const R *end, const R *end_slope, const R *g_end, const uint8_t *reset, \
                         R *gw, R *gu, R *gk, R *gv, R *g_start) {                                               \
        backward<R>({B, T, C, w, u, k, v, y, inverse, top, slope, gy, start, end, end_slope, g_end, reset, gw,   \
                     gu, gk, gv, g_start});                                                                      \
    }
FORWARD(wkv_forward_f32, float)
FORWARD(wkv_forward_f64, double)
BACKWARD(wkv_backward_f32, float)
BACKWARD(wkv_backward_f64, double)
