// What training computes beside its products: backward passes of norm, gate and rotation, log-probs of logits, attention over shared prompts. Results do not depend on the number of threads.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "common.h"

namespace {

constexpr long TOGETHER = 64;  // rows whose share of a weight's gradient is added up before it meets that of others

constexpr long up(long n, long unit) { return (n + unit - 1) / unit * unit; }

// With u = x / sqrt(mean(x^2) + eps) and h = grad * weight: for_x = (h - u mean(h u)) / sqrt(mean(x^2) + eps), for_weight = sum of grad * u.
template <class T>
void norm_backward(const T* x, const T* grad, const T* weight, T* for_x, float* for_weight, float* parts, long rows, long width, float eps,
                   int threads) {
    const long blocks = (rows + TOGETHER - 1) / TOGETHER;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LITTLE)
    for (long block = 0; block < blocks; block++) {
        float* part = parts + block * width;
        for (long i = 0; i < width; i++) part[i] = 0;
        for (long row = block * TOGETHER; row < rows && row < (block + 1) * TOGETHER; row++) {
            const T *here = x + row * width, *given = grad + row * width;
            const float factor = 1.0f / std::sqrt(squares(here, width) / float(width) + eps);
            Lanes sums = {};
            long i = 0;
            for (; i + LANES <= width; i += LANES)
                for (int j = 0; j < LANES; j++) sums[j] += wide(given[i + j]) * wide(weight[i + j]) * wide(here[i + j]);
            for (; i < width; i++) sums[i % LANES] += wide(given[i]) * wide(weight[i]) * wide(here[i]);
            const float share = total(sums) * factor / float(width);
            for (long j = 0; j < width; j++) {
                const float unit = wide(here[j]) * factor, g = wide(given[j]);
                part[j] += g * unit;
                for_x[row * width + j] = narrow<T>((g * wide(weight[j]) - unit * share) * factor);
            }
        }
    }
    for (long i = 0; i < width; i++) for_weight[i] = 0;
    for (long block = 0; block < blocks; block++)
        for (long i = 0; i < width; i++) for_weight[i] += parts[block * width + i];
}

// gate_up [rows, 2 inner], grad [rows, inner] -> out like gate_up. The gate's branch is rounded where the forward pass rounds it.
template <class T> void gate_backward(const T* gate_up, const T* grad, T* out, long rows, long inner, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * inner > LITTLE)
    for (long row = 0; row < rows; row++) {
        const T *left = gate_up + row * 2 * inner, *right = left + inner, *given = grad + row * inner;
        T *for_gate = out + row * 2 * inner, *for_up = for_gate + inner;
        for (long i = 0; i < inner; i++) {
            const float x = wide(left[i]), g = wide(given[i]), share = 1.0f / (1.0f + exponential(-x));
            for_up[i] = narrow<T>(g * wide(narrow<T>(x * share)));
            for_gate[i] = narrow<T>(g * wide(right[i]) * share * (1.0f + x * (1.0f - share)));
        }
    }
}

// x [rows, heads, d], `step` numbers from row to row, turned by cos and sin [rows, d] -> out, without gaps; `sign` -1 turns back.
template <class T>
void turned(const T* x, long step, const float* cos, const float* sin, float sign, T* out, long rows, long heads, long d, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * heads * d > LITTLE)
    for (long row = 0; row < rows; row++)
        for (long head = 0; head < heads; head++)
            turn(x + row * step + head * d, out + (row * heads + head) * d, cos + row * d, sin + row * d, sign, d);
}

// ---- log-probs

constexpr long PIECE = 1024;

// z = logits / temperature [rows, size] -> z[id] - logsumexp(z), and the entropy of softmax(z) if asked for.
void score(const float* logits, const int64_t* ids, float temperature, float* logp, float* entropy, long rows, long size, int threads) {
    const float cold = 1.0f / temperature;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        const float* z = logits + row * size;
        const float most = largest(z, size, -INFINITY);
        double whole = 0, weighted = 0;
        for (long start = 0; start < size; start += PIECE) {  // float32 within a piece, so that 10^5 small shares do not drown
            float below[PIECE], shares[PIECE];
            const long count = std::min(PIECE, size - start);
            for (long t = 0; t < count; t++) {
                const float distance = (z[start + t] - most) * cold;
                below[t] = distance < -100.0f ? -100.0f : distance;  // its share is 0: infinitely many of no share would count as NaN
            }
            for (long t = count; t < up(count, LANES); t++) below[t] = -100.0f;
            for (long t = 0; t < up(count, LANES); t++) shares[t] = exponential(below[t]);
            Lanes mass = {}, moment = {};
            for (long t = 0; t < up(count, LANES); t += LANES) {
                const Lanes here = *reinterpret_cast<Lanes*>(shares + t);
                mass += here, moment += here * *reinterpret_cast<Lanes*>(below + t);
            }
            whole += total(mass), weighted += total(moment);
        }
        const double log = std::log(whole);
        logp[row] = float((z[ids[row]] - most) * cold - log);
        if (entropy) entropy[row] = float(log - weighted / whole);
    }
}

// The gradient of logits [rows, size]: grad (one-hot - softmax(z)) / temperature. log softmax(z) is what a logit lies above that of the id,
// and the id's log-prob: rounded to float32 it is off by less than a logsumexp, which is large where the temperature is low.
template <class T>
void score_backward(const float* logits, const int64_t* ids, const float* logp, const float* grad, float temperature, T* out, long rows,
                    long size, int threads) {
    const float cold = 1.0f / temperature;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        const float *z = logits + row * size, given = grad[row] * cold, own = z[ids[row]], log = logp[row];
        T* to = out + row * size;
        for (long i = 0; i < size; i++) to[i] = narrow<T>(-given * exponential((z[i] - own) * cold + log));
        to[ids[row]] = narrow<T>(-given * std::expm1(log));
    }
}

// ---- attention

constexpr long ROWS = 6, VECTORS = 4, QUERIES = 16, EVEN = 3 * LANES;  // EVEN: a multiple of ROWS and of LANES

// ROWS rows and V vectors of C (+)= A B. A[i][l] lies at a + i a_row + l a_col; rows of B and C at steps.
template <int V>
void tile(const float* a, long a_row, long a_col, const float* b, long b_step, float* c, long c_step, long depth, bool add) {
    Lanes sums[ROWS][V] = {};
    for (long l = 0; l < depth; l++) {
        const Lanes* right = reinterpret_cast<const Lanes*>(b + l * b_step);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < V; j++) sums[i][j] += a[i * a_row + l * a_col] * right[j];
    }
    for (int i = 0; i < ROWS; i++) {
        Lanes* to = reinterpret_cast<Lanes*>(c + i * c_step);
        for (int j = 0; j < V; j++) to[j] = add ? to[j] + sums[i][j] : sums[i][j];
    }
}

// C [m, n] (+)= A [m, depth] B [depth, n]. m is rounded up to ROWS and n to LANES: there must be room, and what lies there is computed too.
void multiply(const float* a, long a_row, long a_col, const float* b, long b_step, float* c, long c_step, long m, long n, long depth, bool add) {
    for (long j = 0; j < n; j += VECTORS * LANES)
        for (long i = 0; i < m; i += ROWS) {
            const auto run = [&](auto tile) { tile(a + i * a_row, a_row, a_col, b + j, b_step, c + i * c_step + j, c_step, depth, add); };
            switch (std::min((n - j + LANES - 1) / LANES, VECTORS)) {
                case 1: run(tile<1>); break;
                case 2: run(tile<2>); break;
                case 3: run(tile<3>); break;
                default: run(tile<VECTORS>);
            }
        }
}

}  // namespace

// Rows of packed blocks: a prefix, causal over itself, and texts behind it, each causal over (prefix, itself).
struct Blocks {
    const int64_t* firsts;  // [blocks + 1] where a block begins in the next two; its first entry is the prefix, possibly of no rows
    const int64_t* starts;  // first row
    const int64_t* sizes;   // number of rows
    int64_t blocks, heads, kv_heads, d;
    int64_t q_step, k_step, v_step, grad_step;  // numbers from row to row
    float scale;
    int32_t threads, longest;  // most keys that a row sees
};

namespace {

// One KV head of one block: its keys and values, and the memory that its rows are computed in.
template <class T> struct Head {
    const Blocks& of;
    const long d, group, keys, rows;
    std::unique_ptr<float, decltype(&std::free)> memory;
    float *keys_across, *values, *queries, *weights, *out;                                  // forward
    float *keys_along, *values_across, *given, *shares, *for_keys, *for_values;  // backward

    Head(const Blocks& blocks, bool backward)
        : of(blocks), d(blocks.d), group(blocks.heads / blocks.kv_heads), keys(up(blocks.longest, EVEN)), rows(up(QUERIES * group, ROWS)),
          memory(nullptr, std::free) {
        const long key = keys * d, query = rows * d, score = rows * keys;
        const long parts[] = {key, key, query, score, query, backward * key, backward * key, backward * query, backward * score, backward * key,
                              backward * key};
        float** places[] = {&keys_across, &values, &queries, &weights, &out, &keys_along, &values_across, &given, &shares, &for_keys, &for_values};
        long all = 0;
        for (long part : parts) all += up(part, LANES);
        memory.reset(static_cast<float*>(std::aligned_alloc(64, all * sizeof(float))));
        if (!memory) throw std::bad_alloc();  // the end of the process, with a word
        std::memset(memory.get(), 0, all * sizeof(float));
        float* next = memory.get();
        for (int i = 0; i < 11; i++) *places[i] = next, next += up(parts[i], LANES);
    }

    // Keys and values of some rows, as numbers `at` and later.
    void take(const T* k, const T* v, long kv, long start, long size, long at, bool backward) {
        for (long t = 0; t < size; t++) {
            const T *key = k + (start + t) * of.k_step + kv * d, *value = v + (start + t) * of.v_step + kv * d;
            for (long i = 0; i < d; i++) {
                keys_across[i * keys + at + t] = wide(key[i]);
                values[(at + t) * d + i] = wide(value[i]);
            }
            if (backward)
                for (long i = 0; i < d; i++) {
                    keys_along[(at + t) * d + i] = wide(key[i]);
                    values_across[i * keys + at + t] = wide(value[i]);
                }
        }
    }

    // Rows of a text, as many as go together, of all query heads of this KV head: x [R, heads, d] -> [rows x group, d].
    void gather(const T* x, long step, long kv, long row, long count, float factor, float* to) const {
        for (long r = 0; r < count; r++)
            for (long i = 0; i < group * d; i++) to[r * group * d + i] = wide(x[(row + r) * step + kv * group * d + i]) * factor;
    }

    void scatter(const float* from, long step, long kv, long row, long count, float factor, T* x) const {
        for (long r = 0; r < count; r++)
            for (long i = 0; i < group * d; i++) x[(row + r) * step + kv * group * d + i] = narrow<T>(from[r * group * d + i] * factor);
    }

    // Softmax of `count` rows, the first of which sees `seen` keys and every other one more; 0 behind them. Where the sum is not asked for,
    // the weights are divided by it.
    void soften(long count, long seen, long width, float* sums) {
        for (long r = 0; r < count * group; r++) {
            float* w = weights + r * keys;
            const long visible = seen + r / group;
            for (long t = visible; t < width; t++) w[t] = -INFINITY;
            const float most = largest(w, up(visible, LANES), -INFINITY);
            Lanes added = {};
            for (long t = 0; t < width; t += LANES) {
                for (int i = 0; i < LANES; i++) w[t + i] = exponential(w[t + i] - most);
                added += *reinterpret_cast<Lanes*>(w + t);
            }
            if (sums) sums[r] = total(added);
            else {
                const float factor = 1.0f / total(added);
                for (long t = 0; t < width; t++) w[t] *= factor;
            }
        }
    }
};

template <class T> void attend_head(const Blocks& of, long block, long kv, const T* q, const T* k, const T* v, T* out) {
    Head<T> head(of, false);
    const long d = head.d, group = head.group, first = of.firsts[block], prefix = of.sizes[first];
    std::unique_ptr<float[]> sums(new float[head.rows]);
    head.take(k, v, kv, of.starts[first], prefix, 0, false);
    for (long text = first; text < of.firsts[block + 1]; text++) {
        const long before = text == first ? 0 : prefix;
        if (text > first) head.take(k, v, kv, of.starts[text], of.sizes[text], before, false);
        for (long row = 0; row < of.sizes[text]; row += QUERIES) {
            const long count = std::min<long>(QUERIES, of.sizes[text] - row), m = count * group, start = of.starts[text] + row;
            const long seen = before + row + 1, width = up(seen + count - 1, LANES);
            head.gather(q, of.q_step, kv, start, count, of.scale, head.queries);
            multiply(head.queries, d, 1, head.keys_across, head.keys, head.weights, head.keys, m, width, d, false);
            head.soften(count, seen, width, sums.get());
            multiply(head.weights, head.keys, 1, head.values, d, head.out, d, m, d, seen + count - 1, false);
            for (long r = 0; r < m; r++)
                for (long i = 0; i < d; i++) head.out[r * d + i] /= sums[r];
            head.scatter(head.out, of.heads * d, kv, start, count, 1.0f, out);
        }
    }
}

template <class T>
void attend_head_backward(const Blocks& of, long block, long kv, const T* q, const T* k, const T* v, const T* grad, T* for_q, T* for_k, T* for_v) {
    Head<T> head(of, true);
    const long d = head.d, group = head.group, keys = head.keys, first = of.firsts[block], prefix = of.sizes[first], last = of.firsts[block + 1];
    head.take(k, v, kv, of.starts[first], prefix, 0, true);
    const auto finish = [&](long text, long at) {
        for (long t = 0; t < of.sizes[text]; t++)
            for (long i = 0; i < d; i++) {
                const long place = ((of.starts[text] + t) * of.kv_heads + kv) * d + i;
                for_k[place] = narrow<T>(head.for_keys[(at + t) * d + i]);
                for_v[place] = narrow<T>(head.for_values[(at + t) * d + i]);
            }
    };
    for (long text = last - 1; text >= first; text--) {  // the prefix, to which all others send something, comes last
        const long before = text == first ? 0 : prefix, own = head.keys - before;
        if (text > first) {
            head.take(k, v, kv, of.starts[text], of.sizes[text], before, true);
            for (float* sums : {head.for_keys, head.for_values}) std::memset(sums + before * d, 0, own * d * sizeof(float));
        }
        for (long row = 0; row < of.sizes[text]; row += QUERIES) {
            const long count = std::min<long>(QUERIES, of.sizes[text] - row), m = count * group, start = of.starts[text] + row;
            const long seen = before + row + 1, depth = seen + count - 1, width = up(depth, EVEN);
            head.gather(q, of.q_step, kv, start, count, of.scale, head.queries);
            head.gather(grad, of.grad_step, kv, start, count, 1.0f, head.given);
            multiply(head.queries, d, 1, head.keys_across, keys, head.weights, keys, m, width, d, false);
            head.soften(count, seen, width, nullptr);
            multiply(head.weights, 1, keys, head.given, d, head.for_values, d, depth, d, m, true);
            multiply(head.given, d, 1, head.values_across, keys, head.shares, keys, m, width, d, false);
            for (long r = 0; r < m; r++) {
                float *share = head.shares + r * keys, *weight = head.weights + r * keys;
                Lanes sums = {};
                for (long t = 0; t < width; t += LANES) sums += *reinterpret_cast<Lanes*>(weight + t) * *reinterpret_cast<Lanes*>(share + t);
                const float mean = total(sums);
                for (long t = 0; t < width; t++) share[t] = weight[t] * (share[t] - mean);
            }
            multiply(head.shares, 1, keys, head.queries, d, head.for_keys, d, depth, d, m, true);
            multiply(head.shares, keys, 1, head.keys_along, d, head.out, d, m, d, depth, false);
            head.scatter(head.out, of.heads * d, kv, start, count, of.scale, for_q);
        }
        if (text > first) finish(text, before);
    }
    finish(first, 0);
}

template <class Run> void every(const Blocks& of, Run run) {
    const long count = of.blocks * of.kv_heads;
#pragma omp parallel for num_threads(of.threads) schedule(dynamic) if (of.threads > 1)
    for (long item = 0; item < count; item++) run(item / of.kv_heads, item % of.kv_heads);
}

template <class T> void attend_texts(const Blocks& of, const void* q, const void* k, const void* v, void* out) {
    every(of, [&](long block, long kv) { attend_head(of, block, kv, (const T*)q, (const T*)k, (const T*)v, (T*)out); });
}

template <class T>
void attend_texts_backward(const Blocks& of, const void* q, const void* k, const void* v, const void* grad, void* for_q, void* for_k, void* for_v) {
    every(of, [&](long block, long kv) {
        attend_head_backward(of, block, kv, (const T*)q, (const T*)k, (const T*)v, (const T*)grad, (T*)for_q, (T*)for_k, (T*)for_v);
    });
}

}  // namespace

extern "C" {

int paceline_together() { return TOGETHER; }

void paceline_norm_backward(const void* x, const void* grad, const void* weight, void* for_x, float* for_weight, float* parts, long rows,
                            long width, float eps, int half, int threads) {
    if (half) norm_backward((const Half*)x, (const Half*)grad, (const Half*)weight, (Half*)for_x, for_weight, parts, rows, width, eps, threads);
    else norm_backward((const float*)x, (const float*)grad, (const float*)weight, (float*)for_x, for_weight, parts, rows, width, eps, threads);
}

void paceline_gate_backward(const void* gate_up, const void* grad, void* out, long rows, long inner, int half, int threads) {
    if (half) gate_backward((const Half*)gate_up, (const Half*)grad, (Half*)out, rows, inner, threads);
    else gate_backward((const float*)gate_up, (const float*)grad, (float*)out, rows, inner, threads);
}

void paceline_turned(const void* x, long step, const float* cos, const float* sin, int back, void* out, long rows, long heads, long d, int half,
                     int threads) {
    const float sign = back ? -1.0f : 1.0f;
    if (half) turned((const Half*)x, step, cos, sin, sign, (Half*)out, rows, heads, d, threads);
    else turned((const float*)x, step, cos, sin, sign, (float*)out, rows, heads, d, threads);
}

void paceline_score(const float* logits, const int64_t* ids, float temperature, float* logp, float* entropy, long rows, long size, int threads) {
    score(logits, ids, temperature, logp, entropy, rows, size, threads);
}

void paceline_score_backward(const float* logits, const int64_t* ids, const float* logp, const float* grad, float temperature, void* out,
                             long rows, long size, int half, int threads) {
    if (half) score_backward(logits, ids, logp, grad, temperature, (Half*)out, rows, size, threads);
    else score_backward(logits, ids, logp, grad, temperature, (float*)out, rows, size, threads);
}

void paceline_attend_texts(const Blocks* of, const void* q, const void* k, const void* v, void* out, int half) {
    (half ? attend_texts<Half> : attend_texts<float>)(*of, q, k, v, out);
}

void paceline_attend_texts_backward(const Blocks* of, const void* q, const void* k, const void* v, const void* grad, void* for_q, void* for_k,
                                    void* for_v, int half) {
    (half ? attend_texts_backward<Half> : attend_texts_backward<float>)(*of, q, k, v, grad, for_q, for_k, for_v);
}

}  // extern "C"
