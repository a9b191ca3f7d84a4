/* Transfers of chunks to and from the drive.
 *
 * Every record carries a tag. A record that was read is used only after its tag and checksum match the last store.
 * The check finds a flipped bit, a block that the drive wrote to another place, and an old block that the drive kept.
 * Parameters have no room for tags, so their checksums stay in memory. */
#include "engine/executor/drive/drive.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/checksum.h"

struct chunk_tag {
    uint64_t magic, chunk, generation, checksum; /* checksum: of all bytes of the part before the tag */
};

static const uint64_t tag_magic[RECORD_PARTS] = {0x31676174206f727aULL,  /* "zro tag1" */
                                                 0x32676174206f727aULL}; /* "zro tag2" */

_Static_assert(sizeof(struct chunk_tag) <= CHUNK_TAG_BYTES, "a record has room for its tag");

/* ---- places ---- */

/* With a shadow, epochs alternate between two places. */
static uint64_t part_place(const struct executor *e, const struct chunk *c, int part) {
    uint64_t row = e->o.plan->row_offset[MEMORY_RECORDS] + c->record + c->part[part].at;
    bool second = e->o.plan->terms->shadow && e->stored[c->index].part[part].generation % 2;
    return row + second * e->o.plan->layout.record_row_bytes;
}

static uint64_t param_place(const struct executor *e, uint32_t region, const struct chunk *c) {
    struct buffer_ref shard = {BUFFER_PARAM_SHARD, (uint16_t)region};
    return plan_place(e->o.plan, plan_fixed(e->o.plan, shard)) + c->param_place;
}

static uint64_t grad_place(const struct executor *e, uint32_t region, const struct chunk *c) {
    struct buffer_ref shard = {BUFFER_GRAD_SHARD, (uint16_t)region};
    return plan_place(e->o.plan, plan_fixed(e->o.plan, shard)) + c->grad_place;
}

zero_status transfer_post(struct executor *e, struct item *item, bool write, uint64_t place, uint64_t bytes,
                          void *memory) {
    struct tier_request request = {write, place, bytes, memory};
    struct tier_work *work = NULL;
    zero_status status = e->m.drive->ops->post(e->m.drive, &request, &work, &e->error);
    if (work) item->transfer[item->transfers++] = work;
    return status;
}

/* ---- integrity ---- */

static zero_status damaged(struct executor *e, uint32_t region, const struct chunk *c, uint64_t place,
                           const char *what, const struct chunk_tag *expected,
                           const struct chunk_tag *found) {
    char where[256];
    e->m.drive->ops->where(e->m.drive, place, where, sizeof where);
    const char *unit = e->o.shape.model->unit[e->o.shape.model->region[region].unit]->name;
    return error_set(&e->error, ZERO_E_IO,
                     "chunk %" PRIu64 " (%s of \"%s\") came back damaged from %s: expected chunk %" PRIu64
                     ", generation %" PRIu64 ", checksum %016" PRIx64 ", found %" PRIu64 ", %" PRIu64
                     ", %016" PRIx64 "; do not trust this drive, and go on from the last checkpoint",
                     c->index, what, unit, where, expected->chunk, expected->generation, expected->checksum,
                     found->chunk, found->generation, found->checksum);
}

/* ---- checksums ---- */

/* The bytes of a chunk, by what has a checksum. NULL: it is not summed. */
struct chunk_bytes {
    struct {
        const uint8_t *at;
        uint64_t count;
    } of[CHUNK_SUMS];
};

static void add_bytes(struct chunk_bytes *bytes, int sum, const uint8_t *at, uint64_t count) {
    bytes->of[sum].at = at;
    bytes->of[sum].count = count;
}

static struct chunk_bytes bytes_in_slot(const struct chunk *c, const uint8_t *slot) {
    struct chunk_bytes bytes = {0};
    for (int part = 0; part < RECORD_PARTS && c->state; part++)
        if (c->part[part].bytes)
            add_bytes(&bytes, part, slot + c->part[part].at, c->part[part].tag - c->part[part].at);
    if (c->params) add_bytes(&bytes, SUM_PARAMS, slot + c->slot_param, c->param_used);
    if (c->grads) add_bytes(&bytes, SUM_GRADS, slot + c->slot_grad, c->grad_used);
    return bytes;
}

/* Bytes that were never stored have no checksum to compare with. */
static void only_stored(const struct executor *e, const struct chunk *c, struct chunk_bytes *bytes) {
    const struct stored *stored = &e->stored[c->index];
    for (int part = 0; part < RECORD_PARTS; part++)
        if (!stored->part[part].generation) add_bytes(bytes, part, NULL, 0);
    if (!stored->has_params) add_bytes(bytes, SUM_PARAMS, NULL, 0);
    if (!stored->has_grads) add_bytes(bytes, SUM_GRADS, NULL, 0);
}

static void sum_bytes(const struct chunk_bytes *bytes, uint64_t *sum) {
    for (int i = 0; i < CHUNK_SUMS; i++)
        if (bytes->of[i].at) sum[i] = checksum(bytes->of[i].at, bytes->of[i].count);
}

struct sums_argument {
    struct chunk_bytes bytes;
    uint64_t *sum; /* of the item */
};

static void run_sums(void *argument) {
    const struct sums_argument *a = argument;
    sum_bytes(&a->bytes, a->sum);
}

static const struct kernel sums_kernel = {
    .name = "checksums", .run = run_sums, .argument_bytes = sizeof(struct sums_argument)};

static zero_status sum_in_item(struct executor *e, struct item *item, const struct chunk_bytes *bytes) {
    struct sums_argument a = {*bytes, item->sum};
    uint64_t count = 0;
    for (int i = 0; i < CHUNK_SUMS; i++) count += bytes->of[i].count;
    if (e->m.without_data) return ZERO_OK;
    if (job_submit(e, item, JOBS_CHUNKS, &sums_kernel, &a, count))
        item->awaits = AWAITS_JOB;
    else
        run_sums(&a);
    return ZERO_OK;
}

/* After a resume, only the drive has the checksum. */
static zero_status check_part(struct executor *e, uint32_t region, const struct chunk *c, int part,
                              const uint8_t *slot, uint64_t is) {
    static const char *const what[RECORD_PARTS] = {"optimizer state", "averages and master weights"};
    const struct record_part *place = &c->part[part];
    const struct version *stored = &e->stored[c->index].part[part];
    struct chunk_tag expected = {tag_magic[part], c->index, stored->generation, stored->checksum}, found;
    if (!expected.generation || e->m.without_data) return ZERO_OK; /* never stored: zeros, set here */
    memcpy(&found, slot + place->tag, sizeof found);
    if (stored->resumed) expected.checksum = found.checksum;
    if (is == expected.checksum && memcmp(&found, &expected, sizeof found) == 0) return ZERO_OK;
    if (is != expected.checksum) found.checksum = is;
    return damaged(e, region, c, part_place(e, c, part), what[part], &expected, &found);
}

static zero_status check_record(struct executor *e, uint32_t region, const struct chunk *c,
                                const uint8_t *slot, const uint64_t *sum) {
    for (int part = 0; part < RECORD_PARTS; part++)
        if (c->part[part].bytes) TRY(check_part(e, region, c, part, slot, sum[part]));
    return ZERO_OK;
}

/* For bytes that are stored without a tag: `place` and `check` are those of their last store. */
static zero_status check_bytes(struct executor *e, uint32_t region, const struct chunk *c, const char *what,
                               uint64_t place, uint64_t check, uint64_t sum) {
    struct chunk_tag expected = {0, c->index, 0, check}, found = expected;
    found.checksum = sum;
    if (found.checksum == expected.checksum) return ZERO_OK;
    return damaged(e, region, c, place, what, &expected, &found);
}

static zero_status check_params(struct executor *e, uint32_t region, const struct chunk *c, uint64_t sum) {
    const struct stored *stored = &e->stored[c->index];
    if (!stored->has_params || e->m.without_data) return ZERO_OK;
    return check_bytes(e, region, c, "parameters", param_place(e, region, c), stored->param_check, sum);
}

static zero_status check_grads(struct executor *e, uint32_t region, const struct chunk *c, uint64_t sum) {
    const struct stored *stored = &e->stored[c->index];
    if (!stored->has_grads || e->m.without_data) return ZERO_OK;
    return check_bytes(e, region, c, "gradient", grad_place(e, region, c), stored->grad_check, sum);
}

static zero_status check_chunk(struct executor *e, uint32_t region, const struct chunk *c,
                               const uint8_t *slot, const uint64_t *sum) {
    zero_status status = c->state ? check_record(e, region, c, slot, sum) : ZERO_OK;
    if (c->params && !status) status = check_params(e, region, c, sum[SUM_PARAMS]);
    return c->grads && !status ? check_grads(e, region, c, sum[SUM_GRADS]) : status;
}

zero_status transfer_check(struct executor *e, uint32_t region, const struct chunk *c, const uint8_t *slot) {
    uint64_t sum[CHUNK_SUMS] = {0};
    struct chunk_bytes bytes = bytes_in_slot(c, slot);
    only_stored(e, c, &bytes);
    if (!e->m.without_data) sum_bytes(&bytes, sum);
    return check_chunk(e, region, c, slot, sum);
}

/* ---- a chunk and its slot ---- */

static void clear(const struct executor *e, uint8_t *memory, uint64_t bytes) {
    if (!e->m.without_data) memset(memory, 0, bytes);
}

/* Parameters that were never stored are zero, and are not read. */
static zero_status read_params(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                               uint8_t *params) {
    if (e->stored[c->index].has_params)
        return transfer_post(e, item, false, param_place(e, region, c), c->param_bytes, params);
    clear(e, params, c->param_bytes);
    return ZERO_OK;
}

static zero_status read_grads(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                              uint8_t *grads) {
    if (e->stored[c->index].has_grads)
        return transfer_post(e, item, false, grad_place(e, region, c), c->grad_bytes, grads);
    clear(e, grads, c->grad_bytes);
    return ZERO_OK;
}

static void forget_gradients(struct executor *e) {
    for (uint32_t i = 0; i <= e->o.plan->layout.slots; i++) e->access.held[i].there &= (uint8_t)~CHUNK_GRADS;
}

static zero_status write_grads(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                               uint8_t *grads) {
    forget_gradients(e);
    e->stored[c->index].has_grads = true;
    e->stored[c->index].grad_check = item->sum[SUM_GRADS];
    return transfer_post(e, item, true, grad_place(e, region, c), c->grad_bytes, grads);
}

static zero_status read_part(struct executor *e, struct item *item, const struct chunk *c, int part,
                             uint8_t *slot) {
    const struct record_part *place = &c->part[part];
    if (e->stored[c->index].part[part].generation)
        return transfer_post(e, item, false, part_place(e, c, part), place->bytes, slot + place->at);
    clear(e, slot + place->at, place->tag - place->at);
    return ZERO_OK;
}

static zero_status write_part(struct executor *e, struct item *item, const struct chunk *c, int part,
                              uint8_t *slot) {
    const struct record_part *place = &c->part[part];
    struct version *version = &e->stored[c->index].part[part];
    if (version->generation != e->epoch) e->stored[c->index].before[part] = *version;
    version->generation = e->o.plan->terms->shadow ? e->epoch : version->generation + 1;
    version->checksum = item->sum[part];
    version->resumed = false;
    struct chunk_tag tag = {tag_magic[part], c->index, version->generation, version->checksum};
    if (!e->m.without_data) memcpy(slot + place->tag, &tag, sizeof tag);
    return transfer_post(e, item, true, part_place(e, c, part), place->bytes, slot + place->at);
}

zero_status transfer_read(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                          uint8_t *slot) {
    for (int part = 0; part < RECORD_PARTS && c->state; part++)
        if (c->part[part].bytes) TRY(read_part(e, item, c, part, slot));
    if (c->params) TRY(read_params(e, item, region, c, slot + c->slot_param));
    if (c->grads) TRY(read_grads(e, item, region, c, slot + c->slot_grad));
    return ZERO_OK;
}

void transfer_sum(const struct executor *e, struct item *item, const struct chunk *c, const uint8_t *slot) {
    struct chunk_bytes bytes = bytes_in_slot(c, slot);
    if (!e->m.without_data) sum_bytes(&bytes, item->sum);
}

zero_status transfer_write(struct executor *e, struct item *item, uint32_t region, const struct chunk *c,
                           uint8_t *slot) {
    struct stored *stored = &e->stored[c->index];
    uint8_t *params = slot + c->slot_param;
    zero_status status = ZERO_OK;
    for (int part = 0; part < RECORD_PARTS && c->state && !status; part++)
        if (c->part[part].bytes) status = write_part(e, item, c, part, slot);
    if (c->params) {
        stored->has_params = true;
        stored->param_check = item->sum[SUM_PARAMS];
    }
    if (!status && c->params)
        status = transfer_post(e, item, true, param_place(e, region, c), c->param_bytes, params);
    return status;
}

/* ---- operations ---- */

static struct chunk item_chunk(const struct executor *e, const struct item *item) {
    return chunk_layout_moved(&e->o.plan->layout, &item->task->op, item->index);
}

/* Where a fetch reads a chunk to: to a slot of its ring, or to its place in the gathered region. */
static uint8_t *fetch_target(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    if (op->write[0].kind != BUFFER_PARAM_FULL)
        return item_address(e, item, op->write[0], item->task->write[0]);
    struct placement rest = policy_region(e, op->region)->rest;
    uint8_t *shard = own_part_address(e, op->write[0], item->task->write[0], rest,
                                      precision_of(&e->o.shape, op->region).compute);
    return shard + item_chunk(e, item).param_place;
}

/* The item's chunk of the sum of a use's micro-batches. */
static uint8_t *held_memory(const struct executor *e, const struct item *item) {
    return (uint8_t *)buffer_address(e, item->task->read[0]) + item_chunk(e, item).grad_place;
}

/* The store takes a sum from a discrete device to where the gradient rests in the host's memory; else to a drive. */
static bool stores_in_memory(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return op->object == OBJECT_GRAD && !e->o.plan->layout.region[op->region].grads;
}

/* The address of an item's chunk: parameters and gradients that move alone have places of their own. */
static uint8_t *item_memory(const struct executor *e, const struct item *item) {
    const struct task *task = item->task;
    const struct operation *op = &task->op;
    if (op->object != OBJECT_PARAM && op->object != OBJECT_GRAD)
        return slot_address(e, op->sequence + item->index);
    if (op->kind == OP_STORE && op->writes > 1) return item_address(e, item, op->write[1], task->write[1]);
    if (op->kind == OP_STORE && op->read[0].kind == BUFFER_GRAD_HELD) return held_memory(e, item);
    return op->kind == OP_FETCH ? fetch_target(e, item) : item_address(e, item, op->read[0], task->read[0]);
}

zero_status fetch_chunk(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct chunk c = item_chunk(e, item);
    item->awaits = AWAITS_DRIVE;
    uint8_t *memory = item_memory(e, item);
    /* The update to be undone has been stored: the pipe of the slots has waited for that. What an earlier leg of this update has
     * stored anew is read. */
    const struct chunk_layout *layout = &e->o.plan->layout;
    const struct update_row *row = &update_rows[layout->region[op->region].scope];
    uint8_t anew = 0;
    for (uint8_t i = 0; i < op->leg; i++) anew |= row->leg[i].writes;
    for (int part = 0; part < RECORD_PARTS && op->outcome != OUTCOME_UPDATED; part++)
        if (c.part[part].bytes &&
            !(anew & chunk_part_arrays(&layout->format[layout->kind[op->region]], part)))
            e->stored[c.index].part[part] = e->stored[c.index].before[part];
    if (op->object == OBJECT_PARAM) return read_params(e, item, op->region, &c, memory);
    if (op->object == OBJECT_GRAD) return read_grads(e, item, op->region, &c, memory);
    return transfer_read(e, item, op->region, &c, memory);
}

/* The item's bytes. Parameters or a gradient that move alone are at `memory`. */
static struct chunk_bytes item_bytes(const struct item *item, const struct chunk *c, const uint8_t *memory) {
    struct chunk_bytes alone = {0};
    if (item->task->op.object == OBJECT_PARAM)
        add_bytes(&alone, SUM_PARAMS, memory, c->param_used);
    else if (item->task->op.object == OBJECT_GRAD)
        add_bytes(&alone, SUM_GRADS, memory, c->grad_used);
    else
        return bytes_in_slot(c, memory);
    return alone;
}

/* A sum that waited on a discrete device crosses to the host. */
zero_status cross_held(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    bool device = op->object == OBJECT_GRAD && e->o.shape.terms->discrete;
    if (!device || op->read[0].kind != BUFFER_GRAD_HELD) return ZERO_OK;
    struct chunk c = item_chunk(e, item);
    uint8_t *target = stores_in_memory(e, item)
                          ? (uint8_t *)buffer_address(e, item->task->write[0]) + c.grad_place
                          : item_memory(e, item);
    return copy(e, item, DEVICE_OUT, target, held_memory(e, item), c.grad_used);
}

zero_status sum_stored(struct executor *e, struct item *item) {
    if (stores_in_memory(e, item)) return ZERO_OK;
    struct chunk c = item_chunk(e, item);
    struct chunk_bytes bytes = item_bytes(item, &c, item_memory(e, item));
    return sum_in_item(e, item, &bytes);
}

zero_status sum_fetched(struct executor *e, struct item *item) {
    struct chunk c = item_chunk(e, item);
    struct chunk_bytes bytes = item_bytes(item, &c, item_memory(e, item));
    only_stored(e, &c, &bytes);
    return sum_in_item(e, item, &bytes);
}

zero_status store_chunk(struct executor *e, struct item *item) {
    if (stores_in_memory(e, item)) return ZERO_OK;
    struct chunk c = item_chunk(e, item);
    const struct operation *op = &item->task->op;
    uint8_t *memory = item_memory(e, item);
    item->awaits = AWAITS_DRIVE;
    return op->object == OBJECT_GRAD ? write_grads(e, item, op->region, &c, memory)
                                     : transfer_write(e, item, op->region, &c, memory);
}

zero_status transfer_done(struct executor *e, struct item *item, bool *out_done) {
    for (uint8_t i = 0; i < item->transfers;) {
        bool done;
        TRY(e->m.drive->ops->test(e->m.drive, item->transfer[i], &done, &e->error));
        if (done) item->transfer[i] = item->transfer[--item->transfers];
        i += !done;
    }
    *out_done = item->transfers == 0;
    return ZERO_OK;
}

zero_status check_fetched(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    struct chunk c = item_chunk(e, item);
    const uint8_t *memory = item_memory(e, item);
    if (op->object == OBJECT_PARAM) return check_params(e, op->region, &c, item->sum[SUM_PARAMS]);
    if (op->object == OBJECT_GRAD) return check_grads(e, op->region, &c, item->sum[SUM_GRADS]);
    return check_chunk(e, op->region, &c, memory, item->sum);
}
