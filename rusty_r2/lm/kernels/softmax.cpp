// SPDX-License-Identifier: AGPL-3.0-or-later
// Rows of logits become the gradient of their cross-entropy, in place. Loaded by loss.py.
//
// One row is a few cache levels at most, so its three sweeps (maximum, sum of exponentials, scale)
// read memory once. A row with a NaN or an infinity gives NaN, as the formula would.
#include <cmath>
#include <cstdint>

#include "exp.h"

static constexpr int64_t BLOCK = 1024;  // short sums in float, their total in double

// sum of exp(row - top); with TRAIN the exponentials take the row's place
template <bool TRAIN> static double exponentials(float *__restrict row, int64_t words, float top) {
    double total = 0;
    for (int64_t from = 0; from < words; from += BLOCK) {
        const int64_t n = from + BLOCK < words ? BLOCK : words - from;
        float *__restrict here = row + from;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) {
            const float e = exp_negative(here[j] - top);
            if (TRAIN) here[j] = e;
            sum += e;
        }
        total += sum;
    }
    return total;
}

// nll[i] = log sum exp(row i) - row i[target i]; with train, row i = softmax(row i) - onehot(target i)
extern "C" void softmax_turn(int64_t rows, int64_t words, int train, float *logits, const int64_t *targets,
                             float *nll) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float *row = logits + i * words;
        float top = row[0], broken = 0;
#pragma omp simd reduction(max : top) reduction(+ : broken)
        for (int64_t j = 0; j < words; j++) {
            top = row[j] > top ? row[j] : top;
            broken += row[j] * 0.0f;
        }
        const float aim = row[targets[i]];
        const double total = train ? exponentials<true>(row, words, top) : exponentials<false>(row, words, top);
        nll[i] = (float)(std::log(total) + top - aim) + broken;
        if (!train) continue;
        const float scale = (float)(1.0 / total) + broken;
#pragma omp simd
        for (int64_t j = 0; j < words; j++) row[j] *= scale;
        row[targets[i]] -= 1.0f;
    }
}
