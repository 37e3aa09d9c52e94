/* Random chains through the native kernels, in memory of exactly the size that they ask for: compiled by
   test_native_memory.py. Arguments: seed, and how many chains. Prints a digest of all weights and outputs. */
#include "chain.h"

#include <stdio.h>
#include <stdlib.h>

#define CLIENTS 3

#define JOINED(a, b) a##_##b
#define NAMED(a, b) JOINED(a, b)
#define BYTES NAMED(headwise_bytes, HEADWISE_BUILD)
#define TRAIN NAMED(headwise_train, HEADWISE_BUILD)
#define PREDICT NAMED(headwise_predict, HEADWISE_BUILD)
#define KEPT NAMED(headwise_kept, HEADWISE_BUILD)
#define FORWARD NAMED(headwise_forward, HEADWISE_BUILD)
#define BACKWARD NAMED(headwise_backward, HEADWISE_BUILD)
#define CONVOLUTION_BYTES NAMED(headwise_convolution_bytes, HEADWISE_BUILD)
#define CONVOLVE NAMED(headwise_convolve, HEADWISE_BUILD)
#define CONVOLVE_BACK NAMED(headwise_convolve_back, HEADWISE_BUILD)

int64_t BYTES(const Layer *, int32_t, int32_t, const Rates *);
void TRAIN(Phase *, int64_t, char *);
void PREDICT(const Layer *, int32_t, const float *, int64_t, int32_t, float *, char *);
int64_t KEPT(const Layer *, int32_t, int32_t);
void FORWARD(const Layer *, int32_t, const float *, int32_t, float *, char *);
void BACKWARD(const float *, int32_t, char *);
int64_t CONVOLUTION_BYTES(const Layer *, int32_t, int32_t);
void CONVOLVE(const Layer *, const float *, int32_t, float *, char *);
void CONVOLVE_BACK(const Layer *, const float *, const float *, int32_t, float *, float, char *);

static uint64_t state, digest = 14695981039346656037u;

static int any(int low, int high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (int)((state >> 33) % (uint64_t)(high - low + 1));
}

static float *numbers(int64_t count) {
    float *p = malloc(4 * (size_t)count);
    for (int64_t i = 0; i < count; i++) p[i] = (float)any(-1000, 1000) / 2000;
    return p;
}

static void digested(const float *p, int64_t count) {
    const unsigned char *bytes = (const unsigned char *)p;
    for (int64_t i = 0; p && i < 4 * count; i++) digest = (digest ^ bytes[i]) * 1099511628211u;
}

static void *block(int64_t bytes) {
    void *p = NULL;
    return posix_memalign(&p, 64, (size_t)bytes) ? NULL : p;
}

static int out(int size, int k, int s, int p) { return (size + 2 * p - k) / s + 1; }

static Layer image_layer(int c, int h, int w) {
    Layer l = {.c = c, .h = h, .w = w, .relu = any(0, 1)};
    l.kind = (int[]){CONVOLUTION, CONVOLUTION, MAXIMUM, AVERAGE}[any(0, 3)];
    const int convolution = l.kind == CONVOLUTION;
    l.kh = any(1, h < 5 ? h : 5), l.kw = any(1, w < 5 ? w : 5), l.sh = any(1, 3), l.sw = any(1, 3);
    l.ph = any(0, convolution ? 2 : l.kh / 2), l.pw = any(0, convolution ? 2 : l.kw / 2);
    l.oc = convolution ? any(1, 40) : c, l.oh = out(h, l.kh, l.sh, l.ph), l.ow = out(w, l.kw, l.sw, l.pw);
    l.inside = any(0, 1);
    if (!convolution) return l;
    l.trained = any(0, 1);
    l.weight = numbers((int64_t)l.oc * c * l.kh * l.kw), l.bias = any(0, 1) ? numbers(l.oc) : NULL;
    const int last = any(0, 1); /* channels last, or first */
    const int64_t own[4] = {(int64_t)c * l.kh * l.kw, last ? 1 : l.kh * l.kw, last ? l.kw * c : l.kw, last ? c : 1};
    for (int i = 0; i < 4; i++) l.strides[i] = own[i];
    l.pooled = any(0, 1);
    l.mh = any(1, l.oh < 4 ? l.oh : 4), l.mw = any(1, l.ow < 4 ? l.ow : 4), l.msh = any(1, 3), l.msw = any(1, 3);
    l.mph = any(0, l.mh / 2), l.mpw = any(0, l.mw / 2);
    l.qh = out(l.oh, l.mh, l.msh, l.mph), l.qw = out(l.ow, l.mw, l.msw, l.mpw);
    return l;
}

static int64_t weights_of(const Layer *l) {
    return l->kind > LINEAR ? 0 : (int64_t)l->oc * l->c * (l->kind == LINEAR ? l->h * l->w : l->kh * l->kw);
}

/* Anchors and shifts for some of the layers. */
static void add_terms(Layer *layers, int count) {
    for (Layer *l = layers; l < layers + count; l++) {
        if (l->kind > LINEAR) continue;
        if (any(0, 1)) l->anchor = numbers(weights_of(l)), l->bias_anchor = numbers(l->oc);
        if (any(0, 1)) l->shift = numbers(weights_of(l)), l->bias_shift = numbers(l->oc);
    }
}

static int chain(Layer *layers) {
    int count = 0, c = any(1, 7), h = any(1, 12), w = any(1, 12);
    for (int left = any(0, 3); left; left--) {
        const Layer l = layers[count++] = image_layer(c, h, w);
        c = l.oc, h = l.pooled ? l.qh : l.oh, w = l.pooled ? l.qw : l.ow;
    }
    for (int left = any(1, 3); left; left--) {
        Layer l = {.kind = LINEAR, .c = c, .h = h, .w = w, .oc = any(1, 70), .relu = left > 1 && any(0, 1)};
        l.trained = left == 1 || any(0, 1);
        l.weight = numbers((int64_t)l.oc * c * h * w), l.bias = any(0, 1) ? numbers(l.oc) : NULL;
        layers[count++] = l;
        c = l.oc, h = w = 1;
    }
    return count;
}

typedef struct {
    Layer layers[8];
    Rates rates;
    Goal goal;
    float *x, *targets, *weights;
    int64_t *y, *batches;
} Client;

static Phase phase_of(Client *c) {
    const int count = chain(c->layers), samples = any(1, 40), size = any(1, 20), steps = any(0, 3);
    const int classes = c->layers[count - 1].oc, each = c->layers[0].c * c->layers[0].h * c->layers[0].w;
    c->rates = (Rates){0.1f, any(0, 1) * 0.5f, any(0, 1) * 0.01f, any(0, 1) * 0.2f, 0.1f, 0.9f, 0.99f, 0.01f, any(0, 2)};
    if (any(0, 1)) add_terms(c->layers, count);
    c->goal = (Goal){any(SOFTMAX, IDENTITY), any(0, 1) ? classes : 1, NULL, NULL, NULL};
    c->x = numbers((int64_t)samples * each);
    c->y = malloc(8 * (size_t)samples), c->batches = malloc(8 * (size_t)(steps * size) + 8);
    for (int i = 0; i < samples; i++) c->y[i] = any(0, classes - 1);
    for (int i = 0; i < steps * size; i++) c->batches[i] = any(-1, samples - 1);
    c->targets = numbers((int64_t)samples * classes), c->weights = numbers((int64_t)samples * c->goal.wide);
    if (c->goal.link == SOFTMAX && any(0, 1))
        c->goal.classes = c->y;
    else
        c->goal.targets = c->targets, c->goal.weights = c->weights;
    return (Phase){c->layers, &c->rates, &c->goal, c->x, c->batches, samples, steps, count, size, 0};
}

/* A pass forward and back under some gradient of the output, over the samples of one batch. */
static void pass_both_ways(Client *c, const Phase *p) {
    const int n = any(1, p->samples < 9 ? (int)p->samples : 9);
    const int64_t outputs = (int64_t)n * c->layers[p->count - 1].oc;
    float *out = malloc(4 * (size_t)outputs), *slope = numbers(outputs);
    for (int i = 0; i < p->count; i++) {
        Layer *l = c->layers + i;
        if (l->trained) l->slope = numbers(weights_of(l)), l->bias_slope = l->bias ? numbers(l->oc) : NULL;
    }
    char *memory = block(KEPT(c->layers, p->count, n));
    FORWARD(c->layers, p->count, c->x, n, out, memory);
    BACKWARD(slope, n, memory);
    digested(out, outputs);
    for (int i = 0; i < p->count; i++) {
        Layer *l = c->layers + i;
        digested(l->slope, weights_of(l)), digested(l->bias_slope, l->oc);
        free(l->slope), free(l->bias_slope);
        free(l->anchor), free(l->bias_anchor), free(l->shift), free(l->bias_shift);
    }
    free(out), free(slope), free(memory);
}

static void judged(Client *c, const Phase *p) {
    const int rows = any(1, 40);
    const int64_t outputs = p->samples * c->layers[p->count - 1].oc;
    float *said = malloc(4 * (size_t)outputs);
    char *memory = block(BYTES(c->layers, p->count, rows, NULL));
    if (p->bad != -1) abort();
    PREDICT(c->layers, p->count, c->x, p->samples, rows, said, memory);
    for (int64_t i = 0; i < outputs; i++)
        if (said[i] != said[i]) abort();
    digested(said, outputs);
    pass_both_ways(c, p);
    for (int i = 0; i < p->count; i++) {
        const Layer *l = c->layers + i;
        digested(l->weight, weights_of(l));
        digested(l->bias, l->oc);
        free(l->weight), free(l->bias);
    }
    free(c->x), free(c->y), free(c->targets), free(c->weights), free(c->batches), free(said), free(memory);
}

/* One convolution, forward and back, on part of a larger window; half of them with few positions and many weights. */
static void convolve_alone(void) {
    const int compact = any(0, 1), c = compact ? 16 * any(1, 3) : any(1, 20), top = any(0, 1), left = any(0, 1);
    Layer l = {.kind = CONVOLUTION, .c = c, .h = any(1, compact ? 3 : 9), .w = any(1, compact ? 3 : 9)};
    l.kh = any(1, l.h), l.kw = any(1, l.w), l.sh = any(1, 3), l.sw = any(1, 3), l.ph = any(0, 2), l.pw = any(0, 2);
    l.oh = out(l.h, l.kh, l.sh, l.ph), l.ow = out(l.w, l.kw, l.sw, l.pw);
    l.oc = compact ? 16 * l.oh * l.ow + any(0, 40) : any(1, 40), l.trained = any(0, 2) > 0;
    const int64_t row = (int64_t)(l.kw + left) * c, each = (l.kh + top) * row, first = top * row + left * c;
    const int64_t own[4] = {each, 1, row, c}, n = any(1, 5);
    for (int i = 0; i < 4; i++) l.strides[i] = own[i];
    const int64_t inputs = n * l.h * l.w * c, outputs = n * l.oh * l.ow * l.oc;
    float *weight = numbers(l.oc * each), *slope = numbers(l.oc * each), *bias = any(0, 1) ? numbers(l.oc) : NULL;
    float *x = numbers(inputs), *y = numbers(outputs), *by_output = numbers(outputs), *by_input = numbers(inputs);
    l.weight = weight + first, l.slope = slope + first, l.bias = bias;
    char *memory = block(CONVOLUTION_BYTES(&l, (int32_t)n, 0));
    CONVOLVE(&l, x, (int32_t)n, y, memory);
    free(memory);
    memory = block(CONVOLUTION_BYTES(&l, (int32_t)n, 1));
    CONVOLVE_BACK(&l, x, by_output, (int32_t)n, any(0, 2) ? by_input : NULL, any(0, 1) * 0.1f, memory);
    digested(y, outputs), digested(by_input, inputs), digested(weight, l.oc * each), digested(slope, l.oc * each);
    free(memory), free(weight), free(slope), free(bias), free(x), free(y), free(by_output), free(by_input);
}

/* Trains as many clients in one call, in memory that the largest of them needs. */
static void run(int clients) {
    Client some[CLIENTS];
    Phase phases[CLIENTS];
    int64_t most = 0;
    for (int i = 0; i < clients; i++) {
        const Phase p = phases[i] = phase_of(some + i);
        const int64_t needed = BYTES(p.layers, p.count, p.size, p.rates);
        if (needed > most) most = needed;
    }
    char *memory = block(most);
    TRAIN(phases, clients, memory);
    for (int i = 0; i < clients; i++) judged(some + i, phases + i);
    free(memory);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    state = (uint64_t)atoi(argv[1]);
    for (int left = atoi(argv[2]); left;) {
        const int clients = any(1, left < CLIENTS ? left : CLIENTS);
        run(clients);
        convolve_alone();
        left -= clients;
    }
    printf("%s chains without a fault, digest %016llx\n", argv[2], (unsigned long long)digest);
    return 0;
}
