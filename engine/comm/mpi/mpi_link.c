/* The MPI process, and one comm's communicators in it: see mpi_link.h. */
#include "engine/comm/mpi/mpi_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"

enum { CONTROL_TAG = 1 };

/* ---- the process ---- */

/* MPI belongs to the whole process, and so do these variables. */
static atomic_int process_ours;           /* the process in which the engine initialized MPI, or 0 */
static atomic_uint process_comms;         /* comms that are open or have failed */
static _Atomic uint64_t process_openings; /* the last comm's number */

static void finalise_at_exit(void) {
    int finalised = 0;
    if (atomic_load(&process_ours) != getpid()) return; /* forked: MPI is the parent's */
    libmpi.MPI_Finalized(&finalised);
    if (!finalised && !atomic_load(&process_comms)) libmpi.MPI_Finalize();
}

static zero_status init_mpi(struct zero_error *error) {
    int initialised = 0, finalised = 0, level = 0;
    TRY(mpi_library_load(error));
    libmpi.MPI_Initialized(&initialised);
    libmpi.MPI_Finalized(&finalised);
    if (finalised)
        return error_set(error, ZERO_E_ORDER,
                         "comm mpi: MPI was finalised before: open the communicator earlier");
    if (!initialised) {
        if (libmpi.MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
            return error_set(error, ZERO_E_PEER,
                             "comm mpi: MPI_Init_thread failed: start the program with mpirun");
        if (!atomic_exchange(&process_ours, getpid())) atexit(finalise_at_exit);
    }
    libmpi.MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "comm mpi: MPI runs with thread level %d, and the control thread needs "
                         "MPI_THREAD_MULTIPLE (%d): initialise MPI with MPI_Init_thread",
                         level, MPI_THREAD_MULTIPLE);
    return ZERO_OK;
}

const char *mpi_text(int code, char text[MPI_MAX_ERROR_STRING]) {
    int length = 0;
    if (libmpi.MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, MPI_MAX_ERROR_STRING, "error %d", code);
    return text;
}

/* ---- the control channel's port ---- */

static bool port_send(void *user, uint32_t to, const void *message, uint32_t bytes) {
    struct mpi_link *link = user;
    for (uint32_t i = 0; i < PORT_MESSAGES; i++) {
        struct port_message *slot = &link->messages[i];
        int sent = 1;
        if (slot->request != libmpi.request_null) libmpi.MPI_Test(&slot->request, &sent, MPI_STATUS_IGNORE);
        if (!sent) continue;
        memcpy(slot->bytes, message, bytes);
        libmpi.MPI_Isend(slot->bytes, (int)bytes, libmpi.byte, (int)to, CONTROL_TAG, link->channel,
                         &slot->request);
        return true;
    }
    return false;
}

static bool port_receive(void *user, void *message, uint32_t bytes_max, uint32_t *out_bytes) {
    struct mpi_link *link = user;
    MPI_Status status;
    int there = 0, bytes = 0;
    if (libmpi.MPI_Iprobe(MPI_ANY_SOURCE, CONTROL_TAG, link->channel, &there, &status) != MPI_SUCCESS ||
        !there)
        return false;
    libmpi.MPI_Get_count(&status, libmpi.byte, &bytes);
    if (libmpi.MPI_Recv(message, (int)bytes_max, libmpi.byte, status.MPI_SOURCE, CONTROL_TAG, link->channel,
                        MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    *out_bytes = (uint32_t)bytes;
    return true;
}

static bool link_meet(void *user, bool *out_all) {
    struct mpi_link *link = user;
    int all = 0;
    if (link->meeting == libmpi.request_null &&
        libmpi.MPI_Ibarrier(link->world, &link->meeting) != MPI_SUCCESS)
        return false;
    if (libmpi.MPI_Test(&link->meeting, &all, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    *out_all = all != 0;
    return true;
}

/* ---- opening and closing ---- */

/* MPI's own blocking calls have no deadline, so all ranks first meet in a wait that has one. After a failure the
 * barrier's request never completes, so MPI is not finalized. A rank that is interrupted waits WATCH_GRACE_NS longer: if all ranks have
 * come, some of them may have met already. Then this rank meets them, too, and tells them of the interruption afterwards. */
static zero_status await_all(struct mpi_link *link, MPI_Comm from, const struct comm_options *options,
                             struct zero_error *error) {
    MPI_Request request;
    double timeout_s = options->timeout_s > 0 ? options->timeout_s : COMM_TIMEOUT_S;
    uint64_t begin_ns = clock_now_ns(), asked_ns = begin_ns;
    int all = 0, code = libmpi.MPI_Ibarrier(from, &request);
    for (; code == MPI_SUCCESS; sleep_ns(100000)) {
        code = libmpi.MPI_Test(&request, &all, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && all) return ZERO_OK;
        uint64_t now_ns = clock_now_ns();
        if (options->interrupted && !link->interrupted && now_ns - asked_ns >= COMM_ASK_NS)
            asked_ns = now_ns, link->interrupted = options->interrupted(options->interrupted_user);
        bool left = link->interrupted && now_ns - asked_ns >= WATCH_GRACE_NS;
        if (!left && !deadline_passed(timeout_s, begin_ns, now_ns)) continue;
        atomic_fetch_add(&process_comms, 1);
        if (left)
            return error_set(error, ZERO_E_INTERRUPTED,
                             "comm mpi: interrupted while rank %u waited for the other ranks to open",
                             link->rank);
        return error_set(
            error, ZERO_E_PEER,
            "comm mpi: rank %u waited %g s for the other ranks to open their communicators: see their logs",
            link->rank, 10 * timeout_s);
    }
    char text[MPI_MAX_ERROR_STRING];
    return error_set(error, ZERO_E_PEER, "comm mpi: rank %u: MPI_Ibarrier failed: %s", link->rank,
                     mpi_text(code, text));
}

/* MPI_Init sets variables of a launcher also without one. */
bool mpi_link_alone(const struct comm_options *options) {
    int there = 0, gone = 0, size = 0;
    if (options->size || mpi_library_load(NULL)) return options->size == 1 && !options->mpi_comm;
    libmpi.MPI_Initialized(&there), libmpi.MPI_Finalized(&gone);
    MPI_Comm from = options->mpi_comm ? *(MPI_Comm *)options->mpi_comm : libmpi.comm_world;
    if (there && !gone) libmpi.MPI_Comm_size(from, &size);
    return size == 1;
}

static zero_status open_communicators(struct mpi_link *link, const struct comm_options *options,
                                      struct zero_error *error) {
    MPI_Comm from = options->mpi_comm ? *(MPI_Comm *)options->mpi_comm : libmpi.comm_world;
    int rank, size, code;
    char text[MPI_MAX_ERROR_STRING];
    libmpi.MPI_Comm_rank(from, &rank);
    libmpi.MPI_Comm_size(from, &size);
    if (options->size && (options->size != (uint32_t)size || options->rank != (uint32_t)rank))
        return error_set(error, ZERO_E_ARGUMENT,
                         "comm mpi: rank %u of %u was expected, but MPI says rank %d of %d", options->rank,
                         options->size, rank, size);
    link->rank = (uint32_t)rank, link->size = (uint32_t)size;
    /* A rank that left the first meeting counts in it, but not in the second one: a rank that comes later finds out there. */
    TRY(await_all(link, from, options, error));
    TRY(await_all(link, from, options, error));
    code = libmpi.MPI_Comm_dup(from, &link->world);
    if (code == MPI_SUCCESS) code = libmpi.MPI_Comm_dup(from, &link->channel);
    if (code != MPI_SUCCESS)
        return error_set(error, ZERO_E_PEER, "comm mpi: rank %d: MPI_Comm_dup failed: %s", rank,
                         mpi_text(code, text));
    libmpi.MPI_Comm_set_errhandler(link->world, libmpi.errors_return);
    libmpi.MPI_Comm_set_errhandler(link->channel, libmpi.errors_return);
    return ZERO_OK;
}

/* Agrees on a number that no rank of this comm has seen before. MPI may reuse the context of an earlier comm, for which
 * late messages may still arrive. */
static zero_status agree_opening(struct mpi_link *link, struct zero_error *error) {
    uint64_t opening = atomic_load(&process_openings) + 1;
    char text[MPI_MAX_ERROR_STRING];
    int code = libmpi.MPI_Allreduce(MPI_IN_PLACE, &opening, 1, libmpi.uint64, libmpi.max, link->world);
    if (code != MPI_SUCCESS)
        return error_set(error, ZERO_E_PEER, "comm mpi: rank %u: MPI_Allreduce failed: %s", link->rank,
                         mpi_text(code, text));
    /* It only grows, even if two threads open comms at once. */
    uint64_t seen = atomic_load(&process_openings);
    while (seen < opening && !atomic_compare_exchange_weak(&process_openings, &seen, opening)) {
    }
    link->opening = opening;
    return ZERO_OK;
}

/* MPI reads a message's buffer until its send has ended, and may send only while this process calls MPI. False: a send has
 * not ended within timeout_s, and no buffer may be freed. */
static bool complete_sends(struct mpi_link *link, double timeout_s) {
    uint64_t end_ns = clock_now_ns() + (uint64_t)(timeout_s * 1e9);
    for (uint32_t i = 0; i < PORT_MESSAGES;) {
        int sent = 1;
        if (link->messages[i].request != libmpi.request_null &&
            libmpi.MPI_Test(&link->messages[i].request, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (sent)
            i++;
        else if (clock_now_ns() > end_ns)
            return false;
        else
            sleep_ns(1000000);
    }
    return true;
}

zero_status mpi_link_open(struct mpi_link *link, const struct comm_options *options,
                          struct zero_error *error) {
    TRY(init_mpi(error));
    TRY(open_communicators(link, options, error));
    TRY(agree_opening(link, error));
    link->messages = calloc(PORT_MESSAGES, sizeof *link->messages);
    if (!link->messages)
        return error_set(error, ZERO_E_MEMORY, "comm mpi: rank %u: no memory for control messages",
                         link->rank);
    for (uint32_t i = 0; i < PORT_MESSAGES; i++) link->messages[i].request = libmpi.request_null;
    link->meeting = libmpi.request_null;
    atomic_fetch_add(&process_comms, 1);
    return ZERO_OK;
}

struct watch_link mpi_link_watched(struct mpi_link *link) {
    return (struct watch_link){
        .port = {.user = link, .opening = link->opening, .send = port_send, .receive = port_receive},
        .meet = link_meet};
}

void mpi_link_close(struct mpi_link *link, double timeout_s) {
    if (complete_sends(link, timeout_s)) free(link->messages);
    libmpi.MPI_Comm_free(&link->channel);
    libmpi.MPI_Comm_free(&link->world);
    atomic_fetch_sub(&process_comms, 1);
}
