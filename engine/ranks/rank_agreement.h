/* Questions that all ranks answer together: whether their values are equal, the least value, a sum, the rank that failed. Each function is
 * collective, and returns the same on all ranks unless its comment says otherwise. */
#pragma once

#include "engine/ranks/ranks.h"

enum { SUM_VALUES_MAX = 64 };

/* ---- while the engine opens: without the plan's memory ---- */

/* `otherwise` on all ranks if some rank's hash is not that of the first rank with its model rank; `what` is hashed: "model". */
zero_status ranks_compare(struct ranks *ranks, uint64_t hash, zero_status otherwise, const char *what,
                          struct zero_error *error);

/* Each value becomes the least of all ranks' values. Also called after a failure, which it then returns. */
zero_status ranks_least(struct ranks *ranks, uint64_t *values, uint32_t count, const char *what,
                        struct zero_error *error);

/* Returns this rank's own failure in `mine` (code ZERO_OK: none), or else the failure of another rank. The failure is sticky.
 * Ranks tell it only when all ranks have made this call, so that no rank receives it in an earlier call. */
zero_status ranks_agree_error(struct ranks *ranks, const struct zero_error *mine, const char *what);

/* ---- from commit on ---- */

/* The values that one rank sends to the others beside its status. */
struct rank_report {
    uint64_t code, word[2];
};

/* Bytes of struct ranks.message: for the plan. */
uint64_t ranks_message_bytes(uint32_t size);

/* ZERO_OK, or the failure of the lowest rank that has one, in its words. Unlike in ranks_agree_error, the failure is not
 * sticky. out_all[r]: the report of rank r, valid until the next collective call. */
zero_status ranks_agree(struct ranks *ranks, const struct zero_error *mine, const uint64_t word[2],
                        const char *what, const struct rank_report **out_all);

/* The same after work that may take any time on some rank, such as writing a file: waits as long as the other ranks
 * are alive. */
zero_status ranks_agree_patiently(struct ranks *ranks, const struct zero_error *mine, const uint64_t word[2],
                                  const char *what, const struct rank_report **out_all);

/* Call it before such work: it returns once all ranks have called it, so that the usual time limit applies to a rank
 * that never comes. */
zero_status ranks_meet(struct ranks *ranks, const char *what);

/* Sums in rank order, in double: the same bits on all ranks. count <= SUM_VALUES_MAX. */
zero_status ranks_sum(struct ranks *ranks, double *values, uint32_t count, const char *what);
