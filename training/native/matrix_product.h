// Matrix products of small matrices in the registers of a processor, for the files of this folder that compute with vectors.

#pragma once

#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are only passed to functions that are inlined

namespace {

typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));

// How a matrix product uses the registers: the numbers of a register (Lanes), and kRows · kVectors sums that stay in registers.
template <class Lanes_, int kRows_, int kVectors_>
struct Registers {
    typedef Lanes_ Lanes;
    static constexpr int kRows = kRows_, kVectors = kVectors_;
    static constexpr int64_t kLanes = sizeof(Lanes_) / sizeof(float);
};

// Registers with AVX-512 (32 of 512 bits), with AVX2 (16 of 256 bits), and on every processor (16 of 128 bits).
typedef Registers<Sixteen, 8, 2> RegistersAvx512;
typedef Registers<Eight, 6, 2> RegistersAvx2;
typedef Registers<Four, 4, 2> RegistersEverywhere;

#define AVX512 __attribute__((target("avx512f,avx512vl,fma")))
#define AVX2 __attribute__((target("avx2,fma")))

enum Instructions { kEverywhere = 0, kAvx2 = 1, kAvx512 = 2 };

// Returns the instructions to use. If `wanted` is negative, these are the best of this processor. If the processor does not have the wanted ones,
// they are those of every processor.
INLINE Instructions choose_instructions(int32_t wanted) {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx512 && (wanted < 0 || wanted == kAvx512)) return kAvx512;
    if (avx2 && (wanted < 0 || wanted == kAvx2)) return kAvx2;
    return kEverywhere;
}

template <class Lanes>
INLINE Lanes load(const float* from) {
    Lanes value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Lanes>
INLINE void store(float* into, Lanes value) { std::memcpy(into, &value, sizeof value); }

// Adds the product of a (rows, inner) and some columns of b (inner, columns) to c, in kRows · kVectors registers. `step_a` and `step_c` are the
// distances of rows; the rows of b are adjacent.
template <class Lanes, int kRows, int kVectors>
INLINE void add_product_of_registers(int64_t inner, const float* a, int64_t step_a, const float* b, int64_t step_b, float* c, int64_t step_c) {
    constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
    Lanes sums[kRows][kVectors];
    for (int row = 0; row < kRows; ++row)
        for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] = load<Lanes>(c + row * step_c + vector * kLanes);
    for (int64_t k = 0; k < inner; ++k) {
        Lanes values[kVectors];
        for (int vector = 0; vector < kVectors; ++vector) values[vector] = load<Lanes>(b + k * step_b + vector * kLanes);
        for (int row = 0; row < kRows; ++row)
            for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] += a[row * step_a + k] * values[vector];
    }
    for (int row = 0; row < kRows; ++row)
        for (int vector = 0; vector < kVectors; ++vector) store(c + row * step_c + vector * kLanes, sums[row][vector]);
}

template <class R, int kRows>
INLINE void add_product_of_rows(int64_t inner, int64_t columns, const float* a, int64_t step_a, const float* b, int64_t step_b, float* c, int64_t step_c) {
    typedef typename R::Lanes Lanes;
    int64_t column = 0;
    for (; column + R::kVectors * R::kLanes <= columns; column += R::kVectors * R::kLanes)
        add_product_of_registers<Lanes, kRows, R::kVectors>(inner, a, step_a, b + column, step_b, c + column, step_c);
    for (; column + R::kLanes <= columns; column += R::kLanes)
        add_product_of_registers<Lanes, kRows, 1>(inner, a, step_a, b + column, step_b, c + column, step_c);
    for (int row = 0; row < kRows; ++row)
        for (int64_t k = 0; k < inner; ++k)
            for (int64_t rest = column; rest < columns; ++rest) c[row * step_c + rest] += a[row * step_a + k] * b[k * step_b + rest];
}

template <class R>
INLINE void add_product(int64_t rows, int64_t inner, int64_t columns, const float* a, int64_t step_a, const float* b, int64_t step_b, float* c, int64_t step_c) {
    int64_t row = 0;
    for (; row + R::kRows <= rows; row += R::kRows)
        add_product_of_rows<R, R::kRows>(inner, columns, a + row * step_a, step_a, b, step_b, c + row * step_c, step_c);
    for (; row < rows; ++row) add_product_of_rows<R, 1>(inner, columns, a + row * step_a, step_a, b, step_b, c + row * step_c, step_c);
}

}  // namespace
