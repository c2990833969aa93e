// Numbers as the kernels see them. A bfloat16 number is an unsigned short; all sums are float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

using Half = uint16_t;

inline float bits(uint32_t word) {
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

inline float wide(float x) { return x; }
inline float wide(Half x) { return bits(uint32_t(x) << 16); }

template <class T> T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline Half narrow<Half>(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16, quiet = (word >> 16) | 0x40u;
    return Half((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// e^x to about one unit in the last place (Cephes' expf: two-part reduction by ln 2, polynomial of degree 5), without branches. Below
// -87 it is 0, above 88 infinite; NaN stays NaN.
inline float exponential(float given) {
    float x = given > -87.0f ? given : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const float n = (x * 1.44269504f + shift) - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float power = (p * r * r + r + 1.0f) * bits(uint32_t(int32_t(n) + 127) << 23);
    return given < -87.0f ? 0.0f : given > 88.0f ? INFINITY : given == given ? power : given;
}

constexpr int LANES = 16;
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// LANES numbers, as float32.
inline Lanes lanes(const float* x) { return *reinterpret_cast<const Lanes*>(x); }
inline Lanes lanes(const Half* x) {
#ifdef __AVX512F__
    return (Lanes)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
#else
    float copy[LANES];
    for (int i = 0; i < LANES; i++) copy[i] = wide(x[i]);
    Lanes out;
    std::memcpy(&out, copy, sizeof out);
    return out;
#endif
}

constexpr long LITTLE = 16384;  // numbers: less than this is not worth a second thread

template <class T> float squares(const T* x, long width) {
    float sums[LANES] = {};
    long i = 0;
    for (; i + LANES <= width; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] += wide(x[i + j]) * wide(x[i + j]);
    for (; i < width; i++) sums[i % LANES] += wide(x[i]) * wide(x[i]);
    float total = 0;
    for (float one : sums) total += one;
    return total;
}

// The largest of x and `least`, NaN left out; lane by lane, since comparing one after the other would wait for each.
inline float largest(const float* x, long size, float least) {
    float most[LANES];
    for (float& one : most) one = least;
    long i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int j = 0; j < LANES; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (; i < size; i++) most[0] = x[i] > most[0] ? x[i] : most[0];
    for (float one : most) least = one > least ? one : least;
    return least;
}

inline float total(const Lanes& lanes) {
    float parts[LANES], sum = 0;
    std::memcpy(parts, &lanes, sizeof parts);
    for (float part : parts) sum += part;
    return sum;
}

// One head of d numbers, turned by cos and sin [d] to `to`, which may be where it lies; `sign` -1 turns back.
template <class T> void turn(const T* from, T* to, const float* cos, const float* sin, float sign, long d) {
    for (long i = 0; i < d / 2; i++) {
        const float low = wide(from[i]), high = wide(from[i + d / 2]);
        to[i] = narrow<T>(low * cos[i] + high * (sign * sin[i]));
        to[i + d / 2] = narrow<T>(high * cos[i + d / 2] + low * (sign * sin[i + d / 2]));
    }
}

}  // namespace
