/* How Python describes a chain of layers, and the vector types of the kernels. */
#ifndef HEADWISE_CHAIN_H
#define HEADWISE_CHAIN_H

#include <stdint.h>

enum { CONVOLUTION, LINEAR, MAXIMUM, AVERAGE };

/* One layer with the ReLU after it, and for a convolution the max-pooling after it. Must match `NativeLayer` in
   layers.py. */
typedef struct {
    int32_t kind, relu, trained, pooled;
    int32_t c, h, w;                     /* input */
    int32_t oc, oh, ow;                  /* output, before pooling */
    int32_t kh, kw, sh, sw, ph, pw;      /* window, stride, padding of the convolution, or of pooling alone */
    int32_t mh, mw, msh, msw, mph, mpw;  /* the same for the max-pooling after a convolution */
    int32_t qh, qw;                      /* output after it */
    int32_t inside;                      /* an average only counts pixels inside the image */
    float *weight, *bias;
    int64_t strides[4];                  /* of a convolution's weight: out, in, row, column */
    /* laid out as weight and bias, or NULL: each step's gradient gets pull (w - anchor) + shift */
    float *anchor, *bias_anchor, *shift, *bias_shift;
    float *slope, *bias_slope;           /* where `backward` writes gradients, laid out in the same way */
} Layer;

/* Must match `NativeRates` in optimizer.py. */
typedef struct {
    float lr, momentum, decay, clip; /* clip: the maximum norm of a step's gradient; 0: any */
    float pull;                      /* towards the layers' anchors */
    float beta1, beta2, eps;         /* of Adam */
    int32_t adam;                    /* 0: SGD; 1: Adam; 2: AdamW, where decay is not part of the gradient */
} Rates;

enum { SOFTMAX, SIGMOID, IDENTITY };

/* What each sample's outputs should be: classes, or targets with weights. The gradient of a sample's loss is
   weight (link(output) - target). Must match `NativeGoal` in chain.py. */
typedef struct {
    int32_t link, wide;             /* wide: weights per sample, one or one per output */
    const int64_t *classes;         /* [sample], or NULL */
    const float *targets, *weights; /* [sample][output], [sample][wide] */
} Goal;

/* One client's phase of training. Must match `NativePhase` in chain.py. */
typedef struct {
    const Layer *layers;
    const Rates *rates;
    const Goal *goal;
    const float *x;
    const int64_t *batches; /* [step][size]: the indices of each batch, padded with -1 */
    int64_t samples, steps;
    int32_t count, size; /* layers; samples of a batch, at most */
    int64_t bad;         /* after training: the first sample that does not exist or has an invalid class, else -1 */
} Phase;

/* The vector width of this build, in floats. Bits never depend on it: lanes are different results, never parts of one
   sum. */
#if defined(HEADWISE_AVX512)
#include <immintrin.h>
#define W 16
#elif defined(HEADWISE_AVX2)
#include <immintrin.h>
#define W 8
#elif defined(HEADWISE_NEON)
#include <arm_neon.h>
#define W 4
#else
#define W 1
#endif

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t N __attribute__((vector_size(4 * W)));
typedef float AnyV __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t AnyI __attribute__((vector_size(4 * W), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if W > 1
#define UNROLL _Pragma("GCC unroll 32")
#else
#define UNROLL
#endif

INLINE V load(const float *p) { return *(const AnyV *)p; }
INLINE void store(float *p, V v) { *(AnyV *)p = v; }

#if defined(HEADWISE_AVX512)
INLINE V splat(float f) { return (V)_mm512_set1_ps(f); }
INLINE V fma_(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE V root(V a) { return (V)_mm512_sqrt_ps((__m512)a); }
#elif defined(HEADWISE_AVX2)
INLINE V splat(float f) { return (V)_mm256_set1_ps(f); }
INLINE V fma_(V a, V b, V c) { return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE V root(V a) { return (V)_mm256_sqrt_ps((__m256)a); }
#elif defined(HEADWISE_NEON)
INLINE V splat(float f) { return (V)vdupq_n_f32(f); }
INLINE V fma_(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE V root(V a) { return (V)vsqrtq_f32((float32x4_t)a); }
#else
INLINE V splat(float f) { return (V){f}; }
INLINE V fma_(V a, V b, V c) { return (V){__builtin_fmaf(a[0], b[0], c[0])}; }
INLINE V root(V a) { return (V){__builtin_sqrtf(a[0])}; }
#endif

/* a where the mask is set, else b */
INLINE V select_(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }

/* max(v, 0), and NaN stays NaN */
INLINE V rectified(V v) { return select_(v <= splat(0), splat(0), v); }

#endif
