#include "engine/ranks/model_ranks.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/ranks/local_ranks.h"

struct given {
    uint32_t model_rank, model_size;
};

static zero_status no_memory(const struct ranks *ranks, struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the model ranks of %" PRIu32 " ranks", ranks->size);
}

/* `given` has the values of all ranks, so all ranks find the same mistake. */
static zero_status check(const struct given *given, uint32_t size, struct zero_error *error) {
    for (uint32_t r = 0; r < size; r++) {
        if (given[r].model_size != given[0].model_size)
            return error_set(error, ZERO_E_ARGUMENT,
                             "zero_runtime.model_size is %" PRIu32 " on rank %" PRIu32 " and %" PRIu32
                             " on rank 0: give the same on all ranks",
                             given[r].model_size, r, given[0].model_size);
        if (given[r].model_rank >= given[r].model_size)
            return error_set(error, ZERO_E_ARGUMENT,
                             "zero_runtime.model_rank is %" PRIu32 " on rank %" PRIu32
                             ", and model_size is %" PRIu32 ": number the model ranks from 0",
                             given[r].model_rank, r, given[r].model_size);
    }
    if (size % given[0].model_size == 0) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "zero_runtime.model_size %" PRIu32 " does not divide %" PRIu32
                     " ranks: each model rank has equally many",
                     given[0].model_size, size);
}

/* The data ranks of a model rank in the order of ranks. */
static zero_status place(struct ranks *ranks, const struct given *given, struct zero_error *error) {
    uint32_t models = given[0].model_size, *found = calloc(models, sizeof *found);
    zero_status status = ZERO_OK;
    ranks->at = malloc(2 * ranks->size * sizeof *ranks->at);
    if (!found || !ranks->at) return free(found), no_memory(ranks, error);
    ranks->model_size = models, ranks->data_size = ranks->size / models;
    ranks->place = ranks->at + ranks->size;
    for (uint32_t r = 0; r < ranks->size && !status; r++) {
        uint32_t m = given[r].model_rank;
        if (found[m] == ranks->data_size)
            status =
                error_set(error, ZERO_E_ARGUMENT,
                          "zero_runtime.model_rank is %" PRIu32 " on more than %" PRIu32
                          " ranks: each of %" PRIu32 " model ranks has that many of the %" PRIu32 " ranks",
                          m, ranks->data_size, models, ranks->size);
        else
            ranks->place[r] = m * ranks->data_size + found[m]++, ranks->at[ranks->place[r]] = r;
    }
    free(found);
    if (status) return status;
    ranks->model_rank = model_rank_of(ranks, ranks->rank);
    ranks->data_rank = data_rank_of(ranks, ranks->rank);
    return ZERO_OK;
}

static zero_status open_data_world(struct ranks *ranks, struct zero_error *error) {
    const uint32_t *list = ranks->at + ranks->model_rank * ranks->data_size;
    ranks->data_world = ranks->world;
    if (ranks->model_size == 1) return ZERO_OK;
    if (!comm_group_open(ranks->comm, list, ranks->data_size, &ranks->data_world)) return ZERO_OK;
    ranks->data_world = ranks->world;
    return error_pass(error, comm_error(ranks->comm));
}

static zero_status divide(struct ranks *ranks, const struct given *given, struct zero_error *error) {
    zero_status status = check(given, ranks->size, error);
    return status ? status : place(ranks, given, error);
}

zero_status model_ranks_open(struct ranks *ranks, uint32_t model_rank, uint32_t model_size,
                             struct zero_error *error) {
    struct given *all = outliving_message(ranks->outliving, (ranks->size + 1) * sizeof *all);
    if (!all) {
        no_memory(ranks, error);
        comm_fail(ranks->comm, error);
        return error->code;
    }
    all[0] = (struct given){model_rank, model_size ? model_size : 1};
    struct comm_call call = comm_rows(all, sizeof *all, "the model ranks");
    if (comm_run(ranks->world, &call)) return error_pass(error, comm_error(ranks->comm));
    zero_status status = divide(ranks, all + 1, error);
    if (!status) return open_data_world(ranks, error);
    call = (struct comm_call){.kind = COMM_BARRIER, .what = "the model ranks"};
    comm_run(ranks->world, &call); /* all ranks find the mistake before one of them leaves */
    return status;
}

zero_status model_ranks_plan(struct ranks *ranks, uint32_t model_rank, uint32_t model_size,
                             struct zero_error *error) {
    struct given *all = calloc(ranks->size, sizeof *all);
    if (!all) return no_memory(ranks, error);
    if (!model_size) model_size = 1;
    for (uint32_t r = 0; r < ranks->size; r++) /* rank 0 is this one */
        all[r] = (struct given){r % model_size, model_size};
    all[0].model_rank = model_rank;
    if (model_rank < ranks->size) all[model_rank].model_rank = 0;
    zero_status status = divide(ranks, all, error);
    free(all);
    return status ? status : open_data_world(ranks, error);
}

void model_ranks_close(struct ranks *ranks) {
    if (ranks->data_world && ranks->data_world != ranks->world) comm_group_close(ranks->data_world);
    free(ranks->at);
}
