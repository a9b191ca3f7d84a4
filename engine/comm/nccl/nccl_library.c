#include "engine/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

static const char library_name[] = "libnccl.so.2";

/* NCCL has ncclConfig_t.blocking since 2.14. But before 2.20.3, a thread cannot call one communicator while another is
 * in progress. */
enum { VERSION_MIN = NCCL_VERSION_CODE };

/* Before 2.26.2 there was a race if a communicator that does not block was made after a call of another one (its release notes). */
enum { SPLIT_MIN = NCCL_VERSION(2, 26, 2) };

/* Before 2.23 a rank thread's kernel writes into the memory of its peers in the same process. A GPU has access to the pages of its own
 * address space alone (engine/device/cuda/space.h). */
enum { DIRECT_UNTIL = NCCL_VERSION(2, 23, 0) };

static zero_status look_up(struct nccl_library *library, void *handle, struct zero_error *error) {
    const char *missing = NULL;
    void *function;
#define LOOK_UP(name)                                                                                        \
    function = dlsym(handle, #name);                                                                         \
    if (!function && !missing) missing = #name;                                                              \
    library->name = (__typeof__(library->name))function;
    NCCL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (!missing) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED, "comm nccl: %s lacks %s: install NCCL %d.%d or later",
                     library_name, missing, NCCL_MAJOR, NCCL_MINOR);
}

/* NCCL reads them once, and ignores them before 2.26. The first one: kernels of all communicators of a GPU start in the
 * order of the calls. With it, a call fails by default if another thread launches on this GPU at the same moment, as a
 * program with a communicator of its own does. The second one: the call does not fail. The order of the engine's own
 * calls stays, because one thread at a time makes them. */
static void set_launch_order(void) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", false);
    setenv("NCCL_LAUNCH_RACE_FATAL", "0", false);
}

zero_status nccl_library_open(struct nccl_library *out_library, struct zero_error *error) {
    struct nccl_library library = {0};
    set_launch_order();
    void *handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "comm nccl: %s cannot be loaded (%s): several processes with GPUs need it: install "
                         "NCCL (libnccl2), or run all ranks on one GPU as threads (zero train --ranks N)",
                         library_name, dlerror());
    zero_status status = look_up(&library, handle, error);
    if (!status && (library.ncclGetVersion(&library.version) != ncclSuccess || library.version < VERSION_MIN))
        status = error_set(error, ZERO_E_UNSUPPORTED,
                           "comm nccl: %s says that its version is %d; from %d on communicators need not "
                           "block: install NCCL %d.%d or later",
                           library_name, library.version, (int)VERSION_MIN, NCCL_MAJOR, NCCL_MINOR);
    if (!status && library.version < DIRECT_UNTIL) setenv("NCCL_P2P_DIRECT_DISABLE", "1", false);
    if (!status && library.version >= SPLIT_MIN)
        library.ncclCommSplit = (__typeof__(library.ncclCommSplit))dlsym(handle, "ncclCommSplit");
    dlclose(handle);
    if (!status) *out_library = library;
    return status;
}
