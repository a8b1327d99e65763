// Groups equal keys by a stable radix sort. Called by training/embeddings/rows.py.

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kDigitBits = 11;

struct Entry {
    uint32_t key;
    uint32_t element;
};

// Sorts entries by one digit of their keys. Entries with equal digits keep their order.
//
// place: memory for one number per value of a digit.
void sort_by_digit(const Entry* from, Entry* into, int64_t count, int shift, int bits, uint32_t* place) {
    const uint32_t digits = 1u << bits, mask = digits - 1;
    std::fill_n(place, digits, 0u);
    for (int64_t i = 0; i < count; ++i) ++place[(from[i].key >> shift) & mask];
    uint32_t before = 0;
    for (uint32_t digit = 0; digit < digits; ++digit) {
        const uint32_t of_digit = place[digit];
        place[digit] = before;
        before += of_digit;
    }
    for (int64_t i = 0; i < count; ++i) into[place[(from[i].key >> shift) & mask]++] = from[i];
}

}  // namespace

// Groups `count` elements, fewer than 2³², by their keys. Returns the number of distinct keys, or -1 if memory runs out.
//
// keys: (count,), each less than 2^bits. order: (count,), the elements sorted by key; equal keys keep their order. distinct: the keys in
// ascending order. starts: where the elements of each key begin in `order`. Both have room for `count` numbers.
EXPORT int64_t nightrank_group(int64_t count, const int64_t* keys, int32_t bits, int64_t* order, int64_t* distinct, int64_t* starts) {
    try {
        std::vector<Entry> entries(2 * count);
        std::vector<uint32_t> place(1u << kDigitBits);
        Entry *from = entries.data(), *into = from + count;
        for (int64_t i = 0; i < count; ++i) from[i] = {static_cast<uint32_t>(keys[i]), static_cast<uint32_t>(i)};
        const int passes = (bits + kDigitBits - 1) / kDigitBits;
        const int width = passes ? (bits + passes - 1) / passes : 0;
        for (int pass = 0; pass < passes; ++pass) {
            sort_by_digit(from, into, count, pass * width, width, place.data());
            std::swap(from, into);
        }
        int64_t groups = 0;
        for (int64_t i = 0; i < count; ++i) {
            order[i] = from[i].element;
            if (i == 0 || from[i].key != from[i - 1].key) {
                distinct[groups] = from[i].key;
                starts[groups++] = i;
            }
        }
        return groups;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}
