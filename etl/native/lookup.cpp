// Finds the indices of values in a vocabulary, and the hash buckets of values. etl/native/distinct_values.py calls it.

#include <algorithm>
#include <cstdint>
#include <exception>

#include "values.h"

using nightrank::kProcessSeed;
using nightrank::load8;
using nightrank::load_short;
using nightrank::Seed;
using nightrank::Slot;
using nightrank::Values;

namespace {

uint64_t mix(uint64_t x) {
    x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x;
}

// A hash without a seed. It must never change, because it selects the bucket of a value in stored tables.
uint64_t stored_hash(const uint8_t* at, uint32_t length, const uint8_t* end) {
    uint64_t bits = length;
    if (length <= 8) {
        bits = load_short(at, length, end - at);
    } else {
        for (uint32_t done = 0; done + 8 <= length; done += 8) bits = mix(bits ^ load8(at + done)) + done;
        bits = mix(bits ^ load8(at + length - 8));
    }
    return mix(bits + length);
}

}  // namespace

// A lookup of n distinct strings: string i has the bytes [offsets[i], offsets[i + 1]) of `data`, which are copied.
// Returns null if memory runs out.
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

// Sizes and addresses of a lookup's table, valid until the lookup is freed, and the seed of its hash. A caller that writes the table
// to a file, to map it later, must write the seed too.
EXPORT void nightrank_table(const Values* values, int64_t* sizes, const void** addresses) {
    sizes[0] = static_cast<int64_t>(values->slots().size());
    sizes[1] = static_cast<int64_t>(values->counts.size());
    sizes[2] = static_cast<int64_t>(values->bytes.size());
    sizes[3] = static_cast<int64_t>(kProcessSeed.number);
    addresses[0] = values->slots().data();
    addresses[1] = values->offsets.data();
    addresses[2] = values->bytes.data();
}

// The index of each of n strings in a table of `slot_count` slots with this seed; -1 for a string that is not in the table.
EXPORT void nightrank_find(const Slot* slots, int64_t slot_count, const int32_t* table_offsets, const uint8_t* table_bytes,
                           int64_t seed_number, int64_t count, const int32_t* offsets, const uint8_t* data, int64_t* indices) {
    const uint8_t* end = data + offsets[count];
    const Seed seed(static_cast<uint64_t>(seed_number));
    const uint64_t size = static_cast<uint64_t>(slot_count);
    constexpr int64_t kAhead = 16;  // number of lookups whose slots are prefetched, because a large table does not fit into the cache
    Values::Key keys[kAhead];
    for (int64_t done = 0; done < count; done += kAhead) {
        const int64_t ahead = std::min(count - done, kAhead);
        for (int64_t i = 0; i < ahead; ++i) {
            const int32_t start = offsets[done + i], stop = offsets[done + i + 1];
            keys[i] = Values::key_of(data + start, static_cast<uint32_t>(stop - start), end, seed);
            __builtin_prefetch(&slots[keys[i].hash >> Values::shift_of(size)]);
        }
        for (int64_t i = 0; i < ahead; ++i)
            indices[done + i] = Values::find(slots, size, table_offsets, table_bytes, keys[i]);
    }
}

EXPORT void nightrank_free_lookup(Values* values) { delete values; }

// The bucket of each of n strings: its hash modulo a power of two.
EXPORT void nightrank_buckets(int64_t count, const int32_t* offsets, const uint8_t* data, uint32_t buckets,
                              uint32_t* indices) {
    const uint8_t* end = data + offsets[count];
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t length = static_cast<uint32_t>(offsets[i + 1] - offsets[i]);
        indices[i] = static_cast<uint32_t>(stored_hash(data + offsets[i], length, end)) & (buckets - 1);
    }
}
