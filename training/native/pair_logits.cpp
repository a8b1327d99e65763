// Computes the logits of a block of users with items that all users share. Called by training/models/shared_items.py.
//
// That module explains the computation. Here a tile of a few items is computed from the first layer to the logit while its
// numbers are in the cache. The rows of a tile are its pairs: item by item, and user by user for an item.

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "matrix_product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kTileItems = 8;

// A linear layer and its activation.
struct Layer {
    int64_t inputs, outputs;
    const float* weight;  // (inputs, outputs)
    const float* bias;    // (outputs,), or null
    const float* slopes;  // (outputs,) of PReLU, or null for ReLU
};

struct Problem {
    int64_t users, items, hidden;
    const float* share;       // (users, hidden) what the users and the equal vectors of items add to the first layer
    const float* item_share;  // (items, hidden)
    int64_t few;              // number of vectors with few values
    const int64_t* numbers;   // (items, few) rows of `table`
    const float* table;       // (values, users * hidden)
    int64_t many;             // number of elements of all other vectors of an item
    const float* vectors;     // (items, many)
    const float* matrix;      // (many, users * hidden)
    int64_t first;            // outputs of the first layer of the bottom MLP, or 0 without a bottom MLP
    int64_t dim;              // outputs of the bottom MLP
    const float* bottom_share;       // (users, first)
    const float* bottom_item_share;  // (items, first)
    const float* bottom_items;       // (items, dim, hidden)
    const float* bottom_users;       // (users, dim, hidden)
    const float* bottom_slopes;      // (first,) of PReLU, or null for ReLU
    int64_t bottom_layers;
    const Layer* bottom;
    const float* top_slopes;  // (hidden,) of PReLU, or null for ReLU
    int64_t top_layers;       // layers after the first. The last one gives the logit. With none, `hidden` is 1.
    const Layer* top;
};

INLINE float activated(float value, const float* slopes, int64_t column) {
    return value > 0 ? value : value * slopes[column];
}

// Applies PReLU or ReLU. NaN stays NaN.
INLINE void activate(float* values, int64_t rows, int64_t columns, const float* slopes) {
    for (int64_t row = 0; row < rows; ++row, values += columns) {
        if (slopes) {
            for (int64_t column = 0; column < columns; ++column) values[column] = activated(values[column], slopes, column);
        } else {
            for (int64_t column = 0; column < columns; ++column) values[column] = values[column] < 0 ? 0.0f : values[column];
        }
    }
}

// Writes the output (rows, outputs) of a layer before its activation.
template <class R>
INLINE void apply(const Layer& layer, int64_t rows, const float* inputs, float* outputs) {
    for (int64_t row = 0; row < rows; ++row) {
        float* out = outputs + row * layer.outputs;
        if (layer.bias)
            std::memcpy(out, layer.bias, layer.outputs * sizeof(float));
        else
            std::memset(out, 0, layer.outputs * sizeof(float));
    }
    add_product<R>(rows, layer.inputs, layer.outputs, inputs, layer.inputs, layer.weight, layer.outputs, outputs, layer.outputs);
}

// Writes the sums of products of rows (rows, inputs) and the weights of a layer with one output.
template <class R>
INLINE void apply_last(const Layer& layer, int64_t rows, const float* inputs, float* outputs) {
    typedef typename R::Lanes Lanes;
    constexpr int64_t kLanes = R::kLanes;
    for (int64_t row = 0; row < rows; ++row, inputs += layer.inputs) {
        Lanes lanes = {};
        int64_t k = 0;
        for (; k + kLanes <= layer.inputs; k += kLanes) lanes += load<Lanes>(inputs + k) * load<Lanes>(layer.weight + k);
        float sum = layer.bias ? layer.bias[0] : 0.0f;
        for (; k < layer.inputs; ++k) sum += inputs[k] * layer.weight[k];
        for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
        outputs[row] = sum;
    }
}

// Writes the part of the top MLP's first layer that is a sum of shares and of the terms of vectors with few values.
//
// rows: memory for `few` addresses.
template <class R>
INLINE void sum_shares(const Problem& p, int64_t item, float* hidden, const float** rows) {
    typedef typename R::Lanes Lanes;
    const float* own = p.item_share + item * p.hidden;
    const int64_t width = p.users * p.hidden;
    for (int64_t f = 0; f < p.few; ++f) rows[f] = p.table + p.numbers[item * p.few + f] * width;
    for (int64_t user = 0; user < p.users; ++user) {
        const int64_t start = user * p.hidden;
        int64_t column = 0;
        for (; column + R::kLanes <= p.hidden; column += R::kLanes) {
            Lanes sum = load<Lanes>(own + column) + load<Lanes>(p.share + start + column);
            for (int64_t f = 0; f < p.few; ++f) sum += load<Lanes>(rows[f] + start + column);
            store(hidden + start + column, sum);
        }
        for (; column < p.hidden; ++column) {
            float sum = own[column] + p.share[start + column];
            for (int64_t f = 0; f < p.few; ++f) sum += rows[f][start + column];
            hidden[start + column] = sum;
        }
    }
}

// Memory for the layers of a tile.
struct Scratch {
    std::vector<float> hidden, before, after;
    std::vector<const float*> rows;

    explicit Scratch(const Problem& p) {
        int64_t widest = p.first > p.dim ? p.first : p.dim;
        for (int64_t i = 0; i < p.bottom_layers; ++i) widest = p.bottom[i].outputs > widest ? p.bottom[i].outputs : widest;
        for (int64_t i = 0; i < p.top_layers; ++i) widest = p.top[i].outputs > widest ? p.top[i].outputs : widest;
        const int64_t pairs = kTileItems * p.users;
        hidden.resize(pairs * p.hidden);
        before.resize(pairs * widest);
        after.resize(pairs * widest);
        rows.resize(p.few);
    }
};

// Adds the term of the bottom MLP's output to the first layer of the top MLP.
template <class R>
INLINE void add_bottom(const Problem& p, int64_t item, int64_t items, Scratch& scratch) {
    const int64_t pairs = items * p.users;
    float *from = scratch.before.data(), *into = scratch.after.data();
    for (int64_t t = 0; t < items; ++t) {
        const float* of_item = p.bottom_item_share + (item + t) * p.first;
        for (int64_t user = 0; user < p.users; ++user) {
            float* row = from + (t * p.users + user) * p.first;
            const float* of_user = p.bottom_share + user * p.first;
            for (int64_t column = 0; column < p.first; ++column) row[column] = of_item[column] + of_user[column];
        }
    }
    activate(from, pairs, p.first, p.bottom_slopes);
    for (int64_t i = 0; i < p.bottom_layers; ++i) {
        apply<R>(p.bottom[i], pairs, from, into);
        activate(into, pairs, p.bottom[i].outputs, p.bottom[i].slopes);
        std::swap(from, into);
    }
    const int64_t matrix = p.dim * p.hidden;
    for (int64_t t = 0; t < items; ++t)
        add_product<R>(
            p.users, p.dim, p.hidden, from + t * p.users * p.dim, p.dim, p.bottom_items + (item + t) * matrix, p.hidden,
            scratch.hidden.data() + t * p.users * p.hidden, p.hidden);
    for (int64_t user = 0; user < p.users; ++user)
        add_product<R>(
            items, p.dim, p.hidden, from + user * p.dim, p.users * p.dim, p.bottom_users + user * matrix, p.hidden,
            scratch.hidden.data() + user * p.hidden, p.users * p.hidden);
}

template <class R>
INLINE void compute(const Problem& p, float* logits, int64_t step, Scratch& scratch) {
    std::vector<float>& hidden = scratch.hidden;
    for (int64_t item = 0; item < p.items; item += kTileItems) {
        const int64_t items = p.items - item < kTileItems ? p.items - item : kTileItems, pairs = items * p.users;
        const int64_t width = p.users * p.hidden;
        for (int64_t t = 0; t < items; ++t) sum_shares<R>(p, item + t, hidden.data() + t * width, scratch.rows.data());
        if (p.many) add_product<R>(items, p.many, width, p.vectors + item * p.many, p.many, p.matrix, width, hidden.data(), width);
        if (p.first) add_bottom<R>(p, item, items, scratch);
        const float* of_pairs = hidden.data();
        if (p.top_layers) {
            activate(hidden.data(), pairs, p.hidden, p.top_slopes);
            float *from = hidden.data(), *into = scratch.before.data(), *next = scratch.after.data();
            for (int64_t i = 0; i + 1 < p.top_layers; ++i) {
                apply<R>(p.top[i], pairs, from, into);
                activate(into, pairs, p.top[i].outputs, p.top[i].slopes);
                from = into;
                std::swap(into, next);
            }
            apply_last<R>(p.top[p.top_layers - 1], pairs, from, into);
            of_pairs = into;
        }
        for (int64_t t = 0; t < items; ++t)
            for (int64_t user = 0; user < p.users; ++user) logits[user * step + item + t] = of_pairs[t * p.users + user];
    }
}

AVX512 void compute_avx512(const Problem& p, float* logits, int64_t step, Scratch& scratch) { compute<RegistersAvx512>(p, logits, step, scratch); }

AVX2 void compute_avx2(const Problem& p, float* logits, int64_t step, Scratch& scratch) { compute<RegistersAvx2>(p, logits, step, scratch); }

void compute_everywhere(const Problem& p, float* logits, int64_t step, Scratch& scratch) { compute<RegistersEverywhere>(p, logits, step, scratch); }

}  // namespace

// Writes the logits of pairs. Returns 0, or -1 if memory runs out.
//
// logits: (users, items); its rows are `step` numbers apart. instructions: see choose_instructions.
EXPORT int32_t nightrank_pair_logits(const Problem* problem, float* logits, int64_t step, int32_t instructions) {
    try {
        Scratch scratch(*problem);
        const Instructions chosen = choose_instructions(instructions);
        (chosen == kAvx512 ? compute_avx512 : chosen == kAvx2 ? compute_avx2 : compute_everywhere)(*problem, logits, step, scratch);
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
