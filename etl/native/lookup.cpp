// Positions of values in a vocabulary, and their hash buckets. Called by etl/native/lookup.py and etl/native/count_sums.py.

#include <algorithm>
#include <cstdint>
#include <exception>

#include "values.h"

using nightrank::Slot;
using nightrank::Values;

// A lookup of n different strings, which `offsets` (n + 1) cut out of `data` and which are copied. Null without memory.
EXPORT Values* nightrank_lookup(int64_t count, const int32_t* offsets, const uint8_t* data) {
    Values* values = nullptr;
    try {
        values = new Values();
        const uint8_t* end = data + offsets[count];
        for (int64_t i = 0; i < count; ++i)
            values->code_of(Values::key_of(data + offsets[i], static_cast<uint32_t>(offsets[i + 1] - offsets[i]), end));
        return values;
    } catch (const std::exception&) {
        delete values;
        return nullptr;
    }
}

// Sizes and addresses of a lookup's table; they hold until it is freed. They may be written to a file and mapped from there.
EXPORT void nightrank_table(const Values* values, int64_t* sizes, const void** at) {
    sizes[0] = static_cast<int64_t>(values->slots().size());
    sizes[1] = static_cast<int64_t>(values->counts.size());
    sizes[2] = static_cast<int64_t>(values->bytes.size());
    at[0] = values->slots().data();
    at[1] = values->offsets.data();
    at[2] = values->bytes.data();
}

// The position of each of n strings in a table of so many slots, -1 where it is not there.
EXPORT void nightrank_find(const Slot* slots, int64_t slot_count, const int32_t* table_offsets, const uint8_t* table_bytes,
                           int64_t count, const int32_t* offsets, const uint8_t* data, int64_t* found) {
    const uint8_t* end = data + offsets[count];
    const uint64_t size = static_cast<uint64_t>(slot_count);
    constexpr int64_t kAhead = 16;  // lookups under way at once: a large table's slots come from memory
    Values::Key keys[kAhead];
    for (int64_t done = 0; done < count; done += kAhead) {
        const int64_t some = std::min(count - done, kAhead);
        for (int64_t i = 0; i < some; ++i) {
            const int32_t start = offsets[done + i], stop = offsets[done + i + 1];
            keys[i] = Values::key_of(data + start, static_cast<uint32_t>(stop - start), end);
            __builtin_prefetch(&slots[keys[i].hash >> Values::shift_of(size)]);
        }
        for (int64_t i = 0; i < some; ++i)
            found[done + i] = Values::find(slots, size, table_offsets, table_bytes, keys[i]);
    }
}

EXPORT void nightrank_free_lookup(Values* values) { delete values; }

// The bucket of each of n strings: its hash modulo a power of two.
EXPORT void nightrank_buckets(int64_t count, const int32_t* offsets, const uint8_t* data, uint32_t buckets, uint32_t* found) {
    const uint8_t* end = data + offsets[count];
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t length = static_cast<uint32_t>(offsets[i + 1] - offsets[i]);
        found[i] = static_cast<uint32_t>(Values::key_of(data + offsets[i], length, end).hash) & (buckets - 1);
    }
}
