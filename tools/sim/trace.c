#include "tools/sim/trace.h"

#include <inttypes.h>

static void name_threads(FILE *file, uint32_t rank) {
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32
            ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
            rank, rank);
    for (int s = 0; s < STREAMS; s++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRIu32
                ",\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                rank, s, stream_name((enum stream)s));
}

void trace_begin(const struct run *run) {
    FILE *file = run->setup->trace;
    if (!file) return;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
          "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{\"name\":\"zero sim\"}}",
          file);
    for (uint32_t r = 0; r < run->ranks && r < run->setup->trace_ranks; r++) name_threads(file, r);
}

/* Releases take no time. */
void trace_operation(const struct rank *rank, const struct operation *op, uint32_t item, uint64_t since_ns) {
    const struct run *run = rank->run;
    uint64_t took_ns = run->clock.now_ns - since_ns;
    if (op->kind == OP_RELEASE) return;
    bool backward = op->kind == OP_COMPUTE && policy_backward(&rank->policy, op->use);
    fprintf(run->setup->trace,
            ",\n{\"ph\":\"X\",\"name\":\"%s %s\",\"cat\":\"%s\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"ts\":%" PRIu64 ".%03" PRIu64 ",\"dur\":%" PRIu64 ".%03" PRIu64
            ",\"args\":{\"position\":%d,\"item\":%" PRIu32 "}}",
            op->kind != OP_COMPUTE ? operation_kind_name((enum operation_kind)op->kind)
            : backward             ? "backward"
                                   : "forward",
            op->kind == OP_AGREE ? "the step" : run_unit_name(run, op->region),
            object_name((enum object)op->object), rank->index, (int)op->stream, since_ns / 1000,
            since_ns % 1000, took_ns / 1000, took_ns % 1000, (int)op->use, item);
}

void trace_end(const struct run *run) {
    if (run->setup->trace) fputs("\n]}\n", run->setup->trace);
}
