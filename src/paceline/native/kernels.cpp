// What a decoding step computes but for attention: RMSNorm with the residual sum, products, rotation, the gate; each by itself, and as the two halves of a layer. A row's bits depend on that row alone.
//
// Compiled for this machine at first use (native/build.py). No header of torch: tensors arrive as addresses.

#include "products.h"

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

// Whether bfloat16 products are made by tiles, whose sums differ in rounding from those without.
int paceline_tiles() { return tiles_allowed(); }

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
