/* A library for LD_PRELOAD: a machine on which NVIDIA's kernel driver shows a GPU. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

int access(const char *path, int mode) {
    static int (*real)(const char *, int);
    if (!real) real = (int (*)(const char *, int))(uintptr_t)dlsym(RTLD_NEXT, "access");
    return strncmp(path, "/proc/driver/nvidia/", 20) == 0 ? 0 : real(path, mode);
}
