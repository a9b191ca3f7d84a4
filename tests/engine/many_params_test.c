/* 100,000 parameters are declared, committed, saved and loaded without a search through all of them for each: with one, the test
 * would take minutes. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/ranks.h"

enum { UNITS = 100, PARAMS = 1000 }; /* of each unit */

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)atoi(param);
}

static void many(zero_engine *engine, uint32_t rank, void *user) {
    static zero_slot slot; /* no unit is used */
    char name[32], dir[512], before[33], after[33];
    zero_unit *unit;
    zero_status status = engine ? ZERO_OK : ZERO_E_CONFIG;
    for (int u = 0; u < UNITS && !status; u++) {
        snprintf(name, sizeof name, "unit %d", u);
        status = zero_engine_add_unit(engine, name, &unit);
        for (int p = 0; p < PARAMS && !status; p++) {
            zero_param param = {
                .struct_size = sizeof param, .name = name, .dims = 1, .shape = {3}, .slot = &slot};
            snprintf(name, sizeof name, "%d.of.%d", p, u);
            status = zero_unit_add_param(unit, &param);
        }
    }
    CHECK_INT(status, ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, before), ZERO_OK);
    snprintf(dir, sizeof dir, "%s/saved", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK_INT(zero_engine_save(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_load(engine, dir), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, after), ZERO_OK);
    CHECK_STRING(after, before);
}

int main(void) {
    ranks_run(1, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 1}}", many,
              NULL);
    return check_end();
}
