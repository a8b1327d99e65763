// Adam on the rows of a table. Called by training/optimizers/updates.py, which has the formulas.

#include <cmath>
#include <cstdint>

#include "matrix_product.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// Square roots of vectors in registers, without a check of each number.
#pragma GCC optimize("no-math-errno")

namespace {

// The gradient of N different rows of E numbers, the state of all rows, and the change of the rows' weights.
struct Step {
    int64_t count, dim;
    const int64_t* rows;     // (N,)
    const float* gradient;   // (N, E)
    float* mean;             // (rows of the table, E)
    float* square;           // (rows of the table, E)
    int32_t* updates;        // (rows of the table,)
    float* change;           // (N, E)
    double decay, square_decay, rate, epsilon;
};

// Caches the corrections of moments by number of updates, because many rows have the same number. Computing powers takes longer than a row.
struct Corrections {
    static constexpr int64_t kKept = 256;
    int64_t times[kKept] = {};  // 0: none yet
    float mean[kKept], square[kKept];

    // Returns the place of the corrections after `count` updates.
    INLINE int64_t of(const Step& s, int64_t count) {
        const int64_t place = count % kKept;
        if (times[place] != count) {
            times[place] = count;
            mean[place] = static_cast<float>(1 - std::pow(s.decay, static_cast<double>(count)));
            square[place] = static_cast<float>(1 - std::pow(s.square_decay, static_cast<double>(count)));
        }
        return place;
    }
};

INLINE void update(const Step& s, int64_t begin, int64_t end) {
    Corrections corrections;
    const float keep = static_cast<float>(s.square_decay), add = static_cast<float>(1 - s.square_decay), part = static_cast<float>(1 - s.decay);
    const float rate = static_cast<float>(-s.rate), epsilon = static_cast<float>(s.epsilon);
    for (int64_t n = begin; n < end; ++n) {
        const int64_t row = s.rows[n];
        const int64_t place = corrections.of(s, ++s.updates[row]);
        const float mean_bias = corrections.mean[place], square_bias = corrections.square[place];
        const float* __restrict gradient = s.gradient + n * s.dim;
        float* __restrict mean = s.mean + row * s.dim;
        float* __restrict square = s.square + row * s.dim;
        float* __restrict change = s.change + n * s.dim;
        for (int64_t e = 0; e < s.dim; ++e) {
            mean[e] += part * (gradient[e] - mean[e]);
            square[e] = square[e] * keep + add * gradient[e] * gradient[e];
            change[e] = mean[e] / mean_bias / (sqrtf(square[e] / square_bias) + epsilon) * rate;
        }
    }
}

AVX512 void update_avx512(const Step& s, int64_t begin, int64_t end) { update(s, begin, end); }
AVX2 void update_avx2(const Step& s, int64_t begin, int64_t end) { update(s, begin, end); }
void update_everywhere(const Step& s, int64_t begin, int64_t end) { update(s, begin, end); }

}  // namespace

// Updates the state of the rows, and writes the change of their weights.
//
// instructions: see choose_instructions.
EXPORT void nightrank_lazy_adam(const Step* step, int64_t threads, int32_t instructions) {
    const Instructions chosen = choose_instructions(instructions);
    const auto pass = chosen == kAvx512 ? update_avx512 : chosen == kAvx2 ? update_avx2 : update_everywhere;
    divide(step->count, 1, threads, [&](int64_t begin, int64_t end) { pass(*step, begin, end); });
}
