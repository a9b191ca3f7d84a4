#include "engine/state/state.h"

void state_place(struct state *state, uint8_t *messages) {
    const struct blueprint_messages m = blueprint_messages(state->blueprint);
    state->piece = messages + m.piece;
    state->host =
        (struct stored_view){state->run, state->blueprint, messages + m.bounce[0], messages + m.piece};
    state->background = (struct stored_view){state->run, state->blueprint, messages + m.bounce[1], NULL};
}

zero_status state_read(struct state *state, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                       float *out) {
    struct zero_error error = ERROR_NONE;
    zero_status status = stored_read(&state->host, region, kind, first, count, out, &error);
    return status ? ranks_fail(state->ranks, &error) : ZERO_OK;
}

zero_status state_write(struct state *state, uint32_t region, zero_kind kind, uint64_t first, uint64_t count,
                        const float *in) {
    struct zero_error error = ERROR_NONE;
    zero_status status = stored_write(&state->host, region, kind, first, count, in, &error);
    return status ? ranks_fail(state->ranks, &error) : ZERO_OK;
}

zero_status state_begin_average(struct state *state, uint32_t region, uint64_t first, uint64_t count) {
    float *piece = (float *)(void *)state->piece;
    if (!state_averages(state, region)) return ZERO_OK;
    zero_status status = state_read(state, region, ZERO_PARAM, first, count, piece);
    return status ? status : state_write(state, region, ZERO_EMA, first, count, piece);
}

zero_status state_exchange_averages(struct state *state, bool averages) {
    struct zero_error error = ERROR_NONE;
    if (stored_exchange_averages(&state->host, averages, &error)) return ranks_fail(state->ranks, &error);
    state->averaged = averages;
    return run_weights_written(state->run);
}

zero_status state_end_sweep(struct state *state, zero_status status) {
    struct zero_error error = ERROR_NONE;
    if (status) return status;
    return stored_end_sweep(&state->host, ZERO_OK, &error) ? ranks_fail(state->ranks, &error) : ZERO_OK;
}
