// SPDX-License-Identifier: AGPL-3.0-or-later
// From logits to a word and its log-probability: repetition penalty, temperature, grammar mask, top-k, top-p,
// in that order. The log-probability is that of the distribution really sampled.
//
// Logits arrive in panels of 256 words, still warm from the matrix product; each panel is summed up as
// (largest, sum of exponentials), so plain sampling looks at one panel twice and never stores a probability.
// Equal logits are kept or cut together, so the kept set does not depend on any order (lm/sampling.py says
// the same in torch).
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "engine_math.h"

static const int PANEL = 256;

struct Rules {
    float temperature;  // 0 is greedy
    float top_p;        // 1 keeps all
    float penalty;      // 1 is none
    int32_t top_k;      // 0 keeps all
};
struct Part { float top, sum; };
struct Choice { int32_t token; float logp; };

APART Part sum_up(float* z, int count, const uint32_t* mask, const Rules& rules) {
    if (rules.temperature > 0 && rules.temperature != 1.f) {
        const float turn = 1.f / rules.temperature;
        for (int j = 0; j < count; j++) z[j] *= turn;
    }
    for (int j = count; j < PANEL; j++) z[j] = -INFINITY;
    if (mask != nullptr)
        for (int word = 0; word * 32 < count; word++)
            if (mask[word] != ~0u)
                for (int j = 0; j < 32; j++) z[word * 32 + j] = mask[word] >> j & 1 ? z[word * 32 + j] : -INFINITY;
    const float top = largest_of(z, PANEL, -INFINITY);
    if (rules.temperature <= 0 || top == -INFINITY) return {top, 0.f};
    Lanes sums[4] = {};
    for (int j = 0; j < PANEL; j += 4 * LANES)
        for (int i = 0; i < 4; i++) sums[i] += quick_exp(load(z + j + i * LANES, LANES) - top);
    return {top, sum((sums[0] + sums[1]) + (sums[2] + sums[3]))};
}

static void penalise(float* z, int first, int count, const int32_t* seen, const int32_t* end, float penalty) {
    for (const int32_t* id = std::lower_bound(seen, end, first); id != end && *id < first + count; id++) {
        float& value = z[*id - first];
        value = value > 0 ? value / penalty : value * penalty;
    }
}

// One row of logits in panels, already penalised, scaled and masked.
struct Row {
    const float* first;
    size_t stride;  // floats from one panel to the next
    const Part* parts;
    int panels, words;
    const float* panel(int p) const { return first + stride * p; }
    float at(int word) const { return panel(word / PANEL)[word % PANEL]; }
    float top() const {
        float most = -INFINITY;
        for (int p = 0; p < panels; p++) most = std::max(most, parts[p].top);
        return most;
    }
    template <class F> void each(float floor, F visit) const {  // every possible word not below floor, in order
        for (int p = 0; p < panels; p++) {
            if (parts[p].top < floor || parts[p].top == -INFINITY) continue;
            const float* z = panel(p);
            for (int j = 0; j < PANEL; j++)
                if (z[j] >= floor && z[j] != -INFINITY) visit(p * PANEL + j, z[j]);
        }
    }
};

APART float kth_largest(const Row& row, int k) {
    static thread_local std::vector<float> values;
    float bound = -INFINITY;
    if (k <= row.panels) {  // the k-th largest panel top is a lower bound: few words pass it
        values.clear();
        for (int p = 0; p < row.panels; p++) values.push_back(row.parts[p].top);
        std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
        bound = values[k - 1];
    }
    values.clear();
    row.each(bound, [&](int, float z) { values.push_back(z); });
    if ((int)values.size() < k) return -INFINITY;
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
    return values[k - 1];
}

// The smallest value kept by top-p among those not below floor: bucket sums find the neighbourhood, a sort of
// one bucket finds the word.
APART float nucleus(const Row& row, float floor, float top, double share) {
    const int COUNT = 512;
    static thread_local std::vector<double> mass;
    static thread_local std::vector<float> values;
    mass.assign(COUNT, 0.0);
    auto bucket = [&](float z) { return std::min(COUNT - 1, (int)((top - z) * 16.f)); };
    double total = 0, before = 0;
    row.each(floor, [&](int, float z) { double e = quick_exp(z - top); mass[bucket(z)] += e, total += e; });
    int found = 0;
    while (found < COUNT - 1 && before + mass[found] < share * total) before += mass[found++];
    values.clear();
    row.each(floor, [&](int, float z) { if (bucket(z) == found) values.push_back(z); });
    std::sort(values.begin(), values.end(), std::greater<float>());
    float least = values.empty() ? floor : values[0];
    for (float z : values) {
        if (before >= share * total) break;
        least = z, before += quick_exp(z - top);
    }
    return least;
}

static Choice greedy(const Row& row, float top, int given, uint32_t* kept) {
    int token = 0;
    for (int p = 0; p < row.panels; p++)
        if (row.parts[p].top == top) {
            const float* z = row.panel(p);
            token = p * PANEL + (int)(std::find(z, z + PANEL, top) - z);
            break;
        }
    if (kept != nullptr) kept[token / 32] |= 1u << token % 32;
    if (given >= 0 && given != token) return {given, -INFINITY};
    return {token, 0.f};
}

// `uniform` in [0,1) chooses the word; with given >= 0 that word is only scored.
APART Choice choose(const Row& row, const Rules& rules, double uniform, int given, uint32_t* kept) {
    const float top = row.top();
    if (top == -INFINITY || top != top) return {-1, NAN};
    if (rules.temperature <= 0) return greedy(row, top, given, kept);
    float floor = rules.top_k > 0 && rules.top_k < row.words ? kth_largest(row, rules.top_k) : -INFINITY;
    if (rules.top_p < 1.f) floor = nucleus(row, floor, top, rules.top_p);
    static thread_local std::vector<double> mass;
    mass.assign(row.panels, 0.0);
    double total = 0;
    if (floor == -INFINITY)
        for (int p = 0; p < row.panels; p++) mass[p] = row.parts[p].sum * std::exp((double)row.parts[p].top - top);
    else row.each(floor, [&](int word, float z) { mass[word / PANEL] += quick_exp(z - top); });
    for (double m : mass) total += m;
    if (kept != nullptr) row.each(floor, [&](int word, float) { kept[word / 32] |= 1u << word % 32; });
    auto logp = [&](float z) { return (float)(z - top - std::log(total)); };
    if (given >= 0) {
        const bool possible = row.parts[given / PANEL].top > -INFINITY && row.at(given) >= floor;
        return {given, possible ? logp(row.at(given)) : -INFINITY};
    }
    double left = uniform * total;
    int p = 0, last = 0;
    for (int i = 0; i < row.panels; i++) if (mass[i] > 0) last = i;
    while (p < last && left >= mass[p]) left -= mass[p++];
    const float* z = row.panel(p);
    int token = -1;
    for (int j = 0; j < PANEL; j++) {
        if (z[j] < floor || z[j] == -INFINITY) continue;
        token = j, left -= quick_exp(z[j] - top);
        if (left < 0) break;
    }
    return {p * PANEL + token, logp(z[token])};
}
