/* Answers that the host may ask for at any time: version, last failure, settings in effect, position of the training, memory by row, and
 * counters. */
#include <stdlib.h>
#include <string.h>

#include "engine/api/engine.h"
#include "engine/blueprint/blueprint.h"
#include "engine/config/key.h"

#define TEXT(number) #number
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *zero_version(void) { return VERSION(ZERO_VERSION_MAJOR, ZERO_VERSION_MINOR, ZERO_VERSION_PATCH); }
int zero_abi_version(void) { return ZERO_ABI_VERSION; }

zero_status zero_last_failure(zero_failure *out) {
    /* zero_last_error must not erase the failure that it returns */
    if (!out || !out->struct_size) return ZERO_E_ARGUMENT;
    const struct failure *f = failure_last();
    zero_failure failure = {.code = f->error.code,
                            .rank = f->error.code ? f->error.rank : -1,
                            .step = f->error.step,
                            .call = f->call,
                            .unit = *f->unit ? f->unit : NULL,
                            .sentence = f->error.message};
    sized_fill(out, out->struct_size, &failure, sizeof failure);
    return ZERO_OK;
}

_Static_assert((int)ZERO_F32 == (int)DTYPE_F32 && (int)ZERO_BF16 == (int)DTYPE_BF16 &&
                   (int)ZERO_F16 == (int)DTYPE_F16,
               "types are numbered alike");

#define GETTER(type, name, value)                                                                            \
    type name(const zero_engine *e) { return engine_given(e, #name) ? (type)(value) : (type)0; }

GETTER(uint32_t, zero_engine_rank, e->ranks.rank)
GETTER(uint32_t, zero_engine_size, e->ranks.size)
GETTER(uint32_t, zero_engine_data_rank, e->ranks.data_rank)
GETTER(uint32_t, zero_engine_data_size, e->ranks.data_size)
GETTER(uint64_t, zero_engine_steps, e->training.steps)
GETTER(uint32_t, zero_engine_passes, e->pass.micro)
GETTER(uint32_t, zero_engine_threads, e->host.threads)
GETTER(float, zero_engine_loss_scale, e->training.loss_scale.value)
GETTER(uint64_t, zero_engine_micro_batch, e->config.micro_batch)
GETTER(uint64_t, zero_engine_accumulation_steps, e->config.accumulation_steps)
GETTER(uint64_t, zero_engine_use_micros,
       e->config.micro_order == CONFIG_VERTICAL ? e->config.accumulation_steps : 1)
GETTER(uint64_t, zero_engine_train_batch, e->config.train_batch)
GETTER(uint64_t, zero_engine_seed, e->config.seed)
GETTER(double, zero_engine_clipping, e->config.gradient_clipping)

zero_dtype zero_engine_dtype(const zero_engine *e) {
    if (!engine_given(e, "zero_engine_dtype")) return ZERO_F32;
    atomic_store_explicit(&((zero_engine *)e)->typed, true, memory_order_relaxed);
    return (zero_dtype)e->config.compute_dtype;
}

int zero_engine_cuda(const zero_engine *e, void **out_stream) {
    if (!engine_given(e, "zero_engine_cuda")) return -1;
    if (out_stream) *out_stream = e->run.device->stream[DEVICE_COMPUTE];
    return (int)e->run.device->index;
}

const char *zero_engine_setting(const zero_engine *e, const char *key) {
    if (!engine_given(e, "zero_engine_setting")) return NULL;
    const struct config_key *found = key ? config_key_find(key) : NULL;
    if (!found) {
        failure_call("zero_engine_setting", NULL);
        refuse(ZERO_E_ARGUMENT,
               "zero_engine_setting: there is no key \"%s\": `zero help config` lists all of them",
               key ? key : "NULL");
        return NULL;
    }
    return e->config.entries[config_key_index(found)].text;
}

size_t zero_config_text(const char *json, char *out, size_t capacity) {
    struct config_text text;
    struct zero_error error = ERROR_NONE;
    failure_call("zero_config_text", NULL);
    if (!json) return refuse(ZERO_E_ARGUMENT, "zero_config_text: json is NULL: give a text or a path"), 0;
    if (config_text_read(json, &text, &error)) return refuse_error(&error), 0;
    size_t bytes = text.length + 1;
    if (out && bytes <= capacity) memcpy(out, text.text, bytes);
    free(text.text);
    return bytes;
}

static bool asked(const zero_engine *e, const char *what) {
    failure_call(what, NULL);
    return engine_given(e, what);
}

/* A row of the plan. `measured`: the bytes of the row that are inside the allocated memory of its tier. */
static zero_memory_row plan_row(const zero_engine *e, uint32_t row) {
    const struct plan *p = &e->blueprint.plan;
    uint64_t allocated = e->run.tier[p->row_tier[row]]->allocated,
             planned = park_row_bytes(&e->park, (enum memory_row)row),
             begin = park_row_offset(&e->park, (enum memory_row)row), end = begin + planned;
    if (end > allocated) end = allocated > begin ? allocated : begin;
    return (zero_memory_row){.tier = (zero_tier)p->row_tier[row],
                             .name = memory_row_name((enum memory_row)row),
                             .planned = planned,
                             .measured = end - begin};
}

/* The bytes of a tier's extent that belong to no row: the stagger between rows, and the rest of the last page. */
static zero_memory_row alignment_row(const zero_engine *e, int tier) {
    zero_memory_row out = {.tier = (zero_tier)tier,
                           .name = "alignment",
                           .planned = park_tier_bytes(&e->park, (enum tier_kind)tier),
                           .measured = e->run.tier[tier]->allocated};
    for (uint32_t row = 0; row < MEMORY_ROWS; row++) {
        if ((int)e->blueprint.plan.row_tier[row] != tier) continue;
        zero_memory_row used = plan_row(e, row);
        out.planned -= used.planned;
        out.measured -= used.measured;
    }
    return out;
}

static zero_status give_row(zero_memory_row *out, zero_memory_row row) {
    sized_fill(out, out->struct_size, &row, sizeof row);
    return ZERO_OK;
}

/* The rows of the plan that are in use, then each tier's alignment, then the host program's reservations: a
 * tier's rows add up to what is planned, and what is allocated. */
zero_status zero_engine_memory(const zero_engine *e, uint32_t index, zero_memory_row *out) {
    if (!asked(e, "zero_engine_memory")) return ZERO_E_ARGUMENT;
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_memory: out is NULL");
    if (sized_check(out->struct_size, "zero_memory_row")) return ZERO_E_ARGUMENT;
    if (e->pass.phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_engine_memory: call it after commit");
    for (uint32_t row = 0; row < MEMORY_ROWS; row++) {
        if (!park_row_bytes(&e->park, (enum memory_row)row) || index-- > 0) continue;
        return give_row(out, plan_row(e, row));
    }
    for (int t = 0; t < TIERS; t++) {
        if (!e->run.tier[t]->allocated || index-- > 0) continue;
        return give_row(out, alignment_row(e, t));
    }
    zero_memory_row row;
    for (uint32_t i = 0; park_store_row(&e->park, i, &row); i++)
        if (index-- == 0) return give_row(out, row);
    for (uint32_t i = 0; i < e->reservations.count; i++) {
        const struct reservation *r = &e->reservations.item[i];
        bool none = r->granted && !r->bytes;
        if (none || index-- > 0) continue;
        return give_row(out, (zero_memory_row){.tier = r->tier,
                                               .name = r->name,
                                               .planned = r->bytes,
                                               .measured = r->scratch ? r->allocated : r->bytes});
    }
    return refuse(ZERO_E_ARGUMENT, "zero_engine_memory: no row past the last");
}

static void add_counters(struct comm_counters *sum, const struct comm_counters *other) {
    for (int k = 0; k < COMM_KINDS; k++) sum->calls[k] += other->calls[k];
    sum->bytes += other->bytes;
    sum->control_messages += other->control_messages, sum->control_bytes += other->control_bytes;
}

zero_status zero_engine_counters(const zero_engine *e, zero_counters *out) {
    if (!asked(e, "zero_engine_counters")) return ZERO_E_ARGUMENT;
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_counters: out is NULL");
    if (sized_check(out->struct_size, "zero_counters")) return ZERO_E_ARGUMENT;
    struct comm_counters c, data;
    struct fair_lock *lock = (struct fair_lock *)&e->ranks.lock; /* the progress thread posts too */
    fair_lock_take(lock);
    comm_counters_read(e->ranks.comm, &c);
    comm_counters_read(e->ranks.data, &data);
    if (e->ranks.data != e->ranks.comm) add_counters(&c, &data);
    struct traffic t = e->run.executor ? executor_traffic(e->run.executor) : (struct traffic){0};
    double update_s = e->run.executor ? executor_update_seconds(e->run.executor) : 0;
    const struct tier *drives[] = {e->run.tier[TIER_NVME], e->scratches.tier};
    uint64_t read = e->park.read_bytes, written = e->park.written_bytes;
    for (int i = 0; i < 2; i++)
        if (drives[i]) read += drives[i]->read_bytes, written += drives[i]->written_bytes;
    fair_lock_give(lock);
    uint64_t calls = 0; /* of all kinds, agreements and the host's sums included */
    for (int k = 0; k < COMM_KINDS; k++) calls += c.calls[k];
    zero_counters counters = {.struct_size = out->struct_size,
                              .gather_calls = t.gather_calls,
                              .gather_elements = t.gather_elements,
                              .reduce_calls = t.reduce_calls,
                              .reduce_elements = t.reduce_elements,
                              .wire_bytes = t.bytes,
                              .control_messages =
                                  c.control_messages + calls - t.gather_calls - t.reduce_calls,
                              .control_bytes = c.control_bytes + c.bytes - t.bytes,
                              .compute_s = e->pass.compute_s,
                              .wait_s = e->run.wait_s,
                              .update_s = update_s,
                              .drive_read_bytes = read,
                              .drive_write_bytes = written};
    sized_fill(out, out->struct_size, &counters, sizeof counters);
    return ZERO_OK;
}

zero_status zero_engine_memory_owner(const zero_engine *e, uint32_t index, zero_memory_owner *out) {
    zero_memory_owner *list;
    if (!asked(e, "zero_engine_memory_owner")) return ZERO_E_ARGUMENT;
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_memory_owner: out is NULL");
    if (sized_check(out->struct_size, "zero_memory_owner")) return ZERO_E_ARGUMENT;
    if (e->pass.phase == PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_engine_memory_owner: call it after commit");
    uint32_t count = memory_owners(&e->blueprint, &list);
    if (!list) return refuse(ZERO_E_MEMORY, "zero_engine_memory_owner: no memory for the list");
    if (index < count) sized_fill(out, out->struct_size, &list[index], sizeof *list);
    free(list);
    return index < count ? ZERO_OK
                         : refuse(ZERO_E_ARGUMENT, "zero_engine_memory_owner: no owner past the last");
}
