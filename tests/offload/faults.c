#include "tests/offload/faults.h"

const char *const fault_names[FAULTS] = {
#define FAULT_NAME(name, text) [name] = text,
    FAULT_LIST(FAULT_NAME)
#undef FAULT_NAME
};

struct tier_hook *faults_hook(struct faults *faults) {
    faults->hook = (struct tier_hook){faulty_tier_open, faulty_io_open};
    return &faults->hook;
}

static uint64_t draw(struct fault_stream *stream) {
    uint64_t z = (stream->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct fault_stream fault_stream_make(struct faults *faults, uint64_t index) {
    struct fault_stream stream = {.faults = faults, .state = faults->seed ^ index << 32};
    stream.state = draw(&stream);
    return stream;
}

bool fault_fires(struct fault_stream *stream, enum fault fault) {
    double probability = atomic_load(&stream->faults->probability[fault]);
    if (probability <= 0 || !atomic_load(&stream->faults->armed)) return false;
    if ((double)(draw(stream) >> 11) * 0x1p-53 >= probability) return false;
    atomic_fetch_add(&stream->faults->fired[fault], 1);
    return true;
}

void fault_undo(struct fault_stream *stream, enum fault fault) {
    atomic_fetch_sub(&stream->faults->fired[fault], 1);
}

uint64_t fault_below(struct fault_stream *stream, uint64_t end) { return end ? draw(stream) % end : 0; }
