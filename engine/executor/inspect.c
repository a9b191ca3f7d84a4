#include "engine/executor/inspect.h"

#include "engine/executor/executor_internal.h"

bool stream_busy(const struct executor *e, enum stream stream) {
    return e->stream[stream].retired < e->stream[stream].emitted;
}

const struct operation *stream_in_flight(const struct executor *e, enum stream stream) {
    const struct timeline *line = &e->stream[stream];
    return line->retired < line->started ? &line->item[line->retired & line->item_mask].task->op : NULL;
}

uint32_t stream_under_way(const struct executor *e, enum stream stream, enum operation_kind kind) {
    const struct timeline *line = &e->stream[stream];
    uint32_t count = 0;
    for (uint64_t i = line->retired; i < line->started; i++) {
        const struct item *item = &line->item[i & line->item_mask];
        count += item->task->op.kind == kind && !item->done && !item->waits;
    }
    return count;
}

enum stream stream_waits_for(const struct executor *e, enum stream stream) {
    const struct timeline *line = &e->stream[stream];
    if (line->retired < line->started || line->tasks_started == line->tasks_emitted) return stream;
    const struct operation *op = &line->task[line->tasks_started & line->task_mask].op;
    for (int s = 0; s < STREAMS; s++)
        if (op->after[s] > e->stream[s].retired) return (enum stream)s;
    if (op->pipe.used && (int64_t)e->stream[op->pipe.stream].retired < op->pipe.value + line->next)
        return (enum stream)op->pipe.stream;
    return stream;
}

void stream_edit(struct executor *e, enum stream stream, void (*edit)(struct operation *op, void *user),
                 void *user) {
    struct timeline *line = &e->stream[stream];
    for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++)
        edit(&line->task[i & line->task_mask].op, user);
}

void executor_shorten_lists(struct executor *e, uint32_t event, uint32_t expansion) {
    if (event < e->list.capacity) e->list.capacity = event;
    if (expansion < e->expanded.capacity) e->expanded.capacity = expansion;
}

const void *executor_memory(const struct executor *e, enum tier_kind tier) { return e->m.memory[tier]; }
