// What training multiplies by: bfloat16 panels of weights of any dtype, of their transposes, and the gradient of a matrix, added up in float32.

#ifdef _OPENMP
#include <omp.h>
#endif

#include "products.h"

#ifdef __AVX512BF16__
namespace {

constexpr int PAIRS = LANES;  // of bfloat16 numbers, in a vector

inline int thread() {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Rows and columns of 16 x 16 pairs change places.
inline void transpose(__m512i (&x)[LANES]) {
    __m512i y[LANES];
    for (int i = 0; i < LANES; i += 2) y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]), y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + 2 + j]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + 2 + j]);
        }
    for (int i = 0; i < LANES; i += 8)
        for (int j = 0; j < 4; j++) {
            y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0x88);
            y[i + 4 + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0x88);
        x[8 + j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0xdd);
    }
}

inline __mmask16 first(long n) { return n >= 16 ? 0xffff : n > 0 ? __mmask16((1u << n) - 1) : 0; }

// The first n of 16 numbers as bfloat16, zeros behind them.
inline __m256i numbers(const Half* x, long n) { return _mm256_maskz_loadu_epi16(first(n), x); }
inline __m256i numbers(const float* x, long n) { return (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first(n), x)); }

// The first n of 32, neighbours as pairs.
template <class T> __m512i along(const T* x, long n) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(numbers(x, n)), numbers(x + LANES, n - LANES), 1);
}

// Pairs of the first n of 16 numbers of two rows; the second may be none.
template <class T> __m512i across(const T* x, const T* y, long n) {
    const __m512i low = _mm512_cvtepu16_epi32(numbers(x, n));
    return y ? _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers(y, n)), 16)) : low;
}

// x [rows, columns] -> panels of products with it.
template <class T> void pack(const T* x, Half* panels, long rows, long columns, int threads) {
    const long count = (rows + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * columns > LITTLE)
    for (long panel = 0; panel < count; panel++)
        for (long column = 0; column < columns; column += 2 * PAIRS)
            for (long vector = 0; vector < VECTORS; vector++) {
                __m512i square[LANES];
                for (int i = 0; i < LANES; i++) {
                    const long row = panel * PANEL + vector * LANES + i;
                    square[i] = row < rows ? along(x + row * columns + column, columns - column) : _mm512_setzero_si512();
                }
                transpose(square);
                for (int i = 0; i < PAIRS && column + 2 * i < columns; i++)
                    _mm512_storeu_si512(panels + (panel * columns + column + 2 * i) * PANEL + 2 * vector * LANES, square[i]);
            }
}

// The same of the transpose, whose inputs are the rows and zeros up to `depth`.
template <class T> void pack_across(const T* x, Half* panels, long rows, long columns, long depth, int threads) {
    const long count = (columns + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * columns > LITTLE)
    for (long panel = 0; panel < count; panel++)
        for (long row = 0; row < depth; row += 2)
            for (long vector = 0; vector < VECTORS; vector++) {
                const long column = panel * PANEL + vector * LANES, left = row < rows ? columns - column : 0;
                const T* here = x + row * columns + column;
                const __m512i pairs = left > 0 ? across(here, row + 1 < rows ? here + columns : nullptr, left) : _mm512_setzero_si512();
                _mm512_storeu_si512(panels + (panel * depth + row) * PANEL + 2 * vector * LANES, pairs);
            }
}

// 32 rows and 32 columns of x -> out, 32 lines of them at steps of `depth`. Whole lines of x are read, whose steps may fall into few sets of the cache.
inline void turn_square(const Half* x, long columns, Half* out, long depth) {
    __m512i low[LANES], high[LANES];
    for (int i = 0; i < PAIRS; i++) {
        const __m512i a = _mm512_loadu_si512(x + 2 * i * columns), b = _mm512_loadu_si512(x + (2 * i + 1) * columns);
        low[i] = _mm512_unpacklo_epi16(a, b), high[i] = _mm512_unpackhi_epi16(a, b);  // columns 0 to 3 of every 8, and the others
    }
    transpose(low), transpose(high);
    for (int i = 0; i < LANES; i++) {
        const int column = i / 4 * 8 + i % 4;
        _mm512_storeu_si512(out + column * depth, low[i]), _mm512_storeu_si512(out + (column + 4) * depth, high[i]);
    }
}

// Some columns of x [rows, columns] -> [some, depth], the rows filled up by zeros.
void turn_over(const Half* x, Half* out, long rows, long columns, long some, long depth) {
    for (long row = 0; row < rows; row += 2 * PAIRS) {
        long column = 0;
        for (; row + 2 * PAIRS <= rows && column + 2 * LANES <= some; column += 2 * LANES)
            turn_square(x + row * columns + column, columns, out + column * depth + row, depth);
        for (; column < some; column += LANES) {
            __m512i square[LANES];
            for (int i = 0; i < PAIRS; i++) {
                const long upper = row + 2 * i;
                const Half* here = x + upper * columns + column;
                square[i] = upper < rows ? across(here, upper + 1 < rows ? here + columns : nullptr, some - column) : _mm512_setzero_si512();
            }
            transpose(square);
            for (int i = 0; i < LANES && column + i < some; i++)
                _mm512_mask_storeu_epi32(out + (column + i) * depth + row, first((depth - row) / 2), square[i]);
        }
    }
}

// How a gradient of a matrix [outs, in] over `rows` rows is cut: panels of x first, then outputs that meet all of them together.
struct Cut {
    long depth, count, together;

    Cut(long rows, long outs, long in, long threads) : depth((rows + STEP - 1) / STEP * STEP), count((in + PANEL - 1) / PANEL) {
        const long most = fitting(depth * sizeof(Half)), rounds = (outs + most * threads - 1) / (most * threads);
        const long share = (outs + rounds * threads - 1) / (rounds * threads);
        together = (share + ROUND - 1) / ROUND * ROUND;  // every thread gets as many
    }

    long panels() const { return count * PANEL * depth; }
};

// total [outs, in] (+)= grad^T x: grad [rows, outs], x [rows, in]. Outputs are turned over together, into the core's cache.
void matrix_gradient(const Half* grad, const Half* x, float* total, Half* room, long rows, long outs, long in, bool add, int threads) {
    const Cut cut(rows, outs, in, threads);
    Half* turned = room + cut.panels();  // of each thread
    pack_across(x, room, rows, in, cut.depth, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1 && outs * in > 8 * LITTLE)
    for (long start = 0; start < outs; start += cut.together) {
        const long some = outs - start < cut.together ? outs - start : cut.together;
        Tiles tiles;
        Half* here = turned + thread() * cut.together * cut.depth;
        turn_over(grad + start, here, rows, outs, some, cut.depth);
        for (long index = 0; index < cut.count; index++) {
            const long left = in - index * PANEL;
            const Half *panel = room + index * PANEL * cut.depth, *next = left > PANEL ? panel + PANEL * cut.depth : room;
            stretch(tiles, here, panel, next, static_cast<const float*>(nullptr), total + start * in + index * PANEL, some, cut.depth, in,
                    left < PANEL ? left : PANEL, add);
        }
    }
}

}  // namespace
#endif

extern "C" {

#ifdef __AVX512BF16__
// x [rows, columns], bfloat16 if `half`, else float32.
void paceline_pack(const void* x, void* panels, long rows, long columns, int over, int half, int threads) {
    const auto run = [&](auto* numbers) {
        if (over) pack_across(numbers, (Half*)panels, rows, columns, rows, threads);
        else pack(numbers, (Half*)panels, rows, columns, threads);
    };
    if (half) run((const Half*)x);
    else run((const float*)x);
}

// Numbers of memory that the next function needs.
long paceline_gradient_room(long rows, long outs, long in, int threads) {
    const Cut cut(rows, outs, in, threads);
    return cut.panels() + threads * cut.together * cut.depth;
}

void paceline_matrix_gradient(const void* grad, const void* x, float* total, void* room, long rows, long outs, long in, int add, int threads) {
    matrix_gradient((const Half*)grad, (const Half*)x, total, (Half*)room, rows, outs, in, add, threads);
}
#else
void paceline_pack(const void*, void*, long, long, int, int, int) {}
long paceline_gradient_room(long, long, long, int) { return 0; }
void paceline_matrix_gradient(const void*, const void*, float*, void*, long, long, long, int, int) {}
#endif

}  // extern "C"
