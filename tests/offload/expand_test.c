/* The second policy's operations equal those of an independent executable model (lists.txt): stages, chunk
 * sizes, slots, resident prefixes, parameters on the drive, a skipped step, skipped uses, an evaluation pass. */
#include <stdlib.h>

#include "offload/expand.h"
#include "tests/check.h"
#include "tests/stages/toy.h"

struct list { /* one line of lists.txt */
    char stage[32];
    unsigned micro_steps, depth, chunk, slots, resident, params, scenario;
};

static const char names[] = "eapbch";
static const uint32_t sizes[] = {15, 12, 3, 12, 35, 3};

static void open_offload(const struct list *l, struct toy *t, struct offload *o,
                         struct offload_region *region) {
    for (uint32_t i = 0; i < t->policy.regions; i++) {
        uint32_t padded = (sizes[strchr(names, t->name[i][0]) - names] + 1) / 2 * 2;
        uint32_t shard = padded / placement_parts(t->region[i].state, t->policy.mesh);
        uint32_t chunks = (shard + l->chunk - 1) / l->chunk;
        bool sharded = !placement_is(t->region[i].rest, REPLICATE, REPLICATE);
        region[i] = (struct offload_region){
            .chunks = chunks, .resident = chunks * l->resident / 2, .params = l->params && sharded};
    }
    *o = (struct offload){
        .slots = l->slots, .region = region, .refresh = t->refresh, .refreshes = t->policy.refreshes};
    offload_open(o);
    t->offload = o;
}

static void drive(struct toy *t, unsigned scenario) {
    toy_fill(t);
    for (uint32_t step = 0; step < 3; step++) {
        for (uint32_t micro = 0; micro < t->policy.micro_steps; micro++) {
            bool skips = scenario && step == 2 && micro == t->policy.micro_steps - 1;
            toy_pass(t, false, skips ? "cp" : "");
        }
        toy_step(t, scenario && step == 1);
        if (scenario && step == 0) toy_pass(t, true, "");
    }
    toy_flush(t);
}

/* The model calls every gather, reduction and release by one letter and no axes, on this mesh of one axis. */
static int run_list(const struct list *l, const char *expected) {
    static struct toy toy;
    static char got[1 << 16];
    struct offload offload;
    struct offload_region region[TOY_REGIONS_MAX];
    bool last = !strcmp(l->stage, "zero0") || !strcmp(l->stage, "zero1");
    toy_tied(&toy, stage_named(l->stage), (const uint32_t[]){2, 1}, l->micro_steps,
             last ? ACCUMULATE_LAST : ACCUMULATE_EVERY, l->depth);
    open_offload(l, &toy, &offload, region);
    drive(&toy, l->scenario);
    toy_letters(&toy, got, sizeof got);
    return CHECK_STRING(got, expected);
}

/* An update in chunks is a fetch, an update and a store. */
static void short_lists_say_so(void) {
    for (uint32_t capacity = 2; capacity <= 3; capacity++) {
        struct operation rows[] = {{.region = 77}, {.region = 77}, {.region = 77}, {.region = 77}};
        struct operation_list list = {rows, 0, capacity};
        struct offload_region region = {.chunks = 4};
        struct offload offload = {
            .slots = 2, .region = &region, .refresh = (const uint16_t[]){0}, .refreshes = 1};
        offload_open(&offload);
        offload_expand(&offload, &(struct operation){.kind = OP_UPDATE, .items = 1}, &list);
        CHECK_INT(operation_list_overflowed(&list), capacity < 3);
        CHECK_INT(rows[capacity].region, 77);
    }
}

int main(void) {
    short_lists_say_so();
    static char line[1 << 16];
    FILE *file = fopen("tests/offload/lists.txt", "r");
    int lists = 0;
    while (CHECK(file) && fgets(line, sizeof line, file)) {
        struct list l;
        if (line[0] == '#') continue;
        char *expected = strstr(line, " | ");
        if (!CHECK(expected && sscanf(line, "%31s %u %u %u %u %u %u %u", l.stage, &l.micro_steps, &l.depth,
                                      &l.chunk, &l.slots, &l.resident, &l.params, &l.scenario) == 8))
            break;
        line[strcspn(line, "\n")] = 0;
        if (!run_list(&l, expected + 3)) fprintf(stderr, "in %.*s\n", (int)(expected - line), line);
        lists++;
    }
    CHECK_INT(lists, 168);
    if (file) fclose(file);
    return check_end();
}
