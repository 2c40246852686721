// SPDX-License-Identifier: AGPL-3.0-or-later
// Rows of logits become the gradient of their cross-entropy, in place. Loaded by loss.py.
//
// One row is a few cache levels at most, so its three sweeps (maximum, sum of exponentials, scale)
// read memory once. A row with a NaN or an infinity gives NaN, as the formula would.
#include <cmath>
#include <cstdint>

#include "exp.h"

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
        double total = 0;
        for (int64_t from = 0; from < words; from += 1024) {  // blocks keep the float sum exact enough
            const int64_t to = from + 1024 < words ? from + 1024 : words;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = from; j < to; j++) {
                const float e = exp_negative(row[j] - top);
                row[j] = train ? e : row[j];
                sum += e;
            }
            total += sum;
        }
        nll[i] = (float)(std::log(total) + top - aim) + broken;
        if (!train) continue;
        const float scale = (float)(1.0 / total) + broken;
#pragma omp simd
        for (int64_t j = 0; j < words; j++) row[j] *= scale;
        row[targets[i]] -= 1.0f;
    }
}
