// Products of bfloat16 numbers by tiles, where the processor has them (AMX): 32 rows meet 32 outputs, whose sums are four tiles.
//
// The same panels as without tiles. Every sum adds its inputs up in one order, whatever rows there are beside it.
#pragma once

#include "common.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define PACELINE_TILES
#endif

namespace {

// Memory that comes next, fetched bit by bit while what came before is computed with: a core that waits does not multiply.
struct Ahead {
    const char *at = nullptr, *end = nullptr;
    int lines = 0;  // per step

    void fetch() {
        for (int i = 0; i < lines; i++, at += 64)
            if (at < end) __builtin_prefetch(at, 0, 2);
    }
};

#ifdef PACELINE_TILES
constexpr bool TILES = true;
constexpr int TALL = 16, DEEP = 32, WIDE = 32;  // rows of a tile, inputs of a step, outputs of two tiles

// Whether the system lets this process use tiles. It must be asked before the first one is.
inline bool tiles_allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return allowed;
}

// The shapes of this thread's tiles: sums in 0 to 3, rows in 4 and 5, weights in 6 and 7. Libraries that use tiles leave others.
class Tiles {
    long upper = 0, lower = 0;

  public:
    Tiles() = default;
    Tiles(const Tiles&) = delete;
    ~Tiles() {
        if (upper) _tile_release();
    }

    // Rows of the upper tiles, and of the lower ones if there are any.
    void shape(long above, long below) {
        if (upper == above && lower == below) return;
        upper = above, lower = below;
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = TALL;
        shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = uint8_t(above);
        if (below) shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = uint8_t(below);
        _tile_loadconfig(&shapes);
    }
};

// One step of DEEP inputs. Rows are read past the nearest cache, which keeps the panel for those to come.
template <bool BELOW> void tile_step(const Half* x, long x_step, const Half* panel) {
    const long bytes = x_step * long(sizeof(Half));
    _tile_stream_loadd(4, x, bytes);
    _tile_loadd(6, panel, 4 * WIDE);
    _tile_loadd(7, panel + WIDE, 4 * WIDE);
    if (BELOW) _tile_stream_loadd(5, x + TALL * x_step, bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (BELOW) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// What does not fill a step: the last inputs of some rows and of a panel, with zeros behind them.
struct Remainder {
    alignas(64) Half rows[2 * TALL * DEEP], panel[DEEP * WIDE];
};

// Rows of x, at most 2 * TALL, times a panel -> sums [rows, WIDE].
template <bool BELOW>
void tile_sums(const Half* x, long x_step, const Half* panel, long in, const Remainder& left, float* sums, Ahead& ahead) {
    _tile_zero(0);
    _tile_zero(1);
    if (BELOW) {
        _tile_zero(2);
        _tile_zero(3);
    }
    long i = 0;
    for (; i + DEEP <= in; i += DEEP) {
        ahead.fetch();
        tile_step<BELOW>(x + i, x_step, panel + i * WIDE);
    }
    if (i < in) tile_step<BELOW>(left.rows, DEEP, left.panel);
    _tile_stored(0, sums, 4 * WIDE);
    _tile_stored(1, sums + WIDE / 2, 4 * WIDE);
    if (BELOW) {
        _tile_stored(2, sums + TALL * WIDE, 4 * WIDE);
        _tile_stored(3, sums + TALL * WIDE + WIDE / 2, 4 * WIDE);
    }
}

// Rows of x [rows, in] times a panel; `finish` takes the number of a row and its sums.
template <class Finish> void tile_product(Tiles& tiles, const Half* x, const Half* panel, long rows, long in, Ahead& ahead, Finish finish) {
    const long whole = in / DEEP * DEEP;
    Remainder left;
    if (whole < in) {
        std::memset(&left, 0, sizeof left);
        std::memcpy(left.panel, panel + whole * WIDE, (in - whole) * WIDE * sizeof(Half));
    }
    for (long row = 0; row < rows; row += 2 * TALL) {
        const long some = rows - row < 2 * TALL ? rows - row : 2 * TALL;
        const Half* here = x + row * in;
        if (whole < in)
            for (long r = 0; r < some; r++) std::memcpy(left.rows + r * DEEP, here + r * in + whole, (in - whole) * sizeof(Half));
        alignas(64) float sums[2 * TALL * WIDE];
        tiles.shape(some < TALL ? some : TALL, some > TALL ? some - TALL : 0);
        if (some > TALL) tile_sums<true>(here, in, panel, in, left, sums, ahead);
        else tile_sums<false>(here, in, panel, in, left, sums, ahead);
        for (long r = 0; r < some; r++) finish(row + r, sums + r * WIDE);
    }
}
#else
constexpr bool TILES = false;
inline bool tiles_allowed() { return false; }
struct Tiles {};
#endif

}  // namespace
