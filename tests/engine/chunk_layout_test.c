/* The cut of shards into chunks and the chunks' places: checks the statements of engine/plan/chunk_layout.h for random
 * models, stages and options. chunk_layout_test [FIRST SEED] [SEEDS] */
#include <stdlib.h>

#include "engine/plan/chunk_layout.h"
#include "tests/check.h"
#include "tests/seeds.h"

enum { UNITS_MAX = 6, REGIONS_MAX = REGION_CLASSES * UNITS_MAX, CHUNKS_MAX = 1 << 16 };

struct setting { /* what a seed draws */
    struct model model;
    struct region region[REGIONS_MAX];
    uint16_t refresh[REGIONS_MAX];
    struct policy policy;
    struct terms terms;
    struct chunk_format format[CHUNK_FORMATS];
    enum optimizer_scope scope;
};

static uint64_t state, page; /* page: what chunks, records and slots are multiples of */

static uint32_t pick(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* ---- a setting ---- */

static void add_units(struct model *model, struct zero_error *error) {
    for (uint32_t u = 0, units = 1 + pick(UNITS_MAX), params = 0; u < units; u++) {
        struct zero_unit *unit;
        char name[16];
        snprintf(name, sizeof name, "u%u", u);
        CHECK_INT(model_add_unit(model, NULL, name, &unit, error), ZERO_OK);
        for (uint32_t n = 1 + pick(3); n > 0; n--) {
            static zero_slot slot;
            uint32_t most = pick(3) ? 60000 : 50;
            snprintf(name, sizeof name, "p%u", params++);
            zero_param param = {.struct_size = sizeof param,
                                .name = name,
                                .dims = 1,
                                .shape = {1 + pick(most)},
                                .flags = (pick(5) ? 0 : ZERO_FROZEN) | (pick(3) ? 0 : ZERO_KEEP_FP32),
                                .slot = &slot};
            CHECK_INT(model_add_param(model, unit, &param, error), ZERO_OK);
        }
    }
}

static void open_policy(struct setting *s, uint32_t shards, uint32_t replicas) {
    static const struct stage *const rows[] = {&stage_zero0, &stage_zero1, &stage_zero2, &stage_zero3};
    for (uint32_t i = 0; i < s->model.regions; i++)
        s->region[i] =
            (struct region){.frozen = region_frozen(&s->model.region[i]),
                            .persistent = region_persistent(&s->model.region[i]),
                            .scope = region_frozen(&s->model.region[i]) ? SCOPE_ELEMENT : s->scope};
    s->policy = (struct policy){.stage = rows[pick(4)],
                                .mesh = {shards, replicas},
                                .micro_steps = 1,
                                .forward = s->model.use,
                                .uses = s->model.units,
                                .region = s->region,
                                .regions = s->model.regions,
                                .refresh = s->refresh};
    policy_open(&s->policy);
}

static void make(struct setting *s) {
    static const uint64_t bounds[] = {0, 1, 1024, 1500, 3 * 1024, 9000, 1 << 20};
    static const uint64_t budgets[] = {0, 5000, 50000, 300000, 1 << 20, 1 << 30};
    struct zero_error error;
    uint32_t shards = 1 + pick(4), replicas = 1 + pick(2);
    static const enum tier_kind tiers[] = {TIER_NVME, TIER_CPU, TIER_DEVICE};
    *s = (struct setting){.terms = {.state_tier = pick(4) ? TIER_NVME : TIER_CPU,
                                    .param_tier = tiers[pick(2)],
                                    .grad_tier = tiers[pick(3)],
                                    .discrete = pick(2),
                                    .chunk_elements_max = bounds[pick(7)],
                                    .slots = pick(6),
                                    .resident_bytes = budgets[pick(6)],
                                    .chunk_align_bytes = pick(3) ? 0 : 64u << pick(7),
                                    .grad_resident_bytes = budgets[pick(6)],
                                    .piece_bytes = pick(2) ? 0 : 65536u << pick(4),
                                    .device_share = pick(2) ? 0 : pick(11) / 10.,
                                    .device_bytes = pick(2) ? UINT64_MAX : budgets[pick(6)]}};
    for (int f = 0; f < CHUNK_FORMATS; f++) {
        struct chunk_format *format = &s->format[f];
        format->arrays = pick(PRECISION_ARRAYS_MAX + 1);
        format->states = format->arrays - (format->arrays && pick(2));
        format->moments = format->states - (format->states && pick(2));
        format->param_dtype = f || pick(2) ? DTYPE_F32 : DTYPE_BF16;
        format->grad_dtype = pick(2) ? DTYPE_F32 : DTYPE_BF16;
        for (uint32_t k = 0; k < format->arrays; k++) format->array_bytes[k] = pick(2) ? 4 : 2;
    }
    s->scope = !pick(3) ? SCOPE_MATRIX : pick(2) ? SCOPE_TENSOR : SCOPE_ELEMENT;
    s->model.dtype = s->format[0].param_dtype;
    page = s->terms.chunk_align_bytes ? s->terms.chunk_align_bytes : CHUNK_ALIGN_BYTES;
    add_units(&s->model, &error);
    CHECK_INT(model_lay_out(&s->model, shards * replicas, pick(2) ? 0 : 60, &error), ZERO_OK);
    open_policy(s, shards, replicas);
}

static bool rests_sharded(const struct region *r) { return !placement_is(r->rest, REPLICATE, REPLICATE); }

static const struct chunk_format *format_of(const struct setting *s, uint32_t region) {
    return &s->format[region_keeps_fp32(&s->model.region[region])];
}

static uint64_t param_bytes(const struct setting *s, uint32_t region) {
    return dtype_bytes(format_of(s, region)->param_dtype);
}

static uint64_t grad_bytes(const struct setting *s, uint32_t region) {
    return dtype_bytes(format_of(s, region)->grad_dtype);
}

/* Its gradient is cut as its state is, and may be on a drive. */
static bool has_shard(const struct setting *s, uint32_t region) {
    return terms_grads_staged(&s->terms) && !s->region[region].frozen && s->policy.stage->number > 0;
}

static uint64_t element_bytes(const struct setting *s, uint32_t region) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < format_of(s, region)->arrays; k++) bytes += format_of(s, region)->array_bytes[k];
    return bytes;
}

static bool has_state(const struct setting *s, uint32_t region) {
    return format_of(s, region)->arrays && !s->region[region].frozen;
}

static uint64_t shard_elements(const struct setting *s, uint32_t region) {
    const struct region *r = &s->region[region];
    return s->model.region[region].padded / placement_parts(r->frozen ? r->rest : r->state, s->policy.mesh);
}

/* ---- one chunk ---- */

/* Its arrays one after another, each on a cache line, then the tag, in whole pages: no more than it takes. Where matrices are updated
 * whole, the masters are apart. */
static bool part_is_tight(const struct chunk_format *format, const struct chunk *c, int which, uint32_t first,
                          uint32_t arrays) {
    const struct record_part *part = &c->part[which];
    uint64_t line = ALIGN_BYTES, end = part->at;
    bool good = CHECK_INT(part->at % page, 0);
    for (uint32_t k = first; k < arrays; k++) {
        good &= CHECK_INT(c->array[k] % line, 0) && CHECK(c->array[k] >= end && c->array[k] < end + line);
        end = c->array[k] + c->count * format->array_bytes[k];
    }
    good &= CHECK_INT(part->tag % line, 0) && CHECK(part->tag >= end && part->tag < end + line);
    uint64_t needs = part->tag + CHUNK_TAG_BYTES - part->at;
    return good && CHECK_INT(part->bytes % page, 0) &&
           CHECK(part->bytes >= needs && part->bytes < needs + page);
}

static bool record_is_tight(const struct setting *s, const struct chunk_format *format,
                            const struct chunk *c) {
    bool apart = s->scope != SCOPE_ELEMENT && format->arrays > format->moments;
    bool good = part_is_tight(format, c, PART_STATES, 0, apart ? format->moments : format->arrays);
    if (!apart) return good && CHECK_INT(c->part[PART_WEIGHTS].bytes, 0);
    return good && part_is_tight(format, c, PART_WEIGHTS, format->moments, format->arrays) &&
           CHECK_INT(c->part[PART_WEIGHTS].at, c->part[PART_STATES].bytes);
}

static bool fits_slot(const struct chunk_layout *layout, const struct chunk *c) {
    uint64_t record = chunk_record_bytes(c);
    bool good = CHECK_INT(c->slot_param % page, 0) && CHECK_INT(layout->slot_bytes % page, 0);
    if (c->state) good &= CHECK(record <= c->slot_param) && CHECK(c->slot_param <= layout->slot_bytes);
    if (c->params) good &= CHECK(c->slot_param + c->param_bytes <= layout->slot_bytes);
    if (c->grads)
        good &=
            CHECK_INT(c->slot_grad % page, 0) && CHECK(c->slot_grad + c->grad_bytes <= layout->slot_bytes);
    if (c->grads && c->state) good &= CHECK(record <= c->slot_grad);
    if (c->grads && c->params) good &= CHECK(c->slot_param + c->param_bytes <= c->slot_grad);
    return good;
}

/* A chunk that is read to its place in a gathered region begins there on a page, and writes no byte of another rank's part. */
static bool place_is_right(const struct setting *s, const struct chunk_layout *layout, uint32_t region,
                           const struct chunk *c) {
    bool alone = s->policy.mesh[AXIS_SHARD] == 1, in_place = layout->region[region].in_place;
    uint64_t share = layout->elements[region] * param_bytes(s, region);
    bool may = !s->terms.discrete && c->params && (share % page == 0 || alone);
    return CHECK_INT(in_place, may) && CHECK(!in_place || layout->reads_in_place) &&
           CHECK(!in_place || alone || c->param_place + c->param_bytes <= share);
}

static bool chunk_is_right(const struct setting *s, const struct chunk_layout *layout, uint32_t region,
                           const struct chunk *c) {
    bool drive = terms_state_staged(&s->terms) && has_state(s, region);
    bool good = CHECK(c->count > 0 && c->count <= layout->chunk_elements) &&
                CHECK_INT(c->params, terms_params_staged(&s->terms) && rests_sharded(&s->region[region]));
    good &= CHECK_INT(c->state, drive && c->first >= chunk_layout_resident(layout, region));
    good &= CHECK_INT(c->device, c->first < chunk_layout_device(layout, region));
    good &= place_is_right(s, layout, region, c);
    good &= CHECK_INT(c->param_bytes % page, 0) && CHECK(c->param_bytes >= c->param_used) &&
            CHECK(c->param_bytes < c->param_used + page) &&
            CHECK_INT(c->param_used, c->count * param_bytes(s, region)) &&
            CHECK_INT(c->param_place, c->first * param_bytes(s, region)) &&
            CHECK_INT(c->param_place % page, 0);
    good &= CHECK(!c->grads || has_shard(s, region)) && CHECK_INT(c->grads, layout->region[region].grads) &&
            CHECK_INT(c->grad_used, c->count * grad_bytes(s, region)) &&
            CHECK(c->grad_bytes >= c->grad_used && c->grad_bytes < c->grad_used + page) &&
            CHECK_INT(c->grad_place, c->first * grad_bytes(s, region)) &&
            CHECK(!c->grads || c->grad_place % page == 0);
    if (c->state) good &= record_is_tight(s, format_of(s, region), c) && CHECK_INT(c->record % page, 0);
    return good && fits_slot(layout, c);
}

struct moved {
    enum outcome outcome;
    uint64_t part[RECORD_PARTS];
    uint32_t params, grads;
};

/* What the fetches or stores of one leg move of a chunk. */
static bool add_moved(const struct chunk_layout *layout, uint32_t region, uint32_t chunk, uint8_t leg,
                      enum operation_kind kind, struct moved *sum) {
    struct operation op = {.kind = (uint8_t)kind,
                           .outcome = (uint8_t)sum->outcome,
                           .leg = leg,
                           .region = (uint16_t)region,
                           .first = chunk};
    struct chunk c = chunk_layout_moved(layout, &op, 0);
    for (int k = 0; k < RECORD_PARTS; k++) sum->part[k] += c.part[k].bytes;
    sum->params += c.params, sum->grads += c.grads;
    bool needed = c.grads || c.params || (c.state && chunk_record_bytes(&c)),
         staged = chunk >= offload_leg_first(&layout->region[region], leg);
    return CHECK(!needed || staged);
}

/* Over its updates, each part of a chunk is stored once. It is fetched once: the states and the gradient first, where there are two
 * updates. Those that take norms read the states, and the weights wherever they are, once more. */
static bool moves_once(const struct setting *s, const struct chunk_layout *layout, uint32_t region,
                       uint32_t chunk, uint64_t *again_bytes) {
    const struct chunk_format *format = format_of(s, region);
    struct chunk whole = chunk_layout_at(layout, region, chunk);
    struct moved fetched = {0}, stored = {0};
    bool good = true, again = layout->region[region].scope == SCOPE_TENSOR,
         masters = format->param_dtype != DTYPE_F32;
    bool whole_masters =
        masters && format->arrays > format->states && format->array_bytes[format->states] == 4;
    for (uint8_t leg = 0; leg < update_rows[layout->region[region].scope].legs; leg++)
        good = good && add_moved(layout, region, chunk, leg, OP_FETCH, &fetched) &&
               add_moved(layout, region, chunk, leg, OP_STORE, &stored);
    uint64_t states = again ? whole.part[PART_STATES].bytes : 0,
             rest = again && masters ? whole.part[PART_WEIGHTS].bytes : 0;
    uint32_t params = again && whole.params && !whole_masters;
    *again_bytes += (whole.state ? states + rest : 0) + params * whole.param_bytes;
    return good && CHECK_INT(fetched.part[PART_STATES], whole.part[PART_STATES].bytes + states) &&
           CHECK_INT(fetched.part[PART_WEIGHTS], whole.part[PART_WEIGHTS].bytes + rest) &&
           CHECK_INT(fetched.params, whole.params + params) && CHECK_INT(fetched.grads, whole.grads) &&
           CHECK_INT(stored.part[PART_STATES], whole.part[PART_STATES].bytes) &&
           CHECK_INT(stored.part[PART_WEIGHTS], whole.part[PART_WEIGHTS].bytes) &&
           CHECK_INT(stored.params, whole.params) && CHECK_INT(stored.grads, 0);
}

/* Where norms come before the weights, an update that is made again reads the record for both halves, and no parameters; one that is taken
 * back reads each part once, and stores nothing. */
static bool moves_again(const struct chunk_layout *layout, uint32_t region, uint32_t chunk,
                        uint64_t *record_bytes) {
    struct chunk whole = chunk_layout_at(layout, region, chunk);
    bool good = true, measures = layout->region[region].scope == SCOPE_TENSOR && whole.state;
    for (enum outcome outcome = OUTCOME_REPEATED; measures && outcome <= OUTCOME_SKIPPED; outcome++) {
        struct moved fetched = {.outcome = outcome}, stored = {.outcome = outcome};
        uint64_t times = outcome == OUTCOME_REPEATED ? 2 : 1;
        for (uint8_t leg = 0; leg < 2; leg++)
            good = good && add_moved(layout, region, chunk, leg, OP_FETCH, &fetched) &&
                   add_moved(layout, region, chunk, leg, OP_STORE, &stored);
        for (int k = 0; k < RECORD_PARTS; k++)
            good = good && CHECK_INT(fetched.part[k], times * whole.part[k].bytes) &&
                   (outcome == OUTCOME_SKIPPED || CHECK_INT(stored.part[k], whole.part[k].bytes));
        good = good && CHECK_INT(fetched.params, 0) &&
               CHECK_INT(fetched.grads, outcome == OUTCOME_REPEATED && whole.grads);
    }
    *record_bytes += measures ? chunk_record_bytes(&whole) : 0;
    return good;
}

/* ---- all chunks ---- */

struct seen {
    struct chunk chunk[CHUNKS_MAX]; /* those with a record */
    uint32_t chunks;
    uint64_t all, staged, step_bytes, grad_bytes, again_bytes, again_record_bytes;
};

/* They tile the shard: each element is of one chunk. */
static bool region_is_tiled(const struct setting *s, const struct chunk_layout *layout, uint32_t region,
                            struct seen *seen) {
    uint64_t next = 0, shard = shard_elements(s, region);
    for (uint32_t i = 0; next < shard; i++) {
        if (!CHECK(i < layout->region[region].chunks)) return false;
        struct chunk c = chunk_layout_at(layout, region, i);
        if (!CHECK_INT(c.first, next) || !CHECK_INT(c.index, seen->all)) return false;
        uint64_t again = 0, record = 0;
        if (!chunk_is_right(s, layout, region, &c) || !moves_once(s, layout, region, i, &again) ||
            !moves_again(layout, region, i, &record))
            return false;
        bool staged = !s->region[region].frozen && (c.state || c.params || c.grads);
        seen->again_bytes += staged ? again : 0, seen->again_record_bytes += staged ? record : 0;
        next += c.count;
        seen->all++;
        seen->staged += staged;
        if (staged) seen->step_bytes += (c.state ? chunk_record_bytes(&c) : 0) + c.params * c.param_bytes;
        seen->grad_bytes += c.grads * c.grad_bytes;
        if (c.state && CHECK(seen->chunks < CHUNKS_MAX)) seen->chunk[seen->chunks++] = c;
    }
    return CHECK_INT(next, shard) &&
           CHECK(chunk_layout_param_bytes(layout, region) >= shard * param_bytes(s, region)) &&
           CHECK_INT(chunk_layout_param_bytes(layout, region) % page, 0);
}

static int by_place(const void *a, const void *b) {
    const struct chunk *x = a, *y = b;
    return (x->record > y->record) - (x->record < y->record);
}

static bool records_are_apart(const struct chunk_layout *layout, struct seen *seen) {
    uint64_t end = 0;
    qsort(seen->chunk, seen->chunks, sizeof *seen->chunk, by_place);
    for (uint32_t i = 0; i < seen->chunks; i++) {
        if (!CHECK(seen->chunk[i].record >= end)) return false;
        end = seen->chunk[i].record + chunk_record_bytes(&seen->chunk[i]);
    }
    return CHECK(end <= layout->record_row_bytes);
}

/* Where state is on the drive, what stays in memory is a prefix of the order of use, within the budget, and the
 * next chunk would go past it. */
static bool residents_are_a_prefix(const struct setting *s, const struct chunk_layout *layout) {
    uint64_t kept = 0, all = 0, next = 0;
    bool ended = false, good = true;
    for (uint32_t k = 0; k < s->policy.refreshes; k++) {
        uint32_t region = s->refresh[k];
        uint64_t shard = shard_elements(s, region), resident = chunk_layout_resident(layout, region);
        uint64_t element = element_bytes(s, region);
        good &= CHECK(resident <= shard) && CHECK(!ended || resident == 0 || !element);
        kept += resident * element;
        all += shard * element;
        uint64_t rest = shard - resident;
        if (rest && !ended) next = (rest < layout->chunk_elements ? rest : layout->chunk_elements) * element;
        ended |= rest > 0;
    }
    good &= CHECK_INT(layout->state_bytes, all) && CHECK_INT(layout->resident_bytes, kept);
    if (!terms_state_staged(&s->terms)) return good && CHECK(!ended);
    kept -= layout->device_bytes;
    return good && CHECK(kept <= s->terms.resident_bytes) &&
           CHECK(!ended || kept + next > s->terms.resident_bytes);
}

/* State on the device is a prefix of the state in memory, within the share and the budget, and the next chunk would go past
 * one of them. The last chunk of a shard takes the gradient with it. */
static bool device_is_a_prefix(const struct setting *s, const struct chunk_layout *layout) {
    uint64_t kept = 0, grads = 0, next = 0, all = 0;
    bool ended = false, good = true;
    for (uint32_t k = 0; k < s->policy.refreshes; k++) {
        uint32_t region = s->refresh[k];
        bool gradient =
            (s->terms.discrete || s->terms.grad_tier != TIER_DEVICE) && s->policy.stage->number > 0;
        uint64_t shard = shard_elements(s, region), device = chunk_layout_device(layout, region),
                 element = element_bytes(s, region), rest = shard - device,
                 own = gradient ? chunk_layout_grad_bytes(layout, region) : 0;
        good &= CHECK(device <= chunk_layout_resident(layout, region)) && CHECK(!ended || device == 0);
        kept += device * element, all += shard * element;
        if (!rest && device) grads += own;
        if (rest && element && !ended)
            next = rest <= layout->chunk_elements ? rest * element + own : layout->chunk_elements * element;
        ended |= rest && element;
    }
    uint64_t share = (uint64_t)((double)all * s->terms.device_share), bound = s->terms.device_bytes;
    if (!share) return good && CHECK_INT(kept, 0);
    good &= CHECK_INT(layout->device_bytes, kept) && CHECK(kept <= share) && CHECK(kept + grads <= bound);
    return good && CHECK(!ended || kept + next > share || next > bound - kept - grads || kept == share);
}

/* The gradients that stay in memory: whole shards, a prefix in the order of use, as many as the budget has room for. */
static bool gradients_are_a_prefix(const struct setting *s, const struct chunk_layout *layout) {
    uint64_t kept = 0;
    bool ended = false, good = true;
    for (uint32_t k = 0; k < s->policy.refreshes; k++) {
        uint32_t region = s->refresh[k];
        uint64_t bytes = chunk_layout_grad_bytes(layout, region);
        if (!has_shard(s, region) || chunk_layout_device_whole(layout, region)) continue;
        if (!ended && kept + bytes > s->terms.grad_resident_bytes) ended = true;
        if (!ended) kept += bytes;
        good &= CHECK_INT(layout->region[region].grads, ended);
    }
    return good;
}

/* A slot holds any chunk. Slots take no more than two pieces, unless these are smaller than two slots. */
static bool ring_is_right(const struct setting *s, const struct chunk_ring *ring, uint64_t largest) {
    uint64_t piece = s->terms.piece_bytes ? s->terms.piece_bytes : PIECE_BYTES_DEFAULT;
    if (!largest) return CHECK_INT(ring->slots, 0);
    return CHECK_INT(ring->slot_bytes, largest) && CHECK_INT(ring->slot_bytes % page, 0) &&
           CHECK(ring->slots >= 2 && ring->slots <= RING_SLOTS_MAX) &&
           CHECK(ring->slots == 2 || ring->slots * ring->slot_bytes <= 2 * piece);
}

static bool rings_are_right(const struct setting *s, const struct chunk_layout *layout) {
    uint64_t params = 0, grads = 0;
    for (uint32_t i = 0; i < s->policy.regions; i++)
        for (uint32_t k = 0; k < layout->region[i].chunks; k++) {
            struct chunk c = chunk_layout_at(layout, i, k);
            if (c.params && !layout->region[i].in_place && c.param_bytes > params) params = c.param_bytes;
            if (c.grads && c.grad_bytes > grads) grads = c.grad_bytes;
        }
    return ring_is_right(s, &layout->params, params) && ring_is_right(s, &layout->grads, grads);
}

static bool holds(const struct setting *s, const struct chunk_layout *layout) {
    static struct seen seen;
    uint64_t bound = s->terms.chunk_elements_max, least = 0;
    for (uint32_t i = 0; i < s->policy.regions; i++) {
        uint64_t bytes = param_bytes(s, i);
        if (terms_grads_staged(&s->terms) && grad_bytes(s, i) < bytes) bytes = grad_bytes(s, i);
        if (page / bytes > least) least = page / bytes;
    }
    if (terms_grads_staged(&s->terms) && !s->terms.chunk_align_bytes) least = NORM_BLOCK_ELEMENTS;
    if (s->terms.piece_bytes && (terms_params_staged(&s->terms) || terms_grads_staged(&s->terms)) &&
        (!bound || bound > s->terms.piece_bytes / 4))
        bound = s->terms.piece_bytes / 4;
    uint64_t asked = s->terms.slots ? s->terms.slots : SLOTS_DEFAULT;
    seen.chunks = 0, seen.all = seen.staged = seen.step_bytes = seen.grad_bytes = seen.again_bytes = 0;
    seen.again_record_bytes = 0;
    bool good = CHECK(layout->chunk_elements > 0) && CHECK_INT(layout->chunk_elements % least, 0);
    good &= CHECK(!bound || layout->chunk_elements <= (bound < least ? least : bound));
    for (uint32_t i = 0; i < s->policy.regions && good; i++) good = region_is_tiled(s, layout, i, &seen);
    good = good && CHECK_INT(layout->chunks, seen.all) && records_are_apart(layout, &seen);
    good = good && CHECK_INT(layout->slots, asked < seen.staged ? asked : seen.staged);
    good = good && CHECK_INT(layout->step_bytes, seen.step_bytes) &&
           CHECK_INT(layout->grad_bytes, seen.grad_bytes) &&
           CHECK_INT(layout->again_bytes, seen.again_bytes) &&
           CHECK_INT(layout->again_record_bytes, seen.again_record_bytes);
    return good && residents_are_a_prefix(s, layout) && device_is_a_prefix(s, layout) &&
           gradients_are_a_prefix(s, layout) && rings_are_right(s, layout);
}

static void describe(const struct setting *s) {
    fprintf(
        stderr,
        "in %s, mesh %u x %u, %u regions; state %d, params %d, grads %d, %u and %u arrays, chunks of %" PRIu64
        ", slots %" PRIu64 ", resident %" PRIu64 ", %g of it and %" PRIu64 " on the device\n",
        s->policy.stage->name, s->policy.mesh[0], s->policy.mesh[1], s->policy.regions,
        terms_state_staged(&s->terms), terms_params_staged(&s->terms), terms_grads_staged(&s->terms),
        s->format[0].arrays, s->format[1].arrays, s->terms.chunk_elements_max, s->terms.slots,
        s->terms.resident_bytes, s->terms.device_share, s->terms.device_bytes);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : seeds_count(20000);
    for (uint64_t seed = first; seed < first + count; seed++) {
        static struct setting s;
        struct chunk_layout layout;
        struct zero_error error;
        check_seed(seed);
        state = seed * 0x9e3779b97f4a7c15u;
        make(&s);
        CHECK_INT(chunk_layout_make(&layout, &s.terms, s.format, &s.model, &s.policy, &error), ZERO_OK);
        if (!holds(&s, &layout)) describe(&s);
        chunk_layout_free(&layout);
        model_free(&s.model);
    }
    return check_end();
}
