// Types that the scanners of text and of JSON lines share: dictionary-encoded columns, and the lines that are not rows.

#pragma once

#include <cstdint>
#include <vector>

#include "values.h"

namespace nightrank {

constexpr int64_t kBatchRows = 256;

// Whether the bytes are valid UTF-8: Unicode 15, table 3-7.
inline bool is_utf8(const uint8_t* p, const uint8_t* end) {
    while (p < end) {
        const uint8_t lead = *p++;
        if (lead < 0x80) continue;
        int more;
        uint8_t low = 0x80, top = 0xBF;
        if (lead >= 0xC2 && lead <= 0xDF) {
            more = 1;
        } else if (lead >= 0xE0 && lead <= 0xEF) {
            more = 2;
            if (lead == 0xE0) low = 0xA0;
            if (lead == 0xED) top = 0x9F;
        } else if (lead >= 0xF0 && lead <= 0xF4) {
            more = 3;
            if (lead == 0xF0) low = 0x90;
            if (lead == 0xF4) top = 0x8F;
        } else {
            return false;
        }
        for (; more > 0; --more, low = 0x80, top = 0xBF) {
            if (p == end || *p < low || *p > top) return false;
            ++p;
        }
    }
    return true;
}

// The distinct values of one column, and the code of each row.
class Column {
public:
    explicit Column(int32_t field) : field(field) {}

    void reserve(int64_t rows) {
        codes.reserve(rows);
        valid.reserve((rows >> 3) + 1);
    }

    // Appends one row per key. An empty key is null.
    void push(const Values::Key* keys, int64_t count) {
        const int64_t first = static_cast<int64_t>(codes.size());
        codes.resize(first + count);
        valid.resize((first + count + 7) >> 3, 0xFF);
        int32_t* code = codes.data() + first;
        for (int64_t i = 0; i < count; ++i) {
            if (keys[i].length == 0) {
                ++nulls;
                valid[(first + i) >> 3] &= static_cast<uint8_t>(~(1u << ((first + i) & 7)));
            } else {
                code[i] = values.code_of(keys[i]);
            }
        }
    }

    // Sets the value of a row that was appended as null. An empty key leaves it null.
    void replace(int64_t row, const Values::Key& key) {
        if (key.length == 0) return;
        codes[row] = values.code_of(key);
        valid[row >> 3] |= static_cast<uint8_t>(1u << (row & 7));
        --nulls;
    }

    const int32_t field;
    Values values;
    std::vector<int32_t> codes;
    std::vector<uint8_t> valid;  // one bit per row, least significant first
    int64_t nulls = 0;
};

// The result of a scan.
class Scanned {
public:
    virtual ~Scanned() = default;

    std::vector<Column> columns;
    std::vector<int64_t> row_lines;  // line of each row
    std::vector<int64_t> broken;  // lines that are not rows
    std::vector<uint8_t> reasons;  // the reason for each broken line
    // Row, start and end of each line that the caller splits. Its values are null until set_values sets them.
    std::vector<int64_t> other_lines;
    int64_t lines = 0;

    void set_values(int32_t column, int64_t count, const int64_t* rows, const int32_t* offsets, const uint8_t* data) {
        const uint8_t* end = data + offsets[count];
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t length = static_cast<uint32_t>(offsets[i + 1] - offsets[i]);
            columns[column].replace(rows[i], Values::key_of(data + offsets[i], length, end));
        }
    }
};

}  // namespace nightrank
