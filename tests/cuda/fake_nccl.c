/* A stand-in for libnccl.so.2 on the stand-in driver: ranks are threads or processes of one machine. The members of a
 * communicator exchange data through a file that all of them map; it is named after the unique id.
 *
 * A collective is two pieces of work on a rank's stream. The first shows the rank's data, once no member reads the
 * older data in that place. The second takes the data that the rank needs, once all members have shown theirs. As with
 * the real library, work that has begun on one rank and not on another waits, forever if need be, until the
 * communicator is aborted. The work of an aborted communicator ends without a result, and the abort waits for all work
 * of the GPU. Members that make different calls wait forever, too. Two ranks on one GPU are refused. Processes with one GPU
 * each (FAKE_CUDA_DEVICES) count as nodes, and those with several GPUs share a node. NCCL_HOSTID names the node instead, as for
 * NCCL from 2.20 on.
 *
 * A rank's calls of several communicators are in one order, the same on all ranks (NCCL: "Using multiple NCCL communicators
 * concurrently"): a GPU may have no room for the kernels of two at once, and then each waits for the other. Here the first
 * call that breaks this order on a rank is refused.
 *
 * The first call of a kind on a communicator must be small: it stands for connections and code, for which NCCL may wait until
 * the GPU is idle. A communicator without a bound of thread blocks is refused, and so is a library that was loaded without
 * NCCL_LAUNCH_ORDER_IMPLICIT or NCCL_LAUNCH_RACE_FATAL.
 *
 * The engine's communicators do not block. Each call on them may return ncclInProgress, for a drawn time; then nothing is on the stream until
 * ncclCommGetAsyncError has returned ncclSuccess, and a caller that continues without asking gets ncclInvalidUsage.
 * A communicator is split into one of the same members, which is there once the split is no longer in progress; refused while a call is
 * under way on it; with FAKE_NCCL_SPLITS the split fails. Sums are made in descending order of ranks, unlike `ordered`. Random choices follow FAKE_CUDA_SEED. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/numbers/convert.h"
#include "tests/cuda/fake_cuda.h"

/* NCCL's own header, so that the tests compare the engine's declarations with it. The toolkit alone has none. */
#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#include "engine/comm/nccl/nccl_interface.h"
#endif

enum { RANKS_MAX = FAKE_NCCL_RANKS_MAX, PLACES = 4, PLACE_BYTES = 16 << 20 };
enum { ORDERS = 256, BESIDE_MAX = 8 };
enum { FIRST_BYTES_MAX = 256 };
enum { BUSY_NS = 20000 }; /* a call is in progress for less */

enum kind { GATHER, SCATTER, BROADCAST, EXCHANGE };

enum { MESSAGES_MAX = RANKS_MAX }; /* a rank sends in one group, and receives; several may go to one peer */

struct record { /* of a call; alike on all members, but for what is sent to whom */
    enum kind kind;
    ncclDataType_t type;
    size_t count;
    int root;
    int sends, peer[MESSAGES_MAX];
    size_t send_count[MESSAGES_MAX];
};

/* How many calls of the other communicators of its GPU a rank had issued before one call of this communicator. */
struct order {
    _Atomic uint64_t number; /* of the call, from 1 on */
    struct {
        uint64_t id, issued;
    } beside[BESIDE_MAX];
};

struct shown { /* by one rank */
    _Atomic bool joined;
    _Atomic uint64_t gpu; /* that it is on: the node, and the number there */
    /* By place, of the last call there: its number, from 1 on. Calls of two streams may overtake each other. */
    _Atomic uint64_t posted[PLACES], taken[PLACES];
    struct record record[PLACES];
    struct order order[ORDERS]; /* by the call's number */
};

struct table {         /* the file's beginning; places of data follow, PLACES for each rank */
    _Atomic int count; /* 0: no member has joined */
    struct shown rank[RANKS_MAX];
};

struct part { /* where a rank's data are */
    const void *source, *send[MESSAGES_MAX];
    void *target, *receive[MESSAGES_MAX];
    int receives, from[MESSAGES_MAX];
    size_t receive_count[MESSAGES_MAX];
};

struct call { /* a piece of work on a stream */
    struct ncclComm *comm;
    uint64_t sequence;
    struct record record;
    struct part part;
};

struct ncclComm {
    struct ncclComm *next;
    struct table *table;
    bool blocks;
    int rank, count;
    uint64_t id;
    uint64_t sequence;         /* of the next collective */
    uint64_t issued;           /* calls that are on a stream, or were */
    uint64_t gathers;          /* of these, all-gathers */
    _Atomic uint64_t gathered; /* and those that are done */
    uint32_t delay;            /* the number of questions until the call is taken, from until_ns on */
    uint64_t until_ns;
    uint32_t connected; /* by kind: there was a call of it */
    bool finalised;
    int splits;
    struct ncclComm **child; /* of the split in progress: where it goes; or NULL */
    _Atomic bool aborted;
    CUcontext context;
    bool holds; /* `held` is taken, but not yet on the stream */
    struct call held;
    cudaStream_t stream;
};

/* Protects the variables below and this process's communicators; the driver's lock is taken before it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t ids;
static struct ncclComm *comms; /* all there ever were: their work may still be on a stream */
static uint64_t random_state;
static struct fake_nccl_counts counts;
static unsigned long long gathers_queued; /* the most of a communicator */
static _Thread_local char last_error[256];
static CUresult (*enqueue)(CUstream, bool (*)(void *), void (*)(void *), const void *, size_t);
static struct {
    __typeof__(cuCtxGetCurrent) *current;
    __typeof__(cuCtxGetDevice) *device;
    __typeof__(cuDeviceGetCount) *device_count;
    __typeof__(cuCtxSetCurrent) *set_current;
    __typeof__(cuCtxSynchronize) *synchronise;
    __typeof__(fake_cuda_reaches) *reaches;
} driver;

static _Thread_local uint32_t depth;
static _Thread_local CUcontext aborted_in;
static _Thread_local struct ncclComm *grouped;
static _Thread_local cudaStream_t grouped_stream;
static _Thread_local struct part grouped_part;
static _Thread_local struct record grouped_record;

static bool launch_order; /* as the library was loaded */
__attribute__((constructor)) static void read_environment(void) {
    launch_order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT") && getenv("NCCL_LAUNCH_RACE_FATAL");
}

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

static void *of_driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;
    if (function) return function;
    fprintf(stderr, "fake nccl: needs the stand-in libcuda.so.1 in this process\n");
    abort();
}

static void open_driver(void) {
    driver.current = (__typeof__(driver.current))of_driver("cuCtxGetCurrent");
    driver.device = (__typeof__(driver.device))of_driver("cuCtxGetDevice");
    driver.device_count = (__typeof__(driver.device_count))of_driver("cuDeviceGetCount");
    driver.set_current = (__typeof__(driver.set_current))of_driver("cuCtxSetCurrent");
    driver.synchronise = (__typeof__(driver.synchronise))of_driver("cuCtxSynchronize");
    driver.reaches = (__typeof__(driver.reaches))of_driver("fake_cuda_reaches");
    enqueue = (__typeof__(enqueue))of_driver("fake_cuda_enqueue");
}

/* ---- arithmetic ---- */

static const size_t bytes_of[] = {[ncclUint8] = 1, [ncclFloat32] = 4, [ncclFloat16] = 2, [ncclBfloat16] = 2};

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

/* ---- the file ---- */

static size_t table_bytes(void) { return (sizeof(struct table) + 4095) / 4096 * 4096; }

static size_t file_bytes(int count) { return table_bytes() + (size_t)count * PLACES * PLACE_BYTES; }

static char *place(const struct ncclComm *comm, int rank, uint64_t sequence) {
    return (char *)comm->table + table_bytes() + ((size_t)rank * PLACES + sequence % PLACES) * PLACE_BYTES;
}

/* Sparse; it goes with the last who maps it, once all members do. */
static struct table *map_table(uint64_t id, int count, char path[256]) {
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(path, 256, "%.200s/fake_nccl_%016llx", folder ? folder : "/tmp", (unsigned long long)id);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    void *map = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)file_bytes(count)) == 0)
        map = mmap(NULL, file_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    return map == MAP_FAILED ? NULL : map;
}

static bool all_joined(const struct ncclComm *comm) {
    for (int r = 0; r < comm->count; r++)
        if (!comm->table->rank[r].joined) return false;
    return true;
}

/* ---- what a rank shows ---- */

static void show(const struct call *call, char *to) {
    const struct record *r = &call->record;
    size_t bytes = r->count * bytes_of[r->type];
    if (r->kind == GATHER || (r->kind == BROADCAST && call->comm->rank == r->root))
        memcpy(to, call->part.source, bytes);
    if (r->kind == SCATTER) memcpy(to, call->part.source, (size_t)call->comm->count * bytes);
    for (int i = 0; i < r->sends; i++) {
        memcpy(to, call->part.send[i], r->send_count[i] * bytes_of[r->type]);
        to += r->send_count[i] * bytes_of[r->type];
    }
}

static size_t shown_bytes(const struct call *call) {
    const struct record *r = &call->record;
    size_t count = r->kind == SCATTER ? (size_t)call->comm->count * r->count : r->count;
    if (r->kind == EXCHANGE) count = 0;
    for (int i = 0; i < r->sends; i++) count += r->send_count[i];
    return count * bytes_of[r->type];
}

/* The place's last call, PLACES before this one, has been taken by all. */
static bool may_show(void *argument) {
    const struct call *call = argument;
    uint64_t at = call->sequence % PLACES;
    bool all = true;
    for (int r = 0; r < call->comm->count; r++)
        all = all && atomic_load(&call->comm->table->rank[r].taken[at]) + PLACES > call->sequence;
    return all || call->comm->aborted;
}

static void run_show(void *argument) {
    const struct call *call = argument;
    struct shown *mine = &call->comm->table->rank[call->comm->rank];
    if (call->comm->aborted) return;
    mine->record[call->sequence % PLACES] = call->record;
    show(call, place(call->comm, call->comm->rank, call->sequence));
    atomic_store(&mine->posted[call->sequence % PLACES], call->sequence + 1);
}

/* ---- what it takes ---- */

static const struct record *record_of(const struct call *call, int rank) {
    return &call->comm->table->rank[rank].record[call->sequence % PLACES];
}

static bool alike(const struct record *a, const struct record *b) {
    return a->kind == b->kind && a->type == b->type && a->count == b->count && a->root == b->root;
}

static bool may_take(void *argument) {
    const struct call *call = argument;
    if (call->comm->aborted) return true;
    for (int r = 0; r < call->comm->count; r++)
        if (atomic_load(&call->comm->table->rank[r].posted[call->sequence % PLACES]) <= call->sequence ||
            !alike(record_of(call, r), &call->record))
            return false;
    return true;
}

static void take_sum(const struct call *call) {
    const struct ncclComm *comm = call->comm;
    const struct record *r = &call->record;
    for (size_t i = 0; i < r->count; i++) {
        float sum = 0;
        for (int q = comm->count; q-- > 0;)
            sum += load(place(comm, q, call->sequence), r->type, (size_t)comm->rank * r->count + i);
        store(call->part.target, r->type, i, sum);
    }
}

/* What two members send each other in a group meets in order. A message that nobody sends never comes. */
static void take_exchanged(const struct call *call, int i) {
    int q = call->part.from[i], skip = 0;
    const struct record *theirs = record_of(call, q);
    size_t each = bytes_of[call->record.type], before = 0;
    for (int k = 0; k < i; k++) skip += call->part.from[k] == q;
    for (int k = 0; k < theirs->sends; before += theirs->send_count[k++]) {
        if (theirs->peer[k] != call->comm->rank || skip-- > 0) continue;
        size_t count = call->part.receive_count[i];
        if (theirs->send_count[k] != count) break;
        memcpy(call->part.receive[i], place(call->comm, q, call->sequence) + before * each, count * each);
        return;
    }
    fprintf(stderr, "fake nccl: rank %d receives what rank %d does not send\n", call->comm->rank, q);
    abort();
}

static void run_take(void *argument) {
    const struct call *call = argument;
    const struct record *r = &call->record;
    size_t bytes = r->count * bytes_of[r->type];
    if (call->comm->aborted) return;
    if (r->kind == SCATTER) take_sum(call);
    if (r->kind == BROADCAST) memcpy(call->part.target, place(call->comm, r->root, call->sequence), bytes);
    for (int q = 0; q < call->comm->count; q++) {
        if (r->kind == GATHER)
            memcpy((char *)call->part.target + (size_t)q * bytes, place(call->comm, q, call->sequence),
                   bytes);
    }
    for (int i = 0; i < call->part.receives; i++) take_exchanged(call, i);
    atomic_fetch_add(&call->comm->gathered, r->kind == GATHER);
    atomic_store(&call->comm->table->rank[call->comm->rank].taken[call->sequence % PLACES],
                 call->sequence + 1);
}

/* ---- calls ---- */

/* A GPU that were given other memory would end the process's context. */
static bool reaches(const struct call *call) {
    const struct record *r = &call->record;
    size_t each = bytes_of[r->type], bytes = r->count * each, members = (size_t)call->comm->count;
    bool all = true;
    for (int i = 0; i < r->sends; i++)
        all = all && (!r->send_count[i] || driver.reaches(call->part.send[i], r->send_count[i] * each));
    for (int i = 0; i < call->part.receives; i++)
        all = all && (!call->part.receive_count[i] ||
                      driver.reaches(call->part.receive[i], call->part.receive_count[i] * each));
    if (r->kind == EXCHANGE || !bytes) return all;
    return driver.reaches(call->part.source, r->kind == SCATTER ? members * bytes : bytes) &&
           driver.reaches(call->part.target, r->kind == GATHER ? members * bytes : bytes);
}

/* ---- the order of calls of several communicators ---- */

static void show_order(struct ncclComm *comm, struct order *mine) {
    int count = 0;
    *mine = (struct order){0};
    for (const struct ncclComm *c = comms; c && count < BESIDE_MAX; c = c->next)
        if (c != comm && c->context == comm->context && !c->finalised && !c->aborted)
            mine->beside[count].id = c->id, mine->beside[count++].issued = c->issued;
    atomic_store(&mine->number, ++comm->issued);
}

static bool contradict(const struct order *a, const struct order *b) {
    for (int i = 0; i < BESIDE_MAX && a->beside[i].id; i++)
        for (int k = 0; k < BESIDE_MAX && b->beside[k].id; k++)
            if (a->beside[i].id == b->beside[k].id && a->beside[i].issued != b->beside[k].issued) return true;
    return false;
}

/* False: another member has issued this call after more, or fewer, calls of a communicator that both are members of. */
static bool issue_in_order(struct ncclComm *comm) {
    uint64_t number = comm->issued + 1;
    struct order *mine = &comm->table->rank[comm->rank].order[number % ORDERS];
    show_order(comm, mine);
    for (int r = 0; r < comm->count; r++) {
        const struct order *theirs = &comm->table->rank[r].order[number % ORDERS];
        if (r != comm->rank && atomic_load(&theirs->number) == number && contradict(mine, theirs))
            return false;
    }
    return true;
}

/* The lock is given back: the driver takes its own. */
static ncclResult_t put_on_stream(struct ncclComm *comm) {
    struct call call = comm->held;
    comm->holds = false;
    counts.calls++, counts.exchanges += call.record.kind == EXCHANGE;
    comm->gathers += call.record.kind == GATHER;
    uint64_t queued = comm->gathers - atomic_load(&comm->gathered);
    if (queued > gathers_queued) gathers_queued = queued;
    for (int i = 0; i < call.record.sends; i++)
        counts.sent[comm->rank][call.record.peer[i]] +=
            call.record.send_count[i] * bytes_of[call.record.type];
    bool in_order = issue_in_order(comm);
    pthread_mutex_unlock(&mutex);
    if (!in_order)
        return fail(ncclInvalidUsage,
                    "two ranks issue calls of two communicators in different orders: NCCL may wait forever");
    CUresult result = enqueue((CUstream)comm->stream, may_show, run_show, &call, sizeof call);
    if (!result) result = enqueue((CUstream)comm->stream, may_take, run_take, &call, sizeof call);
    return result == CUDA_SUCCESS ? ncclSuccess : fail(ncclUnhandledCudaError, "the stream is not valid");
}

static ncclResult_t attend(struct ncclComm *comm, const struct record *record, const struct part *part,
                           cudaStream_t stream) {
    struct call call = {comm, comm->sequence, *record, *part};
    if (shown_bytes(&call) > PLACE_BYTES)
        return fail(ncclInvalidArgument, "this stand-in has no room for so much in one call");
    if (!reaches(&call)) return fail(ncclUnhandledCudaError, "an illegal memory access was encountered");
    pthread_mutex_lock(&mutex);
    if (comm->delay || comm->holds) {
        pthread_mutex_unlock(&mutex);
        return fail(ncclInvalidUsage,
                    "the call before is still in progress: ask ncclCommGetAsyncError first");
    }
    bool large = shown_bytes(&call) > FIRST_BYTES_MAX, first = !(comm->connected & 1u << record->kind);
    comm->connected |= 1u << record->kind;
    if (first && large) {
        pthread_mutex_unlock(&mutex);
        return fail(ncclInvalidUsage,
                    "the first call of this kind is not small: it may wait for the whole GPU");
    }
    comm->held = call, comm->holds = true;
    comm->sequence++;
    comm->stream = stream;
    comm->delay = comm->blocks ? 0 : draw() % 3;
    comm->until_ns = clock_now_ns() + draw() % BUSY_NS;
    if (!comm->delay) return put_on_stream(comm);
    pthread_mutex_unlock(&mutex);
    return ncclInProgress;
}

void fake_nccl_counts(struct fake_nccl_counts *out) {
    pthread_mutex_lock(&mutex);
    *out = counts;
    pthread_mutex_unlock(&mutex);
}

unsigned long long fake_nccl_gathers_queued(void) {
    pthread_mutex_lock(&mutex);
    unsigned long long most = gathers_queued;
    pthread_mutex_unlock(&mutex);
    return most;
}

/* ---- nccl.h ---- */

/* FAKE_NCCL_VERSION, or that of the header. */
static int version_here(void) {
    const char *version = getenv("FAKE_NCCL_VERSION");
    return version ? atoi(version) : NCCL_VERSION_CODE;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = version_here();
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
    uint64_t number = (uint64_t)getpid() << 32 | ++ids;
    pthread_mutex_unlock(&mutex);
    memset(id, 0x5c, sizeof *id);
    memcpy(id, &number, sizeof number);
    return ncclSuccess;
}

static uint64_t current_gpu(void) {
    CUdevice device = 0;
    int devices = 0;
    driver.device(&device);
    driver.device_count(&devices);
    const char *name = getenv("NCCL_HOSTID");
    uint64_t host = devices > 1 ? 0 : (uint64_t)getpid();
    for (const char *c = name; c && *c; c++) host = (c == name ? 5381 : host * 33) ^ (uint8_t)*c;
    return host << 8 | (uint64_t)device;
}

static ncclResult_t join(struct ncclComm **out, int count, uint64_t id, int rank, CUcontext context) {
    char path[256];
    struct table *table = map_table(id, count, path);
    if (!table) return fail(ncclSystemError, "a file for the ranks cannot be made in TEST_TMPDIR or /tmp");
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&table->count, &nobody, count) && nobody != count)
        return fail(ncclInvalidArgument, "the communicator has another size");
    table->rank[rank].gpu = current_gpu();
    if (atomic_exchange(&table->rank[rank].joined, true))
        return fail(ncclInvalidArgument, "the rank is taken");
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){.next = comms,
                              .table = table,
                              .rank = rank,
                              .count = count,
                              .id = id,
                              .delay = draw() % 4,
                              .context = context};
    comms = comm;
    counts.communicators++;
    if (all_joined(comm)) unlink(path);
    *out = comm;
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int count, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    uint64_t number;
    memcpy(&number, &id, sizeof number);
    if (config->magic != 0xcafebeef || config->size <= offsetof(ncclConfig_t, splitShare))
        return fail(ncclInvalidArgument, "the configuration was not initialised");
    if (config->maxCTAs == NCCL_CONFIG_UNDEF_INT)
        return fail(ncclInvalidArgument, "this stand-in wants a bound of thread blocks");
    if (config->blocking == NCCL_CONFIG_UNDEF_INT)
        return fail(ncclInvalidArgument, "this stand-in wants to know whether to block");
    if (!launch_order)
        return fail(ncclInvalidUsage,
                    "NCCL_LAUNCH_ORDER_IMPLICIT or NCCL_LAUNCH_RACE_FATAL was not set when the "
                    "library was loaded");
    if (!number || rank < 0 || rank >= count || count > RANKS_MAX)
        return fail(ncclInvalidArgument, "rank, size or id is wrong");
    pthread_mutex_lock(&mutex);
    if (!enqueue) open_driver();
    CUcontext context = NULL;
    driver.current(&context);
    ncclResult_t result = context ? join(out, count, number, rank, context)
                                  : fail(ncclUnhandledCudaError, "no GPU is current in this thread");
    if (config->blocking == 1 && *out) (*out)->blocks = true, (*out)->delay = 0;
    pthread_mutex_unlock(&mutex);
    while (config->blocking == 1 && (result == ncclSuccess || result == ncclInProgress) && !all_joined(*out))
        usleep(100);
    return result;
}

static bool calls_end(const struct ncclComm *comm) {
    uint64_t last = comm->sequence - 1;
    return !comm->sequence || comm->table->rank[comm->rank].taken[last % PLACES] == comm->sequence;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    *out = NULL;
    if (color || key != comm->rank || config->blocking || config->maxCTAs == NCCL_CONFIG_UNDEF_INT)
        return fail(ncclInvalidArgument, "this stand-in splits into the same ranks, that do not block");
    pthread_mutex_lock(&mutex);
    bool idle = !comm->delay && !comm->holds && calls_end(comm);
    if (idle) comm->child = out, comm->delay = 1 + draw() % 3;
    pthread_mutex_unlock(&mutex);
    return idle ? ncclInProgress : fail(ncclInvalidUsage, "a call is under way on the communicator");
}

/* The communicator's split ends. */
static ncclResult_t bear(struct ncclComm *comm) {
    if (getenv("FAKE_NCCL_SPLITS")) return fail(ncclSystemError, "no communicator can be split");
    uint64_t id = comm->id * 0x9e3779b97f4a7c15u + (uint64_t)++comm->splits; /* a new one */
    ncclResult_t joined = join(comm->child, comm->count, id, comm->rank, comm->context);
    comm->child = NULL;
    counts.splits++;
    return joined == ncclInProgress ? ncclSuccess : joined;
}

static bool share_a_gpu(const struct ncclComm *comm) {
    for (int a = 0; a < comm->count; a++)
        for (int b = 0; b < a; b++)
            if (comm->table->rank[a].gpu == comm->table->rank[b].gpu) return true;
    return false;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    pthread_mutex_lock(&mutex);
    *state = ncclInProgress;
    bool all = all_joined(comm);
    if (all && share_a_gpu(comm)) {
        pthread_mutex_unlock(&mutex);
        return *state = fail(ncclInvalidUsage, "Duplicate GPU detected : two ranks are on one CUDA device"),
               ncclSuccess;
    }
    if (all && comm->delay && clock_now_ns() >= comm->until_ns) comm->delay--;
    if (all && !comm->delay) *state = ncclSuccess;
    if (*state == ncclSuccess && comm->child) *state = bear(comm);
    if (*state == ncclSuccess && comm->holds) return *state = put_on_stream(comm), ncclSuccess;
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

/* A communicator's memory is freed after its kernels, and all other kernels of the GPU, have ended. In a group this
 * happens at the end of the group, from version 2.22 on. */
static ncclResult_t give_back(CUcontext context) {
    CUcontext before = NULL;
    driver.current(&before);
    driver.set_current(context);
    CUresult result = driver.synchronise();
    driver.set_current(before);
    return result == CUDA_SUCCESS ? ncclSuccess : fail(ncclUnhandledCudaError, "the GPU is not well");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;
    if (!depth || version_here() < NCCL_VERSION(2, 22, 0)) return give_back(comm->context);
    aborted_in = comm->context;
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *source, void *target, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return attend(comm, &(struct record){.kind = GATHER, .type = type, .count = count},
                  &(struct part){.source = source, .target = target}, stream);
}

ncclResult_t ncclReduceScatter(const void *source, void *target, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    if (op != ncclSum) return fail(ncclInvalidArgument, "this stand-in only adds");
    return attend(comm, &(struct record){.kind = SCATTER, .type = type, .count = count},
                  &(struct part){.source = source, .target = target}, stream);
}

ncclResult_t ncclBroadcast(const void *source, void *target, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return attend(comm, &(struct record){.kind = BROADCAST, .type = type, .count = count, .root = root},
                  &(struct part){.source = source, .target = target}, stream);
}

ncclResult_t ncclGroupStart(void) {
    if (depth++ == 0)
        aborted_in = NULL, grouped = NULL, grouped_part = (struct part){0},
        grouped_record = (struct record){.kind = EXCHANGE};
    return ncclSuccess;
}

static ncclResult_t join_group(ncclComm_t comm, ncclDataType_t type, int peer, int messages,
                               cudaStream_t stream) {
    if (!depth || messages == MESSAGES_MAX || peer < 0 || peer >= comm->count ||
        (grouped && (grouped != comm || grouped_record.type != type)))
        return fail(ncclInvalidUsage,
                    "this stand-in sends and receives in groups of one communicator and type");
    grouped = comm, grouped_record.type = type, grouped_stream = stream;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *source, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    struct record *r = &grouped_record;
    ncclResult_t result = join_group(comm, type, peer, r->sends, stream);
    if (result != ncclSuccess) return result;
    grouped_part.send[r->sends] = source;
    r->peer[r->sends] = peer, r->send_count[r->sends++] = count;
    return result;
}

ncclResult_t ncclRecv(void *target, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    struct part *p = &grouped_part;
    ncclResult_t result = join_group(comm, type, peer, p->receives, stream);
    if (result != ncclSuccess) return result;
    p->receive[p->receives] = target;
    p->from[p->receives] = peer, p->receive_count[p->receives++] = count;
    return result;
}

ncclResult_t ncclGroupEnd(void) {
    if (--depth) return ncclSuccess;
    if (aborted_in) return give_back(aborted_in);
    if (!grouped) return ncclSuccess;
    for (int i = 0; i < grouped_record.sends; i++) grouped_record.count += grouped_record.send_count[i];
    return attend(grouped, &grouped_record, &grouped_part, grouped_stream);
}
