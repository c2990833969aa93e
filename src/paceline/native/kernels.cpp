// What a decoding step computes but for attention: RMSNorm with the residual sum, products, rotation, the gate; each by itself, and as the two halves of a layer. A row's bits depend on that row alone.
//
// Compiled for this machine at first use (native/build.py). No header of torch: tensors arrive as addresses.

#include "common.h"

namespace {

template <class T> void scale_row(const T* x, const T* weight, T* out, long width, float eps) {
    const float factor = 1.0f / std::sqrt(squares(x, width) / float(width) + eps);
    for (long i = 0; i < width; i++) out[i] = narrow<T>(wide(x[i]) * factor * wide(weight[i]));
}

template <class T>
void add_norm(T* x, const T* added, const T* weight, T* out, long rows, long width, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LITTLE)
    for (long row = 0; row < rows; row++) {
        T* here = x + row * width;
        if (added)
            for (long i = 0; i < width; i++) here[i] = narrow<T>(wide(here[i]) + wide(added[row * width + i]));
        scale_row(here, weight, out + row * width, width, eps);
    }
}

// rows [T, heads + 2 kv_heads, d] in place: q and k are scaled by their norms (if any) and turned.
template <class T>
void place(T* rows, const T* q_norm, const T* k_norm, float eps, const float* cos, const float* sin, long count, long heads, long kv_heads,
           long d, int threads) {
    const long width = (heads + 2 * kv_heads) * d;
#pragma omp parallel for num_threads(threads) if (threads > 1 && count * width > LITTLE)
    for (long row = 0; row < count; row++)
        for (long head = 0; head < heads + kv_heads; head++) {
            T* x = rows + row * width + head * d;
            const T* weight = head < heads ? q_norm : k_norm;
            if (weight) scale_row(x, weight, x, d, eps);
            turn(x, x, cos + row * d, sin + row * d, 1.0f, d);
        }
}

template <class T> void gate(const T* gate_up, T* out, long rows, long inner, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * inner > LITTLE)
    for (long row = 0; row < rows; row++) {
        const T* left = gate_up + row * 2 * inner;
        const T* right = left + inner;
        for (long i = 0; i < inner; i++) {
            const float x = wide(left[i]);
            out[row * inner + i] = narrow<T>(wide(narrow<T>(x / (1.0f + exponential(-x)))) * wide(right[i]));
        }
    }
}

// ---- products with a matrix in panels

constexpr int VECTORS = 3, PANEL = VECTORS * LANES, BLOCK = 8, PART = 192;
constexpr long CACHED = 1 << 18;  // bytes of rows that meet one panel after the other

// The panel that comes next, fetched bit by bit while rows meet the one before: a core that waits for memory does not multiply.
struct Ahead {
    const char *at = nullptr, *end = nullptr;
    int lines = 0;  // per step of two inputs

    void fetch() {
        for (int i = 0; i < lines; i++, at += 64)
            if (at < end) __builtin_prefetch(at, 0, 2);
    }
};

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
void block(const T* x, long x_step, const T* panel, long in, const float* bias, Out* out, long out_step, long outs, Ahead& ahead) {
    Lanes totals[R][VECTORS] = {};
    for (long start = 0; start < in; start += PART) {
        const long count = in - start < PART ? in - start : PART;
        part<R>(x + start, x_step, panel + start * PANEL, count, totals, ahead);
    }
    for (int r = 0; r < R; r++) {
        float row[PANEL];
        std::memcpy(row, totals[r], sizeof row);
        for (long j = 0; j < outs; j++) out[r * out_step + j] = narrow<Out>(bias ? row[j] + bias[j] : row[j]);
    }
}

// All of a panel within so many rows.
template <class T> Ahead coming(const T* next, long in, long rows) {
    const char* start = reinterpret_cast<const char*>(next);
    const long bytes = in * PANEL * long(sizeof(T)), steps = (rows + BLOCK - 1) / BLOCK * in / (sizeof(T) == 2 ? 2 : 1);
    return next ? Ahead{start, start + bytes, int((bytes / 64 + steps - 1) / steps)} : Ahead{};
}

// Some rows of x times the panel of `here` outputs; `next`: the panel behind it, if any.
template <class T, class Out>
void stretch(const T* x, const T* panel, const T* next, const float* bias, Out* out, long rows, long in, long outs, long here) {
    Ahead ahead = coming(next, in, rows);
    for (long row = 0; row < rows; row += BLOCK) {
        const auto run = [&](auto block) { block(x + row * in, in, panel, in, bias, out + row * outs, outs, here, ahead); };
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
    const long count = (outs + PANEL - 1) / PANEL, fitting = CACHED / (in * long(sizeof(T))) / BLOCK * BLOCK;
    const long together = fitting > BLOCK ? fitting : BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1 && outs * in > 8 * LITTLE)
    for (long row = 0; row < rows; row += together) {
        const long some = rows - row < together ? rows - row : together;
#pragma omp for schedule(static) nowait
        for (long index = 0; index < count; index++) {
            const long left = outs - index * PANEL;
            const T *panel = panels + index * PANEL * in, *next = left > PANEL ? panel + PANEL * in : nullptr;
            stretch(x + row * in, panel, next, bias ? bias + index * PANEL : nullptr, out + row * outs + index * PANEL, some,
                    in, outs, left < PANEL ? left : PANEL);
        }
    }
}

// ---- a layer, all of whose products are made here

struct Matrix {
    const void* panels;
    const float* bias;
    int64_t in, outs;

    template <class T> void operator()(const void* x, void* out, long rows, int threads) const {
        product((const T*)x, (const T*)panels, bias, (T*)out, rows, in, outs, threads);
    }
};

}  // namespace

// Weights of one layer; q_norm and k_norm may be none.
struct Layer {
    const void *before, *q_norm, *k_norm, *after;
    Matrix qkv, out, gate_up, down;
};

// Rows on their way through the layers, and the memory that all layers compute in.
struct Pass {
    void *x, *added, *normed, *qkv, *gate_up, *gated;
    const float *cos, *sin;
    int64_t rows, heads, kv_heads, d;
    float eps;
    int32_t threads;
};

namespace {

// x += what the layer before added, if any; queries, keys and values of its norm.
template <class T> void enter(const Layer& layer, const Pass& pass, bool added) {
    const long width = layer.qkv.in;
    add_norm((T*)pass.x, added ? (const T*)pass.added : nullptr, (const T*)layer.before, (T*)pass.normed, pass.rows, width, pass.eps, pass.threads);
    layer.qkv.operator()<T>(pass.normed, pass.qkv, pass.rows, pass.threads);
    place((T*)pass.qkv, (const T*)layer.q_norm, (const T*)layer.k_norm, pass.eps, pass.cos, pass.sin, pass.rows, pass.heads, pass.kv_heads, pass.d,
          pass.threads);
}

// What the layer adds in the end, once x has taken what attention gave.
template <class T> void leave(const Layer& layer, const Pass& pass, const void* attended) {
    layer.out.operator()<T>(attended, pass.added, pass.rows, pass.threads);
    add_norm((T*)pass.x, (const T*)pass.added, (const T*)layer.after, (T*)pass.normed, pass.rows, layer.out.outs, pass.eps, pass.threads);
    layer.gate_up.operator()<T>(pass.normed, pass.gate_up, pass.rows, pass.threads);
    gate((const T*)pass.gate_up, (T*)pass.gated, pass.rows, layer.down.in, pass.threads);
    layer.down.operator()<T>(pass.gated, pass.added, pass.rows, pass.threads);
}

}  // namespace

extern "C" {

int paceline_panel() { return PANEL; }
int paceline_lanes() { return LANES; }
int paceline_threaded() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

void paceline_add_norm(void* x, const void* added, const void* weight, void* out, long rows, long width, float eps, int half, int threads) {
    if (half) add_norm((Half*)x, (const Half*)added, (const Half*)weight, (Half*)out, rows, width, eps, threads);
    else add_norm((float*)x, (const float*)added, (const float*)weight, (float*)out, rows, width, eps, threads);
}

void paceline_place(void* rows, const void* q_norm, const void* k_norm, float eps, const float* cos, const float* sin, long count, long heads,
                    long kv_heads, long d, int half, int threads) {
    if (half) place((Half*)rows, (const Half*)q_norm, (const Half*)k_norm, eps, cos, sin, count, heads, kv_heads, d, threads);
    else place((float*)rows, (const float*)q_norm, (const float*)k_norm, eps, cos, sin, count, heads, kv_heads, d, threads);
}

void paceline_gate(const void* gate_up, void* out, long rows, long inner, int half, int threads) {
    if (half) gate((const Half*)gate_up, (Half*)out, rows, inner, threads);
    else gate((const float*)gate_up, (float*)out, rows, inner, threads);
}

// Whether products of such numbers are better made here than by a library.
int paceline_multiplies(int half) { return half ? HALF_PRODUCTS : FLOAT_PRODUCTS; }

// half: x and the panels; half_out: the result. bias is float32.
void paceline_product(const void* x, const void* panels, const float* bias, void* out, long rows, long in, long outs, int half, int half_out,
                      int threads) {
    if (half && half_out) product((const Half*)x, (const Half*)panels, bias, (Half*)out, rows, in, outs, threads);
    else if (half) product((const Half*)x, (const Half*)panels, bias, (float*)out, rows, in, outs, threads);
    else product((const float*)x, (const float*)panels, bias, (float*)out, rows, in, outs, threads);
}

void paceline_enter(const Layer* layer, const Pass* pass, int added, int half) { (half ? enter<Half> : enter<float>)(*layer, *pass, added); }

void paceline_leave(const Layer* layer, const Pass* pass, const void* attended, int half) {
    (half ? leave<Half> : leave<float>)(*layer, *pass, attended);
}

}  // extern "C"
