// Sums of the rows of one range of scores for several bootstrap replicates at once. Called by metrics/bootstrap.py.
//
// A loop over rows adds the weights of a row in all replicates of a block. The compiler turns it into vector instructions. To keep most
// sums in 16 and 32 bits, they are added to 64-bit totals after at most kChunk rows.

#include <algorithm>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kReplicates = 32;  // replicates in a block; must be equal to REPLICATES in metrics/bootstrap.py
constexpr int64_t kChunk = 2048;  // with weights up to 15, the 32-bit sums of a chunk are less than 2³¹

// The sums of a block of replicates over the rows so far.
struct Sums {
    int64_t positives[kReplicates] = {}, negatives[kReplicates] = {}, doubled_wins[kReplicates] = {};
};

// The sums over the rows of the current chunk. `doubled_wins` leaves out negatives of earlier chunks.
struct Chunk {
    uint16_t positives[kReplicates] = {}, negatives[kReplicates] = {};
    uint32_t doubled_wins[kReplicates] = {};
    int64_t rows = 0;

    // Adds the rows to the totals, and begins a new chunk.
    void end(Sums& sums) {
        for (int r = 0; r < kReplicates; ++r) {
            sums.doubled_wins[r] += doubled_wins[r] + 2 * sums.negatives[r] * positives[r];
            sums.positives[r] += positives[r];
            sums.negatives[r] += negatives[r];
        }
        *this = Chunk();
    }

    void add_negative(const uint8_t* weights) {
        for (int r = 0; r < kReplicates; ++r) negatives[r] += weights[r];
    }

    void add_positive(const uint8_t* weights) {
        for (int r = 0; r < kReplicates; ++r) {
            positives[r] += weights[r];
            doubled_wins[r] += static_cast<uint32_t>(weights[r]) * static_cast<uint16_t>(2 * negatives[r]);
        }
    }

    // Adds rows of equal scores, given the sums of their weights.
    void add_tied(const uint16_t* of_positives, const uint16_t* of_negatives) {
        for (int r = 0; r < kReplicates; ++r) {
            doubled_wins[r] += static_cast<uint32_t>(of_positives[r]) * static_cast<uint16_t>(2 * negatives[r] + of_negatives[r]);
            positives[r] += of_positives[r];
            negatives[r] += of_negatives[r];
        }
    }
};

// Adds up the weights of rows with equal scores.
template <typename Number>
struct Tied {
    Number positives[kReplicates] = {}, negatives[kReplicates] = {};

    Tied(int64_t start, int64_t stop, const int32_t* units, const uint8_t* clicks, const uint8_t* weights) {
        for (int64_t row = start; row < stop; ++row) {
            Number* into = clicks[row] ? positives : negatives;
            const uint8_t* of_row = weights + static_cast<int64_t>(units[row]) * kReplicates;
            for (int r = 0; r < kReplicates; ++r) into[r] += of_row[r];
        }
    }
};

}  // namespace

EXPORT int32_t nightrank_metrics_version() { return 1; }

// Computes the sums of one block of replicates over `rows` rows in ascending order of their scores.
//
// units: the unit of each row. clicks: 1 for clicks. tied: 1 if the score of a row is equal to that of the row before.
// weights: (number of units, kReplicates), each at most 15. sums: (3, kReplicates): positives, negatives, doubled wins.
EXPORT void nightrank_replicate_sums(int64_t rows, const int32_t* units, const uint8_t* clicks, const uint8_t* tied,
                                     const uint8_t* weights, int64_t* sums) {
    Sums total;
    Chunk chunk;
    for (int64_t start = 0, stop; start < rows; start = stop) {
        stop = start + 1;
        while (stop < rows && tied[stop]) ++stop;
        if (chunk.rows + (stop - start) > kChunk) chunk.end(total);
        if (stop - start == 1) {
            const uint8_t* of_row = weights + static_cast<int64_t>(units[start]) * kReplicates;
            clicks[start] ? chunk.add_positive(of_row) : chunk.add_negative(of_row);
            ++chunk.rows;
        } else if (stop - start <= kChunk) {
            const Tied<uint16_t> group(start, stop, units, clicks, weights);
            chunk.add_tied(group.positives, group.negatives);
            chunk.rows += stop - start;
        } else {  // the chunk is empty
            const Tied<int64_t> group(start, stop, units, clicks, weights);
            for (int r = 0; r < kReplicates; ++r) {
                total.doubled_wins[r] += group.positives[r] * (2 * total.negatives[r] + group.negatives[r]);
                total.positives[r] += group.positives[r];
                total.negatives[r] += group.negatives[r];
            }
        }
    }
    chunk.end(total);
    std::copy_n(total.positives, kReplicates, sums);
    std::copy_n(total.negatives, kReplicates, sums + kReplicates);
    std::copy_n(total.doubled_wins, kReplicates, sums + 2 * kReplicates);
}
