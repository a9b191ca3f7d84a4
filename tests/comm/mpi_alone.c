/* mpi_alone: one process that has called MPI_Init, which gives no MPI_THREAD_MULTIPLE, needs none. */
#include <dlfcn.h>
#include <stdio.h>

#include "engine/comm/comm.h"
#include "tests/check.h"

int main(void) {
    void *mpi = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL), *world;
    int (*init)(int *, char ***), (*finalise)(void);
    if (!CHECK(mpi)) return check_end();
    *(void **)&init = dlsym(mpi, "MPI_Init"), *(void **)&finalise = dlsym(mpi, "MPI_Finalize");
    world = dlsym(mpi, "ompi_mpi_comm_world"); /* an MPI_Comm of Open MPI is this address */
    CHECK_INT(init(NULL, NULL), 0);
    for (int given = 0; given < 2; given++) {
        struct comm_options options = {.mpi_comm = given ? &world : NULL};
        struct comm *comm = NULL;
        struct zero_error error;
        error_clear(&error);
        if (!CHECK_INT(comm_open(&comm_mpi_ops, &options, &comm, &error), ZERO_OK)) {
            fprintf(stderr, "%s\n", error.message);
            continue;
        }
        CHECK_INT(comm_size(comm), 1);
        comm_close(comm);
    }
    finalise();
    return check_end();
}
