#include "engine/comm/record.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/comm/shape.h"
#include "kernels/quantize.h"

static const char *const kind_names[COMM_KINDS] = {
    [COMM_ALL_GATHER] = "all-gather", [COMM_REDUCE_SCATTER] = "reduce-scatter",
    [COMM_ALL_REDUCE] = "all-reduce", [COMM_ALL_TO_ALL] = "all-to-all",
    [COMM_BROADCAST] = "broadcast",   [COMM_BARRIER] = "barrier",
};

static const char *kind_name(enum comm_kind kind) {
    return (uint32_t)kind < COMM_KINDS ? kind_names[kind] : "unknown";
}

/* One round of splitmix64: every bit of the value reaches every bit of the hash. */
uint64_t hash_add(uint64_t hash, uint64_t value) { return hash_mix((hash ^ value) + HASH_STEP); }

uint64_t hash_text(uint64_t hash, const char *text) {
    for (const char *c = text ? text : ""; *c; c++) hash = hash_add(hash, (unsigned char)*c);
    return hash;
}

void record_make(const struct comm_call *call, uint64_t sequence, uint64_t hash_before,
                 struct comm_record *out_record) {
    struct comm_record record = {
        .sequence = sequence,
        .count = call->kind == COMM_BARRIER ? 0 : call->count,
        .tag = call->tag,
        .root = call->kind == COMM_BROADCAST ? call->root : 0,
        .kind = (uint8_t)call->kind,
        .dtype = (uint8_t)call->dtype,
        .target_dtype = (uint8_t)(shape_reduces(call) ? call->target_dtype : call->dtype),
        .native = shape_reduces(call) && call->native,
        .code = shape_reduces(call) ? call->code : CODE_NONE,
    };
    if (call->what) strncpy(record.what, call->what, sizeof record.what - 1);
    uint64_t hash = hash_add(hash_before, sequence);
    hash = hash_add(hash, record.count);
    hash = hash_add(hash, (uint64_t)record.tag << 32 | record.root);
    hash =
        hash_add(hash, (uint64_t)record.code << 32 | (uint64_t)record.kind << 24 |
                           (uint64_t)record.dtype << 16 | (uint64_t)record.target_dtype << 8 | record.native);
    record.hash = hash_text(hash, record.what);
    *out_record = record;
}

bool record_readable(const struct comm_record *record) {
    return record->kind < COMM_KINDS && record->dtype < DTYPES && record->target_dtype < DTYPES &&
           record->code < CODE_FORMATS && memchr(record->what, 0, sizeof record->what);
}

const char *record_text(const struct comm_record *record, uint32_t group_ordinal,
                        char text[RECORD_TEXT_BYTES]) {
    char into[32] = "", tag[32] = "", root[32] = "", size[128] = "";
    if (record->target_dtype != record->dtype)
        snprintf(into, sizeof into, " into %s", dtype_name((enum dtype)record->target_dtype));
    if (record->tag) snprintf(tag, sizeof tag, ", tag %u", record->tag);
    if (record->kind == COMM_BROADCAST) snprintf(root, sizeof root, ", from member %u", record->root);
    if (record->kind != COMM_BARRIER)
        snprintf(size, sizeof size, " (%llu x %s%s%s%s)", (unsigned long long)record->count,
                 record->code ? code_format_name((enum code_format)record->code)
                              : dtype_name((enum dtype)record->dtype),
                 into, root, tag);
    snprintf(text, RECORD_TEXT_BYTES, "%s%s%s%s%s, call %llu of group %u", record->native ? "native " : "",
             kind_name((enum comm_kind)record->kind), record->what[0] ? " of " : "", record->what, size,
             (unsigned long long)record->sequence, group_ordinal);
    return text;
}
