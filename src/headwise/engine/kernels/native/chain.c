/* Plain SGD and predictions for networks that are chains of simple layers, in memory that the caller provides.

   Compiled once per instruction set; all builds give the same bits. Each result is summed with fused multiply-add,
   starting from the bias or zero, in an order that depends only on the layers' shapes: vectors and blocks divide the
   results among themselves, never the terms of a sum. After ReLU and max-pooling most gradients are zero; the others
   ("live") are listed first, and only they are multiplied.

   Images are stored channels-last. A convolution's input includes its padding, so that a window's row is one
   contiguous run of floats. */
#include "chain.h"

#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define UNIT 16  /* runs of weights are padded to a multiple of this many floats */
#define UNITS 6  /* maximum units held in registers */
#define TILE 6   /* maximum rows of a product held in registers */
#define PANEL (2 * W)
#define NEAR 16384 /* bytes of weights that fit in the L1 cache */
#define OUTPUTS 32 /* outputs of a linear layer updated together */
#define LAYERS 64
#define SLACK 64 /* floats after every array: vectors may read and write a little beyond its end */

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define UP(n, by) (((n) + (by) - 1) / (by) * (by))

typedef struct {
    int32_t at;
    float g;
} Live; /* a nonzero gradient, and the index of what it multiplies */

typedef struct {
    int32_t at, first, count;
} Group; /* the live gradients of one position */

typedef struct {
    int32_t row, rows, column, units;
    int64_t offset;
} Chunk; /* a part of a convolution's window: `rows` times `units` fit in registers */

/* A layer and its input. One more stage follows the last layer: its input is the output. */
typedef struct {
    const Layer *l;
    float *image, *image_slope; /* [sample][row][column][channel], with padding */
    int64_t row, size, edge;    /* floats to the next row, to the next image, to the first pixel inside the padding */
    float *flat, *turned, *slope; /* [sample][width]; by panels of samples: [feature][sample]; as flat */
    int64_t width;
    float *w, *g, *v, *forward, *b, *bg, *bv; /* weights, gradients, velocities; weights by panels of outputs */
    float *anchor, *shift, *ba, *bs;          /* of weights and biases, or NULL */
    float *u, *bu;                            /* Adam's means of squares; those of gradients are v and bv */
    int64_t weights, outputs;
    Chunk *chunks;
    int chunk_count, owned;
    int32_t *at, *chosen; /* where each position's window begins; which pixel of its window each maximum was */
    float *scores;        /* one image after a convolution, before pooling */
    float *live;          /* gradients of one cell */
    Live *by_output, *by_place;
    int32_t *counts;
    Group *groups;
} Stage;

typedef struct {
    char *base;
    size_t used;
} Arena;

static void *take(Arena *a, size_t bytes) {
    void *p = a->base ? a->base + a->used : NULL;
    a->used += UP(bytes, 64);
#ifdef __SANITIZE_ADDRESS__ /* the gaps between arrays must not be touched; those of the phase before are others */
    if (a->base) __asan_unpoison_memory_region(p, UP(bytes, 64)), __asan_poison_memory_region(a->base + a->used, 64);
    a->used += 64;
#endif
    return p;
}

static float *floats(Arena *a, size_t count) {
    float *p = take(a, 4 * (count + SLACK));
    if (p) memset(p, 0, 4 * (count + SLACK));
    return p;
}

/* The size of the next block, so that all blocks are about equally large. */
static int share(int left, int most) {
    const int blocks = (left + most - 1) / most;
    return (left + blocks - 1) / blocks;
}

/* ---- the two inner loops ---- */

/* to[r][:] = bias + sum over k of from[r][k] w[k][:], or continues that sum without a bias; k covers `rows` runs. */
INLINE void tile(const int R, const int C, const float *const *from, int64_t row, int rows, int run, const float *w,
                 const float *bias, float *to, int64_t stride) {
    V sum[TILE][2];
    const float *p[TILE];
    UNROLL for (int r = 0; r < R; r++) {
        p[r] = from[r];
        UNROLL for (int c = 0; c < C; c++) sum[r][c] = load(bias ? bias + c * W : to + r * stride + c * W);
    }
    for (int y = 0; y < rows; y++) {
        for (int k = 0; k < run; k++, w += C * W) {
            V b[2];
            UNROLL for (int c = 0; c < C; c++) b[c] = load(w + c * W);
            UNROLL for (int r = 0; r < R; r++) {
                const V a = splat(p[r][k]);
                UNROLL for (int c = 0; c < C; c++) sum[r][c] = fma_(a, b[c], sum[r][c]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) p[r] += row;
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) store(to + r * stride + c * W, sum[r][c]);
    }
}

static void product(int R, int C, const float *const *from, int64_t row, int rows, int run, const float *w,
                    const float *bias, float *to, int64_t stride) {
    switch (R * 2 + C - 1) {
#define CASE(r)                                                                \
    case 2 * r: tile(r, 1, from, row, rows, run, w, bias, to, stride); break; \
    case 2 * r + 1: tile(r, 2, from, row, rows, run, w, bias, to, stride); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
    }
}

typedef struct {
    float rate, pull;
    const float *anchor, *shift; /* or NULL */
} Step;

/* The sum over the live gradients of g from[at] is added to `to` (ADD), or replaces it (SET), or is what a step follows
   (STEP): to += rate (sum + pull (to - anchor) + shift). R rows of U units. */
typedef enum { ADD, SET, STEP } Use;

INLINE void collect(const int R, const int U, const Use use, float *to, int64_t to_row, const float *from,
                    int64_t stride, int64_t row, const Live *live, int count, Step step) {
    V sum[UNITS * UNIT / W];
    const int each = U * UNIT / W;
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int u = 0; u < each; u++) sum[r * each + u] = use == ADD ? load(to + r * to_row + u * W) : splat(0);
    }
    for (int i = 0; i < count; i++) {
        const float *p = from + live[i].at * stride;
        const V g = splat(live[i].g);
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int u = 0; u < each; u++)
                sum[r * each + u] = fma_(g, load(p + r * row + u * W), sum[r * each + u]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int u = 0; u < each; u++) {
            float *t = to + r * to_row + u * W;
            V slope = sum[r * each + u];
            if (use == STEP && step.anchor) slope = fma_(splat(step.pull), load(t) - load(step.anchor + u * W), slope);
            if (use == STEP && step.shift) slope = slope + load(step.shift + u * W);
            store(t, use == STEP ? fma_(splat(step.rate), slope, load(t)) : slope);
        }
    }
}

static void gather(int R, int U, float *to, int64_t to_row, const float *from, int64_t stride, int64_t row,
                   const Live *live, int count) {
    switch (R * 8 + U) {
#define CASE(r, u) \
    case 8 * r + u: collect(r, u, ADD, to, to_row, from, stride, row, live, count, (Step){0}); break;
        CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1)
        CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(1, 3) CASE(2, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6)
#undef CASE
    }
}

static void set_to(int U, float *to, const float *from, int64_t stride, const Live *live, int count) {
    switch (U) {
#define CASE(u) \
    case u: collect(1, u, SET, to, 0, from, stride, 0, live, count, (Step){0}); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
    }
}

static void step_by(int U, float *to, const float *from, int64_t stride, const Live *live, int count, Step step) {
    switch (U) {
#define CASE(u) \
    case u: collect(1, u, STEP, to, 0, from, stride, 0, live, count, step); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
    }
}

/* g <- g + pull (w - anchor) + shift */
static void add_terms(float *g, const float *w, const float *anchor, const float *shift, int64_t count, float pull) {
    for (int64_t k = 0; k < count; k += W) {
        V slope = load(g + k);
        if (anchor) slope = fma_(splat(pull), load(w + k) - load(anchor + k), slope);
        if (shift) slope = slope + load(shift + k);
        store(g + k, slope);
    }
}

/* w <- w - lr v, where v <- momentum v + (shrink gradient + decay w) */
static void descend(float *w, float *g, float *v, int64_t count, const Rates *rates, float shrink) {
    for (int64_t k = 0; k < count; k += W) {
        V slope = load(g + k) * splat(shrink);
        const V before = load(w + k);
        if (rates->decay != 0) slope = fma_(splat(rates->decay), before, slope);
        if (rates->momentum != 0) store(v + k, slope = fma_(splat(rates->momentum), load(v + k), slope));
        store(w + k, fma_(splat(-rates->lr), slope, before));
    }
}

/* The running means of Adam are divided by these, as they begin at zero. */
typedef struct {
    double first, second; /* powers of beta1 and beta2 */
} Powers;

/* w <- w - lr v' / (sqrt(u') + eps), where v and u are the running means of the gradient and of its square */
static void adapt(float *w, float *g, float *v, float *u, int64_t count, const Rates *rates, float shrink, Powers p) {
    const V rate = splat((float)(-rates->lr / (1 - p.first))), spread = splat((float)__builtin_sqrt(1 - p.second));
    const V keep = splat(1 - rates->lr * rates->decay), one = splat(1 - rates->beta1), two = splat(1 - rates->beta2);
    for (int64_t k = 0; k < count; k += W) {
        V slope = load(g + k) * splat(shrink), before = load(w + k);
        if (rates->decay != 0 && rates->adam == 1) slope = fma_(splat(rates->decay), before, slope);
        if (rates->decay != 0 && rates->adam == 2) before = before * keep;
        const V mean = fma_(one, slope - load(v + k), load(v + k));
        const V square = fma_(two, slope * slope, splat(rates->beta2) * load(u + k));
        store(v + k, mean);
        store(u + k, square);
        store(w + k, fma_(rate, mean / (root(square) / spread + splat(rates->eps)), before));
    }
}

/* ---- memory ---- */

static int is_image(const Layer *l) { return l->kind != LINEAR; }

static int cells(const Layer *l) { return l->pooled ? l->qh * l->qw : l->oh * l->ow; }

static void divide(Stage *s) {
    const Layer *l = s->l;
    const int units = UP(l->kw * l->c, UNIT) / UNIT;
    Chunk *next = s->chunks;
    int64_t offset = 0;
    for (int y = 0; y < l->kh;) {
        const int rows = units <= UNITS ? share(l->kh - y, UNITS / units) : 1;
        for (int u = 0; u < units;) {
            const int some = share(units - u, UNITS);
            *next++ = (Chunk){y, rows, u * UNIT, some, offset};
            offset += (int64_t)l->oc * rows * some * UNIT;
            u += some;
        }
        y += rows;
    }
    s->chunk_count = (int)(next - s->chunks);
    for (int y = 0; y < l->oh; y++)
        for (int x = 0; x < l->ow; x++) s->at[y * l->ow + x] = (int32_t)(y * l->sh * s->row + x * l->sw * l->c);
}

/* A chunk's weights are stored output by output, and for the forward pass by panels of outputs. */
typedef enum { READ, WRITE, TURN } What;

/* Copies one run of a window's row between `w` and the caller's array, which may have any strides. */
static void copy_run(const Layer *l, What what, float *w, float *own, int first, int some) {
    if (l->strides[1] == 1 && l->strides[3] == l->c) { /* channels last: the run is contiguous there, too */
        memcpy(what == READ ? w : own + first, what == READ ? own + first : w, 4 * (size_t)some);
        return;
    }
    for (int x = 0, column = first / l->c, c = first % l->c; x < some; column++, c = 0)
        for (; c < l->c && x < some; c++, x++) {
            float *p = own + c * l->strides[1] + column * l->strides[3];
            if (what == READ)
                w[x] = *p;
            else
                *p = w[x];
        }
}

/* Copies a convolution's weights, or what is laid out like them, between `chunks` and the caller's array. */
static void each_weight(Stage *s, What what, float *chunks, float *array) {
    const Layer *l = s->l;
    const int run = l->kw * l->c;
    for (int i = 0; i < s->chunk_count; i++) {
        const Chunk c = s->chunks[i];
        const int some = MIN(run - c.column, c.units * UNIT);
        for (int o = 0; o < l->oc; o++) {
            const int panel = o / PANEL * PANEL, wide = MIN(PANEL, (int)UP(l->oc - panel, W));
            for (int r = 0; r < c.rows; r++) {
                float *w = chunks + c.offset + ((int64_t)o * c.rows + r) * c.units * UNIT;
                const int64_t k = (int64_t)(c.row + r) * run + c.column;
                float *turned = s->forward + (int64_t)panel * l->kh * run + k * wide + o - panel;
                if (what == TURN)
                    for (int x = 0; x < some; x++) turned[x * wide] = w[x];
                else
                    copy_run(l, what, w, array + o * l->strides[0] + (c.row + r) * l->strides[2], c.column, some);
            }
        }
    }
}

static void lay_out_input(Stage *s, Arena *a, int rows, int image, int flat, int learning) {
    const Layer *l = s->l;
    if (image) {
        const int padded = l->kind == CONVOLUTION, ph = padded ? l->ph : 0, pw = padded ? l->pw : 0;
        s->row = (int64_t)(l->w + 2 * pw) * l->c;
        s->size = (l->h + 2 * ph) * s->row;
        s->edge = ph * s->row + pw * l->c;
        s->image = floats(a, rows * s->size);
        if (learning) s->image_slope = floats(a, rows * s->size);
    }
    if (flat) {
        const int features = l->c * l->h * l->w;
        s->width = UP(features, UNIT);
        s->flat = floats(a, rows * s->width);
        s->turned = floats(a, (size_t)UP(rows, PANEL) * features);
        if (learning) s->slope = floats(a, rows * s->width);
    }
}

static void lay_out_convolution(Stage *s, Arena *a, int rows, int learning) {
    const Layer *l = s->l;
    (void)rows;
    const int64_t places = l->oh * l->ow, run = UP(l->kw * l->c, UNIT);
    s->weights = l->oc * l->kh * run;
    s->chunks = take(a, sizeof(Chunk) * l->kh * (run / UNIT));
    s->at = take(a, 4 * places);
    s->w = floats(a, s->weights);
    s->forward = floats(a, (size_t)s->outputs * l->kh * l->kw * l->c);
    s->scores = floats(a, places * s->outputs);
    if (learning) {
        s->live = floats(a, s->outputs);
        s->counts = take(a, 4 * s->outputs);
        s->by_output = take(a, sizeof(Live) * l->oc * cells(l));
        s->by_place = take(a, sizeof(Live) * l->oc * cells(l));
        s->groups = take(a, sizeof(Group) * cells(l) * (l->pooled ? MIN(l->mh * l->mw, l->oc) : 1));
    }
    if (a->base) {
        divide(s);
        each_weight(s, READ, s->w, l->weight);
        each_weight(s, TURN, s->w, l->weight);
    }
}

/* The same for a linear layer, whose rows are padded. */
static void each_row(Stage *s, What what, float *rows, float *array) {
    const int64_t features = (int64_t)s->l->c * s->l->h * s->l->w;
    for (int o = 0; o < s->l->oc; o++)
        if (what == READ)
            memcpy(rows + o * s->width, array + o * features, 4 * features);
        else
            memcpy(array + o * features, rows + o * s->width, 4 * features);
}

static void lay_out_linear(Stage *s, Arena *a, int rows, int learning) {
    const Layer *l = s->l;
    const int64_t features = l->c * l->h * l->w;
    s->weights = l->oc * s->width;
    s->owned = features != s->width; /* otherwise the weights are used in place */
    s->w = s->owned ? floats(a, s->weights) : l->weight;
    if (learning) {
        const int64_t blocks = (l->oc + OUTPUTS - 1) / OUTPUTS;
        s->counts = take(a, 4 * (l->oc + rows * (blocks + 1)));
        s->by_output = take(a, sizeof(Live) * l->oc * rows);
        s->by_place = take(a, sizeof(Live) * l->oc * rows);
    }
    if (a->base && s->owned) each_row(s, READ, s->w, l->weight);
}

/* ---- forward ---- */

static void convolve(const Stage *s, const float *x, float *z) {
    const Layer *l = s->l;
    const int run = l->kw * l->c, places = l->oh * l->ow;
    for (int o = 0; o < l->oc; o += PANEL) {
        const int wide = MIN(PANEL, (int)UP(l->oc - o, W)), near = NEAR / (4 * run * wide) + 1;
        const float *w = s->forward + (int64_t)o * l->kh * run;
        for (int y = 0; y < l->kh; y += near) {
            const int rows = MIN(near, l->kh - y);
            for (int i = 0; i < places;) {
                const int some = share(places - i, TILE);
                const float *from[TILE];
                for (int r = 0; r < some; r++) from[r] = x + s->at[i + r] + y * s->row;
                product(some, wide / W, from, s->row, rows, run, w + (int64_t)y * run * wide, y ? NULL : s->b + o,
                        z + (int64_t)i * s->outputs + o, s->outputs);
                i += some;
            }
        }
    }
}

/* Stores at most `left` lanes: the channels that are left. */
INLINE void put(float *to, V v, int left) {
    if (left >= W)
        store(to, v);
    else
        for (int c = 0; c < left; c++) to[c] = v[c];
}

typedef struct {
    int h, w, kh, kw, sh, sw, ph, pw, oh, ow, c;
} Window;

static Window window(const Layer *l) {
    if (l->kind != CONVOLUTION)
        return (Window){l->h, l->w, l->kh, l->kw, l->sh, l->sw, l->ph, l->pw, l->oh, l->ow, l->c};
    if (!l->pooled) return (Window){l->oh, l->ow, 1, 1, 1, 1, 0, 0, l->oh, l->ow, l->oc};
    return (Window){l->oh, l->ow, l->mh, l->mw, l->msh, l->msw, l->mph, l->mpw, l->qh, l->qw, l->oc};
}

/* The maximum of each window and its index; the first of equal values, but NaN wins. */
static void maximum(const Stage *s, const float *z, int64_t row, int64_t pixel, int32_t *chosen, float *to,
                    int64_t to_row) {
    const Window a = window(s->l);
    for (int y = 0; y < a.oh; y++)
        for (int x = 0; x < a.ow; x++) {
            const int y0 = y * a.sh - a.ph, x0 = x * a.sw - a.pw, top = y0 < 0 ? -y0 : 0, left = x0 < 0 ? -x0 : 0;
            const int bottom = MIN(a.kh, a.h - y0), right = MIN(a.kw, a.w - x0);
            int32_t *which = chosen ? chosen + (int64_t)(y * a.ow + x) * s->outputs : NULL;
            for (int c = 0; c < a.c; c += W) {
                const float *from = z + y0 * row + x0 * pixel + c;
                V best = load(from + top * row + left * pixel);
                I at = (I){} + (top * a.kw + left);
                for (int j = top; j < bottom; j++)
                    for (int k = left; k < right; k++) {
                        const V v = load(from + j * row + k * pixel);
                        const I better = (v > best) | (v != v);
                        best = select_(better, v, best);
                        at = (better & (j * a.kw + k)) | (~better & at);
                    }
                put(to + y * to_row + (int64_t)x * a.c + c, s->l->relu ? rectified(best) : best, a.c - c);
                if (which) *(AnyI *)(which + c) = at;
            }
        }
}

/* The number of pixels that an average is over. */
static int over(const Layer *l, int y, int x) {
    const int y0 = y * l->sh - l->ph, x0 = x * l->sw - l->pw;
    if (!l->inside) return l->kh * l->kw;
    return (MIN(y0 + l->kh, l->h) - (y0 < 0 ? 0 : y0)) * (MIN(x0 + l->kw, l->w) - (x0 < 0 ? 0 : x0));
}

static void average(const Stage *s, const float *image, float *to, int64_t to_row) {
    const Layer *l = s->l;
    for (int y = 0; y < l->oh; y++)
        for (int x = 0; x < l->ow; x++)
            for (int c = 0; c < l->c; c++) {
                float sum = 0;
                for (int j = y * l->sh - l->ph; j < y * l->sh - l->ph + l->kh; j++)
                    for (int k = x * l->sw - l->pw; k < x * l->sw - l->pw + l->kw; k++)
                        if (j >= 0 && j < l->h && k >= 0 && k < l->w) sum += image[j * s->row + k * l->c + c];
                sum /= over(l, y, x);
                to[y * to_row + x * l->c + c] = l->relu && sum <= 0 ? 0 : sum;
            }
}

/* Converts between channels-last images and channels-first vectors. */
static void flatten(const Stage *s, int n, int back) {
    const Layer *l = s->l;
    for (int i = 0; i < n; i++)
        for (int y = 0; y < l->h; y++)
            for (int x = 0; x < l->w; x++) {
                const int64_t pixel = i * s->size + s->edge + y * s->row + x * l->c, plane = l->h * l->w;
                const int64_t at = i * s->width + y * l->w + x;
                if (back)
                    for (int c = 0; c < l->c; c++) s->image_slope[pixel + c] = s->slope[at + c * plane];
                else
                    for (int c = 0; c < l->c; c++) s->flat[at + c * plane] = s->image[pixel + c];
            }
}

/* Transposes samples by panels; the last panel may be half as wide. */
static int wide_at(int n, int first) { return n - first > W ? PANEL : W; }

static void turn(const Stage *s, int n) {
    const int features = s->l->c * s->l->h * s->l->w;
    for (int i = 0; i < n; i += PANEL) {
        const int wide = wide_at(n, i), some = MIN(wide, n - i);
        float *to = s->turned + (int64_t)i * features;
        for (int r = 0; r < some; r++)
            for (int k = 0; k < features; k++) to[(int64_t)k * wide + r] = s->flat[(i + r) * s->width + k];
    }
}

static void turn_back(const Stage *s, int n, float *to, int64_t width) {
    const int features = s->l->c * s->l->h * s->l->w;
    for (int i = 0; i < n; i += PANEL) {
        const int wide = wide_at(n, i), some = MIN(wide, n - i);
        const float *from = s->turned + (int64_t)i * features;
        for (int r = 0; r < some; r++)
            for (int k = 0; k < features; k++) to[(i + r) * width + k] = from[(int64_t)k * wide + r];
    }
}

static void linear(const Stage *s, const Stage *next, int n) {
    const Layer *l = s->l;
    const int features = l->c * l->h * l->w;
    for (int o = 0; o < l->oc;) {
        const int some = share(l->oc - o, TILE);
        const float *from[TILE];
        for (int r = 0; r < some; r++) from[r] = s->w + (o + r) * s->width;
        for (int i = 0; i < n; i += PANEL) {
            const int wide = wide_at(n, i);
            float *to = next->turned + (int64_t)i * l->oc + o * wide;
            for (int r = 0; r < some; r++)
                for (int c = 0; c < wide; c += W) store(to + r * wide + c, splat(s->b[o + r]));
            product(some, wide / W, from, 0, 1, features, s->turned + (int64_t)i * features, NULL, to, wide);
            if (l->relu)
                for (int k = 0; k < some * wide; k += W) store(to + k, rectified(load(to + k)));
        }
        o += some;
    }
}

/* Each layer's forward pass: from its stage's input to that of the next stage, for n samples. */

static void linear_forward(Stage *s, Stage *next, int n, int first, int learning) {
    if (s->image) flatten(s, n, 0);
    if (first || s->image) turn(s, n);
    linear(s, next, n);
    if (learning) turn_back(next, n, next->flat, next->width);
}

static int32_t *choices(const Stage *s, int k) {
    return s->chosen ? s->chosen + (int64_t)k * cells(s->l) * s->outputs : NULL;
}

static void convolution_forward(Stage *s, Stage *next, int n, int first, int learning) {
    (void)first, (void)learning;
    for (int k = 0; k < n; k++) {
        convolve(s, s->image + k * s->size, s->scores);
        maximum(s, s->scores, s->outputs * s->l->ow, s->outputs, choices(s, k),
                next->image + k * next->size + next->edge, next->row);
    }
}

static void maximum_forward(Stage *s, Stage *next, int n, int first, int learning) {
    (void)first, (void)learning;
    for (int k = 0; k < n; k++)
        maximum(s, s->image + k * s->size, s->row, s->l->c, choices(s, k), next->image + k * next->size + next->edge,
                next->row);
}

static void average_forward(Stage *s, Stage *next, int n, int first, int learning) {
    (void)first, (void)learning;
    for (int k = 0; k < n; k++)
        average(s, s->image + k * s->size, next->image + k * next->size + next->edge, next->row);
}

static void take_sample(const Stage *s, const float *x, int i) {
    const Layer *l = s->l;
    if (l->kind == LINEAR) {
        memcpy(s->flat + i * s->width, x, 4 * (size_t)l->c * l->h * l->w);
        return;
    }
    float *to = s->image + i * s->size + s->edge;
    for (int y = 0; y < l->h; y++) memcpy(to + y * s->row, x + (int64_t)y * l->w * l->c, 4 * (size_t)l->w * l->c);
}

/* ---- backward ---- */

/* e^x for x <= 0, to one unit in the last place; zero below -86 */
static V power(V x) {
    const I tiny = x < splat(-86);
    const V magic = splat(12582912); /* 1.5 * 2^23: adding it rounds to an integer */
    x = select_(tiny, splat(-86), x);
    const V t = fma_(x, splat(1.44269504f), magic), whole = t - magic;
    V r = fma_(whole, splat(-0.693145752f), x), p = splat(1.f / 5040);
    r = fma_(whole, splat(-1.42860677e-6f), r);
    p = fma_(p, r, splat(1.f / 720));
    p = fma_(p, r, splat(1.f / 120));
    p = fma_(p, r, splat(1.f / 24));
    p = fma_(p, r, splat(1.f / 6));
    p = fma_(p, r, splat(1.f / 2));
    p = fma_(p, r, splat(1));
    p = fma_(p, r, splat(1));
    return (V)(((I)((N)p + ((N)t << 23))) & ~tiny);
}

/* Softmax over the outputs of a vector of samples, which are `wide` floats apart. */
static void softmax(float *z, int outputs, int wide) {
    V most = load(z), sum = splat(0);
    for (int k = 1; k < outputs; k++) most = select_(load(z + k * wide) > most, load(z + k * wide), most);
    for (int k = 0; k < outputs; k++) {
        const V e = power(load(z + k * wide) - most);
        store(z + k * wide, e);
        sum = sum + e;
    }
    for (int k = 0; k < outputs; k++) store(z + k * wide, load(z + k * wide) / sum);
}

static V sigmoid(V x) {
    const I up = x > splat(0);
    const V e = power(select_(up, -x, x));
    return select_(up, splat(1), e) / (splat(1) + e);
}

/* The gradient of the mean loss by the outputs of n samples, whose indices are `picked`. */
static void slope_of(Stage *s, const Goal *goal, const int64_t *picked, int n) {
    const int outputs = s->l->c;
    const float part = 1.f / (float)n;
    for (int i = 0; goal->link != IDENTITY && i < n; i += PANEL) {
        const int wide = wide_at(n, i);
        for (int c = 0; c < wide; c += W) {
            float *z = s->turned + (int64_t)i * outputs + c;
            if (goal->link == SOFTMAX) softmax(z, outputs, wide);
            for (int k = 0; goal->link == SIGMOID && k < outputs; k++) store(z + k * wide, sigmoid(load(z + k * wide)));
        }
    }
    turn_back(s, n, s->slope, s->width);
    for (int i = 0; i < n; i++) {
        float *g = s->slope + i * s->width;
        if (goal->classes) {
            g[goal->classes[picked[i]]] -= 1;
            for (int k = 0; k < outputs; k++) g[k] *= part;
            continue;
        }
        const float *target = goal->targets + picked[i] * outputs, *weight = goal->weights + picked[i] * goal->wide;
        for (int k = 0; k < outputs; k++) g[k] = (g[k] - target[k]) * (weight[goal->wide > 1 ? k : 0] * part);
    }
}

static int alive(float g) {
    uint32_t bits;
    memcpy(&bits, &g, 4);
    return bits << 1 != 0;
}

/* Lists the live gradients of a convolution's image, by output channel and by position. */
static int list(Stage *s, const Stage *next, int k, int places) {
    const Layer *l = s->l;
    const Window a = window(l);
    const int pixels = a.kh * a.kw;
    int groups = 0, listed = 0;
    float *g = s->live;
    int32_t at[pixels], first[pixels + 1];
    for (int j = 0; j < pixels; j++) at[j] = (int32_t)(j / a.kw * l->sh * s->row + j % a.kw * l->sw * l->c);
    memset(s->counts, 0, 4 * l->oc);
    for (int cell = 0; cell < a.oh * a.ow; cell++) {
        const int y = cell / a.ow, x = cell % a.ow;
        const int64_t pixel = k * next->size + next->edge + y * next->row + (int64_t)x * l->oc;
        const int32_t *chosen = s->chosen ? s->chosen + ((int64_t)k * a.oh * a.ow + cell) * s->outputs : NULL;
        const int base = (int)((y * a.sh - a.ph) * l->sh * s->row + (x * a.sw - a.pw) * l->sw * l->c);
        for (int c = 0; c < l->oc; c += W) {
            V slope = load(next->image_slope + pixel + c);
            if (l->relu) slope = select_(load(next->image + pixel + c) <= splat(0), splat(0), slope);
            store(g + c, slope);
            if (s->bg) store(s->bg + c, load(s->bg + c) + slope);
        }
        if (l->trained)
            for (int c = 0; c < l->oc; c++) {
                s->by_output[c * a.oh * a.ow + s->counts[c]] = (Live){base + at[chosen ? chosen[c] : 0], g[c]};
                s->counts[c] += alive(g[c]);
            }
        if (!places) continue;
        memset(first, 0, 4 * (pixels + 1));
        for (int c = 0; c < l->oc; c++) first[(chosen ? chosen[c] : 0) + 1] += alive(g[c]);
        first[0] = listed;
        for (int j = 0; j < pixels; j++) {
            if (first[j + 1]) s->groups[groups++] = (Group){base + at[j], first[j], first[j + 1]};
            first[j + 1] += first[j];
        }
        listed = first[pixels];
        for (int c = 0; c < l->oc; c++)
            if (alive(g[c])) s->by_place[first[chosen ? chosen[c] : 0]++] = (Live){c, g[c]};
    }
    return groups;
}

static void convolution_back(Stage *s, const Stage *next, int n, int needed, const Rates *rates) {
    const Layer *l = s->l;
    (void)rates;
    if (l->trained) memset(s->g, 0, 4 * s->weights), memset(s->bg, 0, 4 * s->outputs);
    for (int k = 0; k < n; k++) {
        const float *image = s->image + k * s->size;
        float *below = s->image_slope + k * s->size;
        const int groups = list(s, next, k, needed);
        if (needed) memset(below, 0, 4 * s->size);
        for (int i = 0; i < s->chunk_count; i++) {
            const Chunk c = s->chunks[i];
            const int64_t wide = c.units * UNIT, each = c.rows * wide, corner = c.row * s->row + c.column;
            for (int o = 0; l->trained && o < l->oc; o++)
                gather(c.rows, c.units, s->g + c.offset + o * each, wide, image + corner, 1, s->row,
                       s->by_output + o * cells(l), s->counts[o]);
            for (int p = 0; needed && p < groups; p++)
                gather(c.rows, c.units, below + s->groups[p].at + corner, s->row, s->w + c.offset, each, wide,
                       s->by_place + s->groups[p].first, s->groups[p].count);
        }
    }
    if (!l->trained) return;
    const int run = l->kw * l->c, rest = UP(run, UNIT) - run;
    for (int i = 0; rest && i < s->chunk_count; i++) { /* the padding of a run is not a weight */
        const Chunk c = s->chunks[i];
        if (c.column + c.units * UNIT < run) continue;
        for (int r = 0; r < l->oc * c.rows; r++)
            memset(s->g + c.offset + (int64_t)(r + 1) * c.units * UNIT - rest, 0, 4 * rest);
    }
}

/* Lists the live gradients of a linear layer, by output and by sample; the latter with marks between blocks. */
static void linear_lists(Stage *s, const Stage *next, int n, int needed) {
    const Layer *l = s->l;
    const int64_t wide = next->width;
    int32_t *marks = s->counts + l->oc;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < l->oc; o += W) {
            V slope = load(next->slope + i * wide + o);
            if (l->relu) slope = select_(load(next->flat + i * wide + o) <= splat(0), splat(0), slope);
            store(next->slope + i * wide + o, slope);
            if (s->bg) store(s->bg + o, load(s->bg + o) + slope);
        }
    for (int o = 0; l->trained && o < l->oc; o++) {
        Live *to = s->by_output + (int64_t)o * n;
        int found = 0;
        for (int i = 0; i < n; i++) {
            to[found] = (Live){i, next->slope[i * wide + o]};
            found += alive(to[found].g);
        }
        s->counts[o] = found;
    }
    for (int i = 0; needed && i < n; i++) {
        Live *to = s->by_place + (int64_t)i * l->oc;
        int found = 0;
        for (int b = 0; b < l->oc; b += OUTPUTS) {
            *marks++ = found;
            for (int o = b; o < MIN(l->oc, b + OUTPUTS); o++) {
                to[found] = (Live){o, next->slope[i * wide + o]};
                found += alive(to[found].g);
            }
        }
        *marks++ = found;
    }
}

static void linear_back(Stage *s, const Stage *next, int n, int needed, const Rates *rates) {
    const Layer *l = s->l;
    const int blocks = (l->oc + OUTPUTS - 1) / OUTPUTS, units = (int)(s->width / UNIT);
    const int32_t *starts = s->counts + l->oc;
    if (s->bg) memset(s->bg, 0, 4 * s->outputs);
    if (needed) memset(s->slope, 0, 4 * n * s->width);
    linear_lists(s, next, n, needed);
    for (int b = 0; b < blocks; b++)
        for (int u = 0; u < units;) {
            const int some = share(units - u, UNITS);
            for (int i = 0; needed && i < n; i++) {
                const int32_t *at = starts + i * (blocks + 1) + b;
                gather(1, some, s->slope + i * s->width + u * UNIT, 0, s->w + u * UNIT, s->width, 0,
                       s->by_place + (int64_t)i * l->oc + at[0], at[1] - at[0]);
            }
            for (int o = b * OUTPUTS; l->trained && o < MIN(l->oc, (b + 1) * OUTPUTS); o++) {
                const int64_t at = o * s->width + u * UNIT;
                const Live *live = s->by_output + (int64_t)o * n;
                if (s->g)
                    set_to(some, s->g + at, s->flat + u * UNIT, s->width, live, s->counts[o]);
                else
                    step_by(some, s->w + at, s->flat + u * UNIT, s->width, live, s->counts[o],
                            (Step){-rates->lr, rates->pull, s->anchor ? s->anchor + at : NULL,
                                   s->shift ? s->shift + at : NULL});
            }
            u += some;
        }
    if (needed && s->image) flatten(s, n, 1);
}

static void pool_back(Stage *s, const Stage *next, int n, int needed, const Rates *rates) {
    const Layer *l = s->l;
    (void)needed, (void)rates;
    memset(s->image_slope, 0, 4 * n * s->size);
    for (int64_t cell = 0; cell < (int64_t)n * l->oh * l->ow; cell++) {
        const int64_t k = cell / (l->oh * l->ow);
        const int y = (int)(cell / l->ow % l->oh), x = (int)(cell % l->ow), y0 = y * l->sh - l->ph, x0 = x * l->sw - l->pw;
        const int64_t pixel = k * next->size + next->edge + y * next->row + (int64_t)x * l->c;
        float *below = s->image_slope + k * s->size;
        for (int c = 0; c < l->c; c++) {
            float g = next->image_slope[pixel + c];
            if (l->relu && next->image[pixel + c] <= 0) g = 0;
            if (l->kind == MAXIMUM) {
                const int j = s->chosen[cell * s->outputs + c];
                below[(y0 + j / l->kw) * s->row + (x0 + j % l->kw) * l->c + c] += g;
            } else {
                const float part = g / over(l, y, x);
                for (int j = y0 < 0 ? 0 : y0; j < MIN(y0 + l->kh, l->h); j++)
                    for (int i = x0 < 0 ? 0 : x0; i < MIN(x0 + l->kw, l->w); i++) below[j * s->row + i * l->c + c] += part;
            }
        }
    }
}

/* ---- the kinds of layers ---- */

/* `lay_out` is NULL for layers without weights; `backward` also takes the step where no gradient is stored. */
static const struct {
    void (*lay_out)(Stage *, Arena *, int rows, int learning);
    void (*forward)(Stage *, Stage *next, int n, int first, int learning);
    void (*backward)(Stage *, const Stage *next, int n, int needed, const Rates *);
} KINDS[] = {
    [CONVOLUTION] = {lay_out_convolution, convolution_forward, convolution_back},
    [LINEAR] = {lay_out_linear, linear_forward, linear_back},
    [MAXIMUM] = {NULL, maximum_forward, pool_back},
    [AVERAGE] = {NULL, average_forward, pool_back},
};

/* An array of the caller's that is laid out like the weights, as the kernels store those; NULL if there is none. */
static float *like_weights(Stage *s, Arena *a, float *array) {
    if (!array || (s->l->kind == LINEAR && !s->owned)) return array;
    float *p = floats(a, s->weights);
    if (p && s->l->kind == LINEAR) each_row(s, READ, p, array);
    if (p && s->l->kind == CONVOLUTION) each_weight(s, READ, p, array);
    return p;
}

static float *like_biases(Stage *s, Arena *a, const float *array) {
    float *p = array ? floats(a, s->outputs) : NULL;
    if (p) memcpy(p, array, 4 * s->l->oc);
    return p;
}

/* What a trained layer's steps need. */
static void lay_out_steps(Stage *s, Arena *a, const Rates *rates) {
    const Layer *l = s->l;
    s->bg = floats(a, s->outputs);
    if (l->slope && l->kind == LINEAR && !s->owned)
        s->g = l->slope;
    else if (l->slope || l->kind == CONVOLUTION || rates->momentum != 0 || rates->decay != 0 || rates->clip != 0 ||
             rates->adam)
        s->g = floats(a, s->weights);
    if (rates->adam) s->u = floats(a, s->weights), s->bu = floats(a, s->outputs);
    if (rates->momentum != 0 || rates->adam) s->v = floats(a, s->weights), s->bv = floats(a, s->outputs);
    s->anchor = like_weights(s, a, l->anchor), s->shift = like_weights(s, a, l->shift);
    s->ba = like_biases(s, a, l->bias_anchor), s->bs = like_biases(s, a, l->bias_shift);
}

/* Lays out all memory of a chain; if `a->base` is NULL, only computes its size. */
static void lay_out(Stage *s, const Layer *layers, int count, int rows, const Rates *rates, Layer *end, Arena *a) {
    const Layer *last = layers + count - 1;
    *end = (Layer){.kind = last->kind == LINEAR ? LINEAR : MAXIMUM, .c = last->oc, .h = 1, .w = 1};
    if (is_image(last)) end->h = last->pooled ? last->qh : last->oh, end->w = last->pooled ? last->qw : last->ow;
    memset(s, 0, sizeof(Stage) * (count + 1));
    for (int i = 0; i <= count; i++) {
        const Layer *l = s[i].l = i < count ? layers + i : end;
        const int learning = rates != NULL, image = i ? is_image(layers + i - 1) : is_image(l);
        lay_out_input(s + i, a, rows, image, l->kind == LINEAR, learning);
        if (i == count) break;
        s[i].outputs = UP(l->oc, UNIT);
        if (l->kind == MAXIMUM || l->pooled) s[i].chosen = take(a, 4 * (rows * cells(l) * s[i].outputs + SLACK));
        if (!KINDS[l->kind].lay_out) continue;
        s[i].b = floats(a, s[i].outputs);
        KINDS[l->kind].lay_out(s + i, a, rows, learning);
        if (a->base && l->bias) memcpy(s[i].b, l->bias, 4 * l->oc);
        if (learning && l->trained) lay_out_steps(s + i, a, rates);
    }
}

/* The first stage's input is set; each stage computes the next one's. */
static void pass(Stage *s, int count, int n, int learning) {
    for (int i = 0; i < count; i++) KINDS[s[i].l->kind].forward(s + i, s + i + 1, n, !i, learning && i + 1 < count);
}

static void pass_back(Stage *s, int count, int first, int n, const Rates *rates) {
    for (int i = count - 1; i >= first; i--) KINDS[s[i].l->kind].backward(s + i, s + i + 1, n, i > first, rates);
}

/* ---- steps ---- */

/* Adds squares to `UNIT` sums, whatever the vector width: one order for all builds. */
static void add_squares(double *sums, const float *g, int64_t count) {
    for (; count >= UNIT; g += UNIT, count -= UNIT)
        for (int j = 0; j < UNIT; j++) sums[j] += (double)g[j] * (double)g[j];
    for (int j = 0; j < count; j++) sums[j] += (double)g[j] * (double)g[j];
}

/* By how much the gradients are scaled down so that their joint norm is at most `clip`. */
static float shrink_to(float clip, const Stage *s, int count) {
    double sums[UNIT] = {0}, sum = 0;
    for (int i = 0; i < count; i++) {
        if (s[i].g) add_squares(sums, s[i].g, s[i].weights);
        if (s[i].bg && s[i].l->bias) add_squares(sums, s[i].bg, s[i].l->oc);
    }
    for (int j = 0; j < UNIT; j++) sum += sums[j];
    const float shrink = (float)(clip / (__builtin_sqrt(sum) + 1e-6));
    return shrink > 1 ? 1 : shrink;
}

/* The steps that `linear_back` has not taken yet. */
static void step(Stage *s, int count, const Rates *rates, Powers powers) {
    for (Stage *t = s; t < s + count; t++) {
        if (t->g && (t->anchor || t->shift)) add_terms(t->g, t->w, t->anchor, t->shift, t->weights, rates->pull);
        if (t->ba || t->bs) add_terms(t->bg, t->b, t->ba, t->bs, t->outputs, rates->pull);
    }
    const float shrink = rates->clip != 0 ? shrink_to(rates->clip, s, count) : 1;
    for (int i = 0; i < count; i++, s++) {
        if (s->g && rates->adam)
            adapt(s->w, s->g, s->v, s->u, s->weights, rates, shrink, powers);
        else if (s->g)
            descend(s->w, s->g, s->v, s->weights, rates, shrink);
        if (s->bg && s->l->bias && rates->adam)
            adapt(s->b, s->bg, s->bv, s->bu, s->outputs, rates, shrink, powers);
        else if (s->bg && s->l->bias)
            descend(s->b, s->bg, s->bv, s->outputs, rates, shrink);
        if (s->g && s->l->kind == CONVOLUTION) each_weight(s, TURN, s->w, NULL);
    }
}

/* ---- what Python calls ---- */

#define JOINED(a, b) a##_##b
#define NAMED(a, b) JOINED(a, b)
#define EXPORT(name) __attribute__((visibility("default"))) NAMED(name, HEADWISE_BUILD)

/* The bytes of memory that `train` needs, or `predict` if `rates` is NULL. */
int64_t EXPORT(headwise_bytes)(const Layer *layers, int32_t count, int32_t rows, const Rates *rates) {
    Stage s[LAYERS + 1];
    Layer end;
    Arena a = {NULL, 0};
    if (count < 1 || count > LAYERS) return -1;
    lay_out(s, layers, count, rows, rates, &end, &a);
    take(&a, 8 * rows); /* the indices of a batch */
    return (int64_t)a.used;
}

/* The first sample of the phase that does not exist or has an invalid class, else -1. */
static int64_t first_bad(const Phase *p) {
    const int64_t *y = p->goal->classes;
    const int32_t classes = p->layers[p->count - 1].oc;
    for (int64_t i = 0; i < p->steps * p->size; i++) {
        const int64_t at = p->batches[i];
        if (at >= p->samples || (y && at >= 0 && (y[at] < 0 || y[at] >= classes))) return at;
    }
    return -1;
}

static void take_steps(const Phase *p, char *memory) {
    Stage s[LAYERS + 1];
    Layer end;
    Arena a = {memory, 0};
    int first = 0;
    const Layer *layers = p->layers;
    const int64_t each = (int64_t)layers[0].c * layers[0].h * layers[0].w, *batch = p->batches;
    lay_out(s, layers, p->count, p->size, p->rates, &end, &a);
    int64_t *picked = take(&a, 8 * p->size);
    Powers powers = {1, 1};
    while (!layers[first].trained) first++;
    for (int64_t t = 0; t < p->steps; t++, batch += p->size) {
        int n = 0;
        for (int i = 0; i < p->size; i++)
            if (batch[i] >= 0) {
                take_sample(s, p->x + batch[i] * each, n);
                picked[n++] = batch[i];
            }
        if (!n) continue;
        pass(s, p->count, n, 1);
        slope_of(s + p->count, p->goal, picked, n);
        pass_back(s, p->count, first, n, p->rates);
        powers.first *= p->rates->beta1, powers.second *= p->rates->beta2;
        step(s, p->count, p->rates, powers);
    }
    for (int i = 0; i < p->count; i++) {
        const Layer *l = layers + i;
        if (!l->trained) continue;
        if (l->kind == CONVOLUTION) each_weight(s + i, WRITE, s[i].w, l->weight);
        if (s[i].owned) each_row(s + i, WRITE, s[i].w, l->weight);
        if (l->bias) memcpy(l->bias, s[i].b, 4 * l->oc);
    }
}

/* Takes all steps of each phase, one phase after the other in the same memory; a phase with a bad sample takes none. */
void EXPORT(headwise_train)(Phase *phases, int64_t clients, char *memory) {
    for (Phase *p = phases; p < phases + clients; p++)
        if ((p->bad = first_bad(p)) < 0) take_steps(p, memory);
}

/* The chain's output for n samples, [n][outputs], computed `rows` at a time. */
void EXPORT(headwise_predict)(const Layer *layers, int32_t count, const float *x, int64_t n, int32_t rows, float *out,
                              char *memory) {
    Stage s[LAYERS + 1];
    Layer end;
    Arena a = {memory, 0};
    lay_out(s, layers, count, rows, NULL, &end, &a);
    const int64_t width = (int64_t)end.c * end.h * end.w, each = (int64_t)layers[0].c * layers[0].h * layers[0].w;
    for (int64_t i = 0; i < n; i += rows) {
        const int some = (int)MIN(rows, n - i);
        for (int k = 0; k < some; k++) take_sample(s, x + (i + k) * each, k);
        pass(s, count, some, 0);
        if (end.kind == LINEAR)
            turn_back(s + count, some, out + i * width, width);
        else {
            Stage last = s[count];
            last.flat = out + i * width, last.width = width;
            flatten(&last, some, 0);
        }
    }
}

/* ---- under autograd: a pass forward whose memory is kept for one pass back ---- */

typedef struct {
    Stage s[LAYERS + 1];
    Layer end;
    int count, first; /* layers; the first one that is trained */
} Kept;

static void keep(Kept *kept, Arena *a, const Layer *layers, int count, int n) {
    const Rates none = {0};
    lay_out(kept->s, layers, count, n, &none, &kept->end, a);
    kept->count = count;
    for (kept->first = 0; kept->first < count && !layers[kept->first].trained;) kept->first++;
}

/* The bytes of memory that `forward` needs, and keeps until `backward`. */
int64_t EXPORT(headwise_kept)(const Layer *layers, int32_t count, int32_t n) {
    Kept kept;
    Arena a = {NULL, 0};
    if (count < 1 || count > LAYERS) return -1;
    take(&a, sizeof(Kept));
    keep(&kept, &a, layers, count, n);
    return (int64_t)a.used;
}

/* The chain's output for n samples, [n][outputs]. */
void EXPORT(headwise_forward)(const Layer *layers, int32_t count, const float *x, int32_t n, float *out, char *memory) {
    Arena a = {memory, 0};
    Kept *kept = take(&a, sizeof(Kept));
    const int64_t each = (int64_t)layers[0].c * layers[0].h * layers[0].w;
    keep(kept, &a, layers, count, n);
    Stage *last = kept->s + count;
    for (int k = 0; k < n; k++) take_sample(kept->s, x + k * each, k);
    pass(kept->s, count, n, 1);
    if (kept->end.kind == LINEAR) { /* the ReLU of the last layer looks at its output again */
        turn_back(last, n, last->flat, last->width);
        for (int k = 0; k < n; k++) memcpy(out + (int64_t)k * kept->end.c, last->flat + k * last->width, 4 * kept->end.c);
    } else {
        Stage vectors = *last;
        vectors.flat = out, vectors.width = (int64_t)kept->end.c * kept->end.h * kept->end.w;
        flatten(&vectors, n, 0);
    }
}

/* Writes the gradients by the trained layers' weights to `slope` and `bias_slope`, given that by the output. */
void EXPORT(headwise_backward)(const float *by_output, int32_t n, char *memory) {
    Kept *kept = (Kept *)memory;
    Stage *last = kept->s + kept->count;
    const Rates none = {0};
    if (kept->end.kind == LINEAR)
        for (int k = 0; k < n; k++) memcpy(last->slope + k * last->width, by_output + (int64_t)k * kept->end.c, 4 * kept->end.c);
    else {
        Stage vectors = *last;
        vectors.slope = (float *)by_output, vectors.width = (int64_t)kept->end.c * kept->end.h * kept->end.w;
        flatten(&vectors, n, 1);
    }
    pass_back(kept->s, kept->count, kept->first, n, &none);
    for (Stage *s = kept->s + kept->first; s < last; s++) {
        if (!s->l->trained) continue;
        if (s->l->kind == CONVOLUTION) each_weight(s, WRITE, s->g, s->l->slope);
        if (s->owned) each_row(s, WRITE, s->g, s->l->slope);
        if (s->l->bias_slope) memcpy(s->l->bias_slope, s->bg, 4 * s->l->oc);
    }
}

/* ---- one convolution inside any network: nothing is kept between its passes ----

   Its weights are channels last and may be part of a larger window, whose other weights only meet padding. With few
   positions and many weights, reading the weights is what takes time: they are used, and stepped, where they are. */

static int is_compact(const Layer *l) { return l->oh * l->ow * 16 <= l->oc && l->c % UNIT == 0; }

/* The pixel under a tap of the window at a position, as an offset into the images; -1 in the padding. */
static int64_t pixel_at(const Layer *l, int64_t position, int ky, int kx) {
    const int64_t k = position / (l->oh * l->ow);
    const int y = (int)(position / l->ow % l->oh) * l->sh - l->ph + ky, x = (int)(position % l->ow) * l->sw - l->pw + kx;
    return y < 0 || y >= l->h || x < 0 || x >= l->w ? -1 : ((k * l->h + y) * l->w + x) * l->c;
}

static void compact_forward(const Layer *l, const float *x, int n, float *out, Arena *a) {
    const int64_t positions = (int64_t)n * l->oh * l->ow, run = l->kw * l->c;
    float *turned = floats(a, (size_t)l->kh * run * PANEL), *to = floats(a, TILE * PANEL);
    for (int64_t i = 0; a->base && i < positions; i += PANEL) {
        const int wide = positions - i > W ? PANEL : W, some = (int)MIN(wide, positions - i);
        memset(turned, 0, 4 * l->kh * run * wide);
        for (int r = 0; r < some; r++)
            for (int tap = 0; tap < l->kh * l->kw; tap++) {
                const int64_t pixel = pixel_at(l, i + r, tap / l->kw, tap % l->kw);
                float *column = turned + (int64_t)tap * l->c * wide + r;
                for (int c = 0; pixel >= 0 && c < l->c; c++) column[(int64_t)c * wide] = x[pixel + c];
            }
        for (int o = 0; o < l->oc;) {
            const int outputs = share(l->oc - o, TILE);
            const float *from[TILE];
            for (int k = 0; k < outputs; k++) {
                from[k] = l->weight + (o + k) * l->strides[0];
                for (int c = 0; c < wide; c += W) store(to + k * wide + c, splat(l->bias ? l->bias[o + k] : 0));
            }
            product(outputs, wide / W, from, l->strides[2], l->kh, (int)run, turned, NULL, to, wide);
            for (int r = 0; r < some; r++)
                for (int k = 0; k < outputs; k++) out[(i + r) * l->oc + o + k] = to[k * wide + r];
            o += outputs;
        }
    }
}

/* The sums over i of a[r][at[i]] b[from[i]...], for R rows of C vectors, used as `use` says. */
INLINE void combine(const int R, const int C, const Use use, float *const *to, const float *const *a, const int32_t *at,
                    const float *b, const int64_t *from, int count, float rate) {
    V sum[TILE][2];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) sum[r][c] = use == ADD ? load(to[r] + c * W) : splat(0);
    }
    for (int i = 0; i < count; i++) {
        V run[2];
        UNROLL for (int c = 0; c < C; c++) run[c] = load(b + from[i] + c * W);
        UNROLL for (int r = 0; r < R; r++) {
            const V g = splat(a[r][at[i]]);
            UNROLL for (int c = 0; c < C; c++) sum[r][c] = fma_(g, run[c], sum[r][c]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) {
            float *t = to[r] + c * W;
            store(t, use == STEP ? fma_(splat(rate), sum[r][c], load(t)) : sum[r][c]);
        }
    }
}

static void combine_some(int R, int C, Use use, float *const *to, const float *const *a, const int32_t *at,
                         const float *b, const int64_t *from, int count, float rate) {
    switch (use * 16 + R * 2 + C - 1) {
#define CASE(u, r)                                                                                    \
    case 16 * u + 2 * r: combine(r, 1, u, to, a, at, b, from, count, rate); break; \
    case 16 * u + 2 * r + 1: combine(r, 2, u, to, a, at, b, from, count, rate); break;
#define CASES(u) CASE(u, 1) CASE(u, 2) CASE(u, 3) CASE(u, 4) CASE(u, 5) CASE(u, 6)
        CASES(ADD) CASES(SET) CASES(STEP)
#undef CASES
#undef CASE
    }
}

/* The positions whose window has a pixel under one tap: where their gradients and these pixels are. */
typedef struct {
    int32_t *slopes, count;
    int64_t *pixels;
} Tap;

/* One tile of weights, `outputs` by C vectors at one tap: first the gradients by the inputs, then its own. */
static void compact_tile(const Layer *l, Tap tap, int C, int first, int outputs, int64_t weights, const float *x,
                         const float *by_output, float *by_input, const int32_t *order, const int64_t *rows, float rate) {
    const float *a[TILE];
    float *to[TILE];
    for (int p = 0; by_input && p < tap.count;) {
        const int some = share(tap.count - p, TILE);
        for (int r = 0; r < some; r++) a[r] = by_output + tap.slopes[p + r] + first, to[r] = by_input + tap.pixels[p + r];
        combine_some(some, C, ADD, to, a, order, l->weight + first * l->strides[0] + weights, rows, outputs, 0);
        p += some;
    }
    float *own = rate != 0 ? l->weight : l->slope;
    for (int o = first; l->trained && o < first + outputs;) {
        const int some = share(first + outputs - o, TILE);
        for (int r = 0; r < some; r++) a[r] = by_output + o + r, to[r] = own + (o + r) * l->strides[0] + weights;
        combine_some(some, C, rate != 0 ? STEP : SET, to, a, tap.slopes, x, tap.pixels, tap.count, -rate);
        o += some;
    }
}

static void compact_back(const Layer *l, const float *x, const float *by_output, int n, float *by_input, float rate,
                         Arena *a) {
    const int64_t positions = (int64_t)n * l->oh * l->ow;
    const int taps = l->kh * l->kw;
    Tap *tap = take(a, sizeof(Tap) * taps);
    int32_t *order = take(a, 4 * l->oc), *slopes = take(a, 4 * taps * positions);
    int64_t *rows = take(a, 8 * l->oc), *pixels = take(a, 8 * taps * positions);
    if (!a->base) return;
    for (int o = 0; o < l->oc; o++) order[o] = o, rows[o] = o * l->strides[0];
    for (int t = 0; t < taps; t++) {
        tap[t] = (Tap){slopes + t * positions, 0, pixels + t * positions};
        for (int64_t p = 0; p < positions; p++) {
            const int64_t pixel = pixel_at(l, p, t / l->kw, t % l->kw);
            tap[t].slopes[tap[t].count] = (int32_t)(p * l->oc), tap[t].pixels[tap[t].count] = pixel;
            tap[t].count += pixel >= 0;
        }
    }
    if (by_input) memset(by_input, 0, 4 * (size_t)n * l->h * l->w * l->c);
    for (int o = 0; o < l->oc; o += OUTPUTS)
        for (int t = 0; t < taps; t++)
            for (int c = 0; c < l->c;) {
                const int C = MIN(2, (l->c - c) / W);
                const int64_t at = t / l->kw * l->strides[2] + (int64_t)(t % l->kw) * l->c + c;
                compact_tile(l, tap[t], C, o, MIN(OUTPUTS, l->oc - o), at, x + c, by_output,
                             by_input ? by_input + c : NULL, order, rows, rate);
                c += C * W;
            }
}

/* The same by the functions of a chain: with many positions, a copy of the weights in their layout costs little. */
static void wide_forward(const Layer *l, const float *x, int n, float *out, Arena *a) {
    Stage s[2];
    Layer end;
    lay_out(s, l, 1, n, NULL, &end, a);
    if (!a->base) return;
    for (int k = 0; k < n; k++) take_sample(s, x + (int64_t)k * l->h * l->w * l->c, k);
    s[1].image = out;
    convolution_forward(s, s + 1, n, 1, 0);
}

static void wide_back(const Layer *l, const float *x, const float *by_output, int n, float *by_input, float rate,
                      Arena *a) {
    Stage s[2];
    Layer end;
    const Rates rates = {.lr = rate};
    lay_out(s, l, 1, n, &rates, &end, a);
    if (!a->base) return;
    for (int k = 0; k < n; k++) take_sample(s, x + (int64_t)k * l->h * l->w * l->c, k);
    memcpy(s[1].image_slope, by_output, 4 * n * s[1].size);
    convolution_back(s, s + 1, n, by_input != NULL, &rates);
    for (int64_t r = 0; by_input && r < (int64_t)n * l->h; r++)
        memcpy(by_input + r * l->w * l->c, s->image_slope + r / l->h * s->size + s->edge + r % l->h * s->row,
               4 * (size_t)l->w * l->c);
    if (l->trained && rate != 0) {
        descend(s->w, s->g, NULL, s->weights, &rates, 1);
        each_weight(s, WRITE, s->w, l->weight);
    } else if (l->trained)
        each_weight(s, WRITE, s->g, l->slope);
}

/* The bytes of memory that a pass forward needs, or, if `back`, one back. */
int64_t EXPORT(headwise_convolution_bytes)(const Layer *l, int32_t n, int32_t back) {
    Arena a = {NULL, 0};
    if (back)
        (is_compact(l) ? compact_back : wide_back)(l, NULL, NULL, n, NULL, 0, &a);
    else
        (is_compact(l) ? compact_forward : wide_forward)(l, NULL, n, NULL, &a);
    return (int64_t)a.used;
}

/* The output for n channels-last images. */
void EXPORT(headwise_convolve)(const Layer *l, const float *x, int32_t n, float *out, char *memory) {
    Arena a = {memory, 0};
    (is_compact(l) ? compact_forward : wide_forward)(l, x, n, out, &a);
}

/* The gradient by the input, unless that is NULL; if the layer is trained, also that by the weights, into `slope`, or,
   if there is a `rate`, a step along it. That by the bias is the caller's. */
void EXPORT(headwise_convolve_back)(const Layer *l, const float *x, const float *by_output, int32_t n, float *by_input,
                                    float rate, char *memory) {
    Arena a = {memory, 0};
    (is_compact(l) ? compact_back : wide_back)(l, x, by_output, n, by_input, rate, &a);
}
