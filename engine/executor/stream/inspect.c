#include "engine/executor/stream/inspect.h"

#include "engine/executor/executor_internal.h"

bool stream_busy(const struct executor *e, enum stream stream) {
    return e->stream[stream].retired < e->stream[stream].emitted;
}

const struct operation *stream_in_flight(const struct executor *e, enum stream stream) {
    const struct timeline *line = &e->stream[stream];
    return line->retired < line->started ? &item_at(line, line->retired)->task->op : NULL;
}

enum stream stream_waits_for(const struct executor *e, enum stream stream) {
    const struct timeline *line = &e->stream[stream];
    if (line->retired < line->started || line->tasks_started == line->tasks_emitted) return stream;
    const struct operation *op = &task_at(line, line->tasks_started)->op;
    for (int s = 0; s < STREAMS; s++)
        if (op->after[s] > e->stream[s].retired) return (enum stream)s;
    if (op->pipe.used && (int64_t)e->stream[op->pipe.stream].retired < op->pipe.value + line->next)
        return (enum stream)op->pipe.stream;
    return stream;
}

const void *executor_memory(const struct executor *e, enum tier_kind tier) { return e->m.memory[tier]; }
