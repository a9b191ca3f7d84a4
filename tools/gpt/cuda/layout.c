/* The plan runs the same code twice: without memory to get the sizes, then with memory to get the pointers. */
#include "tools/gpt/cuda/layout.h"

#include <string.h>

#include "engine/base/integer.h"
#include "tools/gpt/cuda/workspace.h"

enum {
    LINE_BYTES = 256,      /* alignment of arrays */
    STRIDE_BYTES = 128,    /* alignment of rows of logits */
    LOGITS_BYTES = 1 << 30 /* logits that exist at a time: enough rows for products at full rate */
};

static void *take(struct arena *arena, uint64_t count, uint64_t element_bytes) {
    uint64_t start = arena->bytes;
    arena->bytes += round_up(count * element_bytes, LINE_BYTES);
    return arena->memory ? (char *)arena->memory + start : NULL;
}

/* The inputs and the state of a plan. */
struct planning {
    const struct gpt_config *config;
    struct cuda_memory *memory;
    zero_dtype type;
    uint64_t rows, number_bytes;
    struct arena device, pinned;
};

static void *take_numbers(struct planning *p, uint64_t count) {
    return take(&p->device, count, p->number_bytes);
}
static float *take_floats(struct planning *p, uint64_t count) {
    return take(&p->device, count, sizeof(float));
}

static struct cuda_statistics plan_statistics(struct planning *p) {
    struct cuda_statistics s = {NULL, NULL};
    if (architecture_of(p->config)->norm == LAYER_NORM) s.mean = take_floats(p, p->rows);
    s.rstd = take_floats(p, p->rows);
    return s;
}

static void plan_attention(struct planning *p, struct cuda_saved *to) {
    const struct gpt_config *c = p->config;
    to->middle = take_numbers(p, p->rows * c->width);
    to->qkv = take_numbers(p, p->rows * extent_of(c, QKV));
    to->mixed = take_numbers(p, p->rows * extent_of(c, QUERY));
    to->lse = take_floats(p, p->rows * c->heads);
    to->norm1 = plan_statistics(p);
    if (!norms_heads(c)) return;
    to->raw = take_numbers(p, p->rows * (extent_of(c, QUERY) + extent_of(c, KEY)));
    to->raw_rstd = take_floats(p, p->rows * (c->heads + c->kv_heads));
}

static void plan_mlp(struct planning *p, struct cuda_saved *to) {
    to->wide = take_numbers(p, p->rows * projection_outputs(p->config, PROJECT_WIDEN));
    to->norm2 = plan_statistics(p);
}

/* The input of a segment's first block is kept, or uses two slots in turn; where micro-batches wait, so does the head's. The inputs of
 * the other blocks use buffers that all segments share. */
static void plan_residual(struct planning *p, void **residual, uint32_t i) {
    const struct gpt_config *c = p->config;
    uint32_t segment = c->recompute ? c->recompute : 1, slots = 2 * segment;
    bool waits = recomputes_in_use(c), far = waits || (c->recompute && c->checkpoints != ZERO_DEVICE),
         kept = i == c->layers || i % segment == 0;
    bool shared = kept ? far && (waits || i < c->layers) && i >= slots : i >= segment;
    void *own = shared ? NULL : take_numbers(p, p->rows * c->width);
    if (residual) residual[i] = shared ? residual[i % (kept ? slots : segment)] : own;
}

/* Transfers of the drive begin and end at whole pages. */
static void plan_checkpoints(struct planning *p) {
    const struct gpt_config *c = p->config;
    uint64_t align = c->checkpoints == ZERO_NVME ? DRIVE_BYTES : LINE_BYTES;
    p->memory->checkpoint_bytes = round_up(p->rows * c->width * p->number_bytes, align);
    if (cuda_checkpoint_slots(c) || recomputes_in_use(c)) p->pinned.bytes = round_up(p->pinned.bytes, align);
    p->memory->checkpoints =
        take(&p->pinned, (uint64_t)cuda_checkpoint_slots(c) * c->micros, p->memory->checkpoint_bytes);
}

/* Of micro-batches that share two sets: what waits while others are computed. */
static void plan_waiting(struct planning *p) {
    const struct gpt_config *c = p->config;
    struct cuda_memory *m = p->memory;
    struct arena *arena = c->checkpoints == ZERO_DEVICE ? &p->device : &p->pinned;
    if (!recomputes_in_use(c)) return;
    bool drive = checkpoints_leave(c) > 0;
    m->inputs =
        take(arena, drive ? checkpoint_slots(c) : (uint64_t)(c->layers + 1) * c->micros, m->checkpoint_bytes);
    m->gradients = take(arena, c->micros, m->gradient_bytes);
}

static uint32_t places_of(const struct gpt_config *c) {
    return c->recompute && c->recompute < c->layers ? c->recompute : c->layers;
}

/* Micro-batches that take turns would each need places of their own, so their blocks keep no parts. */
static uint32_t blocks_again(const struct gpt_config *c) {
    return c->recompute && !recomputes_in_use(c) ? (c->layers - 1) / c->recompute * c->recompute : 0;
}

bool gpt_cuda_keeps(const struct gpt_config *c, const uint32_t kept[GPT_OUTPUT_KINDS], uint32_t block,
                    enum gpt_output kind) {
    uint32_t again = blocks_again(c);
    if (kind >= GPT_ATTENTION) return block < again && block + kept[kind] >= again;
    return block % places_of(c) < kept[kind] && !gpt_cuda_keeps(c, kept, block, GPT_ATTENTION) &&
           !gpt_cuda_keeps(c, kept, block, GPT_MLP);
}

static uint64_t norm_parts(const struct planning *p) {
    return cuda_norm_parts_most(p->rows, p->config->width, 16 / p->number_bytes);
}

/* A gradient waits together with its sums. */
static void plan_gradient(struct planning *p, struct cuda_set *set) {
    bool biases = architecture_of(p->config)->block[PROJECT_BIAS].name != NULL;
    uint64_t first = p->device.bytes;
    void *gradient = take_numbers(p, p->rows * p->config->width);
    float *sums = biases ? take_floats(p, norm_parts(p) * p->config->width) : NULL;
    p->memory->gradient_bytes = p->device.bytes - first;
    if (set) set->gradient = gradient, set->stream_sums = sums;
}

/* Sets that take turns compute each block again, one after the other: what its forward leaves exists once. */
static void plan_set(struct planning *p, uint32_t index) {
    const struct gpt_config *c = p->config;
    struct cuda_set *first = p->memory->set, *set = first ? &first[index] : NULL;
    uint32_t places = places_of(c);
    bool again = index > 0 && recomputes_in_use(c);
    for (uint32_t i = 0; i <= c->layers; i++) {
        struct cuda_saved own = {0};
        plan_residual(p, set ? set->residual : NULL, i);
        if (i < places && !again) plan_attention(p, &own), plan_mlp(p, &own);
        if (set && i < c->layers)
            set->saved[i] = again ? first->saved[i] : i < places ? own : set->saved[i % places];
    }
    plan_gradient(p, set);
}

/* How many rows have logits at a time. Several groups of rows need their sum in fp32, if numbers are narrower: all rows
 * at once may take less memory. */
static uint64_t plan_head_rows(const struct planning *p, uint64_t row_bytes, uint64_t sums) {
    uint64_t limit = p->config->logits_bytes ? p->config->logits_bytes : LOGITS_BYTES;
    uint64_t rows = limit / row_bytes, sum_bytes = sums * sizeof(float);
    bool narrow = p->number_bytes < sizeof(float);
    if (rows >= p->rows || (narrow && p->rows * row_bytes <= limit + sum_bytes)) return p->rows;
    return rows < 1 ? 1 : rows;
}

static void plan_head(struct planning *p) {
    struct cuda_memory *m = p->memory;
    uint32_t columns = vocab_block_rows(p->config);
    uint64_t unit = STRIDE_BYTES / p->number_bytes, weights = (uint64_t)columns * p->config->width;
    m->logits_stride = round_up(columns, unit);
    m->head_rows = (uint32_t)plan_head_rows(p, m->logits_stride * p->number_bytes, weights);
    m->logits = take_numbers(p, m->head_rows * m->logits_stride);
    bool sums = m->head_rows < p->rows && p->number_bytes < sizeof(float);
    m->head_sums = sums ? take_floats(p, weights) : NULL;
    m->norm = plan_statistics(p);
    m->loss = take_floats(p, p->rows);
    bool blocks = gpt_vocab_blocks(p->config) > 1;
    m->row_most = blocks ? take_floats(p, p->rows) : NULL;
    m->row_total = blocks ? take_floats(p, p->rows) : NULL;
    m->row_wanted = blocks ? take_floats(p, p->rows) : NULL;
    m->pinned_loss = take(&p->pinned, p->rows * p->config->micros, sizeof(float));
    m->pinned_logits = take(&p->pinned, p->config->vocab, p->number_bytes);
}

/* In bf16, where there are kernels of warpgroups. */
static uint64_t attention_floats(const struct planning *p) {
    const struct gpt_config *c = p->config;
    uint32_t tile = gpt_cuda_head(c, p->type);
    if (p->type != ZERO_BF16 || (tile != 64 && tile != HEAD_WIDTH_MAX)) return 0;
    return cuda_attention_floats(tile, p->rows / c->context * c->heads, c->context);
}

static void plan_scratch(struct planning *p) {
    const struct gpt_config *c = p->config;
    struct cuda_memory *m = p->memory;
    uint64_t parts = (p->rows + SUM_ROWS - 1) / SUM_ROWS, query = extent_of(c, QUERY),
             qkv = extent_of(c, QKV);
    uint64_t widest = max64(qkv, projection_outputs(c, PROJECT_WIDEN));
    m->gradient[1] = take_numbers(p, p->rows * c->width);
    m->normed = take_numbers(p, p->rows * c->width);
    m->normed_gradient = take_floats(p, max64(p->rows * c->width, attention_floats(p)));
    m->inner = c->outputs == GPT_OUTPUTS_KEPT ? NULL : take_numbers(p, p->rows * c->inner);
    m->inner_gradient = take_numbers(p, p->rows * c->inner);
    m->mixed_gradient = take_numbers(p, p->rows * query);
    m->qkv_gradient = take_numbers(p, p->rows * qkv);
    m->sums = take_floats(p, max64(parts * widest, norm_parts(p) * 2 * c->width));
    m->dots = take_floats(p, p->rows * c->heads);
    m->workspace = take(&p->device, CUBLASLT_WORKSPACE_BYTES, 1);
    if (!architecture_of(c)->rotary) return;
    m->cosine = take_floats(p, (uint64_t)c->context * (c->head_width / 2));
    m->sine = take_floats(p, (uint64_t)c->context * (c->head_width / 2));
}

/* Outputs that are not kept are in the scratch. Of sets that take turns, all have those of the first. */
static void plan_outputs(struct planning *p) {
    const struct gpt_config *c = p->config;
    struct cuda_memory *m = p->memory;
    uint32_t places = places_of(c), sets = cuda_sets(c), own = recomputes_in_use(c) ? 1 : sets;
    for (uint32_t i = 0; i < places * own; i++) {
        uint32_t place = i % places;
        void *output[] = {m->normed, m->normed, m->inner};
        if (place < m->kept[GPT_NORMS])
            for (int n = 0; n < 2; n++) output[n] = take_numbers(p, p->rows * c->width);
        if (place < m->kept[GPT_ACTIVATIONS]) output[2] = take_numbers(p, p->rows * c->inner);
        for (uint32_t s = i / places; m->set && s < sets; s += own)
            for (uint32_t b = place; b < c->layers; b += places)
                m->set[s].saved[b].normed1 = output[0], m->set[s].saved[b].normed2 = output[1],
                m->set[s].saved[b].inner = output[2];
    }
}

/* The parts of blocks that are not computed again. */
static void plan_parts(struct planning *p) {
    const struct gpt_config *c = p->config;
    struct cuda_memory *m = p->memory;
    for (uint32_t s = 0; s < cuda_sets(c); s++)
        for (uint32_t b = 0; b < c->layers; b++) {
            struct cuda_saved unplaced, *saved = m->set ? &m->set[s].saved[b] : &unplaced;
            bool attention = gpt_cuda_keeps(c, m->kept, b, GPT_ATTENTION),
                 mlp = gpt_cuda_keeps(c, m->kept, b, GPT_MLP);
            if (attention) plan_attention(p, saved);
            if (mlp) plan_mlp(p, saved);
            if (attention || mlp) saved->normed1 = saved->normed2 = m->normed, saved->inner = m->inner;
        }
}

static struct cuda_groups plan_groups(struct arena *arena, uint64_t rows) {
    return (struct cuda_groups){
        .number = take(arena, rows, 4),
        .order = take(arena, rows, 4),
        .first = take(arena, rows + 1, 4),
        .count = take(arena, 1, 4),
    };
}

/* The same layout in device memory and in pinned memory. */
static struct cuda_batch plan_batch(struct arena *arena, const struct gpt_config *c, uint64_t rows) {
    struct cuda_batch batch = {.tokens = take(arena, rows, 4),
                               .targets = take(arena, rows, 4),
                               .by_token = plan_groups(arena, rows)};
    if (!c->documents) return batch;
    batch.position = take(arena, rows, 4);
    batch.begins = take(arena, rows, 4), batch.ends = take(arena, rows, 4);
    if (architecture_of(c)->embedding[POSITION_WEIGHT].name) batch.by_position = plan_groups(arena, rows);
    return batch;
}

struct cuda_batch cuda_pinned_batch(const struct cuda_memory *m, const struct gpt_config *config,
                                    uint32_t micro) {
    struct arena pinned = {micro * m->batch_bytes, m->pinned};
    return plan_batch(&pinned, config, m->rows);
}

static struct planning planning_of(struct cuda_memory *m, const struct gpt_config *config, uint32_t batch,
                                   zero_dtype type) {
    return (struct planning){.config = config,
                             .memory = m,
                             .rows = (uint64_t)batch * config->context,
                             .type = type,
                             .number_bytes = type == ZERO_F32 ? 4 : 2,
                             .device = {0, m->device},
                             .pinned = {0, m->pinned}};
}

void cuda_layout(struct cuda_memory *m, const struct gpt_config *config, uint32_t batch, zero_dtype type) {
    struct planning p = planning_of(m, config, batch, type);
    uint32_t kept = config->outputs == GPT_OUTPUTS_KEPT ? places_of(config) : 0;
    m->rows = (uint32_t)p.rows;
    m->batch = plan_batch(&p.device, config, p.rows);
    m->batch_bytes = p.device.bytes;
    p.pinned.bytes = m->batch_bytes * config->micros;
    for (uint32_t s = 0; s < cuda_sets(config); s++) plan_set(&p, s);
    if (m->set) cuda_use_set(m, 0);
    plan_checkpoints(&p);
    plan_waiting(&p);
    plan_head(&p);
    plan_scratch(&p);
    memset(m->kept, 0, sizeof m->kept);
    m->kept[GPT_NORMS] = m->kept[GPT_ACTIVATIONS] = kept;
    plan_outputs(&p);
    m->bytes = p.device.bytes, m->pinned_bytes = p.pinned.bytes;
}

void cuda_layout_outputs(struct cuda_memory *m, const struct gpt_config *config, uint32_t batch,
                         zero_dtype type, const uint32_t kept[GPT_OUTPUT_KINDS]) {
    cuda_layout(m, config, batch, type); /* the places of what is kept no more */
    struct planning p = planning_of(m, config, batch, type);
    p.device = (struct arena){0, m->outputs};
    memcpy(m->kept, kept, sizeof m->kept);
    plan_outputs(&p);
    plan_parts(&p);
    m->outputs_bytes = p.device.bytes;
}

/* The backward does not reach the segments below the lowest of the `trained` blocks. */
static uint32_t parts_of(const struct gpt_config *c, enum gpt_output kind, uint32_t trained) {
    /* A block that is computed again right before its backward leaves its activation to the backward. */
    if (kind == GPT_ACTIVATIONS && c->recompute == 1) return 0;
    if (kind < GPT_ATTENTION) return places_of(c);
    uint32_t again = blocks_again(c), below = again ? (c->layers - trained) / c->recompute * c->recompute : 0;
    return again > below ? again - below : 0;
}

/* For each byte that is kept, a backward moves 3 bytes less with SwiGLU, which reads two numbers for each that it writes, and 2 with GELU or
 * norms. Norms have the smaller kernels, whose launches weigh more, so they come before GELU. Attention and MLP save about as many
 * products per byte, and attention its scores, too. */
uint32_t gpt_cuda_spares(const struct gpt_config *config, uint32_t batch, zero_dtype dtype, uint32_t trained,
                         struct gpt_spare out[GPT_OUTPUT_KINDS]) {
    const struct gpt_config c = gpt_complete(config);
    struct cuda_memory sizes = {.device = NULL};
    bool gelu = architecture_of(&c)->mlp == GELU;
    enum gpt_output order[] = {gelu ? GPT_NORMS : GPT_ACTIVATIONS, gelu ? GPT_ACTIVATIONS : GPT_NORMS,
                               GPT_ATTENTION, GPT_MLP};
    uint32_t count = 0;
    for (int i = 0; i < GPT_OUTPUT_KINDS; i++) {
        uint32_t kept[GPT_OUTPUT_KINDS] = {0}, parts = parts_of(&c, order[i], trained);
        kept[order[i]] = 1;
        cuda_layout_outputs(&sizes, &c, batch, dtype, kept);
        if (parts) out[count++] = (struct gpt_spare){order[i], sizes.outputs_bytes, parts};
    }
    return count;
}

uint64_t gpt_cuda_activation_bytes(const struct gpt_config *config, uint32_t batch, zero_dtype dtype,
                                   uint64_t *out_cpu) {
    struct gpt_config complete = gpt_complete(config);
    struct cuda_memory sizes = {.device = NULL};
    cuda_layout(&sizes, &complete, batch, dtype);
    *out_cpu = sizes.pinned_bytes;
    return sizes.bytes + sizes.pinned_bytes;
}
