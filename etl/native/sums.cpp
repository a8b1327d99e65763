// Sums of counts by value, which merge the value counts of file splits, days and windows of days. Called by etl/native/distinct_values.py.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include "values.h"

using nightrank::Values;

namespace {

// The sum of each value's counts on each side, and the last day with the value. Sums and day are in one row of numbers, because most of
// the time is spent on memory accesses in random order.
class Sums {
public:
    explicit Sums(int32_t sides) : width_(sides + 1) {}

    void add(int32_t side, int64_t count, const int32_t* offsets, const uint8_t* data, const int64_t* counts, int32_t day,
             const int32_t* days) {
        const uint8_t* end = data + offsets[count];
        constexpr int64_t kAhead = 16;  // number of lookups whose slots are prefetched
        Values::Key keys[kAhead];
        size_t codes[kAhead];
        if (rows.empty()) {  // the strings are distinct
            values.reserve(count, offsets[count] - offsets[0]);
            rows.reserve(count * width_);
        }
        for (int64_t done = 0; done < count; done += kAhead) {
            const int64_t ahead = std::min(count - done, kAhead);
            for (int64_t i = 0; i < ahead; ++i) {
                const int32_t start = offsets[done + i], stop = offsets[done + i + 1];
                keys[i] = Values::key_of(data + start, static_cast<uint32_t>(stop - start), end);
                values.fetch_ahead(keys[i]);
            }
            for (int64_t i = 0; i < ahead; ++i) {
                codes[i] = static_cast<size_t>(values.code_uncounted(keys[i]));
                if (codes[i] * width_ == rows.size()) {
                    rows.push_back(INT32_MIN);
                    rows.resize(rows.size() + width_ - 1);
                }
                __builtin_prefetch(&rows[codes[i] * width_], 1);
                __builtin_prefetch(&rows[codes[i] * width_ + 1 + side], 1);
            }
            for (int64_t i = 0; i < ahead; ++i) {
                int64_t* row = &rows[codes[i] * width_];
                row[0] = std::max<int64_t>(row[0], days ? days[done + i] : day);
                row[1 + side] += counts[done + i];
            }
        }
    }

    int64_t size() const { return static_cast<int64_t>(rows.size() / width_); }

    Values values;
    std::vector<int64_t> rows;  // (values, 1 + sides): the last day, then the sums

private:
    const size_t width_;
};

}  // namespace

// Empty sums for `sides` groups of days, the sides. Returns null if memory runs out.
EXPORT Sums* nightrank_sums(int32_t sides) {
    try {
        return new Sums(sides);
    } catch (const std::exception&) {
        return nullptr;
    }
}

// Adds counts of n strings: string i has the bytes [offsets[i], offsets[i + 1]) of `data`. String i was seen on days[i], or on
// `day` if `days` is null. Returns false if memory runs out or there are more than 2 GiB of distinct strings.
EXPORT uint8_t nightrank_add(Sums* sums, int32_t side, int64_t count, const int32_t* offsets, const uint8_t* data,
                             const int64_t* counts, int32_t day, const int32_t* days) {
    try {
        sums->add(side, count, offsets, data, counts, day, days);
        return 1;
    } catch (const std::exception&) {
        return 0;
    }
}

// Sizes and addresses of the result, valid until something is added or the sums are freed.
EXPORT void nightrank_summed(const Sums* sums, int64_t* sizes, const void** addresses) {
    sizes[0] = sums->size();
    sizes[1] = static_cast<int64_t>(sums->values.bytes.size());
    addresses[0] = sums->values.offsets.data();
    addresses[1] = sums->values.bytes.data();
    addresses[2] = sums->rows.data();
}

EXPORT void nightrank_free_sums(Sums* sums) { delete sums; }
