/* A library for LD_PRELOAD: fsync takes SLOW_DRIVE_MS milliseconds, as on a drive that is busy. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

int fsync(int handle) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "fsync");
    const char *text = getenv("SLOW_DRIVE_MS");
    long ms = text ? atol(text) : 0;
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    return real(handle);
}
