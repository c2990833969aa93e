// Attention over the engine's pages: each row reads those that it sees, one after the other. A row's bits depend on that row alone.

#include "common.h"

namespace {

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

// A query head of D numbers, and the product of its numbers with those of a key, before they are added up.
template <class T, int D> struct Query {
    Lanes parts[D / LANES];

    void take(const T* from) {
        for (int j = 0; j < D / LANES; j++) parts[j] = lanes(from + j * LANES);
    }

    Lanes operator()(const T* key) const {
        Lanes sum = {};
        for (int j = 0; j < D / LANES; j++) sum += parts[j] * lanes(key + j * LANES);
        return sum;
    }
};

#ifdef __AVX512BF16__
template <int D> struct Query<Half, D> {
    static constexpr int VECTORS = (D + 2 * LANES - 1) / (2 * LANES);
    __m512bh parts[VECTORS];

    static __m512bh pairs(const Half* x, int j) {  // D may end in the middle of a vector
        return (__m512bh)_mm512_maskz_loadu_epi16(D - 2 * LANES * j < 2 * LANES ? 0xffffu : 0xffffffffu, x + 2 * LANES * j);
    }

    void take(const Half* from) {
        for (int j = 0; j < VECTORS; j++) parts[j] = pairs(from, j);
    }

    Lanes operator()(const Half* key) const {
        __m512 sum = _mm512_setzero_ps();
        for (int j = 0; j < VECTORS; j++) sum = _mm512_dpbf16_ps(sum, parts[j], pairs(key, j));
        return (Lanes)sum;
    }
};
#endif

constexpr long LONGEST_PAGE = 64;

// R query heads that share a KV head attend to one page after the other; what they have is rescaled to the largest score so far.
template <class T, int D, int R> struct Queries {
    static constexpr int N = D / LANES;
    Query<T, D> q[R];
    Lanes result[R][N], total[R];
    float most[R], scale;

    void begin(const T* rows, float scale) {
        this->scale = scale;
        for (int r = 0; r < R; r++) {
            q[r].take(rows + r * D);
            most[r] = -INFINITY, total[r] = Lanes{};
            for (int j = 0; j < N; j++) result[r][j] = Lanes{};
        }
    }

    // Scores of LANES keys, of which `here` are there; the others get none.
    static void scores(const Query<T, D>& query, const T* keys, long here, float scale, float* out) {
        Lanes partial[LANES];
        if (here >= LANES)
            for (int t = 0; t < LANES; t++) partial[t] = query(keys + t * D);  // all of them in registers
        else
            for (int t = 0; t < LANES; t++) partial[t] = t < here ? query(keys + t * D) : Lanes{};
        sums(partial, out);
        for (int t = 0; t < LANES; t++) out[t] = t < here ? out[t] * scale : -INFINITY;
    }

    void page(const T* keys, const T* values, long tokens) {
        float weights[R][LONGEST_PAGE];
        const long whole = (tokens + LANES - 1) / LANES * LANES;
        for (long start = 0; start < tokens; start += LANES)
            for (int r = 0; r < R; r++) scores(q[r], keys + start * D, tokens - start, scale, weights[r] + start);
        for (int r = 0; r < R; r++) {
            const float highest = largest(weights[r], whole, most[r]);
            Lanes added = {};
            for (long t = 0; t < whole; t += LANES) {
                for (int i = 0; i < LANES; i++) weights[r][t + i] = exponential(weights[r][t + i] - highest);
                added += *reinterpret_cast<const Lanes*>(weights[r] + t);
            }
            const float shrink = exponential(most[r] - highest);
            total[r] = total[r] * shrink + added;
            most[r] = highest;
            for (int j = 0; j < N; j++) result[r][j] *= shrink;
        }
        Lanes here[R][N];
        std::memcpy(here, result, sizeof here);
        for (long t = 0; t < tokens; t++)
            for (int j = 0; j < N; j++) {
                const Lanes value = lanes(values + t * D + j * LANES);
                for (int r = 0; r < R; r++) here[r][j] += weights[r][t] * value;
            }
        std::memcpy(result, here, sizeof here);
    }

    void end(T* rows) const {
        for (int r = 0; r < R; r++) {
            float copy[D];
            const float whole = ::total(total[r]);
            std::memcpy(copy, result[r], sizeof copy);
            for (int i = 0; i < D; i++) rows[r * D + i] = narrow<T>(copy[i] / whole);
        }
    }
};

}  // namespace

// Memory and rows of one step, the same in every layer. A layer's pages are [pages, kv_heads, size, d], in the dtype of q, k and v.
struct Step {
    void* keys;
    void* values;
    const int64_t* where;   // [rows] place of a row's new token for KV head 0, counted in [pages * kv_heads * size]
    const int64_t* first;   // [rows + 1] where a row's entries begin in the next two
    const int64_t* pages;   // numbers of pages
    const int64_t* tokens;  // how many tokens of a page the row sees, at least 1
    int64_t rows, heads, kv_heads, d, size, layer;
    float scale;
    int32_t threads;
};

namespace {

template <int D, int R, class T> void attend_heads(const Step& step, const T* keys, const T* values, long row, long kv, const T* q, T* out) {
    Queries<T, D, R> queries;
    queries.begin(q, step.scale);
    for (long entry = step.first[row]; entry < step.first[row + 1]; entry++) {
        const auto at = [&](long entry) { return (step.pages[entry] * step.kv_heads + kv) * step.size * D; };
        const long page = at(entry);
        if (entry + 1 < step.first[row + 1])
            for (long i = 0; i < step.tokens[entry + 1] * D; i += 64 / long(sizeof(T)))
                __builtin_prefetch(keys + at(entry + 1) + i), __builtin_prefetch(values + at(entry + 1) + i);
        queries.page(keys + page, values + page, step.tokens[entry]);
    }
    queries.end(out);
}

template <int D, class T> void attend_row(const Step& step, const T* keys, const T* values, long row, long kv, const T* q, T* out) {
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
    T *keys = (T*)step.keys + layer * step.layer, *values = (T*)step.values + layer * step.layer;
    const long repeats = step.heads / step.kv_heads, pairs = step.rows * step.kv_heads;
    const bool several = step.threads > 1 && pairs > 3;
#pragma omp parallel for num_threads(step.threads) if (several)
    for (long pair = 0; pair < pairs; pair++) {
        const long row = pair / step.kv_heads, kv = pair % step.kv_heads, place = (step.where[row] + kv * step.size) * D;
        std::memcpy(keys + place, k + row * k_step + kv * D, D * sizeof(T));
        std::memcpy(values + place, v + row * k_step + kv * D, D * sizeof(T));
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

int paceline_longest_page() { return LONGEST_PAGE; }

// As `attend`; 1 if it cannot compute heads of this size.
int paceline_attend(const Step* step, long layer, const void* q, const void* k, const void* v, void* out, long q_step, long k_step, int half) {
    return half ? attend_any<Half>(*step, layer, q, k, v, out, q_step, k_step) : attend_any<float>(*step, layer, q, k, v, out, q_step, k_step);
}

}  // extern "C"
