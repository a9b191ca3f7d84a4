/* A stand-in for libnccl.so.2 on the stand-in driver: ranks are threads of one process, whose streams share one memory.
 *
 * A collective is a meeting. Each rank's part is a piece of work on its stream; when all members' streams have come to
 * it, it is performed for all of them. As of the real one: what has begun on one rank and not on another waits, for ever
 * if need be, until the communicator is aborted; an aborted one's work ends without a result.
 *
 * Communicators do not block. Each call may return ncclInProgress; then nothing is on the stream until
 * ncclCommGetAsyncError has said ncclSuccess, and a caller who goes on without asking is told ncclInvalidUsage.
 * Sums are made in descending order of ranks: not the order of `ordered`. From FAKE_CUDA_SEED. */
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/convert.h"
#include "tests/cuda/fake_cuda.h"

enum { RANKS_MAX = 16 };

enum kind { GATHER, SCATTER, BROADCAST, EXCHANGE };

struct part {
    const void *source, *send[RANKS_MAX];
    void *target, *receive[RANKS_MAX];
    size_t send_count[RANKS_MAX], receive_count[RANKS_MAX];
    bool here; /* its stream has come to it */
};

struct meeting {
    struct meeting *next;
    uint64_t sequence;
    enum kind kind;
    size_t count;
    ncclDataType_t type;
    int root, left;
    bool done, broken, mixed; /* mixed: members made different calls, which never ends */
    struct part part[RANKS_MAX];
};

struct world {
    struct world *next;
    uint64_t id;
    int count;
    struct ncclComm *member[RANKS_MAX];
    struct meeting *meetings;
};

struct ncclComm {
    struct world *world;
    int rank;
    uint64_t sequence; /* of the next collective */
    uint32_t delay;    /* so many questions until it is taken */
    bool finalised, aborted;
    struct meeting *held; /* taken, but not yet on the stream */
    cudaStream_t stream;
};

struct piece { /* of work on a stream */
    struct ncclComm *comm;
    struct meeting *meeting;
};

static pthread_mutex_t mutex =
    PTHREAD_MUTEX_INITIALIZER; /* of all below; the driver's lock is taken before it */
static struct world *worlds;
static uint64_t ids, random_state;
static char last_error[256];
static CUresult (*enqueue)(CUstream, bool (*)(void *), void (*)(void *), const void *, size_t);

static _Thread_local uint32_t depth;
static _Thread_local struct ncclComm *grouped;
static _Thread_local cudaStream_t grouped_stream;
static _Thread_local struct part grouped_part;
static _Thread_local ncclDataType_t grouped_type;

static ncclResult_t fail(ncclResult_t result, const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return result;
}

static uint32_t draw(void) {
    if (!random_state) {
        const char *seed = getenv("FAKE_CUDA_SEED");
        random_state = (seed ? strtoull(seed, NULL, 10) : 1) * 2 + 1;
    }
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = driver ? dlsym(driver, "fake_cuda_enqueue") : NULL;
    if (!function) {
        fprintf(stderr, "fake nccl: needs the stand-in libcuda.so.1 in this process\n");
        abort();
    }
    memcpy(&enqueue, &function, sizeof enqueue);
}

/* ---- arithmetic ---- */

static const size_t bytes_of[ncclNumTypes] = {
    [ncclUint8] = 1, [ncclFloat32] = 4, [ncclFloat16] = 2, [ncclBfloat16] = 2};

static float load(const void *at, ncclDataType_t type, size_t i) {
    if (type == ncclFloat32) return ((const float *)at)[i];
    uint16_t bits = ((const uint16_t *)at)[i];
    return type == ncclBfloat16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

static void store(void *at, ncclDataType_t type, size_t i, float value) {
    if (type == ncclFloat32)
        ((float *)at)[i] = value;
    else
        ((uint16_t *)at)[i] = type == ncclBfloat16 ? bf16_from_f32(value) : f16_from_f32(value);
}

/* Sources may be targets: all is read before anything is written. */
static void scatter(struct meeting *m, int count) {
    size_t share = m->count * bytes_of[m->type];
    char *sums = malloc((size_t)count * share + 1);
    for (int r = 0; r < count; r++)
        for (size_t i = 0; i < m->count; i++) {
            float sum = 0;
            for (int q = count; q-- > 0;) sum += load(m->part[q].source, m->type, (size_t)r * m->count + i);
            store(sums + (size_t)r * share, m->type, i, sum);
        }
    for (int r = 0; r < count; r++) memcpy(m->part[r].target, sums + (size_t)r * share, share);
    free(sums);
}

static void gather(struct meeting *m, int count) {
    size_t share = m->count * bytes_of[m->type];
    for (int r = 0; r < count; r++)
        for (int q = 0; q < count; q++)
            memmove((char *)m->part[r].target + (size_t)q * share, m->part[q].source, share);
}

static void exchange(struct meeting *m, int count) {
    for (int r = 0; r < count; r++)
        for (int q = 0; q < count; q++)
            memcpy(m->part[r].receive[q], m->part[q].send[r], m->part[q].send_count[r] * bytes_of[m->type]);
}

static void perform(struct meeting *m, int count) {
    if (m->kind == GATHER) gather(m, count);
    if (m->kind == SCATTER) scatter(m, count);
    if (m->kind == EXCHANGE) exchange(m, count);
    for (int r = 0; r < count && m->kind == BROADCAST; r++)
        memmove(m->part[r].target, m->part[m->root].source, m->count * bytes_of[m->type]);
}

/* ---- on streams, with the driver's lock held ---- */

static bool is_ready(void *argument) {
    struct piece *p = argument;
    pthread_mutex_lock(&mutex);
    struct meeting *m = p->meeting;
    bool all = true;
    m->part[p->comm->rank].here = true;
    for (int r = 0; r < p->comm->world->count; r++) all = all && m->part[r].here;
    bool ready = p->comm->aborted || (all && !m->broken && !m->mixed);
    pthread_mutex_unlock(&mutex);
    return ready;
}

static void run_piece(void *argument) {
    struct piece *p = argument;
    pthread_mutex_lock(&mutex);
    struct meeting *m = p->meeting;
    if (!p->comm->aborted && !m->done) perform(m, p->comm->world->count), m->done = true;
    m->left++;
    pthread_mutex_unlock(&mutex);
}

/* ---- meetings ---- */

static struct meeting *find_meeting(struct world *world, uint64_t sequence, enum kind kind, size_t count,
                                    ncclDataType_t type, int root) {
    struct meeting *m = world->meetings;
    while (m && m->sequence != sequence) m = m->next;
    if (m) {
        m->mixed = m->mixed || m->kind != kind || m->count != count || m->type != type || m->root != root;
        return m;
    }
    for (struct meeting **link = &world->meetings; *link;) { /* those that all have left */
        struct meeting *old = *link;
        if (old->left < world->count) {
            link = &old->next;
            continue;
        }
        *link = old->next;
        free(old);
    }
    m = calloc(1, sizeof *m);
    *m = (struct meeting){.next = world->meetings,
                          .sequence = sequence,
                          .kind = kind,
                          .count = count,
                          .type = type,
                          .root = root};
    return world->meetings = m;
}

/* The lock is given back: the driver takes its own. */
static ncclResult_t put_on_stream(struct ncclComm *comm) {
    struct piece piece = {comm, comm->held};
    comm->held = NULL;
    pthread_mutex_unlock(&mutex);
    CUresult result = enqueue((CUstream)comm->stream, is_ready, run_piece, &piece, sizeof piece);
    return result == CUDA_SUCCESS ? ncclSuccess : fail(ncclUnhandledCudaError, "the stream is not valid");
}

static ncclResult_t attend(struct ncclComm *comm, enum kind kind, const struct part *part, size_t count,
                           ncclDataType_t type, int root, cudaStream_t stream) {
    pthread_mutex_lock(&mutex);
    if (comm->delay || comm->held) {
        pthread_mutex_unlock(&mutex);
        return fail(ncclInvalidUsage,
                    "the call before is still in progress: ask ncclCommGetAsyncError first");
    }
    comm->held = find_meeting(comm->world, comm->sequence++, kind, count, type, root);
    comm->held->part[comm->rank] = *part;
    comm->stream = stream;
    comm->delay = draw() % 3;
    if (!comm->delay) return put_on_stream(comm);
    pthread_mutex_unlock(&mutex);
    return ncclInProgress;
}

/* ---- nccl.h ---- */

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const names[ncclNumResults] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return result < ncclNumResults ? names[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    pthread_mutex_lock(&mutex);
    uint64_t number = ++ids;
    pthread_mutex_unlock(&mutex);
    memset(id, 0x5c, sizeof *id);
    memcpy(id, &number, sizeof number);
    return ncclSuccess;
}

static struct world *find_world(uint64_t id, int count) {
    struct world *world = worlds;
    while (world && world->id != id) world = world->next;
    if (world) return world;
    world = calloc(1, sizeof *world);
    *world = (struct world){.next = worlds, .id = id, .count = count};
    return worlds = world;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int count, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    uint64_t number;
    CUcontext current = NULL;
    memcpy(&number, &id, sizeof number);
    if (config->blocking != 0) return fail(ncclInvalidArgument, "this stand-in does not block");
    pthread_mutex_lock(&mutex);
    if (!enqueue) open_driver();
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CUresult (*get_current)(CUcontext *);
    void *function = dlsym(driver, "cuCtxGetCurrent");
    memcpy(&get_current, &function, sizeof get_current);
    struct world *world = find_world(number, count);
    bool valid = number && number <= ids && count == world->count && rank >= 0 && rank < count &&
                 count <= RANKS_MAX && !world->member[rank];
    if (valid) {
        struct ncclComm *comm = calloc(1, sizeof *comm); /* never freed: its work may still be on a stream */
        *comm = (struct ncclComm){.world = world, .rank = rank, .delay = draw() % 4};
        world->member[rank] = *out = comm;
    }
    pthread_mutex_unlock(&mutex);
    get_current(&current);
    if (!current) return fail(ncclUnhandledCudaError, "no GPU is current in this thread");
    return valid ? ncclInProgress
                 : fail(ncclInvalidArgument, "rank, size or id is wrong, or the rank is taken");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    pthread_mutex_lock(&mutex);
    *state = ncclInProgress;
    bool all = true;
    for (int r = 0; r < comm->world->count; r++) all = all && comm->world->member[r];
    if (all && comm->delay) comm->delay--;
    if (all && !comm->delay) *state = ncclSuccess;
    if (*state == ncclSuccess && comm->held) return *state = put_on_stream(comm), ncclSuccess;
    pthread_mutex_unlock(&mutex);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    pthread_mutex_lock(&mutex);
    comm->finalised = true;
    comm->delay = draw() % 3;
    pthread_mutex_unlock(&mutex);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return comm->finalised && !comm->delay ? ncclSuccess : fail(ncclInvalidUsage, "finalise it first");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    pthread_mutex_lock(&mutex);
    comm->aborted = true;
    for (struct meeting *m = comm->world->meetings; m; m = m->next) m->broken = m->broken || !m->done;
    pthread_mutex_unlock(&mutex);
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *source, void *target, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return attend(comm, GATHER, &(struct part){.source = source, .target = target}, count, type, 0, stream);
}

ncclResult_t ncclReduceScatter(const void *source, void *target, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    if (op != ncclSum) return fail(ncclInvalidArgument, "this stand-in only adds");
    return attend(comm, SCATTER, &(struct part){.source = source, .target = target}, count, type, 0, stream);
}

ncclResult_t ncclBroadcast(const void *source, void *target, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return attend(comm, BROADCAST, &(struct part){.source = source, .target = target}, count, type, root,
                  stream);
}

ncclResult_t ncclGroupStart(void) {
    if (depth++ == 0) grouped = NULL, grouped_part = (struct part){0};
    return ncclSuccess;
}

static ncclResult_t join_group(ncclComm_t comm, ncclDataType_t type, int peer, cudaStream_t stream) {
    if (!depth || peer < 0 || peer >= comm->world->count ||
        (grouped && (grouped != comm || grouped_type != type)))
        return fail(ncclInvalidUsage,
                    "this stand-in sends and receives in groups of one communicator and type");
    grouped = comm, grouped_type = type, grouped_stream = stream;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *source, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    grouped_part.send[peer] = source, grouped_part.send_count[peer] = count;
    return join_group(comm, type, peer, stream);
}

ncclResult_t ncclRecv(void *target, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    grouped_part.receive[peer] = target, grouped_part.receive_count[peer] = count;
    return join_group(comm, type, peer, stream);
}

ncclResult_t ncclGroupEnd(void) {
    if (--depth || !grouped) return ncclSuccess;
    return attend(grouped, EXCHANGE, &grouped_part, grouped_part.send_count[0], grouped_type, 0,
                  grouped_stream);
}
