/* The emulator ends a process whose kernel makes an error that a GPU does not tolerate, and reports the error and its
 * place. */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/misuse.h"
#include "tests/sanitized.h"

enum { THREADS = 64, SEEDS = 4, SAID_BYTES = 4096 };

#if defined(__clang__)
enum { CHECKS_STRUCTURES = 0 }; /* clang 14 does not look at the address that a structure is copied from */
#else
enum { CHECKS_STRUCTURES = 1 };
#endif

static _Alignas(16) uint32_t out[THREADS];

static void launch(enum misuse misuse, uint64_t seed) {
    struct emulator_shape shape = {
        .blocks = {1, 1, 1}, .threads = {THREADS, 1, 1}, .shared_bytes = misuse == MISUSE_FENCE ? 2048 : 0};
    struct misuse_argument a = {.misuse = (uint32_t)misuse, .one = 1, .large = 0x1p40f, .out = out};
    emulator_launch(emulator_find("misuse"), &shape, &a, &seed);
}

/* Runs the kernel in a process of its own, and returns its last message and its status. */
static int run(enum misuse misuse, uint64_t seed, char said[SAID_BYTES]) {
    int ends[2], status = 0;
    size_t length = 0;
    ssize_t got;
    if (pipe(ends)) abort();
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        launch(misuse, seed);
        _exit(0);
    }
    close(ends[1]);
    while (length < SAID_BYTES - 1 && (got = read(ends[0], said + length, SAID_BYTES - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

/* The compiler's checks: a sanitizer's own functions may replace emulated_checks.c and use other words. */
static bool may_differ(enum misuse misuse) {
    return SANITIZED && misuse >= MISUSE_ADDRESS && misuse <= MISUSE_CAST;
}

static void check_misuse(enum misuse misuse, const char *sentence) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        char said[SAID_BYTES];
        int status = run(misuse, seed, said);
        bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        if (!CHECK(may_differ(misuse) ? status != 0 : aborted && strstr(said, sentence)))
            fprintf(stderr, "  misuse %d, seed %d, said: %s\n", (int)misuse, (int)seed, said);
    }
}

int main(void) {
    static const char *const sentences[MISUSES] = {
        [MISUSE_BARRIERS] = ", others at ",
        [MISUSE_WARPS] = ", others at ",
        [MISUSE_EXIT] = "wait for others that never come",
        [MISUSE_ADDRESS] = "is no multiple of 8",
        [MISUSE_INDEX] = "index 64 is outside of the array",
        [MISUSE_SHIFT] = "a shift by 32 bits",
        [MISUSE_CAST] = "a float becomes an integer that cannot hold it",
        [MISUSE_COPY] = "is no multiple of 16",
        [MISUSE_MATRIX] = "is no multiple of 16",
        [MISUSE_PRODUCT] = "a product before warpgroup_begin",
        [MISUSE_GROUP] = "a product before warpgroup_begin",
        [MISUSE_LEFT] = "a product reads byte 13",
        [MISUSE_OPERAND] = " of shared memory, the block has bytes 0 to 0",
        [MISUSE_FENCE] = " copied without a fence for products",
    };
    launch(MISUSE_NONE, 1);
    for (uint32_t i = 0; i < THREADS; i++) CHECK_INT(out[i], i);
    for (int misuse = MISUSE_NONE + 1; misuse < MISUSES; misuse++)
        if (misuse != MISUSE_ADDRESS || CHECKS_STRUCTURES)
            check_misuse((enum misuse)misuse, sentences[misuse]);
    return check_end();
}
