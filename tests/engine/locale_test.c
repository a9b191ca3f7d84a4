/* A host program may call setlocale. Numbers in a checkpoint have a decimal point all the same, also where the locale's
 * separator is a comma, or has two bytes. */
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"

static const struct plain_param params[] = {{"a", "a.w", 100, 0, NULL}};
static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", "
                           "\"params\": {\"lr\": 0.1}}, "
                           "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": "
                           "\"auto\", \"warmup_num_steps\": 2}}}";

static char directory[4096];

/* With LOCPATH set, glibc leaks the list of its directories in each call of newlocale. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:argz_add_sep\n"; }

static void works(zero_status status) {
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
}

static void saves_and_loads(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    char went_on[33] = "", loaded[33] = "";
    if (!CHECK(engine != NULL)) return;
    works(plain_open(&p, engine, params, 1, NULL));
    for (int i = 0; i < 2; i++) works(plain_step(&p, 1, NULL));
    works(zero_engine_save(engine, directory));
    works(plain_step(&p, 1, NULL));
    works(zero_engine_hash(engine, went_on));
    works(zero_engine_load(engine, directory));
    works(plain_step(&p, 1, NULL));
    works(zero_engine_hash(engine, loaded));
    CHECK_STRING(loaded, went_on);
}

/* Makes the locale from its source, where the machine has that. */
static bool enter(const char *source) {
    char command[8192], name[64];
    snprintf(command, sizeof command, "localedef --no-archive -i %s -f UTF-8 \"$TEST_TMPDIR/%s.UTF-8\" 2>&1",
             source, source);
    snprintf(name, sizeof name, "%s.UTF-8", source);
    return setenv("LOCPATH", getenv("TEST_TMPDIR"), 1) == 0 && system(command) == 0 &&
           setlocale(LC_ALL, name);
}

int main(void) {
    static const char *const sources[] = {"de_DE", "ps_AF"};
    int entered = 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (!enter(sources[i])) continue;
        fprintf(stderr, "locale %s, separator \"%s\"\n", sources[i], localeconv()->decimal_point);
        CHECK(*localeconv()->decimal_point != '.');
        snprintf(directory, sizeof directory, "%s/saved.%s", getenv("TEST_TMPDIR"), sources[i]);
        ranks_run(1, json, saves_and_loads, NULL);
        entered++;
    }
    if (!entered) puts("SKIPPED: localedef makes no locale here");
    return check_end();
}
