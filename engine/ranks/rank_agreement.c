#include "engine/ranks/rank_agreement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ranks/local_ranks.h"
#include "engine/ranks/model_ranks.h"

/* ---- while the engine opens ---- */

zero_status ranks_compare(struct ranks *ranks, uint64_t hash, zero_status otherwise, const char *what,
                          struct zero_error *error) {
    uint64_t *hashes = outliving_message(ranks->outliving, (ranks->size + 1) * sizeof *hashes);
    if (!hashes) return error_set(error, ZERO_E_MEMORY, "no memory to compare %s", what);
    hashes[0] = hash;
    struct comm_call call = comm_rows(hashes, sizeof *hashes, what);
    zero_status status = comm_run(ranks->world, &call);
    if (status) return error_pass(error, comm_error(ranks->comm));
    for (uint32_t r = 0; r < ranks->size && !status; r++) {
        uint32_t first = model_ranks_first(ranks, r);
        if (hashes[r + 1] != hashes[first + 1])
            status =
                error_set(error, otherwise,
                          "rank %" PRIu32 " has another %s than rank %" PRIu32 "; give all ranks%s the same",
                          r, what, first, ranks->model_size > 1 ? " of a model rank" : "");
    }
    call = (struct comm_call){.kind = COMM_BARRIER, .what = what};
    if (status) comm_run(ranks->world, &call); /* all ranks find the difference before one of them leaves */
    return status;
}

zero_status ranks_least(struct ranks *ranks, uint64_t *values, uint32_t count, const char *what,
                        struct zero_error *error) {
    const struct zero_error *failed = comm_error(ranks->comm);
    if (failed->code) return error_pass(error, failed); /* the last message is in use */
    uint64_t *all = outliving_message(ranks->outliving, (ranks->size + 1) * count * sizeof *all);
    if (!all) return error_set(error, ZERO_E_MEMORY, "no memory to compare %s", what);
    memcpy(all, values, count * sizeof *all);
    struct comm_call call = comm_rows(all, count * sizeof *all, what);
    zero_status status = comm_run(ranks->world, &call);
    if (status) return error_pass(error, comm_error(ranks->comm));
    for (uint32_t i = 0; i < ranks->size * count; i++)
        if (all[count + i] < values[i % count]) values[i % count] = all[count + i];
    return ZERO_OK;
}

zero_status ranks_agree_error(struct ranks *ranks, const struct zero_error *mine, const char *what) {
    struct comm_call call = {.kind = COMM_BARRIER, .what = what};
    zero_status status = comm_run(ranks->world, &call);
    if (mine->code) return ranks_fail(ranks, mine);
    if (!status) status = comm_run(ranks->world, &call); /* a rank that failed does not come */
    return status ? ranks_fail(ranks, comm_error(ranks->comm)) : ZERO_OK;
}

/* ---- from commit on, and a sum also before ---- */

uint64_t ranks_message_bytes(uint32_t size) { return ((uint64_t)size + 1) * SUM_VALUES_MAX * sizeof(double); }

/* The failure's sentence goes from the rank that has it to all others. */
static zero_status pass_on(struct ranks *ranks, uint32_t rank, zero_status code,
                           const struct zero_error *mine) {
    const char *text = (const char *)ranks->text;
    if (rank == ranks->rank) memcpy(ranks->text, mine->message, sizeof mine->message);
    struct comm_call call = comm_broadcast(ranks->text, DTYPE_U8, sizeof mine->message, rank, "a failure");
    TRY(ranks->size > 1 ? ranks_call(ranks, &call) : ZERO_OK);
    if (ranks->size == 1) return refuse(code, "%s", text);
    ranks->text[sizeof mine->message - 1] = 0; /* it came from another rank */
    return refuse(code, "rank %" PRIu32 ": %s", rank, text);
}

/* It came from another rank. */
static zero_status code_of(uint64_t word) {
    return word <= UINT32_MAX && error_code_known((uint32_t)word) ? (zero_status)word : ZERO_E_INTERNAL;
}

static zero_status agree(struct ranks *ranks, const struct zero_error *mine, const uint64_t word[2],
                         const char *what, bool patient, const struct rank_report **out_all) {
    struct rank_report *row = (struct rank_report *)(void *)ranks->message;
    *row = (struct rank_report){mine->code, {word[0], word[1]}};
    struct comm_call call = comm_rows(row, sizeof *row, what);
    call.patient = patient;
    zero_status status = ranks_call(ranks, &call);
    for (uint32_t r = 0; r < ranks->size && !status; r++)
        if (row[1 + r].code) return pass_on(ranks, r, code_of(row[1 + r].code), mine);
    *out_all = row + 1;
    return status;
}

zero_status ranks_agree(struct ranks *ranks, const struct zero_error *mine, const uint64_t word[2],
                        const char *what, const struct rank_report **out_all) {
    return agree(ranks, mine, word, what, false, out_all);
}

zero_status ranks_agree_patiently(struct ranks *ranks, const struct zero_error *mine, const uint64_t word[2],
                                  const char *what, const struct rank_report **out_all) {
    return agree(ranks, mine, word, what, true, out_all);
}

zero_status ranks_meet(struct ranks *ranks, const char *what) {
    return ranks_call(ranks, &(struct comm_call){.kind = COMM_BARRIER, .what = what});
}

zero_status ranks_sum(struct ranks *ranks, double *values, uint32_t count, const char *what) {
    bool committed = ranks->message != NULL;
    uint64_t bytes = (ranks->size + 1) * (uint64_t)count * sizeof *values;
    double *message = committed ? (void *)ranks->message : outliving_message(ranks->outliving, bytes);
    struct zero_error error = ERROR_NONE;
    if (!message && error_set(&error, ZERO_E_MEMORY, "no memory for %s", what))
        return ranks_fail(ranks, &error);
    memcpy(message, values, count * sizeof *values);
    struct comm_call call = comm_rows(message, count * sizeof *values, what);
    zero_status status = committed ? ranks_call(ranks, &call) : comm_run(ranks->world, &call);
    if (status) return committed ? status : ranks_fail(ranks, comm_error(ranks->comm));
    memset(values, 0, count * sizeof *values);
    for (uint32_t r = 0; r < ranks->size; r++)
        for (uint32_t i = 0; i < count; i++) values[i] += message[(r + 1) * count + i];
    return ZERO_OK;
}
