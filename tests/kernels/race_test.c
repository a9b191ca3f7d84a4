/* Under the thread sanitizer: loops over elements are compiled without it (engine/base/race.h), and two threads that write the same
 * elements are found all the same. */
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

static float mine[2][COUNT], shared[COUNT];

static void *update(void *arg) {
    const struct optimizer *sgd = optimizer_find("SGD");
    struct optimizer_scalars scalars;
    optimizer_prepare(sgd, &(struct optimizer_params){.lr = 1}, 1, &scalars);
    optimizer_update(sgd, &(struct optimizer_args){.master = arg,
                                                   .gradient = shared,
                                                   .count = COUNT,
                                                   .scalars = &scalars,
                                                   .gradient_scale = 1,
                                                   .threads = 1});
    return NULL;
}

static void *sum(void *arg) {
    const void *input = shared;
    ordered_sum(&(struct ordered){.inputs = &input, .input_count = 1, .target = arg, .count = COUNT});
    return NULL;
}

/* The exit status of a process in which two threads do it, to one array or each to its own. */
static int status_of(void *(*work)(void *), bool to_one) {
    pid_t child = fork();
    if (!child) {
        pthread_t thread[2];
        if (!freopen("/dev/null", "w", stderr)) abort();
        for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, work, mine[to_one ? 0 : i]);
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
    CHECK_INT(status_of(update, false), 0);
    CHECK_INT(status_of(sum, false), 0);
    CHECK_INT(status_of(update, true), REPORTED);
    CHECK_INT(status_of(sum, true), REPORTED);
    return check_end();
}
