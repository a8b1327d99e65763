// Sums of counts by value, which merge the value counts of file splits, days and windows of days. Called by etl/native/count_sums.py.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include "values.h"

using nightrank::Values;

namespace {

// The sum of each value's counts on each side, and the last day on which it was seen.
class Sums {
public:
    explicit Sums(int32_t sides) : sides_(sides) {}

    void add(int32_t side, int64_t count, const int32_t* offsets, const uint8_t* data, const int64_t* counts, int32_t day,
             const int32_t* days) {
        const uint8_t* end = data + offsets[count];
        constexpr int64_t kAhead = 16;  // number of lookups whose slots are prefetched
        Values::Key keys[kAhead];
        size_t codes[kAhead];
        if (last.empty()) {  // the strings are distinct
            values.reserve(count, offsets[count] - offsets[0]);
            last.reserve(count);
            sums.reserve(count * sides_);
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
                if (codes[i] == last.size()) {
                    last.push_back(INT32_MIN);
                    sums.resize(sums.size() + sides_);
                }
                __builtin_prefetch(&last[codes[i]], 1);
                __builtin_prefetch(&sums[codes[i] * sides_ + side], 1);
            }
            for (int64_t i = 0; i < ahead; ++i) {
                last[codes[i]] = std::max(last[codes[i]], days ? days[done + i] : day);
                sums[codes[i] * sides_ + side] += counts[done + i];
            }
        }
    }

    Values values;
    std::vector<int64_t> sums;  // (values, sides)
    std::vector<int32_t> last;

private:
    const int32_t sides_;
};

}  // namespace

// Empty sums on `sides` sides. Returns null if memory runs out.
EXPORT Sums* nightrank_sums(int32_t sides) {
    try {
        return new Sums(sides);
    } catch (const std::exception&) {
        return nullptr;
    }
}

// Adds counts of n strings: string i has the bytes [offsets[i], offsets[i + 1]) of `data`. It was seen on days[i], or on
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
    sizes[0] = static_cast<int64_t>(sums->last.size());
    sizes[1] = static_cast<int64_t>(sums->values.bytes.size());
    addresses[0] = sums->values.offsets.data();
    addresses[1] = sums->values.bytes.data();
    addresses[2] = sums->sums.data();
    addresses[3] = sums->last.data();
}

EXPORT void nightrank_free_sums(Sums* sums) { delete sums; }
