// Decodes the dictionary-encoded pages of a Parquet column into one column with one dictionary.
//
// A column chunk has a page with its distinct values, and pages with the index of each row's value (RLE_DICTIONARY in
// https://parquet.apache.org/docs/file-format/data-pages/encodings). A value is looked up once per chunk. Rows are converted
// by their indices, and the rows with each value are counted. The caller has read the headers and decompressed the pages. The
// interface is C; etl/native/scan.py calls it. Pages may be damaged, so every length in them is checked.

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include "columns.h"

using nightrank::Column;
using nightrank::load8;
using nightrank::load_short;
using nightrank::Scanned;
using nightrank::Values;

namespace {

constexpr uint8_t kNoMemory = 0, kDone = 1, kDamaged = 2;
constexpr int64_t kAhead = 16;  // number of values whose slots are prefetched before the look-up
constexpr int32_t kNoValue = -1;

// Reads `count` numbers of `width` bits from packed bits, least significant first. There must be enough bytes.
template <typename Number>
void unpack(const uint8_t* p, const uint8_t* end, int width, int64_t count, Number* out) {
    const uint64_t mask = (1ull << width) - 1;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t bit = i * width;
        const uint8_t* at = p + (bit >> 3);
        const int64_t room = end - at;
        const uint64_t word = room >= 8 ? load8(at) : load_short(at, static_cast<uint32_t>(room), room);
        out[i] = static_cast<Number>(word >> (bit & 7) & mask);
    }
}

// Reads `count` numbers of `width` bits (at most 32) from runs of equal numbers and of packed numbers (Parquet's hybrid of RLE and
// bit packing). Returns false if there are fewer numbers.
template <typename Number>
bool read_runs(const uint8_t* p, const uint8_t* end, int width, int64_t count, Number* out) {
    if (width == 0) {
        std::fill(out, out + count, Number{0});
        return true;
    }
    for (int64_t done = 0; done < count;) {
        uint64_t head = 0;
        for (int shift = 0;; shift += 7) {
            if (p == end || shift > 28) return false;
            head |= static_cast<uint64_t>(*p & 0x7F) << shift;
            if (*p++ < 0x80) break;
        }
        const int64_t numbers = static_cast<int64_t>(head >> 1) * (head & 1 ? 8 : 1), used = std::min(numbers, count - done);
        if (head & 1) {
            if ((used * width + 7) / 8 > end - p) return false;
            unpack(p, end, width, used, out + done);
            p += std::min<int64_t>(numbers / 8 * width, end - p);
        } else {
            const int bytes = (width + 7) / 8;
            if (bytes > end - p) return false;
            const uint64_t number = load_short(p, static_cast<uint32_t>(bytes), end - p);
            if (number >> width) return false;
            std::fill(out + done, out + done + used, static_cast<Number>(number));
            p += bytes;
        }
        done += used;
    }
    return true;
}

class Pages : public Scanned {
public:
    Pages(int64_t values, int64_t bytes, int64_t rows) {
        columns.emplace_back(0);
        columns[0].values.reserve(values, bytes);
        columns[0].reserve(rows);
    }

    // Begins a chunk with `count` values of `width` bytes each. With width 0, the values are texts, each after its length (4 bytes).
    bool begin(int64_t count, uint32_t width, const uint8_t* p, int64_t size) {
        const uint8_t* end = p + size;
        keys_.clear();
        for (int64_t i = 0; i < count; ++i) {
            uint32_t length = width;
            if (width == 0) {
                if (end - p < 4) return false;
                length = static_cast<uint32_t>(load_short(p, 4, end - p));
                p += 4;
            }
            if (end - p < static_cast<int64_t>(length)) return false;
            keys_.push_back(Values::key_of(p, length, end));
            p += length;
        }
        Values& values = columns[0].values;
        codes_.assign(count, kNoValue);
        for (int64_t i = 0; i < count; ++i) {
            if (i + kAhead < count) values.fetch_ahead(keys_[i + kAhead]);
            if (keys_[i].length == 0) continue;
            const size_t known = values.counts.size();
            codes_[i] = values.code_uncounted(keys_[i]);
            if (values.counts.size() > known) values.counts.back() = 0;  // count rows, not entries of the dictionary
        }
        return true;
    }

    // Appends the rows of a page. `levels` are their definition levels, 0 or 1, null if all rows have a value. Row i has
    // no value if its level is 0.
    bool add(int64_t rows, const uint8_t* levels, int64_t level_bytes, const uint8_t* indices, int64_t size) {
        int64_t present = rows;
        if (levels) {
            levels_.resize(rows);
            if (!read_runs(levels, levels + level_bytes, 1, rows, levels_.data())) return false;
            present = std::count(levels_.begin(), levels_.end(), uint8_t{1});
        }
        indices_.resize(present);
        if (present) {
            const int width = size ? indices[0] : 33;
            if (width > 32 || !read_runs(indices + 1, indices + size, width, present, indices_.data())) return false;
            if (*std::max_element(indices_.begin(), indices_.end()) >= codes_.size()) return false;
        }
        append(rows, present == rows ? nullptr : levels_.data());
        return true;
    }

    // Frees the memory that is needed only to add rows, because the arrays of the column may be used for a long time.
    void end() {
        columns[0].values.free_table();
        std::vector<Values::Key>().swap(keys_);
        std::vector<int32_t>().swap(codes_);
        std::vector<uint32_t>().swap(indices_);
        std::vector<uint8_t>().swap(levels_);
    }

private:
    void append(int64_t rows, const uint8_t* levels) {
        Column& column = columns[0];
        const int64_t first = static_cast<int64_t>(column.codes.size());
        column.codes.resize(first + rows);
        column.valid.resize((first + rows + 7) >> 3, 0xFF);
        int32_t* codes = column.codes.data();
        int64_t* counts = column.values.counts.data();
        const int32_t* of_index = codes_.data();
        const uint32_t* index = indices_.data();
        for (int64_t row = first; row < first + rows; ++row) {
            const int32_t code = levels && !levels[row - first] ? kNoValue : of_index[*index++];
            if (code == kNoValue) {
                ++column.nulls;
                column.valid[row >> 3] &= static_cast<uint8_t>(~(1u << (row & 7)));
            } else {
                codes[row] = code;
                ++counts[code];
            }
        }
    }

    std::vector<Values::Key> keys_;
    std::vector<int32_t> codes_;  // of each value of the chunk; kNoValue for an empty text
    std::vector<uint32_t> indices_;
    std::vector<uint8_t> levels_;
};

template <typename Call>
uint8_t outcome(Call call) {
    try {
        return call() ? kDone : kDamaged;
    } catch (const std::exception&) {
        return kNoMemory;
    }
}

}  // namespace

// A column without rows. The arguments are the numbers of values, bytes of values and rows of all chunks that will be added. Free
// the column with nightrank_free. Returns null if memory runs out.
EXPORT Scanned* nightrank_pages(int64_t values, int64_t bytes, int64_t rows) {
    try {
        return new Pages(values, bytes, rows);
    } catch (const std::exception&) {
        return nullptr;
    }
}

// Begins a chunk with its page of distinct values. Returns 1; 0 if memory runs out, and 2 if the page is damaged.
EXPORT uint8_t nightrank_begin_chunk(Scanned* pages, int64_t count, uint32_t width, const uint8_t* data, int64_t size) {
    return outcome([&] { return static_cast<Pages*>(pages)->begin(count, width, data, size); });
}

// Appends the rows of a page to the chunk that was begun last. The result has the same meaning as that of nightrank_begin_chunk.
EXPORT uint8_t nightrank_add_page(Scanned* pages, int64_t rows, const uint8_t* levels, int64_t level_bytes, const uint8_t* indices,
                                  int64_t size) {
    return outcome([&] { return static_cast<Pages*>(pages)->add(rows, levels, level_bytes, indices, size); });
}

// Frees the memory that is needed only to add rows. No chunk or page may be added afterwards.
EXPORT void nightrank_end_pages(Scanned* pages) { static_cast<Pages*>(pages)->end(); }
