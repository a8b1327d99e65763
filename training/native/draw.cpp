// Draws negatives for rows. Called by training/data/negative_sampler.py, which has the formulas; the results have the same bits.

#include <algorithm>
#include <cstdint>
#include <new>

#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// P rows with D draws each, from N items, of which users chose some: M pairs.
struct Draws {
    int64_t rows, draws, attempts, items, pairs;
    const int64_t* keys;         // (P,), of the rows; attempt a of draw n adds n * attempts + a
    const int64_t* firsts;       // (P,), the first item of the row's day
    const int64_t* lasts;        // (P,), the last one
    const int64_t* positions;    // (P,), the index of the day
    const int64_t* users;        // (P,), hashes
    const int64_t* days;         // (P,)
    const int64_t* hashes;       // (N,), of the items
    const double* cumulative;    // (N,), from k to k + 1 on day k; null if all items of a day are equally likely
    const int64_t* chosen;       // (M,), ascending hashes of pairs
    const int64_t* first_days;   // (M,)
    const uint8_t* flags;        // (mask + 1,)
    int64_t mask;
    int64_t* drawn;              // (P, D), items
    uint8_t* accepted;           // (P, D)
};

// SplitMix64 (`mix` of training/data/row_keys.py).
inline uint64_t mix(uint64_t state) {
    state += 0x9E3779B97F4A7C15ull;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    return state ^ (state >> 31);
}

inline bool is_chosen(const Draws& d, int64_t user, int64_t item, int64_t day) {
    const int64_t pair = static_cast<int64_t>(mix(static_cast<uint64_t>(user) + static_cast<uint64_t>(d.hashes[item])));
    if (!d.flags[pair & d.mask]) return false;
    const int64_t place = std::lower_bound(d.chosen, d.chosen + d.pairs, pair) - d.chosen;
    return place < d.pairs && d.chosen[place] == pair && d.first_days[place] <= day;
}

void draw(const Draws& d, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const int64_t first = d.firsts[row], last = d.lasts[row];
        for (int64_t n = 0; n < d.draws; ++n) {
            const uint64_t key = static_cast<uint64_t>(d.keys[row]) + static_cast<uint64_t>(n * d.attempts);
            int64_t item = first;
            bool rejected = true;
            for (int64_t attempt = 0; attempt < d.attempts && rejected; ++attempt) {
                const double share = static_cast<double>(mix(key + attempt) >> 11) * 0x1p-53;
                if (d.cumulative)
                    item = std::upper_bound(d.cumulative, d.cumulative + d.items, d.positions[row] + share) - d.cumulative;
                else
                    item = first + static_cast<int64_t>(share * static_cast<double>(last - first + 1));
                item = std::min(std::max(item, first), last);
                rejected = is_chosen(d, d.users[row], item, d.days[row]);
            }
            d.drawn[row * d.draws + n] = item;
            d.accepted[row * d.draws + n] = !rejected;
        }
    }
}

}  // namespace

// Writes the drawn items, and whether the user did not choose them.
EXPORT void nightrank_draw(const Draws* draws, int64_t threads) {
    divide(draws->rows, 1, threads, [&](int64_t begin, int64_t end) { draw(*draws, begin, end); });
}
