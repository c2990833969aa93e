// What a decoding step computes, one call each: RMSNorm with the residual sum, products, rotation, the gate, attention over pages. A row's bits depend on that row alone.
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

// ---- attention over pages

// The sums of LANES vectors, side by side.
#ifdef __AVX512F__
inline __m512 halves(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }

inline __m512 quarters(const Lanes* x) {  // of four vectors: in each 128 bits the sums of these 128 bits
    const __m512d a = _mm512_castps_pd(halves((__m512)x[0], (__m512)x[1])), b = _mm512_castps_pd(halves((__m512)x[2], (__m512)x[3]));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}

inline __m512 across(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

inline void sums(const Lanes (&x)[LANES], float* out) {
    const __m512 low = across(quarters(x), quarters(x + 4)), high = across(quarters(x + 8), quarters(x + 12));
    _mm512_storeu_ps(out, across(low, high));
}
#else
inline void sums(const Lanes (&x)[LANES], float* out) {
    for (int i = 0; i < LANES; i++) {
        float part[LANES];
        std::memcpy(part, &x[i], sizeof part);
        for (int half = LANES / 2; half; half /= 2)
            for (int j = 0; j < half; j++) part[j] += part[j + half];
        out[i] = part[0];
    }
}
#endif

constexpr long LONGEST_PAGE = 64;

// R query heads that share a KV head attend to one page after the other; what they have is rescaled to the largest score so far.
template <int D, int R> struct Queries {
    static constexpr int N = D / LANES;
    Lanes q[R][N], result[R][N], total[R];
    float most[R];

    template <class T> void begin(const T* rows, float scale) {
        for (int r = 0; r < R; r++) {
            float copy[D];
            for (int i = 0; i < D; i++) copy[i] = wide(rows[r * D + i]) * scale;
            std::memcpy(q[r], copy, sizeof copy);
            most[r] = -INFINITY, total[r] = Lanes{};
            for (int j = 0; j < N; j++) result[r][j] = Lanes{};
        }
    }

    void page(const float* keys, const float* values, long tokens) {
        float weights[R][LONGEST_PAGE];
        const long whole = (tokens + LANES - 1) / LANES * LANES;
        for (long start = 0; start < tokens; start += LANES)
            for (int r = 0; r < R; r++) {
                Lanes partial[LANES] = {};
                const long here = tokens - start < LANES ? tokens - start : LANES;
                for (long t = 0; t < here; t++) {
                    const Lanes* key = reinterpret_cast<const Lanes*>(keys + (start + t) * D);
                    for (int j = 0; j < N; j++) partial[t] += q[r][j] * key[j];
                }
                sums(partial, weights[r] + start);
                for (long t = here; t < LANES; t++) weights[r][start + t] = -INFINITY;
            }
        for (int r = 0; r < R; r++) {
            float largest = most[r];
            for (long t = 0; t < whole; t++) largest = weights[r][t] > largest ? weights[r][t] : largest;
            Lanes added = {};
            for (long t = 0; t < whole; t += LANES) {
                for (int i = 0; i < LANES; i++) weights[r][t + i] = exponential(weights[r][t + i] - largest);
                added += *reinterpret_cast<const Lanes*>(weights[r] + t);
            }
            const float shrink = exponential(most[r] - largest);
            total[r] = total[r] * shrink + added;
            most[r] = largest;
            for (int j = 0; j < N; j++) result[r][j] *= shrink;
        }
        Lanes here[R][N];
        std::memcpy(here, result, sizeof here);
        for (long t = 0; t < tokens; t++)
            for (int j = 0; j < N; j++) {
                const Lanes value = reinterpret_cast<const Lanes*>(values + t * D)[j];
                for (int r = 0; r < R; r++) here[r][j] += weights[r][t] * value;
            }
        std::memcpy(result, here, sizeof here);
    }

    template <class T> void end(T* rows) const {
        for (int r = 0; r < R; r++) {
            float copy[D];
            const float whole = ::total(total[r]);
            std::memcpy(copy, result[r], sizeof copy);
            for (int i = 0; i < D; i++) rows[r * D + i] = narrow<T>(copy[i] / whole);
        }
    }
};

}  // namespace

// Memory and rows of one step, the same in every layer. A layer's pages are [pages, kv_heads, size, d] float32.
struct Step {
    float* keys;
    float* values;
    const int64_t* where;   // [rows] place of a row's new token for KV head 0, counted in [pages * kv_heads * size]
    const int64_t* first;   // [rows + 1] where a row's entries begin in the next two
    const int64_t* pages;   // numbers of pages
    const int64_t* tokens;  // how many tokens of a page the row sees, at least 1
    int64_t rows, heads, kv_heads, d, size, layer;
    float scale;
    int32_t threads;
};

namespace {

template <int D, int R, class T> void attend_heads(const Step& step, const float* keys, const float* values, long row, long kv, const T* q, T* out) {
    Queries<D, R> queries;
    queries.begin(q, step.scale);
    for (long entry = step.first[row]; entry < step.first[row + 1]; entry++) {
        const auto at = [&](long entry) { return (step.pages[entry] * step.kv_heads + kv) * step.size * D; };
        const long page = at(entry);
        if (entry + 1 < step.first[row + 1])
            for (long i = 0; i < step.tokens[entry + 1] * D; i += LANES)
                __builtin_prefetch(keys + at(entry + 1) + i), __builtin_prefetch(values + at(entry + 1) + i);
        queries.page(keys + page, values + page, step.tokens[entry]);
    }
    queries.end(out);
}

template <int D, class T> void attend_row(const Step& step, const float* keys, const float* values, long row, long kv, const T* q, T* out) {
    long left = step.heads / step.kv_heads;
    while (left > 0) {
        const long taken = left > 4 ? 4 : left;
        switch (taken) {
            case 1: attend_heads<D, 1>(step, keys, values, row, kv, q, out); break;
            case 2: attend_heads<D, 2>(step, keys, values, row, kv, q, out); break;
            case 3: attend_heads<D, 3>(step, keys, values, row, kv, q, out); break;
            default: attend_heads<D, 4>(step, keys, values, row, kv, q, out);
        }
        left -= taken, q += taken * D, out += taken * D;
    }
}

// q [rows, heads, d], k and v [rows, kv_heads, d] with `q_step` and `k_step` numbers from row to row -> out [rows, heads, d]. All rows
// write before any reads: a token may see one that another row of the same forward brings.
template <int D, class T>
void attend(const Step& step, long layer, const T* q, const T* k, const T* v, T* out, long q_step, long k_step) {
    float* keys = step.keys + layer * step.layer;
    float* values = step.values + layer * step.layer;
    const long repeats = step.heads / step.kv_heads, pairs = step.rows * step.kv_heads;
    const bool several = step.threads > 1 && pairs > 3;
#pragma omp parallel for num_threads(step.threads) if (several)
    for (long pair = 0; pair < pairs; pair++) {
        const long row = pair / step.kv_heads, kv = pair % step.kv_heads, place = (step.where[row] + kv * step.size) * D;
        for (long i = 0; i < D; i++) {
            keys[place + i] = wide(k[row * k_step + kv * D + i]);
            values[place + i] = wide(v[row * k_step + kv * D + i]);
        }
    }
#pragma omp parallel for num_threads(step.threads) if (several)
    for (long pair = 0; pair < pairs; pair++) {
        const long kv = pair / step.rows, row = pair % step.rows, head = kv * repeats * D;
        attend_row<D>(step, keys, values, row, kv, q + row * q_step + head, out + row * step.heads * D + head);
    }
}

template <class T> int attend_any(const Step& step, long layer, const void* q, const void* k, const void* v, void* out, long q_step, long k_step) {
    const auto run = [&](auto attend) { attend(step, layer, (const T*)q, (const T*)k, (const T*)v, (T*)out, q_step, k_step); return 0; };
    switch (step.d) {
        case 16: return run(attend<16, T>);
        case 32: return run(attend<32, T>);
        case 64: return run(attend<64, T>);
        case 80: return run(attend<80, T>);
        case 96: return run(attend<96, T>);
        case 128: return run(attend<128, T>);
        case 256: return run(attend<256, T>);
        default: return 1;
    }
}

}  // namespace

extern "C" {

int paceline_panel() { return PANEL; }
int paceline_longest_page() { return LONGEST_PAGE; }
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

// As `attend`; 1 if it cannot compute heads of this size.
int paceline_attend(const Step* step, long layer, const void* q, const void* k, const void* v, void* out, long q_step, long k_step, int half) {
    return half ? attend_any<Half>(*step, layer, q, k, v, out, q_step, k_step) : attend_any<float>(*step, layer, q, k, v, out, q_step, k_step);
}

}  // extern "C"
