/* leave_test [rank]: one rank destroys its engine while its reductions are in flight, over TCP: it returns soon, and the
 * others fail soon and name it. With `rank` this process is one rank, as its launcher says. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/comm/tcp/socket.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/toy_trainer.h"

enum { RANKS = 3, SOON_MS = 60000, TIMEOUT_S = 200, HANGS_AFTER_S = 150 };

/* In place of a time: the others compute until rank 1 has left. */
#define UNTIL_LEFT (-1.0)

static const struct plain_param params[] = {{"a", "a.w", 50000, 0, NULL},
                                            {"b", "b.w", 70000, 0, NULL},
                                            {"c", "c.w", 300, 0, NULL},
                                            {"d", "d.w", 90000, 0, NULL}};
enum { PARAMS = sizeof params / sizeof *params };

static void leave(struct plain *p) {
    zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units; u++) plain_forward(p, u);
    plain_backward(p, 3, 0);
    plain_backward(p, 2, 0);
}

/* Ranks that mpirun starts share a directory alone. */
static const char *left_path(void) {
    static char path[4096];
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    snprintf(path, sizeof path, "%s/rank_1_left", directory);
    return path;
}

static void nap(double s) {
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

/* `late_s`: how long the others compute before they come to the reductions. */
static void run_rank(uint32_t stage, double late_s) {
    struct toy_setup s = toy_setup_default();
    struct plain p;
    char json[2048];
    s.stage = stage, s.ranks = RANKS, s.timeout_s = TIMEOUT_S;
    toy_config(&s, json, sizeof json);
    zero_engine *engine = zero_engine_init(json);
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    uint32_t rank = zero_engine_rank(engine);
    CHECK_INT(plain_open(&p, engine, params, PARAMS, NULL), ZERO_OK);
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    zero_status status = ZERO_OK;
    if (rank == 1) leave(&p);
    uint64_t since_ns = clock_now_ns();
    if (rank != 1) {
        if (late_s != UNTIL_LEFT) nap(late_s);
        while (late_s == UNTIL_LEFT && access(left_path(), F_OK)) nap(0.01);
        since_ns = clock_now_ns();
        for (int step = 0; step < 100 && !status; step++) status = plain_step(&p, 1, NULL);
        CHECK_INT(status, ZERO_E_PEER);
        CHECK_CONTAINS(zero_last_error(), "rank 1 ");
        if (rank == 0)
            printf("stage %u, %g s late (-1: until rank 1 has left): %s\n", stage, late_s, zero_last_error());
        CHECK((clock_now_ns() - since_ns) / 1000000 < SOON_MS);
        since_ns = clock_now_ns();
    }
    zero_engine_destroy(engine);
    if (!CHECK((clock_now_ns() - since_ns) / 1000000 < SOON_MS))
        fprintf(stderr, "rank %u needed %.1f s to leave\n", rank, (double)(clock_now_ns() - since_ns) * 1e-9);
    if (rank == 1) close(creat(left_path(), 0600));
}

static void set_number(const char *name, uint32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void run_all(uint32_t stage, double late_s) {
    pid_t pids[RANKS];
    int listener = socket_listen(NULL, 0), status;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", socket_port(listener));
    set_number("WORLD_SIZE", RANKS);
    close(listener);
    fflush(NULL);
    unlink(left_path());
    for (uint32_t r = 0; r < RANKS; r++) {
        set_number("RANK", r), set_number("LOCAL_RANK", r);
        pids[r] = fork();
        if (pids[r]) continue;
        alarm(HANGS_AFTER_S); /* a rank that hangs is killed */
        run_rank(stage, late_s);
        exit(check_end());
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0)) fprintf(stderr, "rank %u\n", r);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        alarm(HANGS_AFTER_S);
        run_rank(2, UNTIL_LEFT);
        return check_end();
    }
    for (uint32_t stage = 0; stage <= 3; stage++) run_all(stage, 0);
    run_all(2, 0.5);
    run_all(2, UNTIL_LEFT);
    return check_end();
}
