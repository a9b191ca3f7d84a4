#include "tests/stages/toy.h"

#include <stdio.h>
#include <string.h>

static const struct event none;

const struct stage *toy_stage(const char *name) {
    for (int i = 0; stages[i]; i++)
        if (strcmp(stages[i]->name, name) == 0) return stages[i];
    return NULL;
}

static void begin(struct toy *t, const struct stage *stage, const uint32_t mesh[AXES], uint32_t micro_steps,
                  enum accumulation accumulation, uint32_t depth) {
    memset(t, 0, sizeof *t);
    t->out = (struct operation_list){t->list, 0, TOY_OPERATIONS_MAX};
    t->hazards.record = t->record;
    t->policy = (struct policy){.stage = stage,
                                .mesh = {mesh[0], mesh[1]},
                                .accumulation = accumulation,
                                .micro_steps = micro_steps,
                                .depth = depth,
                                .backward_depth = depth,
                                .live_max = UINT64_MAX,
                                .ahead_max = UINT64_MAX,
                                .forward = t->use,
                                .region = t->region,
                                .refresh = t->refresh};
}

static uint16_t region(struct toy *t, const char *name, bool frozen, bool persistent) {
    uint32_t i = t->policy.regions++;
    t->name[i] = name;
    t->region[i] = (struct region){.frozen = frozen, .persistent = persistent};
    return (uint16_t)i;
}

static void use(struct toy *t, uint16_t first) {
    t->use[t->policy.uses++] = (struct use){.region = {first}, .count = 1};
}

void toy_plain(struct toy *t, const struct stage *stage, uint32_t units, uint32_t micro_steps,
               enum accumulation accumulation, uint32_t depth) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    begin(t, stage, (const uint32_t[]){2, 1}, micro_steps, accumulation, depth);
    for (uint32_t i = 0; i < units; i++) use(t, region(t, names[i], false, false));
    policy_open(&t->policy);
}

void toy_tied(struct toy *t, const struct stage *stage, const uint32_t mesh[AXES], uint32_t micro_steps,
              enum accumulation accumulation, uint32_t depth) {
    begin(t, stage, mesh, micro_steps, accumulation, depth);
    uint16_t e = region(t, "e", false, false);
    use(t, e);
    use(t, region(t, "a", false, false));
    use(t, region(t, "p", false, true));
    use(t, region(t, "b", true, false));
    use(t, region(t, "c", false, false));
    use(t, region(t, "h", false, false));
    struct use *head = &t->use[t->policy.uses - 1];
    head->region[head->count++] = e;
    policy_open(&t->policy);
}

/* Expands the operations that the stage's policy emitted since `from`, as the second policy does. */
static void expand(struct toy *t, uint32_t from) {
    static struct operation plain[TOY_OPERATIONS_MAX];
    uint32_t count = t->out.count - from;
    if (!t->offload) return;
    memcpy(plain, &t->list[from], count * sizeof *plain);
    t->out.count = from;
    for (uint32_t i = 0; i < count; i++) offload_expand(t->offload, &plain[i], &t->out);
}

void toy_waits(struct toy *t, uint32_t from) {
    expand(t, from);
    for (uint32_t i = from; i < t->out.count; i++) {
        struct operation *op = &t->list[i];
        uint32_t read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX];
        for (uint8_t k = 0; k < op->reads; k++)
            read[k] = op->read[k].kind * TOY_REGIONS_MAX + op->read[k].region;
        for (uint8_t k = 0; k < op->writes; k++)
            write[k] = op->write[k].kind * TOY_REGIONS_MAX + op->write[k].region;
        hazard_emit(&t->hazards, op, read, write);
    }
}

void toy_fill(struct toy *t) {
    uint32_t from = t->out.count;
    policy_written(&t->policy, &none, &t->out);
    toy_waits(t, from);
}

void toy_pass(struct toy *t, bool evaluating, const char *skip) {
    uint32_t from = t->out.count;
    if (!evaluating) t->micro++;
    const struct event pass = {.evaluating = evaluating, .last = t->micro == policy_passes(&t->policy)};
    policy_pass(&t->policy, &pass, &t->out);
    for (uint32_t q = 0; q < t->policy.positions; q++) {
        if (strstr(skip, t->name[policy_use(&t->policy, q)->region[0]])) continue;
        policy_begin(&t->policy, &(struct event){.position = q}, &t->out);
        for (uint32_t micro = 1; micro < policy_use_micros(&t->policy) && !evaluating; micro++) {
            policy_step_aside(&t->policy, &none, &t->out);
            policy_go_on(&t->policy, &(struct event){.position = q}, &t->out);
        }
        policy_end(&t->policy, &none, &t->out);
    }
    toy_waits(t, from);
}

void toy_segments(struct toy *t, uint32_t segment) {
    for (uint32_t i = 0; i < t->policy.uses; i++) {
        bool whole = (i / segment + 1) * segment < t->policy.uses;
        t->use[i].segment_offset = (uint16_t)(whole ? i % segment : 0);
        t->again[i] = whole && (i + 1) % segment == 0;
    }
    policy_open(&t->policy);
}

static bool skips(const struct toy *t, const char *skip, uint32_t use) {
    return strstr(skip, t->name[t->use[use].region[0]]);
}

void toy_pass_again(struct toy *t, const char *skip) {
    uint32_t from = t->out.count, uses = t->policy.uses;
    const struct event pass = {.last = ++t->micro == t->policy.micro_steps};
    policy_pass(&t->policy, &pass, &t->out);
    for (uint32_t q = 0; q < 2 * uses; q++) {
        uint32_t last = q < uses ? q : 2 * uses - 1 - q;
        for (uint32_t use = last - t->use[last].segment_offset; q > uses && t->again[last] && use <= last;
             use++) {
            if (skips(t, skip, use)) continue;
            policy_recompute(&t->policy, &(struct event){.unit = use, .position = q}, &t->out);
            policy_recomputed(&t->policy, &(struct event){.unit = use}, &t->out);
        }
        if (skips(t, skip, last)) continue;
        policy_begin(&t->policy, &(struct event){.position = q}, &t->out);
        policy_end(&t->policy, &none, &t->out);
    }
    toy_waits(t, from);
}

void toy_step(struct toy *t, bool skipped) {
    const struct event applied = {.outcome = skipped ? OUTCOME_SKIPPED : OUTCOME_UPDATED};
    uint32_t from = t->out.count;
    policy_agree(&t->policy, &none, &t->out);
    policy_apply(&t->policy, &applied, &t->out);
    t->micro = 0;
    toy_waits(t, from);
    if (t->offload && !skipped) offload_applied(t->offload);
}

void toy_flush(struct toy *t) {
    uint32_t from = t->out.count;
    policy_flush(&t->policy, &none, &t->out);
    toy_waits(t, from);
}

static const char *verb(const struct toy *t, const struct operation *op) {
    static const char *const verbs[OP_KINDS] = {
        [OP_COMPUTE] = "forward", [OP_GATHER] = "gather", [OP_REDUCE] = "reduce", [OP_RELEASE] = "release",
        [OP_UPDATE] = "update",   [OP_COPY] = "copy",     [OP_CLEAR] = "clear",   [OP_AGREE] = "step"};
    if (op->kind == OP_COMPUTE && policy_backward(&t->policy, op->use)) return "backward";
    if (op->kind == OP_COMPUTE && op->use >= 2 * t->policy.uses) return "again";
    if (op->object == OBJECT_GRAD && op->kind == OP_GATHER) return "gather-gradient";
    if (op->object == OBJECT_GRAD && op->kind == OP_RELEASE) return "release-gradient";
    return verbs[op->kind];
}

void toy_render(const struct toy *t, char *out, uint32_t capacity) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        n += (uint32_t)snprintf(out + n, capacity - n, "%s%s", i ? " · " : "", verb(t, op));
        if (op->kind != OP_AGREE) n += (uint32_t)snprintf(out + n, capacity - n, " %s", t->name[op->region]);
        const char *mark = " (";
        for (int s = 0; s < STREAMS; s++) {
            if (!op->after[s]) continue;
            n += (uint32_t)snprintf(out + n, capacity - n, "%s%s %u", mark, stream_name((enum stream)s),
                                    (unsigned)op->after[s]);
            mark = ", ";
        }
        if (*mark == ',') n += (uint32_t)snprintf(out + n, capacity - n, ")");
    }
}

static char letter(const struct operation *op) {
    bool grad = op->object == OBJECT_GRAD;
    switch ((enum operation_kind)op->kind) {
    case OP_COMPUTE:
        return 'c';
    case OP_GATHER:
        return grad ? 'G' : 'g';
    case OP_REDUCE:
        return 'r';
    case OP_RELEASE:
        return grad ? 'L' : 'l';
    case OP_UPDATE:
        return op->pipe.used ? 'U' : 'u';
    case OP_COPY:
        return 'y';
    case OP_CLEAR:
        return 'z';
    case OP_AGREE:
        return 'a';
    case OP_FETCH:
        return op->object == OBJECT_PARAM ? 'P' : 'F';
    case OP_STORE:
        return 'S';
    default:
        return '?';
    }
}

static uint32_t run(const struct operation *op, char *out, uint32_t capacity) {
    if (!op->pipe.used) return 0;
    return (uint32_t)snprintf(out, capacity, ":%u+%u@%u<%d", op->first, op->chunks, (unsigned)op->sequence,
                              (int)op->pipe.value);
}

void toy_letters(const struct toy *t, char *out, uint32_t capacity) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->out.count; i++) {
        const struct operation *op = &t->list[i];
        bool collective = op->kind == OP_GATHER || op->kind == OP_REDUCE;
        char axes = !collective || op->axes == AXES_SHARD ? '.' : op->axes == AXES_REPLICATE ? '~' : '+';
        n += (uint32_t)snprintf(out + n, capacity - n, "%s%c%c%s", i ? " " : "", letter(op), axes,
                                op->kind == OP_AGREE ? "" : t->name[op->region]);
        n += run(op, out + n, capacity - n);
    }
}
