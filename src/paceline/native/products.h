// Products with a matrix in panels: of PANEL outputs [in, PANEL], of bfloat16 numbers [in / 2, PANEL, 2], pairs of inputs side by side.
#pragma once

#include "tiles.h"

namespace {

constexpr int VECTORS = TILES ? 2 : 3, PANEL = VECTORS * LANES, BLOCK = 8, PART = 192;
constexpr int ROUND = TILES ? 32 : BLOCK, STEP = TILES ? 32 : 2;  // rows, and inputs, that no product has to fill up
constexpr long CACHED = TILES ? 1 << 20 : 1 << 18;  // bytes of rows that meet one panel after the other; processors with tiles have larger caches

// How many rows of so many bytes that are, in whole blocks.
inline long fitting(long bytes) {
    const long blocks = CACHED / bytes / ROUND;
    return (blocks > 1 ? blocks : 1) * ROUND;
}

// The sums of a row for a panel's outputs -> its result, rounded; or (`add`) what the result grows by.
template <class Out> void finish(const float* sums, const float* bias, Out* out, long outs, bool add) {
    if (add)
        for (long j = 0; j < outs; j++) out[j] = narrow<Out>(wide(out[j]) + sums[j]);
    else if (bias)
        for (long j = 0; j < outs; j++) out[j] = narrow<Out>(sums[j] + bias[j]);
    else if (outs == PANEL)
        for (int j = 0; j < PANEL; j++) out[j] = narrow<Out>(sums[j]);
    else
        for (long j = 0; j < outs; j++) out[j] = narrow<Out>(sums[j]);
}

#ifdef __AVX512BF16__
constexpr bool HALF_PRODUCTS = true;

// One step of PART or fewer inputs, added to the totals: long sums of float32 lose less in parts.
template <int R> void part(const Half* x, long x_step, const Half* panel, long count, Lanes (*totals)[VECTORS], Ahead& ahead) {
    __m512 sums[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < VECTORS; j++) sums[r][j] = _mm512_setzero_ps();
    for (long i = 0; i < count; i += 2, panel += 2 * PANEL) {
        ahead.fetch();
        __m512bh weights[VECTORS];
        for (int j = 0; j < VECTORS; j++) weights[j] = (__m512bh)_mm512_loadu_si512(panel + 2 * LANES * j);
        for (int r = 0; r < R; r++) {
            int32_t pair;
            std::memcpy(&pair, x + r * x_step + i, sizeof pair);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int j = 0; j < VECTORS; j++) sums[r][j] = _mm512_dpbf16_ps(sums[r][j], weights[j], both);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < VECTORS; j++) totals[r][j] += (Lanes)sums[r][j];
}
#else
constexpr bool HALF_PRODUCTS = false;
template <int R> void part(const Half*, long, const Half*, long, Lanes (*)[VECTORS], Ahead&) {}
#endif

#ifdef __AVX512F__
constexpr bool FLOAT_PRODUCTS = true;
#else
constexpr bool FLOAT_PRODUCTS = false;
#endif

template <int R> void part(const float* x, long x_step, const float* panel, long count, Lanes (*totals)[VECTORS], Ahead& ahead) {
    Lanes sums[R][VECTORS] = {};
    for (long i = 0; i < count; i++, panel += PANEL) {
        ahead.fetch();
        const Lanes* weights = reinterpret_cast<const Lanes*>(panel);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < VECTORS; j++) sums[r][j] += x[r * x_step + i] * weights[j];
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < VECTORS; j++) totals[r][j] += sums[r][j];
}

// R rows of x times one panel: [in, PANEL], bfloat16 as [in / 2, PANEL, 2], pairs of inputs side by side.
template <int R, class T, class Out>
void block(const T* x, long x_step, const T* panel, long in, const float* bias, Out* out, long out_step, long outs, bool add, Ahead& ahead) {
    Lanes totals[R][VECTORS] = {};
    for (long start = 0; start < in; start += PART) {
        const long count = in - start < PART ? in - start : PART;
        part<R>(x + start, x_step, panel + start * PANEL, count, totals, ahead);
    }
    for (int r = 0; r < R; r++) {
        float row[PANEL];
        std::memcpy(row, totals[r], sizeof row);
        finish(row, bias, out + r * out_step, outs, add);
    }
}

// All of a panel within so many rows, of which blocks take steps of some inputs.
template <class T> Ahead coming(const T* next, long in, long rows, long block, long step) {
    const char* start = reinterpret_cast<const char*>(next);
    const long bytes = in * PANEL * long(sizeof(T)), steps = (rows + block - 1) / block * ((in + step - 1) / step);
    return next ? Ahead{start, start + bytes, int((bytes / 64 + steps - 1) / steps)} : Ahead{};
}

// Some rows of x times the panel of `here` outputs; `next`: the panel behind it, if any.
template <class T, class Out>
void stretch(Tiles& tiles, const T* x, const T* panel, const T* next, const float* bias, Out* out, long rows, long in, long outs, long here, bool add) {
#ifdef PACELINE_TILES
    if constexpr (sizeof(T) == sizeof(Half))
        if (tiles_allowed()) {
            Ahead ahead = coming(next, in, rows, 2 * TALL, DEEP);
            const auto done = [&](long row, const float* sums) { finish(sums, bias, out + row * outs, here, add); };
            return tile_product(tiles, x, panel, rows, in, ahead, done);
        }
#endif
    Ahead ahead = coming(next, in, rows, BLOCK, sizeof(T) == sizeof(Half) ? 2 : 1);
    for (long row = 0; row < rows; row += BLOCK) {
        const auto run = [&](auto block) { block(x + row * in, in, panel, in, bias, out + row * outs, outs, here, add, ahead); };
        switch (rows - row) {
            case 1: run([](auto&&... a) { block<1>(a...); }); break;
            case 2: run([](auto&&... a) { block<2>(a...); }); break;
            case 3: run([](auto&&... a) { block<3>(a...); }); break;
            case 4: run([](auto&&... a) { block<4>(a...); }); break;
            case 5: run([](auto&&... a) { block<5>(a...); }); break;
            case 6: run([](auto&&... a) { block<6>(a...); }); break;
            case 7: run([](auto&&... a) { block<7>(a...); }); break;
            default: run([](auto&&... a) { block<BLOCK>(a...); });
        }
    }
}

// x [rows, in] times the matrix -> out [rows, outs]. The order of a sum does not depend on how many rows there are.
template <class T, class Out>
void product(const T* x, const T* panels, const float* bias, Out* out, long rows, long in, long outs, int threads) {
    const long count = (outs + PANEL - 1) / PANEL, together = fitting(in * sizeof(T));
#pragma omp parallel num_threads(threads) if (threads > 1 && outs * in > 8 * LITTLE)
    {
        Tiles tiles;
        for (long row = 0; row < rows; row += together) {
            const long some = rows - row < together ? rows - row : together;
#pragma omp for schedule(static) nowait
            for (long index = 0; index < count; index++) {
                const long left = outs - index * PANEL;
                const T *panel = panels + index * PANEL * in, *next = left > PANEL ? panel + PANEL * in : nullptr;
                stretch(tiles, x + row * in, panel, next, bias ? bias + index * PANEL : nullptr, out + row * outs + index * PANEL, some,
                        in, outs, left < PANEL ? left : PANEL, false);
            }
        }
    }
}

}  // namespace
