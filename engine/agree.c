/* Small agreements between ranks: sums, failures, comparisons. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

zero_status engine_compare(zero_engine *e, uint64_t hash, zero_status otherwise, const char *what,
                           struct zero_error *error) {
    uint64_t *hashes = kept_message(e->kept, (e->size + 1) * sizeof *hashes);
    if (!hashes) return error_set(error, ZERO_E_MEMORY, "no memory to compare %s", what);
    hashes[0] = hash;
    struct comm_call call = comm_rows(hashes, sizeof *hashes, what);
    zero_status status = comm_run(e->world, &call);
    if (status) return error_pass(error, comm_error(e->comm));
    for (uint32_t r = 0; r < e->size && !status; r++)
        if (hashes[r + 1] != hashes[1])
            status =
                error_set(error, otherwise,
                          "rank %" PRIu32 " has another %s than rank 0; give all ranks the same", r, what);
    call = (struct comm_call){.kind = COMM_BARRIER, .what = what};
    if (status) comm_run(e->world, &call); /* all say so before any of them leaves */
    return status;
}

zero_status engine_least(zero_engine *e, uint64_t *values, uint32_t count, const char *what,
                         struct zero_error *error) {
    uint64_t *all = kept_message(e->kept, (e->size + 1) * count * sizeof *all);
    if (!all) return error_set(error, ZERO_E_MEMORY, "no memory to compare %s", what);
    memcpy(all, values, count * sizeof *all);
    struct comm_call call = comm_rows(all, count * sizeof *all, what);
    zero_status status = comm_run(e->world, &call);
    if (status) return error_pass(error, comm_error(e->comm));
    for (uint32_t i = 0; i < e->size * count; i++)
        if (all[count + i] < values[i % count]) values[i % count] = all[count + i];
    return ZERO_OK;
}

zero_status zero_engine_sum(zero_engine *e, double *values, uint32_t count) {
    zero_status status = engine_check_outside(e, "zero_engine_sum");
    if (status) return status;
    if (count > SUM_VALUES_MAX)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_sum: %" PRIu32 " values; at most %d are possible", count,
                      SUM_VALUES_MAX);
    if (count && !values) return refuse(ZERO_E_ARGUMENT, "zero_engine_sum: values is NULL");
    double *message = (double *)(void *)e->sum_message;
    memcpy(message, values, count * sizeof *values);
    struct comm_call call = comm_rows(message, count * sizeof *values, "a sum of the host's");
    status = engine_call(e, &call);
    if (status) return status;
    memset(values, 0, count * sizeof *values);
    for (uint32_t r = 0; r < e->size; r++)
        for (uint32_t i = 0; i < count; i++) values[i] += message[(r + 1) * count + i];
    return ZERO_OK;
}

zero_status engine_agree_error(zero_engine *e, const struct zero_error *mine, const char *what) {
    struct comm_call call = {.kind = COMM_BARRIER, .what = what};
    zero_status status = comm_run(e->world, &call);
    if (mine->code) return engine_fail(e, mine);
    if (!status) status = comm_run(e->world, &call); /* those that failed do not come */
    return status ? engine_fail(e, comm_error(e->comm)) : ZERO_OK;
}

static zero_status pass_on(zero_engine *e, uint32_t rank, uint64_t code, const struct zero_error *mine) {
    if (rank == e->rank) memcpy(e->piece, mine->message, sizeof mine->message);
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_U8,
                             .count = sizeof mine->message,
                             .root = rank,
                             .what = "a failure",
                             .target = e->piece};
    zero_status status = e->size > 1 ? engine_call(e, &call) : ZERO_OK;
    if (status) return status;
    if (e->size == 1) return refuse((zero_status)code, "%s", (const char *)e->piece);
    return refuse((zero_status)code, "rank %" PRIu32 ": %s", rank, (const char *)e->piece);
}

zero_status engine_agree_said(zero_engine *e, const struct zero_error *mine, const uint64_t word[2],
                              const char *what, const struct said **out_all) {
    struct said *row = (struct said *)(void *)e->sum_message;
    *row = (struct said){mine->code, {word[0], word[1]}};
    struct comm_call call = comm_rows(row, sizeof *row, what);
    zero_status status = engine_call(e, &call);
    for (uint32_t r = 0; r < e->size && !status; r++)
        if (row[1 + r].code) return pass_on(e, r, row[1 + r].code, mine);
    *out_all = row + 1;
    return status;
}
