/* The control channel among many virtual ranks, over mailboxes in memory and in virtual time. */
#include "engine/comm/control.h"

#include <stdlib.h>

#include "tests/check.h"

enum { RANKS = 200, BOX_MESSAGES = 64, TIMEOUT_S = 2 };

struct letter {
    uint32_t bytes;
    char message[CONTROL_MESSAGE_BYTES];
};

struct rank {
    struct comm comm;
    struct comm_failure failure;
    struct comm_group world;
    struct control *control;
    struct control_group *group;
    struct letter box[BOX_MESSAGES];
    uint32_t head, tail;
    uint64_t hash;
    bool dead, deaf; /* deaf: takes no messages */
};

static struct rank *ranks;
static uint32_t members[RANKS];
static uint64_t now_ns;
static const struct comm_ops no_ops = {.name = "test"};

static bool box_send(void *user, uint32_t to, const void *message, uint32_t bytes) {
    struct rank *peer = &ranks[to];
    if (peer->deaf) return false;
    if (peer->head - peer->tail == BOX_MESSAGES) return peer->dead; /* what is sent to the dead is lost */
    struct letter *letter = &peer->box[peer->head++ % BOX_MESSAGES];
    letter->bytes = bytes;
    memcpy(letter->message, message, bytes);
    return true;
}

static bool box_receive(void *user, void *message, uint32_t bytes_max, uint32_t *out_bytes) {
    struct rank *rank = user;
    if (rank->head == rank->tail) return false;
    const struct letter *letter = &rank->box[rank->tail++ % BOX_MESSAGES];
    *out_bytes = letter->bytes < bytes_max ? letter->bytes : bytes_max;
    memcpy(message, letter->message, *out_bytes);
    return true;
}

/* One comm: ranks' boxes are as an earlier one left them. */
static void open_all(uint64_t opening) {
    for (uint32_t i = 0; i < RANKS; i++) members[i] = i;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *rank = &ranks[i];
        comm_failure_init(&rank->failure);
        rank->comm.ops = &no_ops;
        rank->comm.rank = i, rank->comm.size = RANKS, rank->comm.timeout_s = TIMEOUT_S;
        rank->comm.failure = &rank->failure;
        rank->world.ranks = members;
        rank->world.count = RANKS, rank->world.index = i, rank->world.key = 77;
        rank->control = control_create(
            &rank->comm, &(struct control_port){
                             .user = rank, .opening = opening, .send = box_send, .receive = box_receive});
        rank->group = control_group_open(rank->control, &rank->world);
    }
}

static void close_all(void) {
    for (uint32_t i = 0; i < RANKS; i++)
        control_destroy(ranks[i].control), comm_failure_destroy(&ranks[i].failure);
}

static void start(void) {
    ranks = calloc(RANKS, sizeof *ranks);
    now_ns = 1000000;
    open_all(1);
}

static void end(void) {
    close_all();
    free(ranks);
}

static void pass(double seconds) {
    for (uint64_t until = now_ns + (uint64_t)(seconds * 1e9); now_ns < until; now_ns += 10000000)
        for (uint32_t i = 0; i < RANKS; i++)
            if (!ranks[i].dead) control_tick(ranks[i].control, now_ns);
}

static void post_counting(uint32_t i, uint64_t sequence, const char *what, uint64_t counts_ns) {
    struct comm_call call = {.kind = COMM_ALL_GATHER, .count = 64, .what = what};
    struct comm_record record;
    record_make(&call, sequence, ranks[i].hash, &record);
    ranks[i].hash = record.hash;
    control_posted(ranks[i].group, &record, counts_ns);
}

static void post(uint32_t i, uint64_t sequence, const char *what) {
    post_counting(i, sequence, what, now_ns);
}

static uint32_t failed(zero_status code, const char *part) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < RANKS; i++)
        count += ranks[i].failure.error.code == code && strstr(ranks[i].failure.error.message, part) != NULL;
    return count;
}

static void stays_quiet(void) {
    start();
    for (uint64_t s = 0; s < 50; s++) {
        for (uint32_t i = 0; i < RANKS; i++) post(i, s, "h.1"), control_done(ranks[i].group, s);
        pass(0.1);
    }
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    for (uint32_t i = 0; i < RANKS; i++) control_leave(ranks[i].control);
    pass(0.3);
    for (uint32_t i = 0; i < RANKS; i++) CHECK(control_left(ranks[i].control));
    /* two messages per rank and interval, and a few at the end, whatever the number of ranks */
    CHECK(atomic_load(&ranks[7].comm.control_messages) < 2 * 55 + 10);
    end();
}

static void names_who_stays(void) {
    start();
    for (uint32_t i = 0; i < RANKS; i++)
        if (i != 8) control_leave(ranks[i].control);
    pass(0.3);
    for (uint32_t i = 0; i < RANKS; i++) CHECK_INT(control_staying(ranks[i].control), i == 9 ? 8 : -1);
    end();
}

static void reports_the_dead(void) {
    start();
    pass(1);
    ranks[5].dead = ranks[6].dead = ranks[9].dead = true;
    pass(1.8);
    CHECK_INT(failed(ZERO_E_PEER, ""), 0);
    pass(0.6);
    CHECK_INT(failed(ZERO_E_PEER, "has been silent for 2."), RANKS - 3);
    pass(1);
    CHECK(control_quiet(ranks[0].control, now_ns));
    end();
}

/* A rank that reported a failure may leave only after all ranks can have received the report. */
static void lingers_until_told(void) {
    start();
    pass(0.1);
    uint64_t begin_ns = now_ns;
    comm_raise(&ranks[3].comm, ZERO_E_IO, 3, false, "the drive is gone");
    CHECK(!control_quiet(ranks[3].control, now_ns));
    while (!control_quiet(ranks[3].control, now_ns) && now_ns < begin_ns + 2000000000u) pass(0.01);
    CHECK_INT(failed(ZERO_E_IO, "the drive is gone"), RANKS);
    CHECK(now_ns - begin_ns < 1000000000u);
    end();
}

/* MPI may give a later communicator the context of an earlier one, together with messages that were still on their
 * way. */
static void drops_what_an_earlier_comm_sent(void) {
    start();
    comm_raise(&ranks[3].comm, ZERO_E_IO, 3, false, "the drive is gone");
    control_tick(ranks[3].control, now_ns);
    CHECK(ranks[4].head != ranks[4].tail);
    close_all();
    open_all(2);
    pass(1);
    CHECK(ranks[4].head - ranks[4].tail < 4);
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    end();
}

/* The ranks of a group that are no neighbors among all ranks, too. */
static void open_distant(uint32_t one, uint32_t other) {
    static struct comm_group distant[2];
    static uint32_t pair[2];
    pair[0] = one, pair[1] = other;
    for (uint32_t k = 0; k < 2; k++) {
        distant[k] = (struct comm_group){.ranks = pair, .count = 2, .index = k, .key = 78};
        control_group_open(ranks[pair[k]].control, &distant[k]);
    }
}

/* The threads of ranks that have finished end. */
static void pass_finishing(double seconds) {
    for (double s = 0; s < seconds; s += 0.01) {
        pass(0.01);
        for (uint32_t i = 0; i < RANKS; i++)
            if (control_finished(ranks[i].control)) ranks[i].dead = true;
    }
}

/* Rank 0 goes on for long after all ranks have left: what it sends until it finishes, no rank may miss. */
static void sends_nothing_to_the_finished(void) {
    start();
    open_distant(0, 100);
    pass(0.3);
    for (uint32_t i = 0; i < RANKS; i++) control_leave(ranks[i].control);
    pass(0.3);
    for (uint32_t i = 0; i < RANKS; i++) CHECK(control_left(ranks[i].control));
    for (uint32_t i = 1; i < RANKS; i++) control_finish(ranks[i].control);
    pass_finishing(5);
    for (uint32_t i = 0; i < RANKS; i++) CHECK_INT(ranks[i].dead, i > 1);
    control_finish(ranks[0].control);
    pass_finishing(0.3);
    for (uint32_t i = 0; i < RANKS; i++) {
        CHECK(ranks[i].dead);
        CHECK_INT(ranks[i].head - ranks[i].tail, 0);
    }
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    end();
}

/* A rank that finishes hears no heartbeats, but knows the rank whose last one it waits for. */
static void reports_who_does_not_finish(void) {
    start();
    for (uint32_t i = 0; i < RANKS; i++) control_leave(ranks[i].control);
    pass(0.3);
    ranks[5].dead = true;
    for (uint32_t i = 0; i < RANKS; i++) control_finish(ranks[i].control);
    pass(3);
    CHECK_INT(ranks[6].failure.error.code, ZERO_E_PEER);
    CHECK_CONTAINS(ranks[6].failure.error.message, "rank 5 has been silent for 2.");
    end();
}

/* A rank that was stopped for a long time misses its peers' beats, but finds their messages when it continues. */
static void forgives_its_own_sleep(void) {
    start();
    pass(1);
    for (uint32_t i = 0; i < RANKS; i++) ranks[i].tail = ranks[i].head;
    now_ns += 60000000000u;
    pass(1);
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    end();
}

/* All ranks were stopped while they waited for one. That one has its time still, but no more. */
static void counts_no_stop_as_a_wait(void) {
    start();
    pass(1);
    for (uint32_t i = 0; i < RANKS; i++)
        if (i != 3 && i != 9) post(i, 0, "h.1");
    pass(0.005); /* the next ticks come after the stop */
    post(9, 0, "h.1");
    now_ns += 3600000000000u;
    pass(10 * TIMEOUT_S - 1);
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    pass(2);
    CHECK_INT(failed(ZERO_E_PEER, "rank 3 is alive but did not take its part in all-gather of h.1"), RANKS);
    CHECK_CONTAINS(ranks[4].failure.error.message, "rank 4 waited 20.");
    end();
}

static void names_the_first_difference(uint64_t at, uint64_t until) {
    start();
    for (uint64_t s = 0; s < until; s++)
        for (uint32_t i = 0; i < RANKS; i++)
            post(i, s, i == 42 && s == at ? "h.2" : "h.3"), control_done(ranks[i].group, s);
    pass(1.5);
    char call[64];
    snprintf(call, sizeof call, "h.2 (64 x fp32), call %u of group 0", (unsigned)at);
    if (until - at <= 1024)
        CHECK_INT(failed(ZERO_E_DIVERGED, call), RANKS);
    else
        CHECK_INT(failed(ZERO_E_DIVERGED, "too long ago"), RANKS);
    end();
}

static void reports_who_does_not_post(bool leaves) {
    start();
    for (uint32_t i = 0; i < RANKS; i++) {
        post(i, 0, "h.1");
        control_done(ranks[i].group, 0);
        if (i != 3) post(i, 1, "h.9");
    }
    if (leaves) control_leave(ranks[3].control);
    pass(leaves ? 1 : 19.5);
    const char *part = leaves ? "rank 3 closed its communicator without its part of all-gather of h.9"
                              : "rank 3 is alive but did not take its part in all-gather of h.9";
    CHECK_INT(failed(ZERO_E_PEER, part), leaves ? RANKS : 0);
    pass(1);
    CHECK_INT(failed(ZERO_E_PEER, part), RANKS);
    end();
}

/* Rank 3 waits in call 0, which it tests, and all others in call 1: another rank holds rank 3 up. */
static void spares_who_is_held_up(void) {
    start();
    for (uint32_t i = 0; i < RANKS; i++) {
        post(i, 0, "h.1");
        if (i == 3) continue;
        control_done(ranks[i].group, 0);
        post(i, 1, "h.9");
    }
    atomic_store(&ranks[3].comm.tested_ns, now_ns + 21000000000u);
    pass(21);
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    pass(4);
    CHECK_INT(failed(ZERO_E_PEER, "rank 3 is alive but did not take its part in all-gather of h.9"), RANKS);
    end();
}

/* In a patient call a rank may take any time while it is alive and has not left. */
static void awaits_the_living(bool leaves) {
    start();
    for (uint32_t i = 0; i < RANKS; i++)
        if (i != 3) post_counting(i, 0, "a checkpoint", UINT64_MAX);
    pass(100);
    CHECK_INT(failed(ZERO_OK, ""), RANKS);
    if (leaves)
        control_leave(ranks[3].control);
    else
        ranks[3].dead = true;
    pass(4);
    const char *part = leaves
                           ? "rank 3 closed its communicator without its part of all-gather of a checkpoint"
                           : "rank 3 has been silent for 2.";
    CHECK_INT(failed(ZERO_E_PEER, part), leaves ? RANKS : RANKS - 1);
    end();
}

/* A record of a failure as it travels: control.c has the struct. */
struct failure_record {
    uint32_t type, from;
    uint64_t opening;
    uint32_t code, waits;
    int64_t rank;
    uint64_t step;
    char message[1024];
};

/* A record that is not a valid failure record is a failure itself: a code of 0 would make a rank fail with nothing to
 * report. */
static void refuses_what_is_no_failure(uint32_t code, uint32_t bytes) {
    struct failure_record record = {
        .type = 3, .from = 4, .opening = 1, .code = code, .rank = 1 << 20, .message = "the drive is gone"};
    start();
    pass(0.1);
    CHECK(box_send(NULL, 9, &record, bytes));
    pass(1);
    CHECK_INT(failed(ZERO_E_INTERNAL, "rank 4 sent rank 9 a failure that no rank can read"), RANKS);
    CHECK_INT(ranks[9].failure.error.rank, 4);
    end();
}

static void keeps_ranks_in_range(void) {
    struct failure_record record = {.type = 3,
                                    .from = 4,
                                    .opening = 1,
                                    .code = ZERO_E_IO,
                                    .rank = 1 << 20,
                                    .message = "the drive is gone"};
    start();
    CHECK(box_send(NULL, 9, &record, sizeof record));
    pass(0.1);
    CHECK_INT(ranks[9].failure.error.code, ZERO_E_IO);
    CHECK_INT(ranks[9].failure.error.rank, -1);
    end();
}

/* A message of calls as it travels: control.c has the struct. */
struct calls_record {
    uint32_t type, from;
    uint64_t opening, key, posted, left, waits, first;
    struct comm_record records[16];
    struct comm_block block;
};

/* Each is a record whose text or types no sentence can hold. */
static void refuses_what_is_no_record(void (*damage)(struct comm_record *record)) {
    struct comm_call call = {.kind = COMM_ALL_GATHER, .count = 64, .what = "h.2"};
    struct calls_record message = {.type = 1, .from = 8, .opening = 1, .key = 77, .posted = 16};
    start();
    pass(0.1);
    post(9, 0, "h.1");
    for (uint32_t i = 0; i < 16; i++) {
        record_make(&call, i, 0, &message.records[i]);
        damage(&message.records[i]);
    }
    CHECK(box_send(NULL, 9, &message, sizeof message));
    pass(1);
    CHECK_INT(failed(ZERO_E_INTERNAL, "rank 8 sent rank 9 a record of its calls that no rank can read"),
              RANKS);
    if (ranks[9].failure.error.code != ZERO_E_INTERNAL)
        fprintf(stderr, "%s\n", ranks[9].failure.error.message);
    end();
}

static void endless_text(struct comm_record *record) { memset(record->what, 'x', sizeof record->what); }
static void unknown_type(struct comm_record *record) { record->dtype = 200; }
static void unknown_target(struct comm_record *record) { record->target_dtype = DTYPES; }
static void unknown_code(struct comm_record *record) { record->code = 200; }
static void unknown_kind(struct comm_record *record) { record->kind = COMM_KINDS; }

/* ---- ranks that wait for each other in different calls ---- */

static void block(uint32_t rank, const char *what, uint64_t key) {
    struct comm_block block = {.calls = 1, .call = {{key, 0}}};
    snprintf(block.what, sizeof block.what, "%s", what);
    control_block(ranks[rank].control, &block);
}

/* Rank 9 is blocked in a call of the first group that rank 8 has not posted, and rank 8 in one of another group, which rank 9 has
 * posted or not. */
static void names_both_calls(bool posted) {
    struct control_group *other[2];
    struct comm_call call = {.kind = COMM_BARRIER};
    struct comm_record record;
    start();
    for (uint32_t i = 0; i < 2; i++) {
        struct comm_group group = ranks[8 + i].world;
        group.key = 78, group.ordinal = 1;
        other[i] = control_group_open(ranks[8 + i].control, &group);
    }
    post(9, 0, "h.1");
    record_make(&call, 0, 0, &record);
    control_posted(other[0], &record, now_ns);
    if (posted) control_posted(other[1], &record, now_ns);
    block(9, "zero_engine_step", 77), block(8, "zero_engine_save", 78);
    pass(0.9);
    CHECK_INT(failed(ZERO_E_DIVERGED, ""), 0);
    pass(2);
    CHECK_INT(failed(ZERO_E_DIVERGED, "rank 9 waits in zero_engine_step and rank 8 in zero_engine_save"),
              posted ? 0 : RANKS);
    end();
}

/* The rank next to the failed one takes no messages; the other ranks still receive the failure. */
static void tells_around_the_deaf(void) {
    start();
    pass(0.1);
    ranks[4].deaf = ranks[5].deaf = true;
    comm_raise(&ranks[3].comm, ZERO_E_DIVERGED, 3, false, "rank 3 posted another call");
    pass(0.5);
    CHECK_INT(failed(ZERO_E_DIVERGED, "rank 3 posted another call"), RANKS - 2);
    end();
}

int main(void) {
    names_both_calls(false);
    names_both_calls(true);
    refuses_what_is_no_failure(ZERO_OK, sizeof(struct failure_record));
    refuses_what_is_no_failure(4711, sizeof(struct failure_record));
    refuses_what_is_no_failure(ZERO_E_IO, sizeof(struct failure_record) - 8);
    keeps_ranks_in_range();
    refuses_what_is_no_record(endless_text);
    refuses_what_is_no_record(unknown_kind);
    refuses_what_is_no_record(unknown_target);
    refuses_what_is_no_record(unknown_type);
    refuses_what_is_no_record(unknown_code);
    tells_around_the_deaf();
    stays_quiet();
    names_who_stays();
    reports_the_dead();
    lingers_until_told();
    drops_what_an_earlier_comm_sent();
    sends_nothing_to_the_finished();
    reports_who_does_not_finish();
    forgives_its_own_sleep();
    counts_no_stop_as_a_wait();
    names_the_first_difference(0, 1);
    names_the_first_difference(0, 1000);
    names_the_first_difference(700, 1500);
    names_the_first_difference(1499, 1500);
    names_the_first_difference(3, 3000);
    reports_who_does_not_post(false);
    reports_who_does_not_post(true);
    spares_who_is_held_up();
    awaits_the_living(false);
    awaits_the_living(true);
    return check_end();
}
