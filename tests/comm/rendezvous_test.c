/* Ranks as threads that meet or fail to meet, while strangers connect in between. */
#include "engine/comm/tcp/rendezvous.h"

#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/utf8.h"
#include "engine/comm/tcp/socket.h"
#include "engine/comm/tcp/verdict.h"
#include "tests/check.h"
#include "tests/sanitized.h"

enum { RANKS = 5, LONG_S = 120, SHORT_S = 15 };

struct rank {
    pthread_t thread;
    struct rendezvous options;
    struct lanes peers[RANKS + 4];
    uint64_t key, ended_ns;
    zero_status status;
    struct zero_error error;
};

static struct place here(uint32_t port) {
    return (struct place){.address = {127, 0, 0, 1}, .family = 4, .port = (uint16_t)port};
}

static struct patience soon(void) {
    return (struct patience){.deadline_ns = clock_now_ns() + LONG_S * 1000000000ull};
}

static uint32_t free_port(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    close(listener);
    return port;
}

/* The last line that a rank logged, and the number of lines. */
static char waits[256];
static atomic_int lines;
static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_wait(void *user, zero_log_level level, const char *line) {
    atomic_fetch_add(&lines, 1);
    pthread_mutex_lock(&waits_lock);
    snprintf(waits, sizeof waits, "%s", line);
    pthread_mutex_unlock(&waits_lock);
}

static const struct log wait_log = {.write = keep_wait};

static void *run(void *user) {
    struct rank *rank = user;
    error_clear(&rank->error);
    rank->status = rendezvous(&rank->options, rank->peers, &rank->key, NULL, &rank->error);
    rank->ended_ns = clock_now_ns();
    return NULL;
}

static double notice_s = 1; /* when a rank logs that it waits */

/* `numbers`: what the processes say that they are. */
static void start(struct rank *ranks, const uint32_t *numbers, uint32_t count, uint32_t size,
                  double timeout_s, uint32_t port) {
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = (struct rank){.options = {"localhost",
                                             port,
                                             numbers[i],
                                             size,
                                             timeout_s,
                                             NULL,
                                             NULL,
                                             false,
                                             {{{0}}, false},
                                             &wait_log,
                                             notice_s}};
        pthread_create(&ranks[i].thread, NULL, run, &ranks[i]);
    }
}

static void finish(struct rank *ranks, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
}

static const uint32_t in_order[RANKS] = {0, 1, 2, 3, 4};

/* Every lane leads to the rank that it should, and to the same lane there. */
static void check_lanes(struct rank *ranks, uint32_t count) {
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t q = 0; q < count; q++)
            for (uint32_t lane = 0; lane < RENDEZVOUS_LANES && q != r; lane++) {
                uint32_t word = r * 1000 + q * 10 + lane;
                CHECK(socket_send(ranks[r].peers[q].socket[lane], &word, sizeof word, soon()));
            }
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t q = 0; q < count; q++)
            for (uint32_t lane = 0; lane < RENDEZVOUS_LANES && q != r; lane++) {
                uint32_t word = 0;
                CHECK(socket_receive(ranks[r].peers[q].socket[lane], &word, sizeof word, soon()));
                CHECK_INT(word, q * 1000 + r * 10 + lane);
            }
}

static void check_met(struct rank *ranks, uint32_t count) {
    finish(ranks, count);
    for (uint32_t r = 0; r < count; r++) {
        if (!CHECK_INT(ranks[r].status, ZERO_OK)) fprintf(stderr, "%s\n", ranks[r].error.message);
        CHECK_INT(ranks[r].key, ranks[0].key);
        CHECK(ranks[r].key != 0);
        for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++)
            CHECK_INT(ranks[r].peers[r].socket[lane], -1);
    }
    check_lanes(ranks, count);
    for (uint32_t r = 0; r < count; r++) rendezvous_close(ranks[r].peers, count);
}

static void all_meet(uint32_t count) {
    struct rank ranks[RANKS];
    uint32_t port = free_port();
    start(ranks, in_order, count, count, LONG_S, port);
    check_met(ranks, count);
}

/* One stranger speaks another protocol, one breaks off its first words, one says nothing, one hangs up at once, and one
 * sends the right first words and wrong values after them. */
static void call_as_strangers(uint32_t port, int sockets[5]) {
    static const char web[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n                       ";
    uint64_t liar[4] = {0x3676646e7a6f7265u, 12345, (uint64_t)RANKS << 32 | 1, 0};
    struct place rank0 = here(port);
    for (int i = 0; i < 5; i++) sockets[i] = socket_call(&rank0, soon());
    CHECK(socket_send(sockets[0], web, sizeof web, soon()));
    CHECK(socket_send(sockets[1], liar, 11, soon()));
    CHECK(socket_send(sockets[4], liar, sizeof liar, soon()));
    shutdown(sockets[4], SHUT_WR);
    shutdown(sockets[1], SHUT_WR);
    close(sockets[3]);
    sockets[3] = -1;
}

static void strangers_are_hung_up_on(void) {
    struct rank ranks[RANKS];
    int sockets[5];
    char byte;
    uint32_t port = free_port();
    start(ranks, in_order, 1, RANKS, LONG_S, port);
    call_as_strangers(port, sockets);
    CHECK(!socket_receive(sockets[0], &byte, 1, soon()));
    CHECK(!socket_receive(sockets[1], &byte, 1, soon()));
    CHECK(!socket_receive(sockets[4], &byte, 1, soon()));
    for (uint32_t r = 1; r < RANKS; r++) start(ranks + r, in_order + r, 1, RANKS, LONG_S, port);
    check_met(ranks, RANKS);
    for (int i = 0; i < 5; i++)
        if (sockets[i] >= 0) close(sockets[i]);
}

/* ---- secrets ---- */

static struct secret secret_of(const char *text) {
    struct secret secret;
    struct zero_error error;
    CHECK_INT(secret_find(text, NULL, NULL, &secret, &error), ZERO_OK);
    return secret;
}

static void start_with(struct rank *rank, uint32_t number, uint32_t size, uint32_t port, const char *text,
                       double timeout_s) {
    *rank = (struct rank){
        .options = {
            "localhost", port, number, size, timeout_s, NULL, NULL, false, {{{0}}, false}, &wait_log, 1}};
    if (text) rank->options.secret = secret_of(text);
    pthread_create(&rank->thread, NULL, run, rank);
}

static const char right[] = "the secret of this job", wrong[] = "the secret of another job";

/* Ranks of another secret, or of none, are refused; they learn why, and neither end the job nor take a seat of it. */
static void ranks_prove_the_secret(void) {
    struct rank ranks[RANKS], other[3];
    uint32_t port = free_port();
    start_with(&ranks[0], 0, RANKS, port, right, LONG_S);
    start_with(&other[0], 1, RANKS, port, wrong, LONG_S);
    start_with(&other[1], 2, RANKS, port, NULL, LONG_S);
    start_with(&other[2], 3, RANKS + 4, port, wrong,
               LONG_S); /* without a secret, another size ends the job */
    finish(other, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(other[i].status, ZERO_E_ARGUMENT);
        CHECK_CONTAINS(other[i].error.message, "give all ranks of a job the same ZERO_JOB_SECRET");
    }
    CHECK_CONTAINS(other[0].error.message,
                   "rank 1 has a job secret, and rank 0, which listens at localhost:");
    CHECK_CONTAINS(other[1].error.message,
                   "rank 2 has no job secret, and rank 0, which listens at localhost:");
    for (uint32_t r = 1; r < RANKS; r++) start_with(&ranks[r], r, RANKS, port, right, LONG_S);
    check_met(ranks, RANKS);
}

static void impostors_are_counted(void) {
    struct rank rank, other;
    uint32_t port = free_port();
    start_with(&rank, 0, 2, port, right, SHORT_S);
    start_with(&other, 1, 2, port, NULL, LONG_S);
    finish(&other, 1);
    finish(&rank, 1);
    CHECK_INT(rank.status, ZERO_E_PEER);
    CHECK_CONTAINS(rank.error.message, "; 1 of 1 other connections had another ZERO_JOB_SECRET, or none");
}

/* What was heard once proves nothing in another connection. */
static void a_repeated_proof_is_refused(void) {
    struct answer first = {0}, again = {0};
    struct secret secret = secret_of(right);
    struct seals seals;
    int pair[2];
    uint8_t heard[sizeof(struct hello) + sizeof(struct tag)];
    for (int i = 0; i < 2; i++) {
        struct answer *answer = i ? &again : &first;
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        answer->socket = pair[1];
        if (i == 0) {
            struct hello hello = {.rank = 1, .size = 2, .port = 1};
            struct challenge challenge;
            hello.magic = 0x3676646e7a6f7265u;
            CHECK(socket_send(pair[0], &hello, sizeof hello, soon()));
            CHECK_INT(handshake_hear(answer, &secret, &seals), HEARD_PART);
            CHECK(socket_receive(pair[0], &challenge, sizeof challenge, soon()));
            uint8_t both[sizeof hello + sizeof challenge];
            memcpy(both, &hello, sizeof hello), memcpy(both + sizeof hello, &challenge, sizeof challenge);
            struct key key = key_derive(&secret.key, "connection", (struct text){both, sizeof both});
            struct tag proof = key_tag(&key, "caller's proof");
            memcpy(heard, &hello, sizeof hello), memcpy(heard + sizeof hello, &proof, sizeof proof);
            CHECK(socket_send(pair[0], &proof, sizeof proof, soon()));
            CHECK_INT(handshake_hear(answer, &secret, &seals), HEARD_ALL);
        } else {
            CHECK(socket_send(pair[0], heard, sizeof heard, soon()));
            CHECK_INT(handshake_hear(answer, &secret, &seals), HEARD_PART);
            CHECK_INT(handshake_hear(answer, &secret, &seals), HEARD_WRONG_SECRET);
        }
        close(pair[0]), close(pair[1]);
    }
}

/* A program that does not know the secret listens in rank 0's place; or one that does, and whose verdict is not sealed. */
static void *pretend(void *user) {
    const bool knows = ((int *)user)[0];
    struct secret secret = secret_of(right);
    struct answer answer = {0};
    struct seals seals;
    uint8_t zeros[2048] = {0};
    struct tag any = {{1}};
    int listener = ((int *)user)[1];
    while ((answer.socket = socket_accept(listener)) < 0) usleep(1000);
    if (knows) {
        while (handshake_hear(&answer, &secret, &seals) == HEARD_PART) usleep(1000);
        socket_send(answer.socket, zeros, sizeof zeros, soon());
    } else {
        struct challenge challenge = {.magic = 0x3676646e7a6f7265u};
        socket_receive(answer.socket, &answer.hello, sizeof answer.hello, soon());
        socket_send(answer.socket, &challenge, sizeof challenge, soon());
        socket_receive(answer.socket, &answer.proof, sizeof answer.proof, soon());
        socket_send(answer.socket, &any, sizeof any, soon());
    }
    usleep(500000);
    close(answer.socket);
    return NULL;
}

static void a_false_rank_0(bool knows, zero_status status, const char *part) {
    int arguments[2] = {knows, socket_listen(NULL, 0)};
    struct rank rank;
    pthread_t thread;
    pthread_create(&thread, NULL, pretend, arguments);
    start_with(&rank, 1, 3, socket_port(arguments[1]), right, SHORT_S);
    finish(&rank, 1);
    pthread_join(thread, NULL);
    close(arguments[1]);
    CHECK_INT(rank.status, status);
    CHECK_CONTAINS(rank.error.message, part);
}

/* Rank 0 listens at the address that it was given, and nowhere else. */
static void rank_0_listens_at_one_address(void) {
    struct rank ranks[2];
    uint32_t port = free_port();
    struct place elsewhere = {.address = {127, 0, 0, 2}, .family = 4, .port = (uint16_t)port},
                 rank0 = here(port);
    struct patience brief = {.deadline_ns = clock_now_ns() + LONG_S * 1000000000ull};
    start(ranks, in_order, 1, 2, LONG_S, port);
    int fd = socket_call(&rank0, brief);
    CHECK(fd >= 0);
    close(fd);
    brief.deadline_ns = clock_now_ns() + 1000000000;
    fd = socket_call(&elsewhere, brief);
    if (!CHECK(fd < 0 && errno == ECONNREFUSED)) close(fd);
    start(ranks + 1, in_order + 1, 1, 2, LONG_S, port);
    check_met(ranks, 2);
}

/* ---- ranks that the test plays ---- */

enum { VERDICT_BYTES = sizeof(struct verdict) + TAG_BYTES };

/* Connects as this rank, which says that it listens at `listens`. */
static int greet_rank_0(uint32_t port, uint32_t number, uint32_t size, uint16_t listens,
                        struct seals *seals) {
    struct hello hello = {.rank = number, .to = 0, .size = size, .port = listens};
    struct secret none = {.given = false};
    struct place rank0 = here(port);
    int fd = socket_call(&rank0, soon());
    CHECK_INT(handshake_call(fd, &none, &hello, soon(), seals), GREETED);
    return fd;
}

/* As rank 0: takes the next connection of a rank. */
static int take_caller(int listener, struct seals *seals) {
    struct secret none = {.given = false};
    struct answer answer = {0};
    while ((answer.socket = socket_accept(listener)) < 0) usleep(1000);
    while (handshake_hear(&answer, &none, seals) == HEARD_PART) usleep(1000);
    return answer.socket;
}

/* As rank 0: all have come, and listen at this port. */
static void tell_places(int fd, struct seals *seals, uint32_t size, uint32_t port) {
    struct place places[RANKS];
    struct zero_error error;
    error_clear(&error);
    struct verdict come = verdict_make(77, ZERO_OK, &error);
    for (uint32_t r = 0; r < size; r++) places[r] = here(port);
    CHECK(verdict_send(fd, seals, &come));
    CHECK(sealed_send(fd, &seals->out, places, size * sizeof *places, soon()));
}

/* The verdict, and where the ranks listen. */
static void hear_places(int fd, uint32_t size, struct place *out) {
    char verdict[VERDICT_BYTES];
    struct tag tag;
    CHECK(socket_receive(fd, verdict, sizeof verdict, soon()));
    CHECK(socket_receive(fd, out, size * sizeof *out, soon()));
    CHECK(socket_receive(fd, &tag, sizeof tag, soon()));
}

/* Only rank 0's port is open: messages say at which address and port another rank could not be reached. */
static void messages_name_the_place(void) {
    static const uint32_t number_of[] = {0, 1, 0, 2};
    struct rank ranks[4];
    struct place places[3];
    struct seals seals;
    char at[PLACE_TEXT_BYTES], part[192];
    struct sockaddr_in any = {.sin_family = AF_INET};
    int unheard = socket(AF_INET, SOCK_STREAM, 0); /* has a port, and does not listen */
    CHECK_INT(bind(unheard, (struct sockaddr *)&any, sizeof any), 0);
    uint32_t port[2] = {free_port(), free_port()}, closed = socket_port(unheard);
    for (int i = 0; i < 4; i++) start(&ranks[i], &number_of[i], 1, 3, i % 2 ? SHORT_S : LONG_S, port[i / 2]);
    int two = greet_rank_0(port[0], 2, 3, 1, &seals),
        one = greet_rank_0(port[1], 1, 3, (uint16_t)closed, &seals);
    hear_places(two, 3, places);
    finish(ranks, 4);
    CHECK_INT(ranks[1].status, ZERO_E_PEER);
    snprintf(part, sizeof part, "rank 2 of 3 did not connect to rank 1 (%s) within 15 s",
             socket_place_text(&places[1], at));
    CHECK_CONTAINS(ranks[1].error.message, part);
    CHECK_INT(ranks[3].status, ZERO_E_PEER);
    snprintf(
        part, sizeof part,
        "rank 2 of 3 cannot reach rank 1 (127.0.0.1:%u) within 15 s: Connection refused: see whether that "
        "rank runs, and whether a firewall between them closes ports: ranks above 0",
        closed);
    CHECK_CONTAINS(ranks[3].error.message, part);
    for (int i = 0; i < 4; i += 2) { /* rank 0 is told, and need not wait for so long */
        CHECK_INT(ranks[i].status, ZERO_E_PEER);
        CHECK_STRING(ranks[i].error.message, ranks[i + 1].error.message);
        CHECK_INT(ranks[i].error.rank, ranks[i + 1].error.rank);
    }
    close(one), close(two), close(unheard);
}

/* More strangers than rank 0 accepts at once do not keep the ranks out. */
/* A rank that starts long before rank 0 waits for its word: rank 0 knows which rank is missing. */
static void an_early_rank_waits_for_rank_0(void) {
    enum { EARLY_S = 5, LIMIT_S = 15 }; /* early by more than rank 1 grants rank 0 after its own limit */
    struct rank ranks[2];
    uint32_t port = free_port();
    start(ranks + 1, in_order + 1, 1, 3, LIMIT_S, port);
    sleep(EARLY_S);
    start(ranks, in_order, 1, 3, LIMIT_S, port);
    finish(ranks, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(ranks[i].status, ZERO_E_PEER);
        CHECK_INT(ranks[i].error.rank, 2);
        CHECK_CONTAINS(ranks[i].error.message, "rendezvous: rank 2 of 3 did not connect to rank 0");
    }
}

/* Rank 1 hears rank 0 first, and ends while rank 2 greets it: rank 2 has rank 0's word, too. The test is ranks 0 and 1. False: it
 * rested for longer than rank 2 waits for that word. */
static bool hears_rank_0s_word(void) {
    const uint64_t LATE_NS = 400000000;
    struct rank two;
    struct seals seals;
    struct zero_error error;
    int zero = socket_listen(NULL, 0), one = socket_listen(NULL, 0), greets;
    start(&two, in_order + 2, 1, 3, LONG_S, socket_port(zero));
    int fd = take_caller(zero, &seals);
    tell_places(fd, &seals, 3, socket_port(one));
    while ((greets = socket_accept(one)) < 0) usleep(1000);
    uint64_t closed_ns = clock_now_ns();
    close(greets), close(one);
    usleep(20000);
    error_clear(&error);
    error_set(&error, ZERO_E_INTERRUPTED, "rendezvous: interrupted while rank 0 waited");
    struct verdict ended = verdict_make(77, ZERO_E_INTERRUPTED, &error);
    bool sent = verdict_send(fd, &seals, &ended), in_time = clock_now_ns() - closed_ns < LATE_NS;
    finish(&two, 1);
    if (in_time) CHECK(sent);
    if (in_time) CHECK_INT(two.status, ZERO_E_INTERRUPTED);
    if (in_time) CHECK_STRING(two.error.message, error.message);
    close(fd), close(zero);
    return in_time;
}

static void rank_0s_word_counts(void) {
    for (int tries = 0; !hears_rank_0s_word() && CHECK(tries < 100); tries++) continue;
}

static void a_crowd_keeps_nobody_out(void) {
    enum { CROWD = 400 };
    struct rank ranks[RANKS];
    int sockets[CROWD];
    uint32_t port = free_port();
    struct place rank0 = here(port);
    start(ranks, in_order, 1, RANKS, LONG_S, port);
    for (int i = 0; i < CROWD; i++) {
        struct hello hello = {.magic = 0x3676646e7a6f7265u, .rank = 1, .size = RANKS, .port = 1};
        sockets[i] = socket_call(&rank0, soon());
        if (i % 4 == 0) socket_send(sockets[i], &hello, sizeof hello, soon()); /* and never a proof */
    }
    for (uint32_t r = 1; r < RANKS; r++) start(ranks + r, in_order + r, 1, RANKS, LONG_S, port);
    check_met(ranks, RANKS);
    for (int i = 0; i < CROWD; i++) close(sockets[i]);
}

/* Rank 1 stands still between its hello and its proof, for longer than a stranger may. Until then rank 0 takes no connection, so
 * that rank 1 waits for its answer. */
struct still {
    atomic_bool listens, stands;
};

static bool answer_late(void *user) {
    struct still *still = user;
    atomic_store(&still->listens, true);
    for (int ms = 0; !atomic_load(&still->stands) && CHECK(ms < LONG_S * 1000); ms++) usleep(1000);
    return false;
}

static bool stand_still(void *user) {
    if (!atomic_exchange(&((struct still *)user)->stands, true)) sleep(HANDSHAKE_S + 1);
    return false;
}

static void a_slow_rank_calls_again(void) {
    struct rank ranks[2];
    struct still still = {0};
    uint32_t port = free_port();
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r] = (struct rank){.options = {.host = "localhost",
                                             .port = port,
                                             .rank = r,
                                             .size = 2,
                                             .timeout_s = LONG_S,
                                             .secret = secret_of(right),
                                             .interrupted = r ? stand_still : answer_late,
                                             .interrupted_user = &still}};
        pthread_create(&ranks[r].thread, NULL, run, &ranks[r]);
        while (!atomic_load(&still.listens)) usleep(1000);
    }
    check_met(ranks, 2);
    CHECK(atomic_load(&still.stands));
}

/* A network that leads a rank's call to another rank than the one that it calls gains nothing: neither rank takes the connection.
 * Exchanged data connections would change sums, since both ends know the secret. */
static void a_call_for_another_rank_is_refused(void) {
    enum { PLACES_BYTES = 2 * sizeof(struct place) + TAG_BYTES };
    struct rank rank;
    struct seals seals;
    struct secret secret = secret_of(right);
    struct hello hello = {.rank = 1, .to = 0, .size = 2, .port = 1};
    char heard[VERDICT_BYTES + PLACES_BYTES];
    uint32_t port = free_port();
    struct place rank0 = here(port);
    start_with(&rank, 0, 2, port, right, LONG_S);
    int first = socket_call(&rank0, soon());
    CHECK_INT(handshake_call(first, &secret, &hello, soon(), &seals), GREETED);
    CHECK(socket_receive(first, heard, sizeof heard, soon()));
    memcpy(&hello.meeting, heard, sizeof hello.meeting); /* the verdict begins with the meeting's key */
    hello.to = 1, hello.lane = 1;
    int misled = socket_call(&rank0, soon());
    CHECK_INT(handshake_call(misled, &secret, &hello, soon(), &seals), GREETED);
    CHECK(!socket_receive(misled, heard, 1, soon()) && errno == ECONNRESET);
    hello.to = 0;
    int second = socket_call(&rank0, soon());
    CHECK_INT(handshake_call(second, &secret, &hello, soon(), &seals), GREETED);
    finish(&rank, 1);
    CHECK_INT(rank.status, ZERO_OK);
    rendezvous_close(rank.peers, 2);
    close(first), close(misled), close(second);
}

/* Strangers that take all sockets of rank 0's process do not end its job. */
static void strangers_take_no_last_socket(void) {
    enum { CROWD = 40, SPARE = 16 };
    struct rank ranks[2];
    struct rlimit before, low;
    uint32_t port = free_port();
    pid_t child = fork();
    if (child == 0) {
        struct place rank0 = here(port);
        for (int i = 0; i < CROWD; i++)
            if (socket_call(&rank0, soon()) < 0) _exit(1);
        start(ranks + 1, in_order + 1, 1, 2, LONG_S, port);
        finish(ranks + 1, 1);
        _exit(ranks[1].status == ZERO_OK ? 0 : 2);
    }
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    int next = dup(0);
    low.rlim_cur = (rlim_t)next + SPARE;
    close(next);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &low), 0);
    start(ranks, in_order, 1, 2, LONG_S, port);
    finish(ranks, 1);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (!CHECK_INT(ranks[0].status, ZERO_OK)) fprintf(stderr, "%s\n", ranks[0].error.message);
    int ended = -1;
    CHECK_INT(waitpid(child, &ended, 0), child);
    CHECK_INT(ended, 0);
    rendezvous_close(ranks[0].peers, 2);
}

static long resident_bytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    if (file) fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Rank 0 has hung up, or does within a quarter of a second. */
static bool hung_up(int fd) {
    struct pollfd polls = {.fd = fd, .events = POLLIN};
    char bytes[64];
    poll(&polls, 1, 250);
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

/* Who has not proved the secret costs a slot for HANDSHAKE_S at most: no memory, no line in the log, no more bytes than a proof
 * has. */
static void what_a_caller_costs(void) {
    enum { FLOOD = 2000, WARM = 200, KIB = 1 << 10 };
    const struct hello hello = {.magic = 0x3676646e7a6f7265u, .rank = 1, .size = 2, .port = 1};
    static char more[64 * KIB];
    struct rank ranks[2];
    long before = 0;
    uint32_t port = free_port();
    struct place rank0 = here(port);
    atomic_store(&lines, 0);
    start(ranks, in_order, 1, 2, LONG_S, port);
    int slow = socket_call(&rank0, soon()), greedy = socket_call(&rank0, soon());
    CHECK(socket_send(greedy, &hello, sizeof hello, soon()));
    socket_send(greedy, more, sizeof more, soon()); /* may fail: rank 0 hangs up after a proof's bytes */
    for (size_t i = 0; !hung_up(greedy); i++)
        if (!CHECK(i < 4 * HANDSHAKE_S)) break;
    for (int i = 0; i < FLOOD; i++) {
        int fd = socket_call(&rank0, soon());
        if (i == WARM) before = resident_bytes();
        if (i % 2) socket_send(fd, &hello, sizeof hello, soon());
        close(fd);
    }
    if (!SANITIZED) CHECK(resident_bytes() - before < 256 * KIB);
    for (size_t i = 0; !hung_up(slow); i++) { /* a byte each quarter of a second */
        if (!CHECK(i < sizeof hello)) break;
        send(slow, (const char *)&hello + i, 1, MSG_NOSIGNAL);
    }
    close(slow), close(greedy);
    start(ranks + 1, in_order + 1, 1, 2, LONG_S, port);
    check_met(ranks, 2);
    CHECK(atomic_load(&lines) <= 2); /* of each rank: that it waits */
}

static void a_rank_never_comes(void) {
    static const uint32_t numbers[] = {0, 1, 3};
    struct rank ranks[3];
    int sockets[5];
    uint32_t port = free_port();
    *waits = 0;
    notice_s = SHORT_S - 2; /* the ranks that come have come by then */
    start(ranks, numbers, 3, RANKS, SHORT_S, port);
    call_as_strangers(port, sockets);
    finish(ranks, 3);
    notice_s = 1;
    CHECK_CONTAINS(waits, "rank 0 waits for ranks 2, 4 of 5 to connect (localhost:");
    CHECK_CONTAINS(waits, "for 15 s at most");
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_INT(ranks[i].status, ZERO_E_PEER);
        CHECK_CONTAINS(ranks[i].error.message, "ranks 2, 4 of 5 did not connect to rank 0 (localhost:");
        CHECK_CONTAINS(ranks[i].error.message, "within 15 s; 5 other connections were not from ranks");
    }
    CHECK_INT(ranks[0].error.rank, 2);
    for (int i = 0; i < 5; i++)
        if (sockets[i] >= 0) close(sockets[i]);
}

static void wrong_ones(const uint32_t *numbers, uint32_t last_size, const char *part) {
    struct rank ranks[3];
    uint32_t port = free_port();
    start(ranks, numbers, 2, 3, SHORT_S, port);
    start(ranks + 2, numbers + 2, 1, last_size, SHORT_S, port);
    finish(ranks, 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_INT(ranks[i].status, i == 0 ? ZERO_E_ARGUMENT : ranks[i].status);
        CHECK(ranks[i].status != ZERO_OK);
    }
    CHECK_CONTAINS(ranks[0].error.message, part);
    /* a rank that came is told; a rank that comes later finds no other rank, and reports that */
    bool told = strstr(ranks[1].error.message, part) || strstr(ranks[2].error.message, part);
    if (!CHECK(told)) fprintf(stderr, "%s\n%s\n", ranks[1].error.message, ranks[2].error.message);
}

static void two_have_one_number(void) {
    wrong_ones((const uint32_t[]){0, 1, 1}, 3, "two processes are rank 1 of 3");
}

static void one_has_another_size(void) {
    wrong_ones((const uint32_t[]){0, 2, 1}, 4, "rank 1 says that there are 4 ranks, where rank 0 says 3");
}

static void alone(uint32_t number, const char *host, uint32_t port, double timeout_s, zero_status status,
                  const char *part) {
    struct rank rank = {
        .options = {host, port, number, 3, timeout_s, NULL, NULL, false, {{{0}}, false}, &wait_log, 0.001}};
    run(&rank);
    CHECK_INT(rank.status, status);
    CHECK_CONTAINS(rank.error.message, part);
}

static void nobody_to_meet(void) {
    int listener = socket_listen(NULL, 0);
    uint32_t port = socket_port(listener);
    alone(0, "localhost", port, LONG_S, ZERO_E_IO, "rank 0 cannot listen on port");
    close(listener);
    alone(1, "localhost", port, SHORT_S, ZERO_E_PEER, "rank 1 of 3 cannot reach rank 0 (localhost:");
    CHECK_CONTAINS(waits, "rank 1 waits for rank 0 of 3 to answer (localhost:");
    for (uint32_t number = 0; number < 2; number++) /* at once: also the rank that nobody could find there */
        alone(number, "no such host", port, LONG_S, ZERO_E_ARGUMENT,
              "MASTER_ADDR is \"no such host\", which has no address");
}

/* Another program that owns the port answers in its own protocol, or hangs up. */
static void *serve_another(void *user) {
    static const char page[4096] = "HTTP/1.1 400 Bad Request\r\n";
    int listener = *(int *)user;
    for (int i = 0; i < 2; i++) {
        int fd;
        while ((fd = socket_accept(listener)) < 0) usleep(1000);
        char hello[sizeof(struct hello)];
        socket_receive(fd, hello, sizeof hello, soon());
        if (i == 0) socket_send(fd, page, sizeof page, soon());
        close(fd);
    }
    return NULL;
}

static void another_program_has_the_port(void) {
    pthread_t thread;
    int listener = socket_listen(NULL, 0);
    pthread_create(&thread, NULL, serve_another, &listener);
    for (int i = 0; i < 2; i++)
        alone(1, "127.0.0.1", socket_port(listener), LONG_S, ZERO_E_PEER, "does not answer as rank 0 does");
    pthread_join(thread, NULL);
    close(listener);
}

/* A rank's host: interrupts the rank when `stop` is set, or once `taken` is a socket. */
struct host {
    atomic_bool stop;
    atomic_int asked;
    const int *taken; /* of the rank's own peers; or NULL */
};

static bool ask(void *user) {
    struct host *host = user;
    atomic_fetch_add(&host->asked, 1);
    return atomic_load(&host->stop) || (host->taken && *host->taken >= 0);
}

/* After this, the rank has read all that had come when it began. */
static void await_two_looks(struct host *host) {
    int before = atomic_load(&host->asked);
    for (int ms = 0; atomic_load(&host->asked) < before + 2 && CHECK(ms < LONG_S * 1000); ms++) usleep(1000);
}

static void start_interruptible(struct rank *ranks, const uint32_t *numbers, uint32_t count, uint32_t size,
                                uint32_t port, struct host *hosts) {
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = (struct rank){
            .options = {
                "localhost", port, numbers[i], size, LONG_S, ask, &hosts[i], false, {{{0}}, false}, NULL, 0}};
        pthread_create(&ranks[i].thread, NULL, run, &ranks[i]);
    }
}

static void interrupt(struct rank *ranks, uint32_t count, uint32_t which, struct host *hosts,
                      const char *part) {
    uint64_t since_ns = clock_now_ns();
    if (!hosts[which].taken) await_two_looks(&hosts[which]);
    atomic_store(&hosts[which].stop, !hosts[which].taken);
    finish(ranks, count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(ranks[i].ended_ns - since_ns < LONG_S / 2 * 1000000000ull);
        CHECK_INT(ranks[i].status, ZERO_E_INTERRUPTED);
        CHECK_CONTAINS(ranks[i].error.message, part);
    }
}

/* A rank that its user interrupts does not wait for an absent rank; ranks that wait for its message receive the
 * interruption. */
static void interrupted_while_one_is_absent(void) {
    static const uint32_t without_0[] = {1, 2}, without_1[] = {0, 2};
    struct rank ranks[2];
    struct host hosts[2] = {0};
    start_interruptible(ranks, without_0, 1, 2, free_port(), hosts);
    interrupt(ranks, 1, 0, hosts, "interrupted while rank 1 waited for rank 0 of 2 (localhost:");
    hosts[0].stop = false;
    start_interruptible(ranks, without_1, 1, 2, free_port(), hosts);
    interrupt(ranks, 1, 0, hosts, "interrupted while rank 0 waited for rank 1 of 2 (localhost:");
    hosts[0].stop = false;
    hosts[0].taken = &ranks[0].peers[2].socket[0]; /* when rank 2 has met rank 0 */
    start_interruptible(ranks, without_1, 2, 3, free_port(), hosts);
    interrupt(ranks, 2, 0, hosts, "interrupted while rank 0 waited for rank 1 of 3 (localhost:");
}

/* ---- ranks that end while others wait ---- */

/* Rank 0 of three and rank 2, which rank 0 has taken, and which cannot reach rank 1: the test plays that one. */
struct stuck {
    struct rank ranks[2];
    struct host hosts[2];
    int one, unheard;
};

static void get_stuck(struct stuck *s) {
    static const uint32_t numbers[] = {0, 2};
    struct place places[3];
    struct seals seals;
    struct sockaddr_in any = {.sin_family = AF_INET};
    uint32_t port = free_port();
    *s = (struct stuck){.unheard = socket(AF_INET, SOCK_STREAM, 0)};
    CHECK_INT(bind(s->unheard, (struct sockaddr *)&any, sizeof any), 0);
    start_interruptible(s->ranks, numbers, 2, 3, port, s->hosts);
    s->one = greet_rank_0(port, 1, 3, socket_port(s->unheard), &seals);
    hear_places(s->one, 3, places);
    await_two_looks(&s->hosts[1]);
}

/* Both soon have the same failure. */
static void check_stuck(struct stuck *s, uint64_t since_ns, zero_status status, const char *part) {
    finish(s->ranks, 2);
    for (int i = 0; i < 2; i++) {
        CHECK(s->ranks[i].ended_ns - since_ns < LONG_S / 2 * 1000000000ull);
        CHECK_INT(s->ranks[i].status, status);
        CHECK_CONTAINS(s->ranks[i].error.message, part);
    }
    close(s->one), close(s->unheard);
}

static void interrupted_when_all_have_come(void) {
    static const char *const parts[] = {"interrupted while rank 0 waited for ranks 1, 2 of 3 (localhost:",
                                        "interrupted while rank 2 waited for rank"};
    for (int i = 0; i < 2; i++) {
        struct stuck s;
        get_stuck(&s);
        uint64_t since_ns = clock_now_ns();
        atomic_store(&s.hosts[i].stop, true);
        check_stuck(&s, since_ns, ZERO_E_INTERRUPTED, parts[i]);
    }
}

static void a_rank_ends_when_all_have_come(void) {
    struct stuck s;
    get_stuck(&s);
    uint64_t since_ns = clock_now_ns();
    shutdown(s.one, SHUT_WR);
    check_stuck(&s, since_ns, ZERO_E_PEER, "rank 1 of 3 ended before all ranks had met");
    for (int i = 0; i < 2; i++) CHECK_INT(s.ranks[i].error.rank, 1);
}

/* Before all have come, the process may be started again. */
static void a_rank_ends_and_comes_again(void) {
    struct rank ranks[3];
    struct seals seals;
    uint32_t port = free_port();
    start(ranks, in_order, 1, 3, LONG_S, port);
    for (int i = 0; i < 2; i++) close(greet_rank_0(port, 1, 3, 1, &seals));
    start(ranks + 1, in_order + 1, 2, 3, LONG_S, port);
    check_met(ranks, 3);
}

/* Rank 0 tells an interruption to the ranks that have come. */
static void rank_0_passes_an_interruption_on(void) {
    struct zero_error error = {.code = ZERO_E_INTERRUPTED, .rank = 2, .message = "rank 2 was interrupted"};
    struct verdict verdict = verdict_make(0, ZERO_E_INTERRUPTED, &error), heard;
    struct rank rank;
    struct seals seals[2];
    uint32_t port = free_port();
    start(&rank, in_order, 1, 4, LONG_S, port);
    int one = greet_rank_0(port, 1, 4, 1, &seals[0]), two = greet_rank_0(port, 2, 4, 1, &seals[1]);
    CHECK(verdict_send(two, &seals[1], &verdict));
    CHECK(verdict_receive(one, &seals[0], 4, &heard, soon()));
    CHECK_INT(heard.code, ZERO_E_INTERRUPTED);
    CHECK_STRING(heard.message, error.message);
    finish(&rank, 1);
    CHECK_INT(rank.status, ZERO_E_INTERRUPTED);
    CHECK_STRING(rank.error.message, error.message);
    CHECK_INT(rank.error.rank, 2);
    close(one), close(two);
}

/* The test plays rank 0. */
static void an_interrupted_rank_tells_rank_0(void) {
    struct seals seals;
    struct verdict heard;
    struct rank rank;
    struct host host = {0};
    int listener = socket_listen(NULL, 0);
    start_interruptible(&rank, in_order + 1, 1, 3, socket_port(listener), &host);
    int fd = take_caller(listener, &seals);
    await_two_looks(&host);
    atomic_store(&host.stop, true);
    finish(&rank, 1);
    CHECK_INT(rank.status, ZERO_E_INTERRUPTED);
    CHECK(verdict_receive(fd, &seals, 3, &heard, soon()));
    CHECK_INT(heard.code, ZERO_E_INTERRUPTED);
    CHECK_STRING(heard.message, rank.error.message);
    close(fd), close(listener);
}

/* A host that interrupts its rank just when rank 0's last word has come. */
struct late_host {
    struct host host;
    int fd;
    struct seals *seals;
};

static bool interrupt_late(void *user) {
    struct late_host *late = user;
    struct zero_error error;
    if (!ask(&late->host)) return false;
    error_clear(&error);
    struct verdict met = verdict_make(77, ZERO_OK, &error);
    return verdict_send(late->fd, late->seals, &met);
}

/* The ranks have met: the first call of the communicator is interrupted, and not the rendezvous. The test plays rank 0. */
static void an_interruption_comes_too_late(void) {
    struct seals seals[RENDEZVOUS_LANES];
    struct late_host late = {.seals = seals};
    int listener = socket_listen(NULL, 0), fd[RENDEZVOUS_LANES];
    struct rank rank = {.options = {.host = "localhost",
                                    .port = socket_port(listener),
                                    .rank = 1,
                                    .size = 2,
                                    .timeout_s = LONG_S,
                                    .interrupted = interrupt_late,
                                    .interrupted_user = &late}};
    pthread_create(&rank.thread, NULL, run, &rank);
    late.fd = fd[0] = take_caller(listener, &seals[0]);
    tell_places(fd[0], &seals[0], 2, rank.options.port);
    for (uint32_t lane = 1; lane < RENDEZVOUS_LANES; lane++) fd[lane] = take_caller(listener, &seals[lane]);
    await_two_looks(&late.host);
    atomic_store(&late.host.stop, true);
    finish(&rank, 1);
    if (!CHECK_INT(rank.status, ZERO_OK)) fprintf(stderr, "%s\n", rank.error.message);
    rendezvous_close(rank.peers, 2);
    for (uint32_t lane = 0; lane < RENDEZVOUS_LANES; lane++) close(fd[lane]);
    close(listener);
}

/* ---- ports that the kernel gives to callers ---- */

static bool enter_own_network(void) {
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) return false;
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    bool good = ioctl(any, SIOCSIFFLAGS, &lo) == 0;
    close(any);
    return good;
}

/* Its callers have 32 ports: rank 1 soon calls from the port where rank 0 will listen. */
static bool enter_narrow_network(void) {
    FILE *range = enter_own_network() ? fopen("/proc/sys/net/ipv4/ip_local_port_range", "w") : NULL;
    if (!range) return false;
    bool good = fputs("40000 40031", range) >= 0;
    return fclose(range) == 0 && good;
}

static void no_rank_calls_itself(void) {
    if (!enter_narrow_network()) {
        printf("left out: a network of its own is not permitted: %s\n", strerror(errno));
        return;
    }
    for (uint32_t port = 40000; port < 40004; port++) {
        struct rank ranks[3];
        static const uint32_t numbers[] = {1, 2, 0};
        start(ranks, numbers, 2, 3, SHORT_S, port);
        usleep(1000000);
        start(ranks + 2, numbers + 2, 1, 3, SHORT_S, port);
        finish(ranks, 3);
        for (uint32_t r = 0; r < 3; r++) {
            if (!CHECK_INT(ranks[r].status, ZERO_OK)) fprintf(stderr, "%s\n", ranks[r].error.message);
            rendezvous_close(ranks[r].peers, 3);
        }
    }
}

/* A message for which a verdict has no room loses its end, between two characters. */
static void a_long_message_stays_utf8(void) {
    enum { CHARACTERS = 510 };
    struct zero_error error = {.code = ZERO_E_IO, .message = "x"};
    for (int i = 0; i < CHARACTERS; i++) memcpy(error.message + 1 + 2 * i, "\xc3\xa9", 2);
    struct verdict verdict = verdict_make(1, ZERO_E_IO, &error);
    CHECK(strlen(verdict.message) < strlen(error.message));
    CHECK(utf8_is(verdict.message));
}

/* Cases that wait until a limit is over: one process for each, so that all take as long as the longest one. Each has a network of its
 * own, where no other case takes the ports that it has found free; where that is not permitted they come one after another. */
static void (*const waiting[])(void) = {no_rank_calls_itself,
                                        impostors_are_counted,
                                        rank_0_listens_at_one_address,
                                        messages_name_the_place,
                                        an_early_rank_waits_for_rank_0,
                                        a_slow_rank_calls_again,
                                        what_a_caller_costs,
                                        a_rank_never_comes,
                                        two_have_one_number,
                                        one_has_another_size,
                                        nobody_to_meet};
enum { WAITING = sizeof waiting / sizeof *waiting };

static pid_t start_case(void (*run)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child) return child;
    if (run != no_rank_calls_itself) enter_own_network();
    run();
    exit(check_end());
}

static bool ends_well(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool networks_are_permitted(void) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(!enter_own_network());
    return ends_well(child);
}

static void end_case(int i, pid_t child) {
    bool well = ends_well(child);
    if (!well) printf("waiting case %d failed\n", i);
    CHECK(well);
}

int main(void) {
    pid_t children[WAITING];
    bool together = networks_are_permitted();
    for (int i = 0; i < WAITING; i++) {
        children[i] = start_case(waiting[i]);
        if (!together) end_case(i, children[i]);
    }
    a_long_message_stays_utf8();
    interrupted_while_one_is_absent();
    interrupted_when_all_have_come();
    rank_0_passes_an_interruption_on();
    an_interrupted_rank_tells_rank_0();
    an_interruption_comes_too_late();
    a_rank_ends_and_comes_again();
    a_rank_ends_when_all_have_come();
    for (uint32_t count = 2; count <= RANKS; count++) all_meet(count);
    ranks_prove_the_secret();
    a_repeated_proof_is_refused();
    a_false_rank_0(false, ZERO_E_ARGUMENT, "has another or none");
    a_false_rank_0(true, ZERO_E_PEER, "does not answer as rank 0 does");
    rank_0s_word_counts();
    strangers_are_hung_up_on();
    a_crowd_keeps_nobody_out();
    a_call_for_another_rank_is_refused();
    strangers_take_no_last_socket();
    another_program_has_the_port();
    for (int i = 0; together && i < WAITING; i++) end_case(i, children[i]);
    return check_end();
}
