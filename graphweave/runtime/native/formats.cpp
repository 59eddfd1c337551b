// Graph formats built in parallel: checked and narrowed indices, stable counting sort by row (CSR), row chunks.
//
// Every function takes an index as (pointer, is64, stride in elements, count) and the number of rows it may name.
// With `wrap`, -n..-1 count from the end. Functions that read raw values return -1, or the position of the first value
// out of range, having written nothing outside their outputs. Each result is the same for every number of threads.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <omp.h>

namespace {

constexpr int64_t kSerial = 1 << 15;  // below this many elements a parallel region costs more than it saves

struct Index {
    const void* data;
    int64_t stride;
    int64_t count;
    int64_t rows;
    bool is64;
    bool wrap;
};

int threads_for(int64_t work, int32_t threads) { return work < kSerial ? 1 : std::max<int32_t>(threads, 1); }

template <typename In>
inline int64_t value_at(const Index& index, int64_t e) {
    return static_cast<int64_t>(static_cast<const In*>(index.data)[e * index.stride]);
}

// The row that value names, or -1. One unsigned comparison covers both ends.
inline int64_t row_of(const Index& index, int64_t value) {
    if (index.wrap && value < 0) value += index.rows;
    return static_cast<uint64_t>(value) < static_cast<uint64_t>(index.rows) ? value : -1;
}

void keep_smallest(std::atomic<int64_t>& best, int64_t candidate) {
    int64_t seen = best.load(std::memory_order_relaxed);
    while (candidate < seen && !best.compare_exchange_weak(seen, candidate)) {
    }
}

int64_t block_begin(int64_t count, int64_t block, int64_t blocks) {
    return static_cast<int64_t>(static_cast<__int128>(count) * block / blocks);
}

// Calls body(block, begin, end) for `blocks` equal ranges of 0..count.
template <typename Body>
void in_blocks(int64_t count, int blocks, Body body) {
#pragma omp parallel for num_threads(blocks) schedule(static, 1)
    for (int b = 0; b < blocks; ++b) body(b, block_begin(count, b, blocks), block_begin(count, b + 1, blocks));
}

template <typename In, typename Out>
int64_t flat(const Index& index, Out* out, int32_t threads) {
    std::atomic<int64_t> bad{index.count};
    in_blocks(index.count, threads_for(index.count, threads), [&](int, int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
            const int64_t row = row_of(index, value_at<In>(index, e));
            if (row < 0) return keep_smallest(bad, e);
            if (out) out[e] = static_cast<Out>(row);
        }
    });
    return bad == index.count ? -1 : bad.load();
}

// Rows of an already narrowed index are in range; out[k] = rows[perm[k]].
template <typename Out>
void permute(const Out* rows, const Out* perm, Out* out, int64_t count, int32_t threads) {
    in_blocks(count, threads_for(count, threads), [&](int, int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) out[k] = rows[perm[k]];
    });
}

template <typename Out>
bool is_sorted(const Out* rows, int64_t count, int32_t threads) {
    std::atomic<bool> sorted{true};
    in_blocks(count, threads_for(count, threads), [&](int, int64_t begin, int64_t end) {
        for (int64_t e = std::max<int64_t>(begin, 1); e < end; ++e)
            if (rows[e] < rows[e - 1]) return sorted.store(false, std::memory_order_relaxed);
    });
    return sorted;
}

// indptr of sorted rows: edge e starts every row after that of edge e - 1, up to its own.
template <typename Out>
void boundaries(const Out* rows, int64_t count, int64_t num_rows, Out* indptr, int32_t threads) {
    in_blocks(count + 1, threads_for(count + num_rows, threads), [&](int, int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
            const int64_t first = e == 0 ? 0 : static_cast<int64_t>(rows[e - 1]) + 1;
            const int64_t last = e == count ? num_rows : static_cast<int64_t>(rows[e]);
            for (int64_t row = first; row <= last; ++row) indptr[row] = static_cast<Out>(e);
        }
    });
}

// Stable counting sort. counts[b][row] is first how many edges of block b name the row, then where they go.
template <typename Out>
bool sort_by_row(const Out* rows, int64_t count, int64_t num_rows, Out* indptr, Out* perm, int32_t threads) {
    // A histogram per block pays only while the histograms together are not larger than the edges.
    const int64_t affordable = std::max<int64_t>(1, 4 * count / std::max<int64_t>(num_rows, 1));
    const int blocks = static_cast<int>(std::min<int64_t>(threads_for(count, threads), affordable));
    std::unique_ptr<Out[]> counts(new (std::nothrow) Out[static_cast<size_t>(blocks) * num_rows]);
    if (!counts) return false;
    in_blocks(count, blocks, [&](int b, int64_t begin, int64_t end) {
        Out* mine = counts.get() + static_cast<int64_t>(b) * num_rows;
        std::fill(mine, mine + num_rows, Out(0));
        for (int64_t e = begin; e < end; ++e) ++mine[rows[e]];
    });
    Out position = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        indptr[row] = position;
        for (int b = 0; b < blocks; ++b) {
            Out& cell = counts[static_cast<int64_t>(b) * num_rows + row];
            const Out here = cell;
            cell = position;
            position += here;
        }
    }
    indptr[num_rows] = position;
    in_blocks(count, blocks, [&](int b, int64_t begin, int64_t end) {
        Out* mine = counts.get() + static_cast<int64_t>(b) * num_rows;
        for (int64_t e = begin; e < end; ++e) perm[mine[rows[e]]++] = static_cast<Out>(e);
    });
    return true;
}

template <typename Out>
int64_t max_degree(const Out* indptr, int64_t num_rows, int32_t threads) {
    int64_t best = 0;
#pragma omp parallel for num_threads(threads_for(num_rows, threads)) reduction(max : best)
    for (int64_t row = 0; row < num_rows; ++row)
        best = std::max(best, static_cast<int64_t>(indptr[row + 1]) - static_cast<int64_t>(indptr[row]));
    return best;
}

// chunks[c] is the first row at which rows + edges reach c / num_chunks of their total.
template <typename Out>
void balance(const Out* indptr, int64_t num_rows, int64_t* chunks, int64_t num_chunks) {
    const int64_t total = num_rows + static_cast<int64_t>(indptr[num_rows]);
    for (int64_t c = 0; c <= num_chunks; ++c) {
        const int64_t goal = block_begin(total, c, num_chunks);
        int64_t low = 0, high = num_rows;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (middle + static_cast<int64_t>(indptr[middle]) < goal) low = middle + 1;
            else high = middle;
        }
        chunks[c] = low;
    }
    chunks[num_chunks] = num_rows;  // trailing rows without edges
}

// Returns 1 if the rows were sorted (perm untouched), 0 if perm was written, -1 when out of memory.
template <typename Out>
int32_t group(const void* rows_raw, int64_t count, int64_t num_rows, void* indptr_raw, void* perm_raw,
              int64_t* degree, int64_t* chunks, int64_t num_chunks, int32_t threads) {
    const Out* rows = static_cast<const Out*>(rows_raw);
    Out* indptr = static_cast<Out*>(indptr_raw);
    const bool sorted = is_sorted(rows, count, threads);
    if (sorted) boundaries(rows, count, num_rows, indptr, threads);
    else if (!sort_by_row(rows, count, num_rows, indptr, static_cast<Out*>(perm_raw), threads)) return -1;
    *degree = max_degree(indptr, num_rows, threads);
    balance(indptr, num_rows, chunks, num_chunks);
    return sorted ? 1 : 0;
}

}  // namespace

// out[e] = the row that index[e] names; with out null, only checks. Returns the first bad position, or -1.
extern "C" int64_t gw_flat(const void* data, int32_t is64, int64_t stride, int64_t count, int64_t rows, int32_t wrap,
                           void* out, int32_t wide, int32_t threads) {
    const Index index{data, stride, count, rows, is64 != 0, wrap != 0};
    if (wide) {
        auto* to = static_cast<int64_t*>(out);
        return is64 ? flat<int64_t>(index, to, threads) : flat<int32_t>(index, to, threads);
    }
    auto* to = static_cast<int32_t*>(out);
    return is64 ? flat<int64_t>(index, to, threads) : flat<int32_t>(index, to, threads);
}

extern "C" int32_t gw_group(const void* rows, int64_t count, int64_t num_rows, void* indptr, void* perm,
                            int64_t* degree, int64_t* chunks, int64_t num_chunks, int32_t wide, int32_t threads) {
    const auto run = wide ? group<int64_t> : group<int32_t>;
    return run(rows, count, num_rows, indptr, perm, degree, chunks, num_chunks, threads);
}

// out[k] = rows[perm[k]] for arrays of one width.
extern "C" void gw_permute(const void* rows, const void* perm, void* out, int64_t count, int32_t wide,
                           int32_t threads) {
    if (wide)
        permute(static_cast<const int64_t*>(rows), static_cast<const int64_t*>(perm), static_cast<int64_t*>(out),
                count, threads);
    else
        permute(static_cast<const int32_t*>(rows), static_cast<const int32_t*>(perm), static_cast<int32_t*>(out),
                count, threads);
}
