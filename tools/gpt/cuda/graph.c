/* Records the work of a unit's phase as a CUDA graph, and replays the graph while its stamp is the same. The stamp
 * holds everything that the work's arguments depend on. The engine gives a unit's parameters and gradients the same
 * addresses in every step, so the stamps of training recur.
 * The first time a stamp occurs, the work is enqueued without a recording; the second time it is recorded. The driver
 * and cuBLASLt therefore load code and choose algorithms outside of a recording, and work that occurs only once (the
 * lengths of a generated text) is never recorded. The driver owns the graphs' memory; no plan contains it. Where a graph
 * cannot be made, all graphs are given up: their memory goes back, and all work is enqueued from then on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpt/cuda/state.h"

/* Per phase and set of a micro-batch's arrays: first and later micro-steps, forward and recomputation, evaluation. */
enum { RECORDINGS = 4 };

/* Compared byte by byte, so it has no padding. The arguments depend on nothing else that changes. `set` stands for the addresses of
 * activations and of the stream; batch and loss have one place. */
struct stamp {
    struct {
        const void *param, *grad;
        uint64_t add;
    } slot[UNIT_PARAMS_MAX];
    uint32_t batch, length;
    uint16_t output, set; /* output: and whether the forward runs again */
    float scale;
};
_Static_assert(sizeof(struct stamp) == UNIT_PARAMS_MAX * (2 * sizeof(void *) + sizeof(uint64_t)) +
                                           2 * sizeof(uint32_t) + 2 * sizeof(uint16_t) + sizeof(float),
               "a stamp has no padding");

struct recording {
    struct stamp stamp;
    uint64_t used;    /* the clock's value; 0: never */
    CUgraphExec exec; /* NULL: the stamp occurred once */
};

struct cuda_graphs {
    uint64_t clock;
    uint32_t count, each; /* each: of a phase */
    struct recording recording[];
};

struct work {
    const struct unit *unit;
    enum cuda_phase phase;
    bool output;
};

static void enqueue(struct gpt *gpt, const struct work *w) {
    static void (*const of_head[CUDA_PHASES])(struct gpt *) = {[CUDA_FORWARD] = cuda_head_forward,
                                                               [CUDA_BACKWARD] = cuda_head_backward,
                                                               [CUDA_LOGITS] = cuda_head_logits};
    bool back = w->phase == CUDA_BACKWARD;
    if (w->unit >= gpt->head)
        of_head[w->phase](gpt);
    else if (w->unit < gpt->blocks)
        (back ? cuda_embedding_backward : cuda_embedding_forward)(gpt);
    else if (back)
        cuda_block_backward(gpt, (uint32_t)(w->unit - gpt->blocks));
    else
        cuda_block_forward(gpt, (uint32_t)(w->unit - gpt->blocks), w->output);
}

/* ---- stamps ---- */

static struct stamp stamp_of(const struct gpt *gpt, const struct work *w) {
    const zero_slot *slot = w->unit->slot;
    struct stamp s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < UNIT_PARAMS_MAX; i++) {
        s.slot[i].param = slot[i].param;
        s.slot[i].grad = slot[i].grad;
        s.slot[i].add = slot[i].add != 0;
    }
    s.batch = gpt->pass.batch;
    s.length = gpt->pass.length;
    s.output = (uint16_t)(w->output + 2 * gpt->pass.again);
    s.set = (uint16_t)gpt->cuda->set;
    if (w->unit >= gpt->head) s.scale = gpt->pass.scale; /* only the head uses it */
    return s;
}

/* ---- recordings ---- */

static void forget(struct cuda_gpt *c, struct recording *r) {
    if (r->exec) c->driver.cuGraphExecDestroy(r->exec); /* a graph that still runs is freed when it ends */
    memset(r, 0, sizeof *r);
}

/* Returns the recording with the stamp. If there is none, the recording that was unused for the longest time gets
 * it. */
static struct recording *recording_of(struct gpt *gpt, const struct work *w, bool *out_met) {
    struct stamp stamp = stamp_of(gpt, w);
    struct cuda_graphs *graphs = gpt->cuda->graphs;
    struct recording *first =
        graphs->recording + ((w->unit - gpt->units) * CUDA_PHASES + w->phase) * graphs->each;
    struct recording *oldest = first;
    *out_met = true;
    for (struct recording *r = first; r < first + graphs->each; r++) {
        if (r->used && memcmp(&r->stamp, &stamp, sizeof stamp) == 0) return r;
        if (r->used < oldest->used) oldest = r;
    }
    forget(gpt->cuda, oldest);
    oldest->stamp = stamp;
    *out_met = false;
    return oldest;
}

/* ---- graphs that cannot be made ---- */

/* The same work has been enqueued without a recording before. So the failure is one of the recording, and not the GPT's. */
static void give_up(struct gpt *gpt, const struct zero_error *why) {
    struct cuda_gpt *c = gpt->cuda;
    fprintf(stderr,
            "GPU %d: %s: from now on all work is enqueued without CUDA graphs, with the same bits; to do so "
            "from the start, set device.graphs to false\n",
            (int)c->device, why->message);
    cuda_graphs_close(gpt);
    c->graphs = NULL;
}

/* False: no graph could be made, and nothing is enqueued. */
static bool record(struct gpt *gpt, const struct work *w, struct recording *r) {
    struct cuda_gpt *c = gpt->cuda;
    CUgraph graph = NULL;
    CUresult result = c->driver.cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (!result) {
        enqueue(gpt, w);
        result = c->driver.cuStreamEndCapture(c->stream, &graph);
    }
    if (!result && !c->error.code) result = c->driver.cuGraphInstantiate(&r->exec, graph, 0);
    if (graph) c->driver.cuGraphDestroy(graph);
    struct zero_error why = c->error; /* a call that failed in the recording */
    if (!why.code) cuda_check(&c->driver, result, &why, "recording a CUDA graph");
    if (!why.code) return true;
    error_clear(&c->error);
    give_up(gpt, &why);
    return false;
}

/* The first launch of a graph takes memory, too. False: nothing is enqueued. */
static bool launch(struct gpt *gpt, struct recording *r) {
    struct cuda_gpt *c = gpt->cuda;
    CUresult result = c->driver.cuGraphLaunch(r->exec, c->stream);
    struct zero_error why = ERROR_NONE;
    cuda_check(&c->driver, result, &why, "launching a CUDA graph");
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        give_up(gpt, &why);
    else if (result)
        error_pass(&c->error, &why);
    return result != CUDA_ERROR_OUT_OF_MEMORY;
}

static bool replay(struct gpt *gpt, const struct work *w, struct recording *r) {
    return (r->exec || record(gpt, w, r)) && launch(gpt, r);
}

void cuda_run_phase(struct gpt *gpt, const struct unit *unit, enum cuda_phase phase, bool output) {
    struct cuda_graphs *graphs = gpt->cuda->graphs;
    struct work w = {unit, phase, output};
    bool replayed = false;
    if (gpt->cuda->error.code) return;
    if (graphs) {
        bool met;
        struct recording *r = recording_of(gpt, &w, &met);
        r->used = ++graphs->clock;
        replayed = met && replay(gpt, &w, r);
    }
    if (!replayed) enqueue(gpt, &w);
}

/* ---- */

zero_status cuda_graphs_open(struct gpt *gpt) {
    uint32_t each = RECORDINGS * cuda_sets(&gpt->config),
             count = gpt_units(&gpt->config) * CUDA_PHASES * each;
    struct cuda_graphs *graphs = gpt->cuda->graphs;
    if (gpt->config.no_graphs) return ZERO_OK;
    graphs = gpt->cuda->graphs = calloc(1, sizeof *graphs + count * sizeof *graphs->recording);
    if (!graphs) return ZERO_E_MEMORY;
    graphs->count = count, graphs->each = each;
    return ZERO_OK;
}

void cuda_graphs_close(struct gpt *gpt) {
    struct cuda_graphs *graphs = gpt->cuda->graphs;
    for (uint32_t i = 0; graphs && i < graphs->count; i++) forget(gpt->cuda, &graphs->recording[i]);
    free(graphs);
}
