#include "engine/comm/control.h"

#include <stdlib.h>
#include <string.h>

enum message_type { MESSAGE_BEAT, MESSAGE_CALLS, MESSAGE_ASK, MESSAGE_FAILURE, MESSAGE_LAST_BEAT };

enum {
    WINDOW_RECORDS = 16,    /* in one message */
    HISTORY_RECORDS = 1024, /* kept per group: ranks may diverge long before a message shows it */
};

#define NONE UINT64_MAX

struct head {
    uint32_t type, from;
    uint64_t opening;
};

struct calls_message {
    struct head head;
    uint64_t key, posted; /* the group's key; the number of calls posted so far */
    uint64_t left;        /* the rank posts nothing more */
    uint64_t waits;       /* the oldest call that it drives; NONE: it drives none */
    uint64_t first;       /* sequence of records[0]; they end at first + WINDOW_RECORDS or at posted */
    struct comm_record records[WINDOW_RECORDS];
    struct comm_block block;
};

/* A rank asks the rank before it in a group for the records from `first` on. */
struct ask_message {
    struct head head;
    uint64_t key, first;
};

struct failure_message {
    struct head head;
    uint32_t code, waits;
    int64_t rank;
    uint64_t step;
    char message[1024];
};

union message {
    struct head head;
    struct calls_message calls;
    struct ask_message ask;
    struct failure_message failure;
};
_Static_assert(sizeof(union message) <= CONTROL_MESSAGE_BYTES, "a message fits the port's buffers");
_Static_assert(sizeof(((struct zero_error *)0)->message) == sizeof(((struct failure_message *)0)->message),
               "sentences travel whole");

struct control_group {
    struct control_group *next;
    struct control *control;
    uint32_t ordinal, to, from; /* the ring's neighbors, as world ranks */
    bool alone;
    uint64_t key, posted;
    bool left;
    struct comm_record history[HISTORY_RECORDS];
    bool waiting[COMM_CALLS_MAX];
    uint64_t counts_ns[COMM_CALLS_MAX];
    struct calls_message theirs; /* the last message of the rank before this one */
    uint64_t blocked_ns;         /* when `theirs` first had the block that it has */
    bool heard, told, compared;
    /* Ranks differ: the history no longer changes, so that the first difference is not overwritten. */
    bool frozen;
    uint64_t told_ns, asked; /* asked: the first record that the rank after this one asks for, or NONE */
    /* Calls below `same` are equal to those of the rank before this one; call `different` is not, or NONE. */
    uint64_t same, different;
};

struct control {
    struct comm *comm;
    struct control_port port;
    uint64_t interval_ns;
    pthread_mutex_t mutex; /* protects the groups and their content */
    struct control_group *groups;
    struct comm_block block; /* of this rank; protected, too */
    uint64_t blocked_ns;
    bool started;
    _Atomic uint64_t tick_ns;
    uint64_t beat_ns;
    double silence_s;                             /* of the rank before this one */
    atomic_bool finishing, sent_last, heard_last; /* last: heartbeats */
    uint32_t told_failure;                        /* bit k: rank r + 2^k was told */
    _Atomic uint64_t told_all_ns;                 /* 0: not yet */
};

/* Short enough that many heartbeats of a healthy rank arrive within the limit, long enough to cost nothing. */
static uint64_t beat_interval_ns(double timeout_s) {
    double interval = timeout_s * 1e9 / 20;
    return interval > 100e6 ? 100000000u : interval < 1e6 ? 1000000u : (uint64_t)interval;
}

struct control *control_create(struct comm *comm, const struct control_port *port) {
    struct control *control = calloc(1, sizeof *control);
    if (!control) return NULL;
    control->comm = comm;
    control->port = *port;
    control->interval_ns = beat_interval_ns(comm->timeout_s);
    pthread_mutex_init(&control->mutex, NULL);
    atomic_init(&control->told_all_ns, 0);
    return control;
}

void control_destroy(struct control *control) {
    if (!control) return;
    for (struct control_group *group = control->groups, *next; group; group = next) {
        next = group->next;
        free(group);
    }
    pthread_mutex_destroy(&control->mutex);
    free(control);
}

uint64_t control_period_ns(const struct control *control) {
    return control->interval_ns < 10000000u ? control->interval_ns : 10000000u;
}

/* The failure reaches all ranks in log2(size) hops. Each hop has time for ranks that get little CPU time, and for the
 * messages that they then send. */
bool control_quiet(const struct control *control, uint64_t now_ns) {
    enum { TICKS_PER_HOP = 8 };
    uint64_t told_ns = atomic_load(&control->told_all_ns), hops = 1;
    if (!comm_failure_raised(control->comm->failure)) return true;
    for (uint64_t reached = 1; reached < control->comm->size; reached *= 2) hops++;
    return told_ns && now_ns > told_ns + hops * TICKS_PER_HOP * control_period_ns(control);
}

/* ---- called by the comm's owner ---- */

uint64_t control_ticked_ns(const struct control *control) { return atomic_load(&control->tick_ns); }

struct control_group *control_group_open(struct control *control, const struct comm_group *group) {
    struct control_group *ring = calloc(1, sizeof *ring);
    if (!ring) return NULL;
    ring->control = control;
    ring->ordinal = group->ordinal;
    ring->alone = group->count == 1;
    ring->to = group->ranks[(group->index + 1) % group->count];
    ring->from = group->ranks[(group->index + group->count - 1) % group->count];
    ring->key = group->key;
    ring->told = ring->compared = true;
    ring->asked = ring->different = NONE;
    pthread_mutex_lock(&control->mutex);
    ring->next = control->groups;
    control->groups = ring;
    pthread_mutex_unlock(&control->mutex);
    return ring;
}

void control_posted(struct control_group *group, const struct comm_record *record, uint64_t counts_ns) {
    uint32_t slot = record->sequence % COMM_CALLS_MAX;
    pthread_mutex_lock(&group->control->mutex);
    if (!group->frozen) {
        group->history[record->sequence % HISTORY_RECORDS] = *record;
        group->posted = record->sequence + 1;
        group->counts_ns[slot] = counts_ns;
        group->waiting[slot] = true;
        group->told = group->compared = false;
    }
    pthread_mutex_unlock(&group->control->mutex);
}

void control_done(struct control_group *group, uint64_t sequence) {
    pthread_mutex_lock(&group->control->mutex);
    group->waiting[sequence % COMM_CALLS_MAX] = false;
    pthread_mutex_unlock(&group->control->mutex);
}

void control_block(struct control *control, const struct comm_block *block) {
    pthread_mutex_lock(&control->mutex);
    control->block = *block;
    control->blocked_ns = atomic_load(&control->tick_ns);
    for (struct control_group *group = control->groups; group; group = group->next)
        if (!group->left) group->told = false;
    pthread_mutex_unlock(&control->mutex);
}

void control_leave(struct control *control) {
    pthread_mutex_lock(&control->mutex);
    for (struct control_group *group = control->groups; group; group = group->next)
        group->left = true, group->told = false;
    pthread_mutex_unlock(&control->mutex);
}

bool control_left(struct control *control) {
    bool all = true;
    pthread_mutex_lock(&control->mutex);
    for (struct control_group *group = control->groups; group; group = group->next)
        all = all && (group->alone || (group->left && group->told && group->theirs.left && group->compared &&
                                       group->different == NONE));
    pthread_mutex_unlock(&control->mutex);
    return all;
}

int32_t control_staying(struct control *control) {
    int32_t rank = -1;
    pthread_mutex_lock(&control->mutex);
    for (struct control_group *group = control->groups; group; group = group->next)
        if (!group->alone && !group->theirs.left) rank = (int32_t)group->from;
    pthread_mutex_unlock(&control->mutex);
    return rank;
}

void control_finish(struct control *control) { atomic_store(&control->finishing, true); }

bool control_finished(const struct control *control) {
    return atomic_load(&control->sent_last) && atomic_load(&control->heard_last);
}

/* ---- sending ---- */

static struct head head_make(const struct control *control, enum message_type type) {
    return (struct head){type, control->comm->rank, control->port.opening};
}

static bool send(struct control *control, uint32_t to, const void *message, uint32_t bytes) {
    if (!control->port.send(control->port.user, to, message, bytes)) return false;
    atomic_fetch_add_explicit(&control->comm->control_messages, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&control->comm->control_bytes, bytes, memory_order_relaxed);
    return true;
}

/* Sends nothing while earlier messages are unacknowledged: TCP retries a stream of few packets more often. */
static bool under_way(const struct control *control, uint32_t to) {
    return control->port.under_way && control->port.under_way(control->port.user, to);
}

static void send_beat(struct control *control, uint64_t now_ns) {
    const struct comm *comm = control->comm;
    bool last = atomic_load(&control->finishing);
    struct head beat = head_make(control, last ? MESSAGE_LAST_BEAT : MESSAGE_BEAT);
    uint32_t to = (comm->rank + 1) % comm->size;
    if (atomic_load(&control->sent_last)) return;
    if (!last && control->beat_ns && now_ns - control->beat_ns < control->interval_ns) return;
    if ((!last && under_way(control, to)) || !send(control, to, &beat, sizeof beat)) return;
    control->beat_ns = now_ns;
    atomic_store(&control->sent_last, last);
}

static uint64_t oldest(const struct control_group *group) {
    return group->posted > HISTORY_RECORDS ? group->posted - HISTORY_RECORDS : 0;
}

/* The oldest call that this rank waits for, if it tests its calls: another rank holds it up. Else NONE. */
static uint64_t waits(const struct control_group *group) {
    enum { TEST_NS = 500000000 };
    const struct control *control = group->control;
    uint64_t s = group->posted > COMM_CALLS_MAX ? group->posted - COMM_CALLS_MAX : 0;
    if (atomic_load(&control->comm->tested_ns) + TEST_NS < control->tick_ns) return NONE;
    while (s < group->posted && !group->waiting[s % COMM_CALLS_MAX]) s++;
    return s < group->posted ? s : NONE;
}

static bool send_window(struct control *control, const struct control_group *group, uint64_t first) {
    struct calls_message calls = {
        .head = head_make(control, MESSAGE_CALLS),
        .key = group->key,
        .posted = group->posted,
        .left = group->left,
        .waits = waits(group),
        .first = first,
        .block = control->block,
    };
    for (uint64_t s = first; s < group->posted && s < first + WINDOW_RECORDS; s++)
        calls.records[s - first] = group->history[s % HISTORY_RECORDS];
    return send(control, group->to, &calls, sizeof calls);
}

/* Sends the records that the neighbor asked for at once, and changes once per interval. It also repeats the last
 * message once per 20 intervals, for a neighbor that opened the group later. It does not repeat the message that says
 * that this rank left: the neighbor that has it may close its port. */
static void send_calls(struct control *control, struct control_group *group, uint64_t now_ns) {
    uint64_t interval = group->told ? 20 * control->interval_ns : control->interval_ns;
    if (group->alone) return;
    if (group->asked != NONE) {
        uint64_t first = group->asked < oldest(group) ? oldest(group) : group->asked;
        if (send_window(control, group, first)) group->asked = NONE;
        return;
    }
    if (group->left && group->told) return;
    if (!group->left &&
        ((group->told_ns && now_ns - group->told_ns < interval) || under_way(control, group->to)))
        return;
    if (!send_window(control, group, group->posted > WINDOW_RECORDS ? group->posted - WINDOW_RECORDS : 0))
        return;
    group->told = true;
    group->told_ns = now_ns;
}

static void send_failure(struct control *control, uint64_t now_ns) {
    const struct comm *comm = control->comm;
    if (!comm_failure_raised(comm->failure)) return;
    const struct zero_error *error = &comm->failure->error;
    struct failure_message told = {
        .head = head_make(control, MESSAGE_FAILURE),
        .code = error->code,
        .waits = comm->failure->waits,
        .rank = error->rank,
        .step = error->step,
    };
    memcpy(told.message, error->message, sizeof told.message);
    bool all = true;
    for (uint32_t k = 0; 1ull << k < comm->size; k++) {
        uint32_t to = (uint32_t)((comm->rank + (1ull << k)) % comm->size);
        if (control->told_failure >> k & 1) continue;
        if (send(control, to, &told, sizeof told))
            control->told_failure |= 1u << k;
        else
            all = false; /* the port has no room for this rank now; the next ranks must not wait for it */
    }
    if (all && !atomic_load(&control->told_all_ns)) atomic_store(&control->told_all_ns, now_ns);
}

/* ---- receiving ---- */

static struct control_group *find_group(struct control *control, uint64_t key) {
    struct control_group *group = control->groups;
    while (group && group->key != key) group = group->next;
    return group;
}

static bool readable(const struct calls_message *message) {
    for (uint32_t i = 0; i < WINDOW_RECORDS; i++)
        if (!record_readable(&message->records[i])) return false;
    return block_readable(&message->block);
}

static void hear_calls(struct control *control, const struct calls_message *message) {
    if (!readable(message)) {
        comm_raise(control->comm, ZERO_E_INTERNAL, (int32_t)message->head.from, false,
                   "rank %u sent rank %u a record of its calls that no rank can read: all ranks must run the "
                   "same build",
                   message->head.from, control->comm->rank);
        return;
    }
    pthread_mutex_lock(&control->mutex);
    struct control_group *group = find_group(control, message->key);
    if (group && message->head.from == group->from) {
        if (memcmp(&group->theirs.block, &message->block, sizeof message->block) != 0)
            group->blocked_ns = atomic_load(&control->tick_ns);
        group->theirs = *message, group->heard = true, group->compared = false;
    }
    pthread_mutex_unlock(&control->mutex);
}

static void hear_ask(struct control *control, const struct ask_message *message) {
    pthread_mutex_lock(&control->mutex);
    struct control_group *group = find_group(control, message->key);
    if (group && message->head.from == group->to) group->asked = message->first, group->frozen = true;
    pthread_mutex_unlock(&control->mutex);
}

static bool is_failure(const struct failure_message *message, uint32_t bytes) {
    return bytes == sizeof *message && message->code != ZERO_OK && error_code_known(message->code);
}

/* A failure message that no rank can read is also a failure: its sender has failed, or runs another build. */
static void hear_failure(struct control *control, const struct failure_message *message, uint32_t bytes) {
    const struct comm *comm = control->comm;
    if (!is_failure(message, bytes)) {
        comm_raise(control->comm, ZERO_E_INTERNAL, (int32_t)message->head.from, false,
                   "rank %u sent rank %u a failure that no rank can read (%u bytes): all ranks must run the "
                   "same build; see the log of rank %u",
                   message->head.from, comm->rank, bytes, message->head.from);
        return;
    }
    bool named = message->rank >= 0 && message->rank < comm->size;
    struct zero_error error = {.code = (zero_status)message->code,
                               .rank = named ? (int32_t)message->rank : -1,
                               .step = message->step};
    memcpy(error.message, message->message, sizeof error.message);
    error.message[sizeof error.message - 1] = 0;
    comm_failure_raise(comm->failure, &error, message->waits);
}

static void hear(struct control *control) {
    union message message;
    uint32_t bytes, before = (control->comm->rank + control->comm->size - 1) % control->comm->size;
    while (control->port.receive(control->port.user, &message, sizeof message, &bytes)) {
        if (bytes < sizeof message.head || message.head.opening != control->port.opening ||
            message.head.from >= control->comm->size)
            continue;
        if (message.head.from == before) control->silence_s = 0;
        if (message.head.from == before && message.head.type == MESSAGE_LAST_BEAT)
            atomic_store(&control->heard_last, true);
        if (message.head.type == MESSAGE_CALLS && bytes == sizeof message.calls)
            hear_calls(control, &message.calls);
        if (message.head.type == MESSAGE_ASK && bytes == sizeof message.ask) hear_ask(control, &message.ask);
        if (message.head.type == MESSAGE_FAILURE) hear_failure(control, &message.failure, bytes);
    }
}

/* ---- judging ---- */

/* If this rank was itself stopped for a while, it must not count this time as another rank's silence. Therefore a tick
 * adds at most two intervals. */
static void judge_silence(struct control *control, uint64_t now_ns) {
    const struct comm *comm = control->comm;
    uint64_t elapsed_ns = now_ns - control->tick_ns;
    uint32_t before = (comm->rank + comm->size - 1) % comm->size;
    if (atomic_load(&control->heard_last)) return;
    if (control->port.has_left && control->port.has_left(control->port.user, before)) return;
    if (elapsed_ns > 2 * control->interval_ns) elapsed_ns = 2 * control->interval_ns;
    control->silence_s += (double)elapsed_ns * 1e-9;
    double outage_s = CONTROL_OUTAGE * comm->timeout_s + control->port.resume_s;
    if (control->silence_s <= (comm->timeout_s > outage_s ? comm->timeout_s : outage_s)) return;
    comm_raise_silent(control->comm, before, control->silence_s);
}

static void compare_window(struct control_group *group) {
    const struct calls_message *theirs = &group->theirs;
    uint64_t first = theirs->first > oldest(group) ? theirs->first : oldest(group),
             end = theirs->first + WINDOW_RECORDS;
    if (end > theirs->posted) end = theirs->posted;
    if (end > group->posted) end = group->posted;
    for (uint64_t s = first; s < end; s++) {
        if (group->history[s % HISTORY_RECORDS].hash != theirs->records[s - theirs->first].hash) {
            if (s < group->different) group->different = s;
            return;
        }
        if (s >= group->same) group->same = s + 1;
    }
}

/* Names the difference in call s, if this rank's history and the neighbor's last message both hold call s. */
static bool name_difference(struct control *control, struct control_group *group, uint64_t s) {
    const struct calls_message *theirs = &group->theirs;
    if (s < oldest(group) || s < theirs->first || s >= theirs->first + WINDOW_RECORDS) return false;
    comm_raise_diverged(control->comm, group->ordinal, &group->history[s % HISTORY_RECORDS], group->from,
                        &theirs->records[s - theirs->first]);
    return true;
}

/* A hash covers all calls so far. If two hashes differ, the first different call is this call or an earlier one. The
 * rank asks for earlier windows by bisection, until the first different call follows the last equal one. */
static void judge_calls(struct control *control, struct control_group *group) {
    const struct calls_message *theirs = &group->theirs;
    if (!group->heard) return;
    compare_window(group);
    group->compared = true;
    if (group->different == NONE) return;
    uint64_t lost = theirs->posted > HISTORY_RECORDS ? theirs->posted - HISTORY_RECORDS : 0,
             low = group->same;
    group->frozen = true;
    if (low < oldest(group)) low = oldest(group);
    if (low < lost) low = lost;
    if (group->different <= low && low != group->same) {
        comm_raise(control->comm, ZERO_E_DIVERGED, (int32_t)group->from, false,
                   "rank %u and rank %u made different calls on group %u, between call %llu and call %llu, "
                   "too long ago to say which: all ranks must make the same calls in the same order",
                   group->from, control->comm->rank, group->ordinal, (unsigned long long)group->same,
                   (unsigned long long)group->different);
        return;
    }
    uint64_t reach = group->different - low;
    if (reach == 0 && name_difference(control, group, group->different)) return;
    struct ask_message ask = {
        .head = head_make(control, MESSAGE_ASK),
        .key = group->key,
        .first = reach <= WINDOW_RECORDS ? low : low + reach / 2,
    };
    if (!send(control, group->from, &ask, sizeof ask)) group->compared = false;
}

/* The calls of this rank did not wait while it was itself stopped. */
static void forgive_stop(const struct control *control, struct control_group *group, uint64_t now_ns) {
    uint64_t elapsed_ns = now_ns - control->tick_ns, most_ns = 2 * control->interval_ns;
    if (elapsed_ns <= most_ns) return;
    for (uint32_t slot = 0; slot < COMM_CALLS_MAX; slot++) {
        uint64_t *counts_ns = &group->counts_ns[slot];
        if (*counts_ns >= now_ns) continue;
        *counts_ns += elapsed_ns - most_ns;
        if (*counts_ns > now_ns) *counts_ns = now_ns;
    }
}

/* Judges the oldest call that this rank waits for and that the rank before it has not posted, unless that one is held up itself. */
static void judge_waits(struct control *control, struct control_group *group, uint64_t now_ns) {
    uint64_t first = group->posted > COMM_CALLS_MAX ? group->posted - COMM_CALLS_MAX : 0;
    if (first < group->theirs.posted) first = group->theirs.posted;
    for (uint64_t s = first; s < group->posted; s++) {
        uint32_t slot = s % COMM_CALLS_MAX;
        const struct comm_record *record = &group->history[s % HISTORY_RECORDS];
        if (!group->waiting[slot]) continue;
        if (group->theirs.left)
            comm_raise_left(control->comm, group->ordinal, record, group->from);
        else if ((!group->heard || group->theirs.waits >= s) &&
                 deadline_passed(control->comm->timeout_s, group->counts_ns[slot], now_ns))
            comm_raise_stuck(control->comm, group->ordinal, record, group->from,
                             (double)(now_ns - group->counts_ns[slot]) * 1e-9);
        return;
    }
}

/* The group with this key, if the calls on it from `sequence` on are not posted: by this rank, or by the rank before it, `peer`. */
static struct control_group *awaits(struct control *control, uint64_t key, uint64_t sequence, int64_t peer) {
    struct control_group *group = find_group(control, key);
    if (!group || (peer >= 0 && (group->from != peer || !group->heard))) return NULL;
    return (peer < 0 ? group->posted : group->theirs.posted) <= sequence ? group : NULL;
}

/* This rank is blocked. So is the rank before it, if each waits only for calls that the other has not posted. */
static void judge_block(struct control *control, uint64_t now_ns) {
    const struct comm_block *mine = &control->block, *theirs;
    if (!mine->calls || now_ns - control->blocked_ns < BLOCK_NS) return;
    struct control_group *group = find_group(control, mine->call[0].key);
    if (!group || group->alone) return;
    theirs = &group->theirs.block;
    if (!theirs->calls || now_ns - group->blocked_ns < BLOCK_NS) return;
    for (uint64_t i = 0; i < mine->calls; i++)
        if (!awaits(control, mine->call[i].key, mine->call[i].sequence, group->from)) return;
    for (uint64_t i = 0; i < theirs->calls; i++)
        if (!awaits(control, theirs->call[i].key, theirs->call[i].sequence, -1)) return;
    block_raise(control->comm, mine, group->from, theirs);
}

void control_tick(struct control *control, uint64_t now_ns) {
    if (!control->started) control->started = true, control->tick_ns = now_ns;
    hear(control);
    if (control->comm->size > 1) {
        judge_silence(control, now_ns);
        send_beat(control, now_ns);
    }
    pthread_mutex_lock(&control->mutex);
    for (struct control_group *group = control->groups; group; group = group->next) {
        if (!group->compared) judge_calls(control, group);
        forgive_stop(control, group, now_ns);
        if (!group->alone) judge_waits(control, group, now_ns);
        send_calls(control, group, now_ns);
    }
    judge_block(control, now_ns);
    pthread_mutex_unlock(&control->mutex);
    send_failure(control, now_ns);
    control->tick_ns = now_ns;
}
