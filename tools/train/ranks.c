/* The ranks of this process: one, or several as threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/trainer.h"

struct rank {
    pthread_t thread;
    const struct job *job;
    uint32_t index;
    struct zero_error error;
};

static void *run_rank(void *argument) {
    struct rank *rank = argument;
    zero_status status = trainer_run_rank(rank->job, rank->index, &rank->error);
    if (status != ZERO_OK) error_set(&rank->error, status, "%s", zero_status_meaning(status));
    return NULL;
}

/* A rank that only received another rank's failure knows less than the rank that failed. */
static bool knows_cause(const struct zero_error *error) {
    return error->code != ZERO_OK && error->code != ZERO_E_PEER && error->code != ZERO_E_INTERRUPTED;
}

static bool said_before(const struct rank *ranks, uint32_t index, bool causes_only) {
    for (uint32_t i = 0; i < index; i++)
        if (knows_cause(&ranks[i].error) == causes_only &&
            strcmp(ranks[i].error.message, ranks[index].error.message) == 0)
            return true;
    return false;
}

static zero_status report(const struct rank *ranks, uint32_t count) {
    zero_status status = ZERO_OK;
    bool causes = false;
    for (uint32_t i = 0; i < count; i++) causes |= knows_cause(&ranks[i].error);
    for (uint32_t i = 0; i < count; i++) {
        const struct zero_error *error = &ranks[i].error;
        if (error->code == ZERO_OK || knows_cause(error) != causes) continue;
        if (status == ZERO_OK) status = error->code;
        if (!*error->message || said_before(ranks, i, causes)) continue;
        if (count > 1 || ranks[i].index)
            fprintf(stderr, "zero train: rank %u: %s\n", ranks[i].index, error->message);
        else
            fprintf(stderr, "zero train: %s\n", error->message);
    }
    return status;
}

/* If a thread cannot be started, the started ranks wait for it forever. The process then ends. */
static void start_threads(struct rank *ranks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        int failed = pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]);
        if (!failed) continue;
        fprintf(stderr, "zero train: cannot start rank %u of %u as a thread: %s\n", i, count,
                strerror(failed));
        exit(1);
    }
}

zero_status trainer_run(const struct job *job, uint32_t first) {
    uint32_t count = job->local ? job->ranks : 1;
    struct rank *ranks = calloc(count, sizeof *ranks);
    if (!ranks) {
        fputs("zero train: no memory for the ranks\n", stderr);
        return ZERO_E_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = (struct rank){.job = job, .index = first + i};
        error_clear(&ranks[i].error);
    }
    if (job->local) {
        start_threads(ranks, count);
        for (uint32_t i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
    } else {
        run_rank(&ranks[0]);
    }
    zero_status status = report(ranks, count);
    free(ranks);
    return status;
}
