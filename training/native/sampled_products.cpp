// Dot products of users with drawn items, and their gradients. Called by training/loop/forward.py.
//
// A vector is read where it is, so no copy of it is made for each draw.

#include <cstdint>
#include <new>

#include "matrix_product.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// P users with G items each. There are I distinct items. Vectors have E numbers.
struct Drawn {
    int64_t users, group, items, dim;
    const float* user_vectors;   // (P, E)
    const float* item_vectors;   // (I, E)
    const int64_t* index;        // (P, G), the item of each product
    float* products;             // (P, G), for the forward pass
    const float* gradient;       // (P, G), for the backward pass
    float* user_gradient;        // (P, E)
    float* item_gradient;        // (I, E), zero at first
};

constexpr int64_t kAhead = 8;  // items that are requested from memory before they are used
constexpr int64_t kLine = 16;  // numbers of a cache line

INLINE void request(const float* vector, int64_t count) {
    for (int64_t e = 0; e < count; e += kLine) __builtin_prefetch(vector + e);
}

template <class R>
INLINE float sum_of(typename R::Lanes lanes) {
    float numbers[R::kLanes], total = 0;
    store(numbers, lanes);
    for (int64_t i = 0; i < R::kLanes; ++i) total += numbers[i];
    return total;
}

template <class R>
INLINE float product(int64_t dim, const float* a, const float* b) {
    typedef typename R::Lanes Lanes;
    Lanes sums = {};
    int64_t e = 0;
    for (; e + R::kLanes <= dim; e += R::kLanes) sums += load<Lanes>(a + e) * load<Lanes>(b + e);
    float total = sum_of<R>(sums);
    for (; e < dim; ++e) total += a[e] * b[e];
    return total;
}

template <class R>
INLINE void multiply(const Drawn& d, int64_t begin, int64_t end) {
    for (int64_t user = begin; user < end; ++user) {
        const int64_t* index = d.index + user * d.group;
        for (int64_t g = 0; g < d.group; ++g) {
            if (g + kAhead < d.group) request(d.item_vectors + index[g + kAhead] * d.dim, d.dim);
            d.products[user * d.group + g] = product<R>(d.dim, d.user_vectors + user * d.dim, d.item_vectors + index[g] * d.dim);
        }
    }
}

// Adds the gradients of `count` numbers of vectors, whose first one is `first`. A register has them all for a user.
template <class R, int kVectors>
INLINE void differentiate_registers(const Drawn& d, int64_t first) {
    typedef typename R::Lanes Lanes;
    constexpr int64_t kCount = kVectors * R::kLanes;
    for (int64_t user = 0; user < d.users; ++user) {
        const int64_t* index = d.index + user * d.group;
        const float* gradient = d.gradient + user * d.group;
        Lanes vector[kVectors], sums[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            vector[v] = load<Lanes>(d.user_vectors + user * d.dim + first + v * R::kLanes);
            sums[v] = Lanes{};
        }
        for (int64_t g = 0; g < d.group; ++g) {
            if (g + kAhead < d.group) {
                request(d.item_vectors + index[g + kAhead] * d.dim + first, kCount);
                request(d.item_gradient + index[g + kAhead] * d.dim + first, kCount);
            }
            const float* item = d.item_vectors + index[g] * d.dim + first;
            float* into = d.item_gradient + index[g] * d.dim + first;
            for (int v = 0; v < kVectors; ++v) {
                sums[v] += gradient[g] * load<Lanes>(item + v * R::kLanes);
                store(into + v * R::kLanes, load<Lanes>(into + v * R::kLanes) + gradient[g] * vector[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) store(d.user_gradient + user * d.dim + first + v * R::kLanes, sums[v]);
    }
}

// Computes the gradients of the numbers [begin, end) of all vectors. So threads never write the same memory, and sums do not depend on their number.
template <class R>
INLINE void differentiate(const Drawn& d, int64_t begin, int64_t end) {
    int64_t first = begin;
    for (; first + 4 * R::kLanes <= end; first += 4 * R::kLanes) differentiate_registers<R, 4>(d, first);
    for (; first + 2 * R::kLanes <= end; first += 2 * R::kLanes) differentiate_registers<R, 2>(d, first);
    for (; first + R::kLanes <= end; first += R::kLanes) differentiate_registers<R, 1>(d, first);
    for (; first < end; ++first) {
        for (int64_t user = 0; user < d.users; ++user) {
            float sum = 0;
            for (int64_t g = 0; g < d.group; ++g) {
                const int64_t place = d.index[user * d.group + g] * d.dim + first;
                const float gradient = d.gradient[user * d.group + g];
                sum += gradient * d.item_vectors[place];
                d.item_gradient[place] += gradient * d.user_vectors[user * d.dim + first];
            }
            d.user_gradient[user * d.dim + first] = sum;
        }
    }
}

typedef void (*Pass)(const Drawn&, int64_t, int64_t);

AVX512 void multiply_avx512(const Drawn& d, int64_t begin, int64_t end) { multiply<RegistersAvx512>(d, begin, end); }
AVX2 void multiply_avx2(const Drawn& d, int64_t begin, int64_t end) { multiply<RegistersAvx2>(d, begin, end); }
void multiply_everywhere(const Drawn& d, int64_t begin, int64_t end) { multiply<RegistersEverywhere>(d, begin, end); }
AVX512 void differentiate_avx512(const Drawn& d, int64_t begin, int64_t end) { differentiate<RegistersAvx512>(d, begin, end); }
AVX2 void differentiate_avx2(const Drawn& d, int64_t begin, int64_t end) { differentiate<RegistersAvx2>(d, begin, end); }
void differentiate_everywhere(const Drawn& d, int64_t begin, int64_t end) { differentiate<RegistersEverywhere>(d, begin, end); }

}  // namespace

// Writes the products, or the gradients if `backward` is not 0. Returns 0, or -1 if memory runs out.
//
// instructions: see choose_instructions.
EXPORT int32_t nightrank_sampled_products(const Drawn* drawn, int32_t backward, int64_t threads, int32_t instructions) {
    try {
        static const Pass passes[2][3] = {
            {multiply_everywhere, multiply_avx2, multiply_avx512},
            {differentiate_everywhere, differentiate_avx2, differentiate_avx512},
        };
        const Pass pass = passes[backward != 0][choose_instructions(instructions)];
        if (backward)
            divide(drawn->dim, kLine, threads, [&](int64_t begin, int64_t end) { pass(*drawn, begin, end); });
        else
            divide(drawn->users, 1, threads, [&](int64_t begin, int64_t end) { pass(*drawn, begin, end); });
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
