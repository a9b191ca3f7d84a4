/* The numbers of a simulation whose host computes: filling, computing, collecting. Without data, filling only marks the
 * chunks that the drive has. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/integer.h"
#include "tools/sim/run.h"

static struct buffer_ref ref_of(enum buffer_kind kind, uint32_t region) {
    return (struct buffer_ref){(uint16_t)kind, (uint16_t)region};
}

static uint64_t shard_elements(const struct rank *r, uint32_t region) {
    return r->run->model.region[region].padded / placement_parts(r->region[region].state, r->policy.mesh);
}

static uint64_t shard_first(const struct rank *r, uint32_t region) {
    return placement_part(r->region[region].state, r->policy.mesh, r->index) * shard_elements(r, region);
}

/* Returns the memory of this rank's shard of the parameters from element `first` of the shard on, and in *count the
 * number of elements there. */
static float *shard_run(struct rank *r, uint32_t region, uint64_t first, uint64_t *count) {
    const struct chunk_layout *layout = &r->run->blueprint.plan.layout;
    float *full = executor_address(r->executor, ref_of(BUFFER_PARAM_FULL, region)), *shard;
    *count = shard_elements(r, region) - first;
    if (full) return full + shard_first(r, region) + first;
    shard = executor_address(r->executor, ref_of(BUFFER_PARAM_SHARD, region));
    if (shard) return shard + first;
    uint32_t index = (uint32_t)(first / layout->chunk_elements);
    struct chunk c = chunk_layout_at(layout, region, index);
    uint8_t *slot;
    *count = c.count;
    if (executor_chunk(r->executor, region, index, CHUNK_ALL, &slot)) {
        run_violated(r->run, r->index, executor_error(r->executor)->code, "%s",
                     executor_error(r->executor)->message);
        return NULL;
    }
    return (float *)(void *)(slot + c.slot_param);
}

/* ---- fill ---- */

/* Fills elements [first, first + count) of the region. */
static void fill_run(const struct rank *r, uint32_t region, uint64_t first, uint64_t count, float *out) {
    const struct sim_host *host = r->run->setup->host;
    memset(out, 0, count * sizeof *out);
    for (uint32_t k = 0; k < r->run->model.region[region].params; k++) {
        const struct model_param *p = &r->run->model.param[r->run->model.region[region].param[k]];
        uint64_t begin = p->offset > first ? p->offset : first,
                 end = min64(p->offset + p->count, first + count);
        if (begin < end)
            host->fill(host->user, p->name, begin - p->offset, end - begin, out + (begin - first));
    }
}

/* With a shadow, a record has the masters, too. */
static bool copies_masters(const struct rank *r, uint32_t region) {
    struct precision precision = blueprint_precision_of(&r->run->blueprint, region);
    return precision_copies_masters(&precision) && !r->region[region].frozen;
}

static void copy_masters(struct rank *r, uint32_t region) {
    const struct chunk_layout *layout = &r->run->blueprint.plan.layout;
    for (uint32_t i = 0; i < layout->region[region].chunks; i++) {
        struct chunk c = chunk_layout_at(layout, region, i);
        uint64_t count;
        uint8_t *slot;
        const void *from = c.params ? NULL : shard_run(r, region, c.first, &count);
        if (!c.state) continue;
        if (executor_chunk(r->executor, region, i, CHUNK_ALL, &slot)) return;
        memcpy(slot + c.array[c.states], from ? from : slot + c.slot_param, c.count * sizeof(float));
        executor_chunk_written(r->executor, CHUNK_STATE);
    }
}

/* A state that only the other optimizer has is nowhere. */
static void clear_state(struct rank *r, uint32_t region, uint32_t k, uint64_t first, uint64_t end) {
    void *at = first < end ? executor_state(r->executor, region, k, first) : NULL;
    if (at) memset(at, 0, (end - first) * sizeof(float));
}

static void fill_region(struct rank *r, uint32_t region) {
    uint64_t all = shard_elements(r, region);
    for (uint64_t at = 0, count; at < all; at += count) {
        float *out = shard_run(r, region, at, &count);
        if (!out) return;
        fill_run(r, region, shard_first(r, region) + at, count, out);
        if (r->run->blueprint.plan.layout.region[region].params)
            executor_chunk_written(r->executor, CHUNK_ALL);
    }
    if (copies_masters(r, region)) copy_masters(r, region);
    uint64_t device = chunk_layout_device(&r->run->blueprint.plan.layout, region),
             resident = chunk_layout_resident(&r->run->blueprint.plan.layout, region);
    for (uint32_t k = 0; k < r->run->blueprint.o.state_count && !r->region[region].frozen; k++) {
        clear_state(r, region, k, 0, device);
        clear_state(r, region, k, device, resident);
    }
}

/* Stores parameters and masters on the drive. Moments are zero until they are stored, and are not read before. */
static void store_chunks(struct rank *r, uint32_t region) {
    const struct chunk_layout *layout = &r->run->blueprint.plan.layout;
    struct precision precision = blueprint_precision_of(&r->run->blueprint, region);
    bool keeps = precision_keeps_masters(&precision) && !r->region[region].frozen,
         masters = keeps || copies_masters(r, region);
    for (uint32_t i = 0; i < layout->region[region].chunks; i++) {
        struct chunk c = chunk_layout_at(layout, region, i);
        uint8_t *slot;
        if (!c.params && !(c.state && masters)) continue;
        if (executor_chunk(r->executor, region, i, CHUNK_ALL, &slot))
            return; /* the next poll reports the failure */
        executor_chunk_written(r->executor, CHUNK_ALL);
    }
}

void data_fill(struct rank *r) {
    for (uint32_t i = 0; i < r->run->model.regions; i++)
        (r->run->setup->host ? fill_region : store_chunks)(r, i);
}

/* ---- computing ---- */

/* Saves the parameters of the use one after another at its start (`keep`), and compares them at its end. */
static bool look(struct rank *r, bool keep) {
    const struct use *use = &r->policy.forward[loop_use(&r->loop)->unit];
    uint8_t *at = r->before;
    bool same = true;
    for (uint8_t i = 0; i < use->count; i++) {
        uint64_t bytes = r->run->model.region[use->region[i]].padded * sizeof(float);
        float *params = executor_address(r->executor, ref_of(BUFFER_PARAM_FULL, use->region[i]));
        same &= keep || memcmp(at, params, bytes) == 0;
        if (keep) memcpy(at, params, bytes);
        at += bytes;
    }
    return same;
}

void data_begin(struct rank *r) {
    const struct use *use = &r->policy.forward[loop_use(&r->loop)->unit];
    look(r, true);
    for (uint8_t i = 0; i < use->count; i++)
        if (r->fresh[i])
            memset(executor_address(r->executor,
                                    ref_of(policy_gradient(&r->region[use->region[i]]), use->region[i])),
                   0, r->run->model.region[use->region[i]].padded * sizeof(float));
}

void data_compute(struct rank *r) {
    const struct sim_host *host = r->run->setup->host;
    const struct model *m = &r->run->model;
    uint32_t unit = loop_use(&r->loop)->unit;
    bool backward = rank_backward(r);
    if (!look(r, false))
        run_violated(r->run, r->index, ZERO_E_INTERNAL,
                     "parameters of \"%s\" changed while the host computed with them", m->unit[unit]->name);
    float **arrays = calloc(2 * m->params, sizeof *arrays);
    struct sim_arrays a = {arrays, arrays + m->params};
    for (uint32_t i = 0; i < m->params && arrays; i++) {
        const struct model_param *p = &m->param[i];
        if (p->unit != unit) continue;
        a.param[i] = (float *)executor_address(r->executor, ref_of(BUFFER_PARAM_FULL, p->region)) + p->offset;
        if (backward && !r->region[p->region].frozen)
            a.grad[i] = (float *)executor_address(r->executor,
                                                  ref_of(policy_gradient(&r->region[p->region]), p->region)) +
                        p->offset;
    }
    if (arrays)
        host->compute(host->user, r->index, unit, backward, &a);
    else
        run_violated(r->run, r->index, ZERO_E_MEMORY, "no memory for a list of addresses");
    free(arrays);
}

/* ---- collecting ---- */

/* Collects this rank's elements of one parameter, from element `first` of the region on. All copies must be equal. */
static void collect_run(struct rank *r, const struct model_param *p, uint64_t first, uint64_t count,
                        const float *at, bool *seen) {
    float *out = r->run->setup->host->weights[p - r->run->model.param];
    for (uint64_t i = 0; i < count; i++) {
        if (first + i < p->offset || first + i >= p->offset + p->count) continue;
        uint64_t e = first + i - p->offset;
        if (seen[e] && memcmp(&out[e], &at[i], sizeof *at))
            run_violated(r->run, r->index, ZERO_E_DIVERGED,
                         "element %llu of \"%s\" is not what another rank holds", (unsigned long long)e,
                         p->name);
        out[e] = at[i];
        seen[e] = true;
    }
}

/* If the rank has a whole copy, checks all of it. */
static void collect_rank(struct rank *r, const struct model_param *p, bool *seen) {
    float *full = executor_address(r->executor, ref_of(BUFFER_PARAM_FULL, p->region));
    if (full) {
        collect_run(r, p, 0, r->run->model.region[p->region].padded, full, seen);
        return;
    }
    uint64_t all = shard_elements(r, p->region), first = shard_first(r, p->region);
    for (uint64_t at = 0, count; at < all; at += count) {
        const float *found = shard_run(r, p->region, at, &count);
        if (!found) return;
        collect_run(r, p, first + at, count, found, seen);
    }
}

static void collect_param(struct run *run, const struct model_param *p) {
    bool *seen = calloc(p->count, sizeof *seen);
    if (!seen) run_violated(run, 0, ZERO_E_MEMORY, "no memory to collect \"%s\"", p->name);
    for (uint32_t k = 0; k < run->ranks && seen; k++) collect_rank(&run->rank[k], p, seen);
    for (uint64_t e = 0; e < p->count && seen; e++)
        if (!seen[e]) {
            run_violated(run, 0, ZERO_E_INTERNAL, "no rank holds element %llu of \"%s\"",
                         (unsigned long long)e, p->name);
            break;
        }
    free(seen);
}

void data_collect(struct run *run) {
    for (uint32_t k = 0; k < run->ranks; k++) drive_set_immediate(run->rank[k].drive, true);
    for (uint32_t i = 0; i < run->model.params; i++)
        if (run->model.param[i].owner == i) collect_param(run, &run->model.param[i]);
}
