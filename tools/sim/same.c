/* Checks that all ranks emit the same operations. The first rank that reaches an operation number defines the operation
 * that the others must emit there, so a rank that differs is found at once. */
#include <inttypes.h>

#include "tools/sim/run.h"

/* An upper estimate. In a pass every use gathers, computes, reduces and releases a few regions; a step adds a few
 * operations per region. */
uint64_t same_operations(const struct run *run) {
    const struct sim_setup *s = run->setup;
    uint64_t passes = 2 * (uint64_t)s->terms.micro_steps + 1;
    return 64 + passes * (2 * run->pass.uses + 8 * run->model.units + 16 * run->model.regions);
}

static uint64_t pack(const struct operation *op) {
    return (uint64_t)op->kind | (uint64_t)op->outcome << 8 | (uint64_t)op->region << 16 |
           (uint64_t)op->use << 32 | (uint64_t)op->object << 48 | (uint64_t)op->stream << 56;
}

static void differ(struct rank *r, const struct emitted *first, const struct operation *op) {
    run_violated(r->run, r->index, ZERO_E_DIVERGED,
                 "rank %" PRIu32 " emitted %s of \"%s\", where rank %" PRIu32
                 " emitted %s of \"%s\": a stage must not depend on the rank",
                 r->index, operation_kind_name((enum operation_kind)op->kind),
                 run_unit_name(r->run, op->region), first->rank,
                 operation_kind_name((enum operation_kind)(first->what & 0xff)),
                 run_unit_name(r->run, (uint32_t)(first->what >> 16 & 0xffff)));
}

void same_listed(struct rank *r, const struct operation_list *list) {
    struct run *run = r->run;
    for (uint32_t i = 0; i < list->count; i++) {
        uint64_t number = ++r->emitted, what = pack(&list->item[i]);
        struct emitted *first = &run->emitted[number % run->emitted_count];
        if (first->number != number) *first = (struct emitted){number, what, r->index};
        if (first->what == what) continue;
        differ(r, first, &list->item[i]);
        return;
    }
}

void same_agreement(struct rank *r) {
    struct run *run = r->run;
    struct agreement *first = &run->agreed[r->loop.step];
    if (!run->agreed_ns[r->loop.step]) *first = *r->agreement;
    if (run->clock.now_ns > run->agreed_ns[r->loop.step]) run->agreed_ns[r->loop.step] = run->clock.now_ns;
    if (run->setup->sabotage && run->setup->sabotage->unequal) return;
    if (first->trace == r->agreement->trace && first->fingerprint == r->agreement->fingerprint) return;
    run_violated(run, r->index, ZERO_E_DIVERGED, "in step %" PRIu32 " it %s than other ranks did",
                 r->loop.step + 1,
                 first->trace != r->agreement->trace ? "emitted operations that wait for others"
                                                     : "posted other collectives");
}
