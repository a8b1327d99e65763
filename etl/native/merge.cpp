// Merges the parts of a dictionary-encoded column into one column with one dictionary.
//
// Each part has its own dictionary, for example a row group of a Parquet file. A value is looked up once per part. Rows are
// converted by their codes, and the rows with each value are counted. The interface is C; etl/native/scan.py calls it.

#include <cstdint>
#include <exception>
#include <vector>

#include "columns.h"

using nightrank::Column;
using nightrank::Scanned;
using nightrank::Values;

namespace {

constexpr int64_t kAhead = 16;  // number of values whose slots are prefetched before the look-up
constexpr int32_t kNoValue = -1;

// The code in `column` of each of n values. An empty value has no code.
std::vector<int32_t> codes_of(Column& column, int64_t count, const int32_t* offsets, const uint8_t* data) {
    const uint8_t* end = data + offsets[count];
    const auto key_at = [&](int64_t i) {
        return Values::key_of(data + offsets[i], static_cast<uint32_t>(offsets[i + 1] - offsets[i]), end);
    };
    std::vector<int32_t> codes(count, kNoValue);
    std::vector<Values::Key> keys(kAhead);
    for (int64_t i = 0; i < count + kAhead; ++i) {
        const int64_t known = i - kAhead;
        if (known >= 0 && keys[known % kAhead].length) {
            const size_t before = column.values.counts.size();
            codes[known] = column.values.code_uncounted(keys[known % kAhead]);
            if (column.values.counts.size() > before) column.values.counts.back() = 0;  // count rows, not entries of the dictionary
        }
        if (i < count) {
            keys[i % kAhead] = key_at(i);
            column.values.fetch_ahead(keys[i % kAhead]);
        }
    }
    return codes;
}

}  // namespace

// An empty column. `values`, `bytes` and `rows` are the numbers of values, bytes of values and rows of all parts that will be added.
// Returns null if memory runs out.
EXPORT Scanned* nightrank_merged(int64_t values, int64_t bytes, int64_t rows) {
    Scanned* merged = nullptr;
    try {
        merged = new Scanned();
        merged->columns.emplace_back(0);
        merged->columns[0].values.reserve(values, bytes);
        merged->columns[0].reserve(rows);
        return merged;
    } catch (const std::exception&) {
        delete merged;
        return nullptr;
    }
}

// Adds a part: n values (value i has the bytes [offsets[i], offsets[i + 1]) of `data`), and the codes of `rows` rows. Row i is null
// if bit `first_bit + i` of `valid` is 0; `valid` may be null. Returns 1; 0 if memory runs out, and 2 if a code is out of range.
EXPORT uint8_t nightrank_merge(Scanned* merged, int64_t count, const int32_t* offsets, const uint8_t* data, int64_t rows,
                               const int32_t* codes, const uint8_t* valid, int64_t first_bit) {
    try {
        Column& column = merged->columns[0];
        const std::vector<int32_t> of_part = codes_of(column, count, offsets, data);
        const int64_t first = static_cast<int64_t>(column.codes.size());
        column.codes.resize(first + rows);
        column.valid.resize((first + rows + 7) >> 3, 0xFF);
        for (int64_t i = 0; i < rows; ++i) {
            int32_t code = kNoValue;
            const int64_t bit = first_bit + i;
            if (!valid || (valid[bit >> 3] >> (bit & 7) & 1)) {
                if (codes[i] < 0 || codes[i] >= count) return 2;
                code = of_part[codes[i]];
            }
            if (code == kNoValue) {
                ++column.nulls;
                column.valid[(first + i) >> 3] &= static_cast<uint8_t>(~(1u << ((first + i) & 7)));
            } else {
                column.codes[first + i] = code;
                ++column.values.counts[code];
            }
        }
        return 1;
    } catch (const std::exception&) {
        return 0;
    }
}
