// The distinct values of a column: a hash table of strings, each with a code in order of first appearance.

#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace nightrank {

// The secret seed of a hash table. An attacker who knows the positions of values in a table can choose ids that all have the same
// position, so that each look-up compares thousands of values. So each process draws its own seed, and a stored table contains its seed.
class Seed {
public:
    explicit Seed(uint64_t number) : number(number), first(folded(number, kOdd)), second(folded(~number, kOdd) | 1) {}

    // The upper half of a 128-bit product, folded into the lower half (wyhash, github.com/wangyi-fudan/wyhash).
    static uint64_t folded(uint64_t x, uint64_t y) {
        const unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }

    // Combines 8 bytes of a value with the hash state of the bytes before them.
    uint64_t step(uint64_t before, uint64_t word) const { return folded(before ^ word ^ first, second); }

    // The hash of a value with these bits and this length.
    uint64_t hash(uint64_t bits, uint32_t length) const { return folded(folded(bits ^ first, second) + length, kOdd); }

    const uint64_t number;

private:
    static constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;
    const uint64_t first, second;
};

inline uint64_t random_number() {
    std::random_device source;
    return static_cast<uint64_t>(source()) << 32 | source();
}

inline const Seed kProcessSeed{random_number()};

inline uint64_t load8(const uint8_t* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

// Up to 8 bytes as a number, padded with zeros. `room` bytes at p may be read.
inline uint64_t load_short(const uint8_t* p, uint32_t length, int64_t room) {
    uint64_t word = 0;
    std::memcpy(&word, p, room >= 8 ? 8 : length);
    return length >= 8 ? word : word & ((1ull << (8 * length)) - 1);  // assumes little-endian
}

// A slot of the hash table. It has 16 bytes, because tables are mapped from files.
struct Slot {
    uint64_t bits;
    uint32_t length;
    int32_t code;  // -1 in a free slot
};
static_assert(sizeof(Slot) == 16);

// Codes of values, in a table with the seed of this process. The distinct values have at most 2 GiB, the limit of Arrow's string arrays.
class Values {
public:
    Values() : slots_(64, Slot{0, 0, -1}), offsets(1, 0) {}

    struct Key {
        uint64_t bits;  // the value itself if it has at most 8 bytes, else a hash of all its bytes
        uint64_t hash;
        const uint8_t* at;
        uint32_t length;
    };

    static Key key_of(const uint8_t* at, uint32_t length, const uint8_t* block_end, const Seed& seed = kProcessSeed) {
        uint64_t bits = length;
        if (length <= 8) {
            bits = load_short(at, length, block_end - at);
        } else {
            for (uint32_t done = 0; done + 8 <= length; done += 8) bits = seed.step(bits, load8(at + done));
            bits = seed.step(bits, load8(at + length - 8));
        }
        return {bits, seed.hash(bits, length), at, length};
    }

    void fetch_ahead(const Key& key) const { __builtin_prefetch(&slots_[key.hash >> shift_]); }

    // The code of a value in a table of `count` slots; -1 if it is not in the table. The key must have the seed of the table.
    static int32_t find(const Slot* slots, uint64_t count, const int32_t* offsets, const uint8_t* bytes, const Key& key) {
        const uint64_t mask = count - 1;
        uint64_t place = key.hash >> shift_of(count);
        for (uint64_t probes = 0; probes < count; ++probes, place = (place + 1) & mask) {
            const Slot& slot = slots[place];
            if (slot.code < 0 || is(slot, key, offsets, bytes)) return slot.code;
        }
        return -1;  // only a damaged table has no free slot
    }

    // The highest bits of a hash are the index of its slot.
    static int shift_of(uint64_t slots) { return 64 - __builtin_ctzll(slots); }

    const std::vector<Slot>& slots() const { return slots_; }

    // Prepares an empty table for a number of values, with the total number of bytes of these values.
    void reserve(int64_t values, int64_t size) {
        uint64_t slots = slots_.size();
        while (slots < 2 * static_cast<uint64_t>(values)) slots *= 2;
        slots_.assign(slots, Slot{0, 0, -1});
        shift_ = shift_of(slots);
        offsets.reserve(values + 1);
        counts.reserve(values);
        bytes.reserve(size);
    }

    // Frees the hash table. No value may be looked up afterwards.
    void free_table() { std::vector<Slot>().swap(slots_); }

    // The code of a value. Adds a new value, and counts the call.
    int32_t code_of(const Key& key) {
        const size_t known = counts.size();
        const int32_t code = code_uncounted(key);
        counts[code] += static_cast<size_t>(code) < known;  // `add` has counted a new value
        return code;
    }

    // The code of a value. Adds a new value, but does not count the call.
    int32_t code_uncounted(const Key& key) {
        const uint64_t mask = slots_.size() - 1;
        for (uint64_t place = key.hash >> shift_;; place = (place + 1) & mask) {
            const Slot& slot = slots_[place];
            if (slot.code < 0) return add(key, place);
            if (is(slot, key, offsets.data(), bytes.data())) return slot.code;
        }
    }

private:
    static bool is(const Slot& slot, const Key& key, const int32_t* offsets, const uint8_t* bytes) {
        return slot.bits == key.bits && slot.length == key.length &&
               (key.length <= 8 || std::memcmp(bytes + offsets[slot.code], key.at, key.length) == 0);
    }

    int32_t add(const Key& key, uint64_t place) {
        if (bytes.size() + key.length > INT32_MAX) throw std::length_error("more than 2 GiB of distinct values");
        const int32_t code = static_cast<int32_t>(counts.size());
        bytes.insert(bytes.end(), key.at, key.at + key.length);
        offsets.push_back(static_cast<int32_t>(bytes.size()));
        counts.push_back(1);
        slots_[place] = Slot{key.bits, key.length, code};
        if (counts.size() * 2 > slots_.size()) grow();
        return code;
    }

    void grow() {
        std::vector<Slot> old(slots_.size() * 4, Slot{0, 0, -1});
        old.swap(slots_);
        shift_ -= 2;
        const uint64_t mask = slots_.size() - 1;
        for (const Slot& slot : old) {
            if (slot.code < 0) continue;
            uint64_t place = kProcessSeed.hash(slot.bits, slot.length) >> shift_;
            while (slots_[place].code >= 0) place = (place + 1) & mask;
            slots_[place] = slot;
        }
    }

private:
    std::vector<Slot> slots_;
    int shift_ = 58;  // 64 - log2(slots)

public:
    std::vector<int32_t> offsets;  // value c has the bytes [offsets[c], offsets[c + 1]) of `bytes`
    std::vector<uint8_t> bytes;
    std::vector<int64_t> counts;  // number of calls of code_of for each value
};

}  // namespace nightrank

