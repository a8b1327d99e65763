// Converts lines of separated text to dictionary-encoded columns. It is the inner loop of both passes over the raw log.
//
// One scan reads a block of whole lines that end with LF, and returns
//   * a row for each line that splits into `width` fields: its line number, and a code for each wanted column;
//   * a dictionary for each wanted column: its distinct non-empty values in order of first appearance. An empty field is
//     null;
//   * the lines that are not rows, with a reason, and the lines with quotes, which the caller splits (`other_lines`).
//
// A general CSV reader would be slower: a block of a log has few distinct values, so looking up codes directly is faster than encoding
// columns of strings. Fields are found 64 bytes at a time, by bit masks of structural characters (simdjson, arXiv:1902.08318
// section 3.1). The fields of a column are then looked up a batch of rows at a time, so its table stays in the cache.
// The interface is C; etl/native/scan.py calls it through ctypes. No call keeps or frees the caller's memory.

#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "columns.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

using nightrank::Column;
using nightrank::is_utf8;
using nightrank::kBatchRows;
using nightrank::Scanned;
using nightrank::Values;

namespace {

constexpr uint8_t kFieldCount = 1, kNotUtf8 = 2;

// A bit mask of the delimiters among 64 bytes, and whether a byte has its high bit set.
struct Masks {
    uint64_t delimiters;
    bool high;
};

inline Masks masks_of(const uint8_t* p, uint8_t a, uint8_t b, uint8_t c) {
    Masks masks{0, false};
#if defined(__SSE2__)
    const __m128i va = _mm_set1_epi8(static_cast<char>(a)), vb = _mm_set1_epi8(static_cast<char>(b)),
                  vc = _mm_set1_epi8(static_cast<char>(c));
    int high = 0;
    for (int part = 0; part < 4; ++part) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * part));
        const __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, va), _mm_cmpeq_epi8(v, vb)), _mm_cmpeq_epi8(v, vc));
        masks.delimiters |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(hit))) << (16 * part);
        high |= _mm_movemask_epi8(v);
    }
    masks.high = high != 0;
#else
    for (int i = 0; i < 64; ++i) {
        masks.delimiters |= static_cast<uint64_t>(p[i] == a || p[i] == b || p[i] == c) << i;
        masks.high |= p[i] >= 0x80;
    }
#endif
    return masks;
}

class Scan : public Scanned {
public:
    Scan(uint8_t separator, bool quoted, int32_t width, const int32_t* fields, int32_t count)
        : separator_(separator), quoted_(quoted), width_(width), ends_(kBatchRows * width), starts_(kBatchRows), keys_(kBatchRows) {
        columns.reserve(count);
        for (int32_t i = 0; i < count; ++i) columns.emplace_back(fields[i]);
    }

    void run(const uint8_t* block, int64_t length) {
        block_ = block;
        end_ = block + length;
        const uint8_t quote = quoted_ ? '"' : '\n';
        uint8_t tail[64];
        for (int64_t base = 0; base < length; base += 64) {
            const uint8_t* p = block + base;
            const int64_t left = length - base;
            if (left < 64) {
                std::memset(tail, 'x', 64);
                std::memcpy(tail, p, left);
                p = tail;
            }
            Masks masks = masks_of(p, separator_, '\n', quote);
            high_ |= masks.high;
            for (uint64_t rest = masks.delimiters; rest; rest &= rest - 1) {
                const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(rest));
                const uint8_t byte = p[bit];
                if (byte == '\n') {
                    end_line(base + bit);
                    high_ = masks.high;
                } else if (byte == separator_) {
                    if (field_ < width_) ends_[batch_ * width_ + field_] = static_cast<uint32_t>(base + bit);
                    ++field_;
                } else {
                    has_quote_ = true;
                }
            }
        }
        if (line_start_ < length) end_line(length);
        flush();
    }

private:
    void end_line(int64_t end) {
        const int64_t start = line_start_, line = lines++;
        const int32_t fields = field_ + 1;
        const bool quoted = has_quote_;
        line_start_ = end + 1;
        field_ = 0;
        has_quote_ = false;
        if (high_ && !is_utf8(block_ + start, block_ + end)) return reject(line, kNotUtf8);
        uint32_t* ends = ends_.data() + batch_ * width_;
        if (quoted) {
            other_lines.insert(other_lines.end(), {static_cast<int64_t>(row_lines.size()), start, end});
            for (int32_t field = 0; field < width_; ++field) ends[field] = static_cast<uint32_t>(start + field);
        } else if (fields != width_) {
            return reject(line, kFieldCount);
        } else {
            ends[width_ - 1] = static_cast<uint32_t>(end);
        }
        starts_[batch_] = static_cast<uint32_t>(start);
        row_lines.push_back(line);
        if (++batch_ == kBatchRows) flush();
    }

    void reject(int64_t line, uint8_t reason) {
        broken.push_back(line);
        reasons.push_back(reason);
    }

    // Looks up the fields of the rows of the batch, one column at a time.
    void flush() {
        // Estimate the number of rows from the length of the first rows, so that growing vectors are rarely copied.
        const bool first = static_cast<int64_t>(row_lines.size()) == batch_ && batch_ > 0;
        const int64_t expected = first ? (end_ - block_) / (line_start_ / batch_) * 17 / 16 + kBatchRows : 0;
        for (Column& column : columns) {
            if (first) column.reserve(expected);
            for (int64_t row = 0; row < batch_; ++row) {
                const uint32_t* ends = ends_.data() + row * width_;
                const uint32_t start = column.field ? ends[column.field - 1] + 1 : starts_[row];
                keys_[row] = Values::key_of(block_ + start, ends[column.field] - start, end_);
                column.values.fetch_ahead(keys_[row]);
            }
            column.push(keys_.data(), batch_);
        }
        batch_ = 0;
    }

    const uint8_t separator_;
    const bool quoted_;
    const int32_t width_;
    const uint8_t *block_ = nullptr, *end_ = nullptr;
    int64_t line_start_ = 0, batch_ = 0;
    int32_t field_ = 0;
    bool has_quote_ = false, high_ = false;
    std::vector<uint32_t> ends_, starts_;
    std::vector<Values::Key> keys_;
};

}  // namespace

// Increase this number with every change of the interface. etl/native/library.py loads only the version that it expects.
EXPORT int32_t nightrank_version() { return 6; }

// A scan of `length` bytes (below 2 GiB) at `block`: whole lines, the last of which may lack its LF. Returns null if memory
// runs out.
EXPORT Scanned* nightrank_scan(const uint8_t* block, int64_t length, uint8_t separator, uint8_t quoted, int32_t width,
                               const int32_t* fields, int32_t count) {
    Scan* scan = nullptr;
    try {
        scan = new Scan(separator, quoted != 0, width, fields, count);
        scan->run(block, length);
        return scan;
    } catch (const std::exception&) {
        delete scan;
        return nullptr;
    }
}

// Sets the values of one column for n rows with quotes: value i has the bytes [offsets[i], offsets[i + 1]) of `data`. Returns
// false if memory runs out.
EXPORT uint8_t nightrank_give(Scanned* scan, int32_t column, int64_t count, const int64_t* rows, const int32_t* offsets,
                              const uint8_t* data) {
    try {
        scan->set_values(column, count, rows, offsets, data);
        return 1;
    } catch (const std::exception&) {
        return 0;
    }
}

// Sizes and addresses of the rows and of the other lines, valid until the scan is freed or values are set.
EXPORT void nightrank_rows(const Scanned* scan, int64_t* sizes, const void** addresses) {
    sizes[0] = scan->lines;
    sizes[1] = static_cast<int64_t>(scan->row_lines.size());
    sizes[2] = static_cast<int64_t>(scan->broken.size());
    sizes[3] = static_cast<int64_t>(scan->other_lines.size()) / 3;
    addresses[0] = scan->row_lines.data();
    addresses[1] = scan->broken.data();
    addresses[2] = scan->reasons.data();
    addresses[3] = scan->other_lines.data();
}

// Sizes and addresses of one column, valid as long as those of nightrank_rows.
EXPORT void nightrank_column(const Scanned* scan, int32_t column, int64_t* sizes, const void** addresses) {
    const Column& selected = scan->columns[column];
    sizes[0] = static_cast<int64_t>(selected.values.counts.size());
    sizes[1] = static_cast<int64_t>(selected.values.bytes.size());
    sizes[2] = selected.nulls;
    addresses[0] = selected.codes.data();
    addresses[1] = selected.valid.data();
    addresses[2] = selected.values.offsets.data();
    addresses[3] = selected.values.bytes.data();
    addresses[4] = selected.values.counts.data();
}

EXPORT void nightrank_free(Scanned* scan) { delete scan; }
