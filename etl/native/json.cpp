// Converts JSON lines to dictionary-encoded columns of the texts of JSON values.
//
// One scan reads a block of whole lines that end with LF. Each line is a row. The value of a column is the text of the JSON value
// in the field with the column's name, such as `5`. It is null if the line lacks the field, or if the field is null. A string has no quotes
// around it, so that a short string fits into a slot of the hash table. Strings that look like another JSON value keep their quotes
// (`needs_quotes`). A column may be a field of a nested object. If several fields have the same name, the first is used.
//
// The scanner accepts only lines that DuckDB would write with the same texts: objects whose keys and strings have no escapes, and
// whose numbers have their shortest form. All other lines, including lines that are not JSON, are returned in `other_lines`. The
// caller reads them with DuckDB, so that DuckDB's rules apply to unusual JSON.
//
// The values of a column are looked up a batch of rows at a time (scan.cpp). The interface is C; etl/native/scan.py calls it.

#include <charconv>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <unordered_map>
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

constexpr int kMaxDepth = 16;
constexpr int32_t kIgnored = -1;
constexpr int kExactDigits = 15;  // different decimals of at most 15 digits have different doubles
constexpr int kIntegerDigits = 18;  // integers of at most 18 digits fit into 64 bits
constexpr uint32_t kNull = UINT32_MAX;  // stands for null in place of the length of a value

// What the scanner does with the value of a key.
struct Target {
    int32_t column = kIgnored;
    int32_t inner = kIgnored;  // the object in this field, if columns are fields of it
};

// The keys of an object that the scanner looks up.
struct Object {
    std::unordered_map<std::string_view, Target> targets;
    std::vector<std::pair<std::string_view, Target>> order;  // the keys of the object in the last line, in the order of the line
    int64_t line = -1;  // the last line that contains the object

    // The target of the key at a position in the object. Most lines have the keys of the line before, in the same order.
    Target target_of(std::string_view key, size_t place) {
        if (place < order.size() && order[place].first == key) return order[place].second;
        const auto of_key = targets.find(key);
        const Target target = of_key == targets.end() ? Target{} : of_key->second;
        if (place >= order.size()) order.resize(place + 1);
        order[place] = {key, target};
        return target;
    }
};

inline bool is_blank(uint8_t byte) { return byte == ' ' || byte == '\t'; }

// Whether the text of a string, without quotes, is empty or looks like the JSON text of another value.
inline bool needs_quotes(const uint8_t* text, uint32_t length) {
    if (length == 0 || *text == '[' || *text == '{') return true;
    if (length == 4) return std::memcmp(text, "true", 4) == 0 || std::memcmp(text, "null", 4) == 0;
    return length == 5 && std::memcmp(text, "false", 5) == 0;
}

inline bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

// Whether a decimal (with a fraction, without a sign) is the shortest decimal that has the same double.
bool has_shortest_digits(const uint8_t* text, const uint8_t* text_end) {
#if defined(__cpp_lib_to_chars)
    const char *p = reinterpret_cast<const char*>(text), *end = reinterpret_cast<const char*>(text_end);
    double number;
    if (std::from_chars(p, end, number).ptr != end) return false;
    char shortest[32];
    const char* shortest_end = std::to_chars(shortest, shortest + 32, number, std::chars_format::scientific).ptr;
    while (p < end && (*p == '0' || *p == '.')) ++p;
    for (const char* digit = shortest; digit < shortest_end && *digit != 'e'; ++digit) {
        if (*digit == '.') continue;
        if (p < end && *p == '.') ++p;
        if (p == end || *p++ != *digit) return false;
    }
    return p == end;
#else
    return text == text_end;
#endif
}

class JsonScan : public Scanned {
public:
    // Key i is in the line's object if `parents[i]` is -1. Otherwise it is in the object in the field of the key parents[i],
    // where parents[i] < i. `is_column[i]` is true if the key belongs to a column.
    JsonScan(int32_t count, const int32_t* offsets, const uint8_t* names, const int32_t* parents, const uint8_t* is_column)
        : objects_(count + 1), keys_(kBatchRows) {
        const char* text = reinterpret_cast<const char*>(names);
        const auto key_of = [&](int32_t i) { return std::string_view(text + offsets[i], offsets[i + 1] - offsets[i]); };
        for (int32_t i = 0; i < count; ++i) {
            Target& target = objects_[parents[i] + 1].targets[key_of(i)];
            if (is_column[i]) {
                target.column = static_cast<int32_t>(columns.size());
                columns.emplace_back(target.column);
            }
            if (parents[i] >= 0) objects_[parents[parents[i]] + 1].targets[key_of(parents[i])].inner = parents[i] + 1;
        }
        width_ = static_cast<int64_t>(columns.size());
        starts_.resize(kBatchRows * width_);
        lengths_.resize(kBatchRows * width_);
    }

    void run(const uint8_t* block, int64_t length) {
        block_ = block;
        end_ = block + length;
        for (const uint8_t* p = block; p < end_;) {
            const void* line_break = std::memchr(p, '\n', end_ - p);
            const uint8_t* line_end = line_break ? static_cast<const uint8_t*>(line_break) : end_;
            uint32_t* lengths = lengths_.data() + batch_ * width_;
            std::memset(lengths, 0, width_ * sizeof(uint32_t));
            line_end_ = line_end;
            high_ = false;
            if (!object(p) || (high_ && !is_utf8(p, line_end))) {
                std::memset(lengths, 0, width_ * sizeof(uint32_t));
                other_lines.insert(other_lines.end(), {lines, p - block, line_end - block});
            }
            row_lines.push_back(lines++);
            p = line_end + 1;
            read_ = (line_end < end_ ? line_end + 1 : end_) - block;
            if (++batch_ == kBatchRows) flush();
        }
        flush();
    }

private:
    // Reads the object of the line that begins at p.
    bool object(const uint8_t* p) {
        if (p == line_end_ || *p != '{') return false;
        return fields(p, objects_[0]) && blanks(p) == line_end_;
    }

    // Skips an object, and stores the values of its columns.
    bool fields(const uint8_t*& p, Object& of_object) {
        ++p;
        uint32_t* starts = starts_.data() + batch_ * width_;
        uint32_t* lengths = lengths_.data() + batch_ * width_;
        p = blanks(p);
        size_t place = 0;
        if (p < line_end_ && *p == '}') return ++p, true;
        while (true) {
            const uint8_t* key = p;
            if (!string(p)) return false;
            const Target target = of_object.target_of(std::string_view(reinterpret_cast<const char*>(key + 1), p - key - 2), place++);
            p = blanks(p);
            if (p == line_end_ || *p++ != ':') return false;
            p = blanks(p);
            const uint8_t* start = p;
            if (p == line_end_) return false;
            bool shortest = true;
            if (target.inner != kIgnored) {
                Object& inner = objects_[target.inner];
                const bool is_first = inner.line != lines;  // a second field with this name is ignored
                inner.line = lines;
                if (*p == '[' || (*p == '{' && (!is_first || target.column != kIgnored))) return false;
                if (*p == '{' ? !fields(p, inner) : !value(p, shortest, 0)) return false;
            } else if (!value(p, shortest, 0)) {
                return false;
            }
            if (target.column != kIgnored) {
                if (!shortest) return false;
                if (lengths[target.column] == 0) {
                    uint32_t length = static_cast<uint32_t>(p - start);
                    if (*start == 'n') {
                        length = kNull;  // a second field with this name is ignored
                    } else if (*start == '"' && !needs_quotes(start + 1, length - 2)) {
                        ++start;
                        length -= 2;
                    }
                    starts[target.column] = static_cast<uint32_t>(start - block_);
                    lengths[target.column] = length;
                }
            }
            p = blanks(p);
            if (p == line_end_) return false;
            if (*p == '}') return ++p, true;
            if (*p++ != ',') return false;
            p = blanks(p);
        }
    }

    const uint8_t* blanks(const uint8_t* p) const {
        while (p < line_end_ && is_blank(*p)) ++p;
        return p;
    }

    // Skips a string without escapes.
    bool string(const uint8_t*& p) {
        if (p == line_end_ || *p++ != '"') return false;
#if defined(__SSE2__)
        while (end_ - p >= 16) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
            const int high = _mm_movemask_epi8(bytes);
            const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
            const __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
            const int stops = _mm_movemask_epi8(_mm_or_si128(control, ends));
            if (stops) {
                const int first = __builtin_ctz(stops);
                high_ |= (high & ((1 << first) - 1)) != 0;
                p += first;
                return *p++ == '"';  // a line feed, which ends the line, is a control character too
            }
            high_ |= high != 0;
            p += 16;
        }
#endif
        for (; p < line_end_; ++p) {
            if (*p == '"') return ++p, true;
            if (*p == '\\' || *p < 0x20) return false;
            high_ |= *p >= 0x80;
        }
        return false;
    }

    bool word(const uint8_t*& p, const char* text, int64_t length) const {
        if (line_end_ - p < length || std::memcmp(p, text, length) != 0) return false;
        p += length;
        return true;
    }

    // Skips a JSON value. Clears `shortest` if DuckDB might write the value differently.
    bool value(const uint8_t*& p, bool& shortest, int depth) {
        if (p == line_end_ || depth == kMaxDepth) return false;
        switch (*p) {
            case '"': return string(p);
            case 't': return word(p, "true", 4);
            case 'f': return word(p, "false", 5);
            case 'n': return word(p, "null", 4);
            case '[': return list(p, shortest, depth);
            case '{': return inner_object(p, shortest, depth);
            default: return number(p, shortest);
        }
    }

    bool list(const uint8_t*& p, bool& shortest, int depth) {
        ++p;
        if (p < line_end_ && *p == ']') return ++p, true;
        while (true) {
            pass_blanks(p, shortest);
            if (!value(p, shortest, depth + 1)) return false;
            pass_blanks(p, shortest);
            if (p == line_end_) return false;
            if (*p == ']') return ++p, true;
            if (*p++ != ',') return false;
        }
    }

    bool inner_object(const uint8_t*& p, bool& shortest, int depth) {
        ++p;
        if (p < line_end_ && *p == '}') return ++p, true;
        while (true) {
            pass_blanks(p, shortest);
            if (!string(p)) return false;
            pass_blanks(p, shortest);
            if (p == line_end_ || *p++ != ':') return false;
            pass_blanks(p, shortest);
            if (!value(p, shortest, depth + 1)) return false;
            pass_blanks(p, shortest);
            if (p == line_end_) return false;
            if (*p == '}') return ++p, true;
            if (*p++ != ',') return false;
        }
    }

    void pass_blanks(const uint8_t*& p, bool& shortest) const {
        const uint8_t* first = p;
        p = blanks(p);
        if (p != first) shortest = false;
    }

    // Skips an integer of at most 18 digits, or a decimal of at most 15 digits before the point. Other texts may not be numbers.
    bool number(const uint8_t*& p, bool& shortest) const {
        const bool negative = *p == '-';
        if (negative) ++p;
        const uint8_t* first = p;
        while (p < line_end_ && is_digit(*p)) ++p;
        const int64_t whole = p - first;
        if (whole == 0 || whole > kIntegerDigits || (whole > 1 && *first == '0')) return false;
        if (p == line_end_ || (*p != '.' && *p != 'e' && *p != 'E')) {
            if (negative && *first == '0') shortest = false;
            return true;
        }
        if (*p != '.') return false;
        const uint8_t* fraction = ++p;
        while (p < line_end_ && is_digit(*p)) ++p;
        const int64_t digits = p - fraction;
        if (digits == 0 || whole > kExactDigits) return false;
        if (p < line_end_ && (*p == 'e' || *p == 'E')) return false;
        const bool ends_in_zero = p[-1] == '0' && digits > 1;
        // DuckDB writes small numbers with an exponent. -0.0 and 0.0 are different numbers.
        const bool small = *first == '0' && (fraction[0] == '0' && (digits < 2 ? negative : fraction[1] == '0'));
        if (ends_in_zero || small) shortest = false;
        if (whole + digits > kExactDigits && !has_shortest_digits(first, p)) shortest = false;
        return true;
    }

    // Looks up the values of the rows of the batch, one column at a time.
    void flush() {
        const bool first = static_cast<int64_t>(row_lines.size()) == batch_ && batch_ > 0;
        const int64_t expected = first ? (end_ - block_) / (read_ / batch_ + 1) * 17 / 16 + kBatchRows : 0;
        for (Column& column : columns) {
            if (first) column.reserve(expected);
            for (int64_t row = 0; row < batch_; ++row) {
                const int64_t place = row * width_ + column.field;
                const uint32_t length = lengths_[place] == kNull ? 0 : lengths_[place];
                keys_[row] = Values::key_of(block_ + (length ? starts_[place] : 0), length, end_);
                column.values.fetch_ahead(keys_[row]);
            }
            column.push(keys_.data(), batch_);
        }
        batch_ = 0;
    }

    std::vector<Object> objects_;  // the object of the line, and the object in the field of each key
    std::vector<uint32_t> starts_, lengths_;
    std::vector<Values::Key> keys_;
    const uint8_t *block_ = nullptr, *end_ = nullptr, *line_end_ = nullptr;
    int64_t width_ = 0, batch_ = 0, read_ = 0;
    bool high_ = false;
};

}  // namespace

// A scan of `length` bytes (below 2 GiB) at `block`: whole lines, the last of which may lack its LF. Key i of `count` has the
// bytes [offsets[i], offsets[i + 1]) of `names`; JsonScan describes `parents` and `is_column`. Returns null if memory runs out.
EXPORT Scanned* nightrank_scan_json(const uint8_t* block, int64_t length, int32_t count, const int32_t* offsets,
                                    const uint8_t* names, const int32_t* parents, const uint8_t* is_column) {
    JsonScan* scan = nullptr;
    try {
        scan = new JsonScan(count, offsets, names, parents, is_column);
        scan->run(block, length);
        return scan;
    } catch (const std::exception&) {
        delete scan;
        return nullptr;
    }
}
