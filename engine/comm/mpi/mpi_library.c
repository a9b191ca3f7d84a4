#include "engine/comm/mpi/mpi_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char library_name[] = "libmpi.so.40"; /* of Open MPI 3 to 5 */

struct mpi_library libmpi;

/* An object is looked up in the whole process: a program that names it in its own code may have a copy of it (R_X86_64_COPY), which
 * the library then uses in place of its own. */
static zero_status look_up(struct mpi_library *library, void *handle, struct zero_error *error) {
    const char *missing = NULL;
    void *symbol;
#define LOOK_UP(field, place, name)                                                                          \
    symbol = dlsym(place, name);                                                                             \
    if (!symbol && !missing) missing = name;                                                                 \
    library->field = (__typeof__(library->field))symbol;
#define FUNCTION(name) LOOK_UP(name, handle, #name)
#define OBJECT(type, field, variable) LOOK_UP(field, RTLD_DEFAULT, #variable)
    MPI_FUNCTIONS(FUNCTION)
    MPI_OBJECTS(OBJECT)
#undef OBJECT
#undef FUNCTION
#undef LOOK_UP
    if (!missing) return ZERO_OK;
    return error_set(
        error, ZERO_E_UNSUPPORTED,
        "comm mpi: %s lacks %s: let the loader find that of Open MPI 4 or 5 first (LD_LIBRARY_PATH)",
        library_name, missing);
}

/* Without HOME, MPI_Init of Open MPI 5 ends the process, with a text that does not say what to do. */
static zero_status check_home(void *handle, struct zero_error *error) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length, (*ask)(char *, int *) = NULL;
    if (getenv("HOME")) return ZERO_OK;
    *(void **)&ask = dlsym(handle, "MPI_Get_library_version");
    if (!ask || ask(version, &length) || strncmp(version, "Open MPI v4", 11) == 0) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "comm mpi: Open MPI 5 does not start without the variable HOME: set it for mpirun and "
                     "all ranks (HOME=/nonexistent will do)");
}

/* RTLD_GLOBAL: Open MPI's plugins use its symbols without naming the library that has them. */
static zero_status load(struct zero_error *error) {
    struct mpi_library library;
    void *handle = dlopen(library_name, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!handle)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "comm mpi: %s cannot be loaded (%s), but this process is a rank of MPI: install Open MPI "
            "(openmpi-bin), or start the ranks with torchrun's variables, which needs no MPI",
            library_name, dlerror());
    zero_status status = look_up(&library, handle, error);
    if (!status) status = check_home(handle, error);
    dlclose(handle);
    if (!status) libmpi = library;
    return status;
}

zero_status mpi_library_load(struct zero_error *error) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    zero_status status = ZERO_OK;
    pthread_mutex_lock(&mutex);
    if (!loaded) status = load(error), loaded = !status;
    pthread_mutex_unlock(&mutex);
    return status;
}
