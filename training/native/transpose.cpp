// Transposes columns to rows: copies 4-byte numbers from the columns of a row group to their rows in a pool.
//
// Numbers are copied four rows by four columns at a time, directly from the columns to the pool. The memory that a block of
// rows touches (a cache line or two of each column, a few lines of each row) stays in the core's first cache.

#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

typedef uint32_t Four __attribute__((vector_size(16)));
typedef int64_t Two __attribute__((vector_size(16)));

inline Four load(const uint32_t* from) {
    Four value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(uint32_t* to, Four value) { std::memcpy(to, &value, sizeof value); }

// Transposes four rows of four columns, whose row 0 is at a, b, c and d, to four addresses.
inline void transpose_four(const uint32_t* a, const uint32_t* b, const uint32_t* c, const uint32_t* d, uint32_t* const* to) {
    const Four low{0, 4, 1, 5}, high{2, 6, 3, 7};
    const Two first{0, 2}, second{1, 3};
    const Four va = load(a), vb = load(b), vc = load(c), vd = load(d);
    const Two ab_low = (Two)__builtin_shuffle(va, vb, low), cd_low = (Two)__builtin_shuffle(vc, vd, low);
    const Two ab_high = (Two)__builtin_shuffle(va, vb, high), cd_high = (Two)__builtin_shuffle(vc, vd, high);
    store(to[0], (Four)__builtin_shuffle(ab_low, cd_low, first));
    store(to[1], (Four)__builtin_shuffle(ab_low, cd_low, second));
    store(to[2], (Four)__builtin_shuffle(ab_high, cd_high, first));
    store(to[3], (Four)__builtin_shuffle(ab_high, cd_high, second));
}

const int64_t kMaxRows = 64;  // rows transposed at a time, whatever the size of a block

// Transposes `rows` neighbouring rows, starting at row `row` of the columns, to rows targets[0], … of `out`.
void transpose_rows(int32_t singles, const uint32_t* const* columns, int64_t row, int64_t rows, const int64_t* targets,
                    int64_t width, uint32_t* out) {
    uint32_t* to[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) to[r] = out + targets[r] * width;
    int32_t c = 0;
    for (; c + 4 <= singles; c += 4) {
        const uint32_t *a = columns[c] + row, *b = columns[c + 1] + row, *d = columns[c + 2] + row, *e = columns[c + 3] + row;
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4) {
            uint32_t* four[4] = {to[r] + c, to[r + 1] + c, to[r + 2] + c, to[r + 3] + c};
            transpose_four(a + r, b + r, d + r, e + r, four);
        }
        for (; r < rows; ++r) {
            to[r][c] = a[r];
            to[r][c + 1] = b[r];
            to[r][c + 2] = d[r];
            to[r][c + 3] = e[r];
        }
    }
    for (; c < singles; ++c) {
        const uint32_t* from = columns[c] + row;
        for (int64_t r = 0; r < rows; ++r) to[r][c] = from[r];
    }
}

}  // namespace

EXPORT int32_t nightrank_training_version() { return 5; }

// Computes the pool row of each of `rows` rows of a shard's window. The shard's i-th pool row goes to target_rows[order[i]], or to
// target_rows[i] if rows keep their order (`order` is null). In each batch of `batch_rows` rows, a shard has `shard_rows` rows,
// starting at row `first`.
EXPORT void nightrank_target_rows(int64_t rows, const int64_t* order, int64_t shard_rows, int64_t batch_rows, int64_t first,
                                  int64_t* target_rows) {
    int64_t within = 0, start = first;
    for (int64_t i = 0; i < rows; ++i) {
        target_rows[order ? order[i] : i] = start + within;
        if (++within == shard_rows) {
            within = 0;
            start += batch_rows;
        }
    }
}

// Transposes rows [start, stop) of the order of a piece to rows target_rows[0], … of `out`, whose rows have `width` numbers.
//
// The first `singles` columns have one number per row. Then come `lists` columns with lengths[i] numbers per row. All addresses
// are those of the piece's row 0. Row i of the order is row i % block of block blocks[i / block]. If there are no blocks (null),
// or after the last block, it is row i itself.
EXPORT void nightrank_transpose(int32_t singles, int32_t lists, const uint32_t* const* columns, const int64_t* lengths,
                                int64_t width, const int64_t* blocks, int64_t num_blocks, int64_t block, int64_t start,
                                int64_t stop, const int64_t* target_rows, uint32_t* out) {
    const int64_t ordered = blocks ? num_blocks * block : 0;
    for (int64_t i = start; i < stop;) {
        int64_t row = i, rows = kMaxRows;
        if (i < ordered) {
            const int64_t place = i / block, within = i % block;
            row = blocks[place] * block + within;
            rows = block - within < rows ? block - within : rows;
            if (place + 1 < num_blocks && (place + 1) * block < stop) {
                // The next block may be anywhere in memory: prefetch it while this one is transposed.
                const int64_t next = blocks[place + 2 < num_blocks ? place + 2 : place + 1] * block;
                for (int32_t c = 0; c < singles; ++c) {
                    for (int64_t at = 0; at < block; at += 16) __builtin_prefetch(columns[c] + next + at);
                    __builtin_prefetch(columns[c] + next + block - 1);
                }
            }
        }
        if (i + rows > stop) rows = stop - i;
        for (int64_t r = rows; r < 2 * rows && i + r < stop; ++r) {
            const char* ahead = reinterpret_cast<const char*>(out + target_rows[i - start + r] * width);
            for (int64_t at = 0; at < 4 * width; at += 64) __builtin_prefetch(ahead + at, 1);
        }
        const int64_t* to = target_rows + (i - start);
        transpose_rows(singles, columns, row, rows, to, width, out);
        int64_t offset = singles;
        for (int32_t l = 0; l < lists; ++l) {
            const int64_t length = lengths[l];
            const uint32_t* from = columns[singles + l] + row * length;
            for (int64_t r = 0; r < rows; ++r) {
                std::memcpy(out + to[r] * width + offset, from + r * length, 4 * length);
            }
            offset += length;
        }
        i += rows;
    }
}
