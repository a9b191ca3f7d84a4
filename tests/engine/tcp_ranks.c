#include "tests/engine/tcp_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/tcp/socket.h"
#include "tests/check.h"

uint32_t tcp_free_port(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    close(listener);
    return port;
}

zero_runtime tcp_runtime(uint32_t rank, uint32_t size, uint32_t port) {
    return (zero_runtime){.struct_size = sizeof(zero_runtime),
                          .rank = rank,
                          .size = size,
                          .address = "127.0.0.1",
                          .port = port};
}

void tcp_processes(uint32_t size, uint32_t most_s, void (*body)(const zero_runtime *runtime, void *user),
                   void *user) {
    uint32_t port = tcp_free_port();
    pid_t *pids = calloc(size, sizeof *pids);
    fflush(NULL);
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r]) continue;
        zero_runtime runtime = tcp_runtime(r, size, port);
        alarm(most_s);
        body(&runtime, user);
        exit(check_end());
    }
    for (uint32_t r = 0; r < size; r++) {
        int status;
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0)) fprintf(stderr, "rank %u\n", r);
    }
    free(pids);
}
