/* Scratch: the host program's data on the drive. */
#include <inttypes.h>

#include "engine/api/engine.h"
#include "engine/base/clock.h"
#include "engine/base/limits.h"

zero_status zero_engine_add_scratch(zero_engine *e, const zero_scratch_needs *needs, zero_scratch **out) {
    zero_scratch_needs given = {0};
    struct zero_error error = ERROR_NONE;
    TRY(engine_check_declaring(e, "zero_engine_add_scratch"));
    if (!needs || !out) return refuse(ZERO_E_ARGUMENT, "zero_engine_add_scratch: needs or out is NULL");
    TRY(sized_take(&given, sizeof given, needs, needs->struct_size, "zero_scratch_needs"));
    if (!config_scratch_paths(&e->config)->count)
        return refuse(ZERO_E_CONFIG,
                      "zero_engine_add_scratch: scratch \"%s\" needs a directory on the drive: set "
                      "activation_checkpointing.nvme_path",
                      given.name ? given.name : "");
    if (!scratches_add(&e->scratches, e, &given, &e->reservations, out, &error)) return ZERO_OK;
    return refuse(error.code, "zero_engine_add_scratch: %s", error.message);
}

/* ZERO_E_ORDER where the drive is not open, or nothing was stored. A wait is possible after a failure, too. */
static zero_status check(zero_scratch *s, uint64_t place, const void *memory, const char *what) {
    failure_call(what, NULL);
    if (!s)
        return refuse(ZERO_E_ARGUMENT,
                      "%s: the scratch is NULL: give one that zero_engine_add_scratch returned", what);
    if (!s->all->tier)
        return refuse(ZERO_E_ORDER, "%s: the engine is not committed: call zero_engine_commit first", what);
    if (place >= s->places)
        return refuse(ZERO_E_ARGUMENT, "%s: place %" PRIu64 " of a scratch that has %" PRIu64, what, place,
                      s->places);
    if ((uintptr_t)memory % CHUNK_ALIGN_BYTES)
        return refuse(ZERO_E_ARGUMENT, "%s: place %" PRIu64 ": the memory is not at a multiple of %d bytes",
                      what, place, CHUNK_ALIGN_BYTES);
    return ZERO_OK;
}

static zero_status check_transfer(zero_scratch *s, uint64_t place, const void *memory, const char *what) {
    zero_status status = check(s, place, memory, what);
    if (!status && !memory) status = refuse(ZERO_E_ARGUMENT, "%s: memory is NULL", what);
    return status ? status : ranks_check(&s->engine->ranks);
}

/* A wait inside a use is no compute. Returns the transfer's failure, which is the run's. */
static zero_status wait(zero_scratch *s, uint64_t place) {
    zero_engine *e = s->engine;
    struct zero_error error = ERROR_NONE;
    if (!s->place[place].work) return ZERO_OK;
    uint64_t began = clock_now_ns();
    zero_status status = scratch_wait(s, place, &error);
    uint64_t ns = clock_now_ns() - began;
    e->run.wait_s += (double)ns * 1e-9;
    if (e->pass.phase == PHASE_USE) e->pass.compute_began += ns;
    return status ? ranks_fail(&e->ranks, &error) : ZERO_OK;
}

zero_status zero_scratch_store(zero_scratch *s, uint64_t place, const void *memory) {
    struct zero_error error = ERROR_NONE;
    TRY(check_transfer(s, place, memory, "zero_scratch_store"));
    TRY(wait(s, place));
    return scratch_store(s, place, memory, &error) ? ranks_fail(&s->engine->ranks, &error) : ZERO_OK;
}

zero_status zero_scratch_fetch(zero_scratch *s, uint64_t place, void *memory) {
    struct zero_error error = ERROR_NONE;
    TRY(check_transfer(s, place, memory, "zero_scratch_fetch"));
    if (!s->place[place].stored)
        TRY(refuse(ZERO_E_ORDER, "zero_scratch_fetch: place %" PRIu64 " was not stored", place));
    TRY(wait(s, place));
    return scratch_fetch(s, place, memory, &error) ? ranks_fail(&s->engine->ranks, &error) : ZERO_OK;
}

zero_status zero_scratch_wait(zero_scratch *s, uint64_t place) {
    zero_status status = check(s, place, NULL, "zero_scratch_wait");
    if (!status) status = wait(s, place);
    return status ? status : ranks_check(&s->engine->ranks);
}
