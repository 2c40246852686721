// SPDX-License-Identifier: AGPL-3.0-or-later
// RWKV-4 on a CPU: one C call reads tokens into a state and picks the next ones.
//
// lm/engine_native.py compiles this on first use (lm/native.py) and speaks to it through ctypes; the formulas
// are those of lm/rwkv.py. Tokens of many rows and many times run through the matrices together, at most 64
// at once; only the recurrence goes one by one. State: fp32 [layer][att_x ffn_x aa bb pp][row][channel].
#include "engine_linear.h"
#include "engine_math.h"
#include "engine_sampler.h"

namespace {

const int AT_ONCE = 64;
enum { ATT_X, FFN_X, AA, BB, PP, PARTS };

struct Layer {
    Linear key, value, receptance, output, ffn_key, ffn_receptance, ffn_value;
    std::vector<float> ln1_weight, ln1_bias, ln2_weight, ln2_bias, mix_k, mix_v, mix_r, ffn_mix_k, ffn_mix_r, decay, first;
};
struct Model {
    int words, embed, hidden, inner, threads;
    Arena arena;
    Format embedding_format = FP32;
    char* embedding = nullptr;
    std::vector<float> embedding_scale, ln_in_weight, ln_in_bias, ln_out_weight, ln_out_bias, value_weight, value_bias;
    Linear proj, head;
    std::vector<Layer> layers;
    int stride() const { return round_up(hidden, 8); }
};
struct Room {  // scratch, kept between calls of one thread
    std::vector<float> x, h, g, k, v, r, inner, logits, out;
    std::vector<Part> parts;
    Acts a, b, c;
};
Room& room() {
    static thread_local Room mine;
    return mine;
}

void linear(const Model& m, const Linear& L, const Acts& a, float* out, size_t stride) {
#pragma omp parallel for schedule(static) num_threads(m.threads) if (m.threads > 1)
    for (int b = 0; b < L.blocks; b += 4) rows(L, a, b, std::min(b + 4, L.blocks), out + b * 8, stride);
}

void embed(const Model& m, int token, float* y) {
    const size_t at = (size_t)token * m.embed;
    for (int i = 0; i < m.embed; i++) switch (m.embedding_format) {
            case FP32: y[i] = ((const float*)m.embedding)[at + i]; break;
            case BF16: y[i] = bf16_to_float(((const uint16_t*)m.embedding)[at + i]); break;
            case FP16: y[i] = half_to_float(((const uint16_t*)m.embedding)[at + i]); break;
            default: y[i] = ((const int8_t*)m.embedding)[at + i] * m.embedding_scale[token];
        }
}

struct Batch {  // n tokens; those of one row stand together, in order of time
    int n, rows;
    const int32_t *token, *row;
    float* state;
    bool first(int i) const { return i == 0 || row[i - 1] != row[i]; }
    bool last(int i) const { return i == n - 1 || row[i + 1] != row[i]; }
    float* part(const Model& m, int layer, int part, int i) const {
        return state + (((size_t)layer * PARTS + part) * rows + row[i]) * m.hidden;
    }
};

void read_embedding(const Model& m, const Batch& t, Room& s) {
    s.a.shape(t.n, m.embed, m.proj.format);
    s.g.resize(m.embed);
    for (int i = 0; i < t.n; i++) embed(m, t.token[i], s.g.data()), s.a.put(i, s.g.data(), m.embed);
    linear(m, m.proj, s.a, s.h.data(), m.stride());
    for (int i = 0; i < t.n; i++)
        layer_norm(&s.h[(size_t)i * m.stride()], m.ln_in_weight.data(), m.ln_in_bias.data(), m.hidden,
                   &s.x[(size_t)i * m.stride()]);
}

// s.h = the normalised x; visit(i, now, before) sees each token beside the one before it.
template <class F>
void shifted(const Model& m, const Batch& t, Room& s, int l, int part, const float* weight, const float* bias, F visit) {
    const size_t C = m.stride();
    for (int i = 0; i < t.n; i++) layer_norm(&s.x[i * C], weight, bias, m.hidden, &s.h[i * C]);
    for (int i = 0; i < t.n; i++) visit(i, &s.h[i * C], t.first(i) ? t.part(m, l, part, i) : &s.h[(i - 1) * C]);
    for (int i = 0; i < t.n; i++) if (t.last(i)) memcpy(t.part(m, l, part, i), &s.h[i * C], sizeof(float) * m.hidden);
}

void time_mix(const Model& m, const Batch& t, Room& s, int l) {
    const Layer& L = m.layers[l];
    const size_t C = m.stride();
    s.g.resize(m.hidden);
    for (Acts* acts : {&s.a, &s.b, &s.c}) acts->shape(t.n, m.hidden, L.key.format);
    shifted(m, t, s, l, ATT_X, L.ln1_weight.data(), L.ln1_bias.data(), [&](int i, const float* now, const float* before) {
        mix(now, before, L.mix_k.data(), m.hidden, s.g.data()), s.a.put(i, s.g.data(), m.hidden);
        mix(now, before, L.mix_v.data(), m.hidden, s.g.data()), s.b.put(i, s.g.data(), m.hidden);
        mix(now, before, L.mix_r.data(), m.hidden, s.g.data()), s.c.put(i, s.g.data(), m.hidden);
    });
    linear(m, L.key, s.a, s.k.data(), C);
    linear(m, L.value, s.b, s.v.data(), C);
    linear(m, L.receptance, s.c, s.r.data(), C);
    s.a.shape(t.n, m.hidden, L.output.format);
    for (int i = 0; i < t.n; i++) {
        wkv(&s.k[i * C], &s.v[i * C], &s.r[i * C], L.decay.data(), L.first.data(), t.part(m, l, AA, i),
            t.part(m, l, BB, i), t.part(m, l, PP, i), m.hidden, s.g.data());
        s.a.put(i, s.g.data(), m.hidden);
    }
    linear(m, L.output, s.a, s.h.data(), C);
    for (size_t i = 0; i < t.n * C; i++) s.x[i] += s.h[i];
}

void channel_mix(const Model& m, const Batch& t, Room& s, int l) {
    const Layer& L = m.layers[l];
    const size_t C = m.stride(), F = round_up(m.inner, 8);
    for (Acts* acts : {&s.a, &s.b}) acts->shape(t.n, m.hidden, L.ffn_key.format);
    shifted(m, t, s, l, FFN_X, L.ln2_weight.data(), L.ln2_bias.data(), [&](int i, const float* now, const float* before) {
        mix(now, before, L.ffn_mix_k.data(), m.hidden, s.g.data()), s.a.put(i, s.g.data(), m.hidden);
        mix(now, before, L.ffn_mix_r.data(), m.hidden, s.g.data()), s.b.put(i, s.g.data(), m.hidden);
    });
    linear(m, L.ffn_key, s.a, s.inner.data(), F);
    linear(m, L.ffn_receptance, s.b, s.r.data(), C);
    s.a.shape(t.n, m.inner, L.ffn_value.format);
    for (int i = 0; i < t.n; i++) {
        square_relu(&s.inner[i * F], m.inner);
        s.a.put(i, &s.inner[i * F], m.inner);
    }
    linear(m, L.ffn_value, s.a, s.v.data(), C);
    for (int i = 0; i < t.n; i++) add_gated(&s.x[i * C], &s.r[i * C], &s.v[i * C], m.hidden);
}

// Reads the batch into the state and leaves the residual stream in s.x.
void advance(const Model& m, const Batch& t, Room& s) {
    const size_t size = (size_t)t.n * m.stride();
    for (std::vector<float>* each : {&s.x, &s.h, &s.k, &s.v, &s.r}) each->resize(size);
    s.inner.resize((size_t)t.n * round_up(m.inner, 8));
    read_embedding(m, t, s);
    for (int l = 0; l < (int)m.layers.size(); l++) time_mix(m, t, s, l), channel_mix(m, t, s, l);
}

float value_of(const Model& m, const float* hidden) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < m.hidden; i++) sum += hidden[i] * m.value_weight[i];
    return sum + m.value_bias[0];
}

// The head's blocks of panel p, leaving out those that no row's mask allows a word of.
void head_panel(const Model& m, const Acts& a, int p, const uint32_t* mask, size_t mask_words, float* out) {
    const int from = p * PANEL / 8, to = std::min(from + PANEL / 8, m.head.blocks);
    if (mask == nullptr) return rows(m.head, a, from, to, out, PANEL);
    auto wanted = [&](int block) {
        for (int i = 0; i < a.n; i++) if (mask[i * mask_words + block / 4] >> (block % 4 * 8) & 255) return true;
        return false;
    };
    for (int b = from, end; b < to; b = end) {
        for (end = b; end < to && wanted(end);) end++;
        if (end > b) rows(m.head, a, b, end, out + (b - from) * 8, PANEL);
        else end = b + 1;
    }
}

struct Pick {  // what `choose` needs and gives for n rows; null where it is not wanted
    Rules rules;
    const double* uniform;
    const uint32_t* mask;
    const int32_t *seen_from, *seen, *given;
    int32_t* token;
    float* logp;
    uint32_t* kept;
};

void pick(const Model& m, int from, int n, const float* hidden, const Pick& ask, Room& s) {
    const int panels = (m.words + PANEL - 1) / PANEL;
    const size_t mask_words = (m.words + 31) / 32;
    const uint32_t* mask = ask.mask ? ask.mask + from * mask_words : nullptr;
    s.a.shape(n, m.hidden, m.head.format);
    for (int i = 0; i < n; i++) s.a.put(i, hidden + (size_t)i * m.hidden, m.hidden);
    s.logits.resize((size_t)panels * n * PANEL);
    s.parts.resize((size_t)panels * n);
#pragma omp parallel for schedule(static) num_threads(m.threads) if (m.threads > 1)
    for (int p = 0; p < panels; p++) {
        float* out = &s.logits[(size_t)p * n * PANEL];
        const int count = std::min(PANEL, m.words - p * PANEL);
        head_panel(m, s.a, p, mask, mask_words, out);
        for (int i = 0; i < n; i++) {
            if (ask.seen) penalise(out + i * PANEL, p * PANEL, count, ask.seen + ask.seen_from[from + i],
                                   ask.seen + ask.seen_from[from + i + 1], ask.rules.penalty);
            s.parts[(size_t)i * panels + p] =
                sum_up(out + i * PANEL, count, mask ? mask + i * mask_words + p * (PANEL / 32) : nullptr, ask.rules);
        }
    }
#pragma omp parallel for schedule(static) num_threads(m.threads) if (m.threads > 1 && n > 1)
    for (int i = 0; i < n; i++) {
        const int at = from + i;
        const Row row = {&s.logits[(size_t)i * PANEL], (size_t)n * PANEL, &s.parts[(size_t)i * panels], panels, m.words};
        uint32_t* kept = ask.kept ? ask.kept + at * mask_words : nullptr;
        if (kept) memset(kept, 0, mask_words * 4);
        const Choice made = choose(row, ask.rules, ask.uniform ? ask.uniform[at] : 0, ask.given ? ask.given[at] : -1, kept);
        ask.token[at] = made.token, ask.logp[at] = made.logp;
    }
}

}  // namespace

extern "C" {

const char* rusty_simd() { return RUSTY_SIMD; }

void* rusty_new(int words, int embed, int hidden, int inner, int layers, int threads) {
    Model* m = new Model();
    m->words = words, m->embed = embed, m->hidden = hidden, m->inner = inner, m->threads = threads;
    m->layers.resize(layers);
    return m;
}
void rusty_free(void* model) { delete (Model*)model; }

// Vectors are named by their place in this list; decay is w = -exp(time_decay).
void rusty_vector(void* model, int layer, int name, const float* data, int n) {
    Model& m = *(Model*)model;
    std::vector<float>* top[] = {&m.ln_in_weight, &m.ln_in_bias, &m.ln_out_weight, &m.ln_out_bias, &m.value_weight, &m.value_bias};
    if (layer < 0) return top[name]->assign(data, data + n);
    Layer& L = m.layers[layer];
    std::vector<float>* inside[] = {&L.ln1_weight, &L.ln1_bias, &L.ln2_weight, &L.ln2_bias, &L.mix_k, &L.mix_v,
                                    &L.mix_r, &L.ffn_mix_k, &L.ffn_mix_r, &L.decay, &L.first};
    inside[name]->assign(data, data + n);
}

// Row-major weights [out, in] of the given format; int8 and int4 come as one int8 a weight with a scale a row,
// int4 with a multiplier per 32 inputs as well. Returns 0 when memory is short.
int rusty_matrix(void* model, int layer, int name, int format, int out, int in, const void* data, const int8_t* times,
                 const float* scale) {
    Model& m = *(Model*)model;
    Linear* top[] = {&m.proj, &m.head};
    Linear* to = nullptr;
    if (layer < 0) to = top[name];
    else {
        Layer& L = m.layers[layer];
        Linear* inside[] = {&L.key, &L.value, &L.receptance, &L.output, &L.ffn_key, &L.ffn_receptance, &L.ffn_value};
        to = inside[name];
    }
    *to = blank(m.arena, out, in, (Format)format);
    if (to->weights == nullptr) return 0;
    switch (format) {
        case FP32: pack_floats(*to, (const float*)data); break;
        case BF16: pack_floats(*to, (const Brain*)data); break;
        case FP16: pack_floats(*to, (const Half*)data); break;
        case INT8: pack_bytes(*to, (const int8_t*)data, scale); break;
        default: pack_nibbles(*to, (const int8_t*)data, times, scale);
    }
    return 1;
}

int rusty_embedding(void* model, int format, const void* data, const float* scale) {
    Model& m = *(Model*)model;
    const size_t size = (size_t)m.words * m.embed * (format == FP32 ? 4 : format == INT8 ? 1 : 2);
    m.embedding_format = (Format)format;
    m.embedding = (char*)m.arena.take(size);
    if (m.embedding == nullptr) return 0;
    memcpy(m.embedding, data, size);
    if (scale) m.embedding_scale.assign(scale, scale + m.words);
    return 1;
}

// Read n tokens into the state. Where slot[i] >= 0, the normalised hidden vector after token i goes to
// hidden[slot[i]] and its value to values[slot[i]].
void rusty_read(void* model, int n, const int32_t* token, const int32_t* row, const int32_t* slot, int state_rows, float* state,
                float* hidden, float* values) {
    Model& m = *(Model*)model;
    Room& s = room();
    for (int from = 0; from < n; from += AT_ONCE) {
        const Batch t = {std::min(AT_ONCE, n - from), state_rows, token + from, row + from, state};
        advance(m, t, s);
        for (int i = 0; i < t.n; i++) {
            const int to = slot[from + i];
            if (to < 0) continue;
            float* h = hidden + (size_t)to * m.hidden;
            layer_norm(&s.x[(size_t)i * m.stride()], m.ln_out_weight.data(), m.ln_out_bias.data(), m.hidden, h);
            values[to] = value_of(m, h);
        }
    }
}

// Both return how many rows had no word to choose from.
int rusty_pick(void* model, int n, const float* hidden, const Rules* rules, const double* uniform, const uint32_t* mask,
                const int32_t* seen_from, const int32_t* seen, const int32_t* given, int32_t* token, float* logp, uint32_t* kept) {
    Model& m = *(Model*)model;
    const Pick ask = {*rules, uniform, mask, seen_from, seen, given, token, logp, kept};
    for (int from = 0; from < n; from += AT_ONCE)
        pick(m, from, std::min(AT_ONCE, n - from), hidden + (size_t)from * m.hidden, ask, room());
    return (int)std::count(token, token + n, -1);
}

void rusty_logits(void* model, int n, const float* hidden, float* logits) {
    Model& m = *(Model*)model;
    Room& s = room();
    const size_t wide = (size_t)m.head.blocks * 8;
    for (int from = 0; from < n; from += AT_ONCE) {
        const int count = std::min(AT_ONCE, n - from);
        s.a.shape(count, m.hidden, m.head.format);
        for (int i = 0; i < count; i++) s.a.put(i, hidden + (size_t)(from + i) * m.hidden, m.hidden);
        s.logits.resize(count * wide);
        linear(m, m.head, s.a, s.logits.data(), wide);
        for (int i = 0; i < count; i++) memcpy(logits + (size_t)(from + i) * m.words, &s.logits[i * wide], sizeof(float) * m.words);
    }
}

// A whole step: read one token a row, pick the next.
int rusty_step(void* model, int n, const int32_t* token, const int32_t* row, const int32_t* slot, float* state, float* hidden,
                float* values, const Rules* rules, const double* uniform, const uint32_t* mask, const int32_t* seen_from,
                const int32_t* seen, int32_t* next, float* logp, uint32_t* kept) {
    rusty_read(model, n, token, row, slot, n, state, hidden, values);
    return rusty_pick(model, n, hidden, rules, uniform, mask, seen_from, seen, nullptr, next, logp, kept);
}
}
