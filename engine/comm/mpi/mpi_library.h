/* Open MPI as a table of functions and objects, loaded at run time like NCCL (nccl_library.h): programs whose ranks are threads or
 * TCP processes need no MPI. To use another function or constant, add it to its list; a direct use does not link.
 *
 * A host program that uses MPI shares its library with the engine: the loader knows it by the same name.
 *
 * Threads: any may load; a loaded table is constant. */
#pragma once

#include <mpi.h>

#include "engine/base/error.h"

#define MPI_FUNCTIONS(X)                                                                                     \
    X(MPI_Allreduce)                                                                                         \
    X(MPI_Comm_create_group)                                                                                 \
    X(MPI_Comm_dup)                                                                                          \
    X(MPI_Comm_free)                                                                                         \
    X(MPI_Comm_group)                                                                                        \
    X(MPI_Comm_rank)                                                                                         \
    X(MPI_Comm_set_errhandler)                                                                               \
    X(MPI_Comm_size)                                                                                         \
    X(MPI_Error_string)                                                                                      \
    X(MPI_Finalize)                                                                                          \
    X(MPI_Finalized)                                                                                         \
    X(MPI_Get_count)                                                                                         \
    X(MPI_Group_free)                                                                                        \
    X(MPI_Group_incl)                                                                                        \
    X(MPI_Iallgather)                                                                                        \
    X(MPI_Ialltoall)                                                                                         \
    X(MPI_Ibarrier)                                                                                          \
    X(MPI_Ibcast)                                                                                            \
    X(MPI_Init_thread)                                                                                       \
    X(MPI_Initialized)                                                                                       \
    X(MPI_Iprobe)                                                                                            \
    X(MPI_Irecv)                                                                                             \
    X(MPI_Ireduce_scatter_block)                                                                             \
    X(MPI_Isend)                                                                                             \
    X(MPI_Query_thread)                                                                                      \
    X(MPI_Recv)                                                                                              \
    X(MPI_Test)                                                                                              \
    X(MPI_Testall)                                                                                           \
    X(MPI_Type_commit)                                                                                       \
    X(MPI_Type_contiguous)                                                                                   \
    X(MPI_Type_create_resized)                                                                               \
    X(MPI_Type_create_struct)                                                                                \
    X(MPI_Type_free)

/* Constants of mpi.h that are addresses of Open MPI's variables: type, field, variable. */
#define MPI_OBJECTS(X)                                                                                       \
    X(MPI_Comm, comm_world, ompi_mpi_comm_world)                                                             \
    X(MPI_Datatype, byte, ompi_mpi_byte)                                                                     \
    X(MPI_Datatype, datatype_null, ompi_mpi_datatype_null)                                                   \
    X(MPI_Datatype, fp32, ompi_mpi_float)                                                                    \
    X(MPI_Datatype, uint64, ompi_mpi_uint64_t)                                                               \
    X(MPI_Errhandler, errors_return, ompi_mpi_errors_return)                                                 \
    X(MPI_Op, max, ompi_mpi_op_max)                                                                          \
    X(MPI_Op, sum, ompi_mpi_op_sum)                                                                          \
    X(MPI_Request, request_null, ompi_request_null)

struct mpi_library {
#define MPI_FIELD(name) __typeof__(name) *name;
    MPI_FUNCTIONS(MPI_FIELD)
#undef MPI_FIELD
#define MPI_FIELD(type, field, variable) type field;
    MPI_OBJECTS(MPI_FIELD)
#undef MPI_FIELD
};

/* Set by the first mpi_library_load that succeeds. */
extern struct mpi_library libmpi;

/* Loads libmpi.so.40, which stays loaded until the process ends. ZERO_E_UNSUPPORTED: no library, or not Open MPI's. */
zero_status mpi_library_load(struct zero_error *error);
