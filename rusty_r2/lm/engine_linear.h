// SPDX-License-Identifier: AGPL-3.0-or-later
// y = W x for W in fp32, bf16, fp16, int8 or int4, for one token or many, on weights packed in blocks of
// eight rows so that every load is one straight stream.
//
//   int8   W = row scale * q; activations are int8 too, one scale per token and stretch of 512 inputs, so a
//          stretch's sum stays below 2^24: the integers are exact, and NumPy's fp32 gives the same ones
//   int4   W = row scale * m * q with q in -8..7 and a whole m in -15..15 per 32 inputs: m * q is an int8,
//          so int4 is int8 unpacked on the way, and both run the same code
//
// One token or sixty-four, the sums of one output are made in one order: batches equal singles, bit for bit.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif
#include "engine_math.h"
#include "engine_simd.h"

enum Format { FP32, BF16, FP16, INT8, INT4 };
static const int GROUP = 32, STRETCH = 512;

static inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Weights live in few large pieces on huge pages: a token reads all of them, and page walks are what is slow.
struct Arena {
    std::vector<void*> pieces;
    char* next = nullptr;
    size_t left = 0;
    void* take(size_t bytes) {
        bytes = (bytes + 63) / 64 * 64;
        if (bytes > left) {
            const size_t page = 2u << 20;
            size_t size = (std::max(bytes, page) + page - 1) / page * page;
            void* piece = nullptr;
            if (posix_memalign(&piece, page, size)) return nullptr;
#ifdef MADV_HUGEPAGE
            madvise(piece, size, MADV_HUGEPAGE);
#endif
            pieces.push_back(piece);
            next = (char*)piece;
            left = size;
        }
        void* at = next;
        next += bytes;
        left -= bytes;
        return at;
    }
    ~Arena() { for (void* piece : pieces) free(piece); }
};

struct Linear {
    int out = 0, in = 0, width = 0, blocks = 0;  // width: inputs, padded to whole groups
    Format format = FP32;
    size_t block_bytes = 0;
    char* weights = nullptr;
    float* scale = nullptr;
    const char* block(int b) const { return weights + (size_t)b * block_bytes; }
};

// Activations of n tokens, as the format of the weights wants them: one token straight, several in fours.
struct Acts {
    int n = 0, width = 0;
    bool whole = false;
    std::vector<int8_t> q;
    std::vector<float> f, scale;    // scale [stretch][token]
    std::vector<int32_t> low;       // one token: -8 * sum of the inputs whose weights are low nibbles, per group
    void shape(int tokens, int inputs, Format format) {
        n = tokens;
        width = round_up(inputs, GROUP);
        whole = format == INT8 || format == INT4;
        size_t padded = n == 1 ? 1 : round_up(n, 4);
        if (whole) {
            q.assign(padded * width, 0);
            scale.assign(padded * ((width + STRETCH - 1) / STRETCH), 0.f);
            if (n == 1) low.assign(width / GROUP, 0);
        } else f.assign(padded * width, 0.f);
    }
    int padded() const { return n == 1 ? 1 : round_up(n, 4); }
    void put(int token, const float* x, int inputs) {
        if (!whole) return put_floats(token, x, inputs);
        for (int from = 0, s = 0; from < inputs; from += STRETCH, s++)
            put_bytes(token, x + from, from, std::min(STRETCH, inputs - from), s);
    }
private:
    __attribute__((noinline)) void put_floats(int token, const float* x, int inputs) {
        if (n == 1) { memcpy(f.data(), x, sizeof(float) * inputs); return; }
        float* to = f.data() + (size_t)(token / 4) * width * 4 + token % 4;
        for (int k = 0; k < inputs; k++) to[4 * k] = x[k];
    }
    __attribute__((noinline)) void put_bytes(int token, const float* x, int from, int count, int stretch) {
        const float most = largest_of(x, count, 1e-30f, size), turn = 127.f / most;
        scale[(size_t)stretch * padded() + token] = most / 127.f;
        alignas(64) int8_t row[STRETCH + GROUP];
        memset(row + count, 0, GROUP);
        for (int k = 0; k < count; k++) {  // adding 1.5 * 2^23 leaves the nearest whole number in the low bits
            const float shifted = x[k] * turn + 12582912.f;
            int32_t bits;
            memcpy(&bits, &shifted, 4);
            row[k] = (int8_t)bits;
        }
        if (n == 1) {
            memcpy(q.data() + from, row, count);
            for (int g = 0; g * GROUP < count; g++) {
                int sum = 0;
                for (int k = 0; k < GROUP / 2; k++) sum += row[g * GROUP + k];
                low[from / GROUP + g] = -8 * sum;
            }
            return;
        }
        int32_t* to = (int32_t*)(q.data() + (size_t)(token / 4) * width * 4) + from + token % 4;
        for (int k = 0; k < (count + 3) / 4; k++) memcpy(to + 4 * k, row + 4 * k, 4);
    }
};

static Linear blank(Arena& arena, int out, int in, Format format) {
    Linear L;
    L.out = out, L.in = in, L.width = round_up(in, GROUP), L.blocks = round_up(out, 8) / 8, L.format = format;
    const int per_weight[] = {32, 16, 16, 8};
    L.block_bytes = format == INT4 ? L.width / GROUP * (size_t)(8 + 4 * GROUP) : (size_t)L.width * per_weight[format] ;
    L.block_bytes = (L.block_bytes + 63) / 64 * 64;
    L.weights = (char*)arena.take(L.block_bytes * L.blocks);
    L.scale = (float*)arena.take(sizeof(float) * 8 * L.blocks);
    if (L.weights == nullptr || L.scale == nullptr) return Linear();
    memset(L.weights, 0, L.block_bytes * L.blocks);
    for (int o = 0; o < 8 * L.blocks; o++) L.scale[o] = 1.f;
    return L;
}

template <class T> static void pack_floats(Linear& L, const T* w) {
    for (int o = 0; o < L.out; o++) {
        T* to = (T*)L.block(o / 8) + o % 8;
        for (int k = 0; k < L.in; k++) to[8 * k] = w[(size_t)o * L.in + k];
    }
}

static void pack_bytes(Linear& L, const int8_t* w, const float* scale) {
    for (int o = 0; o < L.out; o++) {
        int8_t* to = (int8_t*)L.block(o / 8) + (o % 8) * 4;
        for (int k = 0; k < L.in; k++) to[(k / 4) * 32 + k % 4] = w[(size_t)o * L.in + k];
        L.scale[o] = scale[o];
    }
}

// A block of int4: first the multipliers [group][8], then per group four pieces of 32 bytes; piece j holds
// the group's inputs 4j.. in its low nibbles (plus 8) and 16+4j.. in its high ones (two's complement).
static void pack_nibbles(Linear& L, const int8_t* w, const int8_t* times, const float* scale) {
    const int groups = L.width / GROUP, given = (L.in + GROUP - 1) / GROUP;
    for (int b = 0; b < L.blocks; b++) {
        uint8_t* nibbles = (uint8_t*)L.block(b) + groups * 8;
        memset(nibbles, 8, (size_t)groups * 4 * GROUP);
    }
    for (int o = 0; o < L.out; o++) {
        int8_t* base = (int8_t*)L.block(o / 8);
        for (int g = 0; g < given; g++) base[g * 8 + o % 8] = times[(size_t)o * given + g];
        for (int k = 0; k < L.in; k++) {
            const int g = k / GROUP, inside = k % GROUP, piece = inside % 16 / 4, v = w[(size_t)o * L.in + k];
            uint8_t* at = (uint8_t*)base + groups * 8 + (g * 4 + piece) * 32 + (o % 8) * 4 + k % 4;
            *at = inside < 16 ? (*at & 0xF0) | (v + 8) : (*at & 0x0F) | (uint8_t)(v << 4);
        }
        L.scale[o] = scale[o];
    }
}

// A few nibbles: vectors of bytes, because compilers widen them to 16 bits when left alone.
typedef int8_t Chars __attribute__((vector_size(16)));
static const int LANES_I8 = sizeof(Chars);
static inline void unpack_some(const uint8_t* from, const int8_t* m, int8_t* lower, int8_t* upper) {
    Chars p, times;
    memcpy(&p, from, sizeof p), memcpy(&times, m, sizeof times);
    const Chars low = ((p & 15) - 8) * times, high = (p >> 4) * times;
    memcpy(lower, &low, sizeof low), memcpy(upper, &high, sizeof high);
}

#ifdef RUSTY_NEON
static inline void four_times(const int8_t* eight, int8_t* to) {  // each of eight bytes four times, side by side
    const int8x8_t once = vld1_s8(eight);
    const int16x8_t twice = vreinterpretq_s16_s8(vcombine_s8(vzip1_s8(once, once), vzip2_s8(once, once)));
    vst1q_s8(to, vreinterpretq_s8_s16(vzip1q_s16(twice, twice)));
    vst1q_s8(to + 16, vreinterpretq_s8_s16(vzip2q_s16(twice, twice)));
}
#else
static inline void four_times(const int8_t* eight, int8_t* to) {
    for (int i = 0; i < 32; i++) to[i] = eight[i / 4];
}
#endif

static void unpack_block(const Linear& L, int b, int8_t* to) {  // -> the block as int8 would have packed it
    const int groups = L.width / GROUP;
    const int8_t* times = (const int8_t*)L.block(b);
    const uint8_t* nibbles = (const uint8_t*)times + groups * 8;
    for (int g = 0; g < groups; g++, to += 8 * GROUP) {
        alignas(32) int8_t m[32];
        four_times(times + g * 8, m);
        for (int i = 0; i < 128; i += LANES_I8)
            unpack_some(nibbles + g * 128 + i, m + i % 32, to + i, to + 128 + i);
    }
}

static void one_bytes(const Linear& L, const Acts& a, const int8_t* w, const float* row_scale, float* out) {
    Floats y = zero_f();
    for (int from = 0, s = 0; from < L.width; from += STRETCH, s++) {
        Sums c0 = zero_i(), c1 = c0, c2 = c0, c3 = c0, sum;
        const int end = std::min(L.width, from + STRETCH);
        for (int k = from; k < end; k += 16) {
            QuadI x = quad(a.q.data() + k);
            c0 = dot<0>(c0, bytes(w + k * 8), x), c1 = dot<1>(c1, bytes(w + k * 8 + 32), x);
            c2 = dot<2>(c2, bytes(w + k * 8 + 64), x), c3 = dot<3>(c3, bytes(w + k * 8 + 96), x);
        }
        sum = plus(plus(c0, c1), plus(c2, c3));
        y = add_scaled(y, sum, a.scale[s]);
    }
    store_times(out, y, row_scale);
}

#ifdef RUSTY_NEON
// No shift, no unpacking: a byte's upper nibble, left where it is, is a signed number times 16, and its lower
// one is a number plus 8; a group's sums fit 16 bits, so its multiplier costs two instructions.
static void one_nibbles(const Linear& L, const Acts& a, int b, float* out) {
    const int groups = L.width / GROUP;
    const int8_t *times = (const int8_t*)L.block(b), *w = times + groups * 8;
    const int8x16_t low_mask = vdupq_n_s8(15), high_mask = vdupq_n_s8((int8_t)0xF0);
    Floats y = zero_f();
    for (int from = 0, s = 0; from < groups; from += STRETCH / GROUP, s++) {
        int32x4_t sum0 = vdupq_n_s32(0), sum1 = sum0;
        for (int g = from; g < std::min(groups, from + STRETCH / GROUP); g++, w += 4 * GROUP) {
            __builtin_prefetch(w + 2048), __builtin_prefetch(w + 2048 + 64);
            const int8x16_t x0 = vld1q_s8(a.q.data() + g * GROUP), x1 = vld1q_s8(a.q.data() + g * GROUP + 16);
            int32x4_t lo0 = vld1q_dup_s32(&a.low[g]), lo1 = lo0, hi0 = vdupq_n_s32(0), hi1 = hi0;
#define PIECE(j)                                                                                                    \
    {                                                                                                               \
        const int8x16_t p = vld1q_s8(w + 32 * j), r = vld1q_s8(w + 32 * j + 16);                                    \
        lo0 = vdotq_laneq_s32(lo0, vandq_s8(p, low_mask), x0, j);                                                   \
        lo1 = vdotq_laneq_s32(lo1, vandq_s8(r, low_mask), x0, j);                                                   \
        hi0 = vdotq_laneq_s32(hi0, vandq_s8(p, high_mask), x1, j);                                                  \
        hi1 = vdotq_laneq_s32(hi1, vandq_s8(r, high_mask), x1, j);                                                  \
    }
            PIECE(0) PIECE(1) PIECE(2) PIECE(3)
#undef PIECE
            const int16x8_t m = vmovl_s8(vld1_s8(times + g * 8));
            const int16x8_t c = vuzp1q_s16(vreinterpretq_s16_s32(vsraq_n_s32(lo0, hi0, 4)),
                                           vreinterpretq_s16_s32(vsraq_n_s32(lo1, hi1, 4)));
            sum0 = vmlal_s16(sum0, vget_low_s16(c), vget_low_s16(m));
            sum1 = vmlal_high_s16(sum1, c, m);
        }
        y = add_scaled(y, {sum0, sum1}, a.scale[s]);
    }
    store_times(out, y, L.scale + b * 8);
}
#endif

template <int FOURS>
static void tile_bytes(const Acts& a, int token, const int8_t* w, const float* row_scale, float* out, size_t stride) {
    Floats y[4 * FOURS];
    for (Floats& each : y) each = zero_f();
    const int8_t* x = a.q.data() + (size_t)(token / 4) * a.width * 4;
    const size_t next = (size_t)a.width * 4;
    for (int from = 0, s = 0; from < a.width; from += STRETCH, s++) {
        Sums c[4 * FOURS];
        for (Sums& each : c) each = zero_i();
        const int end = std::min(a.width, from + STRETCH);
        for (int k = from / 4; k < end / 4; k++) {
            const Bytes b = bytes(w + k * 32);
            for (int t = 0; t < FOURS; t++) {
                const QuadI q = quad(x + t * next + k * 16);
                c[4 * t] = dot<0>(c[4 * t], b, q), c[4 * t + 1] = dot<1>(c[4 * t + 1], b, q);
                c[4 * t + 2] = dot<2>(c[4 * t + 2], b, q), c[4 * t + 3] = dot<3>(c[4 * t + 3], b, q);
            }
        }
        const float* scale = a.scale.data() + (size_t)s * a.padded() + token;
        for (int i = 0; i < 4 * FOURS; i++) y[i] = add_scaled(y[i], c[i], scale[i]);
    }
    const int count = std::min(4 * FOURS, a.n - token);
    for (int i = 0; i < count; i++) store_times(out + (size_t)(token + i) * stride, y[i], row_scale);
}

template <class T> static void one_floats(const Linear& L, const Acts& a, int from, int to, float* out) {
    for (int b = from; b < to; b += 4) {  // four blocks at once hide the latency of one chain of additions each
        const int last = to - 1;
        const T* w[4];
        Floats y[4];
        for (int i = 0; i < 4; i++) w[i] = (const T*)L.block(std::min(b + i, last)), y[i] = zero_f();
        for (int k = 0; k < L.width; k += 4) {
            const QuadF x = quad(a.f.data() + k);
            for (int i = 0; i < 4; i++) y[i] = fma<0>(y[i], eight(w[i] + k * 8), x);
            for (int i = 0; i < 4; i++) y[i] = fma<1>(y[i], eight(w[i] + k * 8 + 8), x);
            for (int i = 0; i < 4; i++) y[i] = fma<2>(y[i], eight(w[i] + k * 8 + 16), x);
            for (int i = 0; i < 4; i++) y[i] = fma<3>(y[i], eight(w[i] + k * 8 + 24), x);
        }
        for (int i = 0; i < 4 && b + i < to; i++) store(out + (size_t)(b + i - from) * 8, y[i]);
    }
}

template <class T, int FOURS>
static void tile_floats(const Acts& a, int token, const T* w, float* out, size_t stride) {
    Floats c0 = zero_f(), c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0, c6 = c0, c7 = c0;  // an array would be stored
    const float* x = a.f.data() + (size_t)(token / 4) * a.width * 4;
    const size_t next = FOURS > 1 ? (size_t)a.width * 4 : 0;
    for (int k = 0; k < a.width; k++, x += 4, w += 8) {
        const Floats b = eight(w);
        const QuadF q = quad(x);
        c0 = fma<0>(c0, b, q), c1 = fma<1>(c1, b, q), c2 = fma<2>(c2, b, q), c3 = fma<3>(c3, b, q);
        if (FOURS == 1) continue;
        const QuadF r = quad(x + next);
        c4 = fma<0>(c4, b, r), c5 = fma<1>(c5, b, r), c6 = fma<2>(c6, b, r), c7 = fma<3>(c7, b, r);
    }
    float y[64];
    store(y, c0), store(y + 8, c1), store(y + 16, c2), store(y + 24, c3);
    store(y + 32, c4), store(y + 40, c5), store(y + 48, c6), store(y + 56, c7);
    const int count = std::min(4 * FOURS, a.n - token);
    for (int i = 0; i < count; i++) memcpy(out + (size_t)(token + i) * stride, y + 8 * i, 32);
}

template <class T> static void floats(const Linear& L, const Acts& a, int from, int to, float* out, size_t stride) {
    if (a.n == 1) return one_floats<T>(L, a, from, to, out);
    for (int b = from; b < to; b++, out += 8)
        for (int token = 0; token < a.n; token += 8)
            if (token + 4 < a.n) tile_floats<T, 2>(a, token, (const T*)L.block(b), out, stride);
            else tile_floats<T, 1>(a, token, (const T*)L.block(b), out, stride);
}

static void integers(const Linear& L, const Acts& a, int from, int to, float* out, size_t stride) {
    static thread_local std::vector<int8_t> room;
    if (L.format == INT4) room.resize((size_t)L.width * 8);
    for (int b = from; b < to; b++, out += 8) {
        const int8_t* w = (const int8_t*)L.block(b);
#ifdef RUSTY_NEON
        if (L.format == INT4 && a.n == 1) { one_nibbles(L, a, b, out); continue; }
#endif
        if (L.format == INT4) unpack_block(L, b, room.data()), w = room.data();
        if (a.n == 1) { one_bytes(L, a, w, L.scale + b * 8, out); continue; }
        for (int token = 0; token < a.n; token += 8)
            if (token + 4 < a.n) tile_bytes<2>(a, token, w, L.scale + b * 8, out, stride);
            else tile_bytes<1>(a, token, w, L.scale + b * 8, out, stride);
    }
}

// Output rows 8*from .. 8*to of all tokens, to out[token * stride + row - 8*from]; out has room for whole blocks.
static void rows(const Linear& L, const Acts& a, int from, int to, float* out, size_t stride) {
    switch (L.format) {
        case FP32: return floats<float>(L, a, from, to, out, stride);
        case BF16: return floats<Brain>(L, a, from, to, out, stride);
        case FP16: return floats<Half>(L, a, from, to, out, stride);
        default: return integers(L, a, from, to, out, stride);
    }
}
