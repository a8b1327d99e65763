// Computes DLRM's interaction and its gradients. Called by training/models/interaction.py, which has the formulas.
//
// The vectors of a row of the batch are the output of the bottom MLP, if there is one, and the embeddings of the row. All dot products of a row
// are computed while its vectors are in the registers and the first cache.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "matrix_product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// F vectors of E numbers in each row of a batch: `first` (0 or 1) of them come from the bottom MLP.
struct Batch {
    int64_t rows, vectors, dim, first;
    const float* bottom;    // (rows, first * dim)
    const float* embedded;  // (rows, (vectors - first) * dim)
    float* result;          // (rows, columns), for the forward pass
    const float* gradient;  // (rows, columns), for the backward pass
    float* bottom_gradient;
    float* embedded_gradient;

    int64_t columns() const { return first * dim + vectors * (vectors - 1) / 2; }
};

constexpr int64_t kLongest = sizeof(Sixteen) / sizeof(float), kMostRows = RegistersAvx512::kRows;

// Memory of one thread for a row of the batch. Matrices have more rows than there are vectors, so that the last vectors need no special case.
struct Scratch {
    int64_t padded;  // the vectors, rounded up to whole registers
    int64_t rows;
    int64_t step;                 // E, rounded up to whole registers; the numbers from E on stay zero
    std::vector<float> vectors;   // (rows, step)
    std::vector<float> columns;   // (E, padded), the transposed vectors
    std::vector<float> square;    // (rows, padded)
    std::vector<float> products;  // (rows, step), or the dot products in the order of the result

    explicit Scratch(const Batch& b)
        : padded((b.vectors + kLongest - 1) / kLongest * kLongest),
          rows(b.vectors + kMostRows),
          step((b.dim + kLongest - 1) / kLongest * kLongest),
          vectors(rows * step),
          columns(b.dim * padded),
          square(rows * padded),
          products(std::max(rows * step, b.vectors * (b.vectors - 1) / 2 + kLongest)) {}
};

// Copies whole registers: at least `count` numbers, and less than one register more.
template <class R>
INLINE void copy_registers(float* into, const float* from, int64_t count) {
    typedef typename R::Lanes Lanes;
    for (int64_t i = 0; i < count; i += R::kLanes) store(into + i, load<Lanes>(from + i));
}

// Copies `count` vectors of E numbers. `step_from` and `step_into` are the distances of their first numbers.
INLINE void copy(int64_t count, int64_t dim, const float* from, int64_t step_from, float* into, int64_t step_into) {
    if (step_from == dim && step_into == dim)
        std::memcpy(into, from, count * dim * sizeof(float));
    else
        for (int64_t i = 0; i < count; ++i) std::memcpy(into + i * step_into, from + i * step_from, dim * sizeof(float));
}

INLINE void copy_vectors(const Batch& b, int64_t row, Scratch& scratch) {
    const int64_t others = b.vectors - b.first;
    copy(b.first, b.dim, b.bottom + row * b.first * b.dim, b.dim, scratch.vectors.data(), scratch.step);
    copy(others, b.dim, b.embedded + row * others * b.dim, b.dim, scratch.vectors.data() + b.first * scratch.step, scratch.step);
}

template <class R>
INLINE void interact(const Batch& b, int64_t begin, int64_t end, Scratch& scratch) {
    const int64_t padded = scratch.padded, first = b.first * b.dim, pairs = b.vectors * (b.vectors - 1) / 2;
    float *vectors = scratch.vectors.data(), *columns = scratch.columns.data(), *square = scratch.square.data();
    for (int64_t row = begin; row < end; ++row) {
        copy_vectors(b, row, scratch);
        for (int64_t f = 0; f < b.vectors; ++f)
            for (int64_t e = 0; e < b.dim; ++e) columns[e * padded + f] = vectors[f * scratch.step + e];
        std::fill_n(square, scratch.rows * padded, 0.0f);
        for (int64_t block = 0; block < b.vectors; block += R::kRows) {
            // The products with later vectors are left out.
            const int64_t needed = std::min((block + R::kRows + R::kLanes - 1) / R::kLanes * R::kLanes, padded);
            add_product<R>(R::kRows, b.dim, needed, vectors + block * scratch.step, scratch.step, columns, padded, square + block * padded, padded);
        }
        float* packed = scratch.products.data();
        for (int64_t i = 0; i < b.vectors; packed += i++) copy_registers<R>(packed, square + i * padded, i);
        float* out = b.result + row * b.columns();
        std::memcpy(out, vectors, first * sizeof(float));
        std::memcpy(out + first, scratch.products.data(), pairs * sizeof(float));
    }
}

template <class R>
INLINE void differentiate(const Batch& b, int64_t begin, int64_t end, Scratch& scratch) {
    const int64_t padded = scratch.padded, step = scratch.step, first = b.first * b.dim, others = b.vectors - b.first;
    const int64_t rows = (b.vectors + R::kRows - 1) / R::kRows * R::kRows;
    const int64_t columns = (b.dim + R::kLanes - 1) / R::kLanes * R::kLanes;
    float *vectors = scratch.vectors.data(), *square = scratch.square.data(), *products = scratch.products.data();
    for (int64_t row = begin; row < end; ++row) {
        copy_vectors(b, row, scratch);
        const float* gradient = b.gradient + row * b.columns();
        const float* of_pairs = gradient + first;
        for (int64_t i = 0; i < b.vectors; of_pairs += i++) {  // the diagonal stays zero
            for (int64_t j = 0; j < i; ++j) square[i * padded + j] = square[j * padded + i] = of_pairs[j];
        }
        std::fill_n(products, rows * step, 0.0f);
        copy(b.first, b.dim, gradient, b.dim, products, step);
        add_product<R>(rows, b.vectors, columns, square, padded, vectors, step, products, step);
        copy(b.first, b.dim, products, step, b.bottom_gradient + row * first, b.dim);
        copy(others, b.dim, products + b.first * step, step, b.embedded_gradient + row * others * b.dim, b.dim);
    }
}

typedef void (*Pass)(const Batch&, int64_t, int64_t, Scratch&);

AVX512 void interact_avx512(const Batch& b, int64_t begin, int64_t end, Scratch& s) { interact<RegistersAvx512>(b, begin, end, s); }
AVX2 void interact_avx2(const Batch& b, int64_t begin, int64_t end, Scratch& s) { interact<RegistersAvx2>(b, begin, end, s); }
void interact_everywhere(const Batch& b, int64_t begin, int64_t end, Scratch& s) { interact<RegistersEverywhere>(b, begin, end, s); }
AVX512 void differentiate_avx512(const Batch& b, int64_t begin, int64_t end, Scratch& s) { differentiate<RegistersAvx512>(b, begin, end, s); }
AVX2 void differentiate_avx2(const Batch& b, int64_t begin, int64_t end, Scratch& s) { differentiate<RegistersAvx2>(b, begin, end, s); }
void differentiate_everywhere(const Batch& b, int64_t begin, int64_t end, Scratch& s) { differentiate<RegistersEverywhere>(b, begin, end, s); }

// Divides the rows among threads, of which one is the caller's. If the system cannot start a thread, the caller does that thread's part.
void run(Pass pass, const Batch& b, int64_t threads) {
    std::vector<Scratch> scratch(threads, Scratch(b));
    std::vector<std::thread> started;
    started.reserve(threads);
    const auto part = [&](int64_t thread) { pass(b, b.rows * thread / threads, b.rows * (thread + 1) / threads, scratch[thread]); };
    int64_t thread = 1;
    try {
        for (; thread < threads; ++thread) started.emplace_back(part, thread);
    } catch (const std::system_error&) {
    }
    part(0);
    for (; thread < threads; ++thread) part(thread);
    for (std::thread& other : started) other.join();
}

}  // namespace

// Writes the interaction, or the gradients if `backward` is not 0. Returns 0, or -1 if memory runs out.
//
// instructions: see choose_instructions.
EXPORT int32_t nightrank_interaction(const Batch* batch, int32_t backward, int64_t threads, int32_t instructions) {
    try {
        const Instructions chosen = choose_instructions(instructions);
        if (backward)
            run(chosen == kAvx512 ? differentiate_avx512 : chosen == kAvx2 ? differentiate_avx2 : differentiate_everywhere, *batch, threads);
        else
            run(chosen == kAvx512 ? interact_avx512 : chosen == kAvx2 ? interact_avx2 : interact_everywhere, *batch, threads);
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
