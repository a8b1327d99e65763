// Transposes columns to rows: copies 4-byte numbers from the columns of a row group to their rows in a pool.
//
// Numbers are copied four rows by four columns at a time, directly from the columns to the pool. The memory that a block of
// rows touches (a cache line or two of each column, a few lines of each row) stays in the core's first cache.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

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

// Computes the pool row of each of `rows` rows of a shard's window. The shard's i-th pool row goes to target_rows[order[i]], or to
// target_rows[i] if rows keep their order (`order` is null). In each batch of `batch_rows` rows, a shard has `shard_rows` rows,
// starting at row `first`.
void compute_targets(int64_t rows, const int64_t* order, int64_t shard_rows, int64_t batch_rows, int64_t first,
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
void transpose_piece(int32_t singles, int32_t lists, const uint32_t* const* columns, const int64_t* lengths, int64_t width,
                     const int64_t* blocks, int64_t num_blocks, int64_t block, int64_t start, int64_t stop,
                     const int64_t* target_rows, uint32_t* out) {
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

const int kKinds = 3;  // of columns: the label, dense features, ids

// The columns of one kind in a row group. Their addresses are those of row 0. Python fills the structures of this file, whose
// members all have 8 bytes (training/data/pool_writer.py).
struct Columns {
    int64_t singles, lists;
    const char* const* addresses;
    const int64_t* lengths;
    const int64_t* row_bytes;
};

// The rows of a piece that a pool has: rows [start, stop) of its order. The piece begins at row `first` of its row group.
struct Range {
    int64_t group, first;
    const int64_t* blocks;
    int64_t num_blocks, start, stop;
};

// The rows of a shard in a pool: ranges [first_range, end_range), in the order `order` (null: their own).
struct Shard {
    int64_t rows;
    const int64_t* order;
    int64_t first, first_range, end_range;
};

struct Pool {
    const Columns* columns;  // kKinds for each row group
    const Range* ranges;
    const Shard* shards;
    int64_t num_shards, shard_rows, batch_rows, steps, block;
    uint32_t* out[kKinds];
    int64_t widths[kKinds];
    float* weights;
};

void write_shard(const Pool& pool, const Shard& shard, std::vector<int64_t>& targets, std::vector<const uint32_t*>& columns) {
    const int64_t all_rows = pool.steps * pool.shard_rows;
    targets.resize(all_rows);
    compute_targets(shard.rows, shard.order, pool.shard_rows, pool.batch_rows, shard.first, targets.data());
    const int64_t* to = targets.data();
    for (int64_t r = shard.first_range; r < shard.end_range; ++r) {
        const Range& range = pool.ranges[r];
        for (int kind = 0; kind < kKinds; ++kind) {
            const Columns& of_kind = pool.columns[range.group * kKinds + kind];
            columns.resize(of_kind.singles + of_kind.lists);
            for (size_t c = 0; c < columns.size(); ++c) {
                const char* first = of_kind.addresses[c] + range.first * of_kind.row_bytes[c];
                columns[c] = reinterpret_cast<const uint32_t*>(first);
            }
            transpose_piece(static_cast<int32_t>(of_kind.singles), static_cast<int32_t>(of_kind.lists), columns.data(),
                            of_kind.lengths, pool.widths[kind], range.blocks, range.num_blocks, pool.block, range.start,
                            range.stop, to, pool.out[kind]);
        }
        to += range.stop - range.start;
    }
    for (int64_t i = 0; i < shard.rows; ++i) pool.weights[targets[i]] = 1;
    for (int64_t i = shard.rows; i < all_rows; ++i) {
        const int64_t row = i / pool.shard_rows * pool.batch_rows + shard.first + i % pool.shard_rows;
        pool.weights[row] = 0;
        for (int kind = 0; kind < kKinds; ++kind) {
            std::memset(pool.out[kind] + row * pool.widths[kind], 0, 4 * pool.widths[kind]);
        }
    }
}

}  // namespace

EXPORT int32_t nightrank_training_version() { return 7; }

EXPORT void nightrank_target_rows(int64_t rows, const int64_t* order, int64_t shard_rows, int64_t batch_rows, int64_t first,
                                  int64_t* target_rows) {
    compute_targets(rows, order, shard_rows, batch_rows, first, target_rows);
}

EXPORT void nightrank_transpose(int32_t singles, int32_t lists, const uint32_t* const* columns, const int64_t* lengths,
                                int64_t width, const int64_t* blocks, int64_t num_blocks, int64_t block, int64_t start,
                                int64_t stop, const int64_t* target_rows, uint32_t* out) {
    transpose_piece(singles, lists, columns, lengths, width, blocks, num_blocks, block, start, stop, target_rows, out);
}

// Writes a pool with at most `threads` threads, each of which writes complete shards. Missing rows of a shard are zero.
EXPORT void nightrank_write_pool(const Pool* pool, int64_t threads) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        std::vector<int64_t> targets;
        std::vector<const uint32_t*> columns;
        for (int64_t shard; (shard = next++) < pool->num_shards;) write_shard(*pool, pool->shards[shard], targets, columns);
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < std::min(threads, pool->num_shards); ++t) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
}
