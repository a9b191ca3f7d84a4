/* Under the thread sanitizer: loops over elements are compiled without it (engine/base/race.h), and a thread that writes what another
 * one writes or reads is found all the same. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/race.h"
#include "engine/comm/ordered.h"
#include "kernels/optimizer.h"
#include "tests/check.h"

enum { COUNT = 600, REPORTED = 66 /* the sanitizer's exit status */ };

static float zeros[COUNT], array[2][3][COUNT]; /* [thread]: target, state, state */

/* What a thread writes, and what it reads. */
struct work {
    float *target, *state, *source;
};

static void *update(void *arg) {
    const struct work *w = arg;
    const struct optimizer *adamw = optimizer_find("AdamW");
    struct optimizer_scalars scalars;
    optimizer_prepare(adamw, &(struct optimizer_params){.lr = 1, .beta1 = 0.5, .beta2 = 0.5, .eps = 1}, 1, &scalars);
    optimizer_update(adamw, &(struct optimizer_args){.master = w->target,
                                                     .state = {w->state, w->state + COUNT},
                                                     .gradient = w->source,
                                                     .count = COUNT,
                                                     .scalars = &scalars,
                                                     .gradient_scale = 1,
                                                     .threads = 1});
    return NULL;
}

static void *sum(void *arg) {
    const struct work *w = arg;
    const void *input = w->source;
    ordered_sum(&(struct ordered){.inputs = &input, .input_count = 1, .target = w->target, .count = COUNT});
    return NULL;
}

/* The exit status of a process in which two threads do it. */
static int status_of(void *(*work)(void *), struct work first, struct work second) {
    pid_t child = fork();
    if (!child) {
        struct work each[2] = {first, second};
        pthread_t thread[2];
        if (!freopen("/dev/null", "w", stderr)) abort();
        for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, work, &each[i]);
        for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
        exit(0);
    }
    int status = -1;
    CHECK_INT(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void) {
    if (!RACES_ARE_FOUND) {
        puts("SKIPPED: not built with the thread sanitizer");
        return 0;
    }
    struct work first = {array[0][0], array[0][1], zeros}, alone = {array[1][0], array[1][1], zeros};
    struct work same_target = alone, same_state = alone, reads_target = alone;
    same_target.target = first.target, same_state.state = first.state, reads_target.source = first.target;
    CHECK_INT(status_of(update, first, alone), 0);
    CHECK_INT(status_of(update, first, same_target), REPORTED);
    CHECK_INT(status_of(update, first, same_state), REPORTED);
    CHECK_INT(status_of(update, first, reads_target), REPORTED);
    CHECK_INT(status_of(sum, first, alone), 0);
    CHECK_INT(status_of(sum, first, same_target), REPORTED);
    CHECK_INT(status_of(sum, first, reads_target), REPORTED);
    return check_end();
}
