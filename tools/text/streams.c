#include "tools/text/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With these signals ignored, a write to a closed pipe, or beyond the limit on a file's size, fails with an error. open() takes the
 * lowest free number, which in this order is the number of the stream. */
void streams_open(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++) {
        if (fcntl(stream, F_GETFD) >= 0) continue;
        if (open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY) != stream) _exit(EXIT_FAILURE);
    }
}

static atomic_int first_failure; /* an errno */

static void note_failure(int number) {
    int none = 0;
    atomic_compare_exchange_strong(&first_failure, &none, number);
}

void streams_flush(void) {
    if (fflush(stdout) != 0) note_failure(errno);
}

int streams_close(const char *command, int status) {
    bool lost = ferror(stdout);
    if (fclose(stdout) != 0) lost = true, note_failure(errno);
    if (!lost) return status;
    int number = atomic_load(&first_failure);
    fprintf(stderr, "zero %s: the output is incomplete: cannot write to stdout%s%s\n", command,
            number ? ": " : "", number ? strerror(number) : "");
    return status == EXIT_SUCCESS ? EXIT_FAILURE : status;
}
