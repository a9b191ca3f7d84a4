#include "tests/engine/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/check.h"

enum { PORT = 29500, MTU = 9000, QUEUE_MAX = 4096 };

void *network_share(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ---- a rank's namespace ---- */

static bool configure(const char *name, uint32_t rank) {
    struct ifreq address = {0}, mask = {0}, mtu = {.ifr_mtu = MTU}, up = {.ifr_flags = IFF_UP | IFF_RUNNING},
                 lo = up;
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr = {htonl(0x0a4d0001 + rank)}}; /* 10.77.0.1 and so on */
    memcpy(&address.ifr_addr, &in, sizeof in);
    in.sin_addr.s_addr = htonl(0xffffff00);
    memcpy(&mask.ifr_netmask, &in, sizeof in);
    struct ifreq *const all[] = {&address, &mask, &mtu, &up};
    for (size_t i = 0; i < 4; i++) snprintf(all[i]->ifr_name, IFNAMSIZ, "%s", name);
    snprintf(lo.ifr_name, IFNAMSIZ, "lo");
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    bool good = ioctl(any, SIOCSIFADDR, &address) == 0 && ioctl(any, SIOCSIFNETMASK, &mask) == 0 &&
                ioctl(any, SIOCSIFMTU, &mtu) == 0 && ioctl(any, SIOCSIFFLAGS, &up) == 0 &&
                ioctl(any, SIOCSIFFLAGS, &lo) == 0;
    int why = errno;
    close(any);
    errno = why;
    return good;
}

/* The device of a new namespace, which this process enters; -1 with errno. */
static int enter(uint32_t rank) {
    struct ifreq device = {.ifr_name = "tun0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) return -1;
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &device) || !configure(device.ifr_name, rank)) return -1;
    return fd;
}

union descriptor {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
};

static void send_descriptor(int to, int fd) {
    union descriptor control = {0};
    int why = fd < 0 ? errno : 0;
    struct iovec bytes = {&why, sizeof why};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.room, message.msg_controllen = sizeof control.room;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    if (sendmsg(to, &message, 0) < 0) _exit(3);
}

static int receive_descriptor(int from) {
    union descriptor control = {0};
    int why = 0, fd = -1;
    struct iovec bytes = {&why, sizeof why};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    if (recvmsg(from, &message, 0) < 0) return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head) memcpy(&fd, CMSG_DATA(head), sizeof fd);
    if (fd < 0) errno = why;
    return fd;
}

/* ---- carrying packets ---- */

struct packet {
    uint64_t due_ns;
    uint32_t to, bytes;
    uint8_t data[MTU];
};

struct carrier {
    const struct network *network;
    int device[NETWORK_RANKS_MAX];
    uint64_t random, free_ns[NETWORK_RANKS_MAX]; /* when a rank's line has sent all so far */
    struct packet *queue[QUEUE_MAX], *spare[QUEUE_MAX];
    uint32_t queued, spares;
};

static double draw(struct carrier *c) {
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(c->random >> 11) * 0x1p-53;
}

static bool is_cut(const struct network *n, uint32_t from, uint32_t to, uint64_t now_ns) {
    if (!n->cut_rank || atomic_load(n->steps) < n->cut_step) return false;
    unsigned long long began = 0;
    if (atomic_compare_exchange_strong(n->cut_ns, &began, now_ns)) began = now_ns;
    if ((double)(now_ns - began) * 1e-9 > n->cut_for_s) return false;
    return n->one_way ? from >= n->cut_rank && to < n->cut_rank : (from < n->cut_rank) != (to < n->cut_rank);
}

/* Takes a packet from the rank's device, and decides what becomes of it. False: there is none. */
static bool accept_packet(struct carrier *c, uint32_t from) {
    const struct network *n = c->network;
    struct packet *p = c->spares ? c->spare[--c->spares] : malloc(sizeof *p);
    ssize_t got = read(c->device[from], p->data, sizeof p->data);
    uint64_t now_ns = clock_now_ns(), begin_ns = now_ns > c->free_ns[from] ? now_ns : c->free_ns[from];
    bool ip = got >= 20 && p->data[0] >> 4 == 4;
    p->to = ip ? p->data[19] - 1u : UINT32_MAX;
    p->bytes = got > 0 ? (uint32_t)got : 0;
    bool lost =
        p->to >= n->ranks || draw(c) < n->loss || is_cut(n, from, p->to, now_ns) || c->queued == QUEUE_MAX;
    double delay_s = n->delay_s + n->jitter_s * draw(c);
    if (got <= 0 || lost) {
        c->spare[c->spares++] = p;
        return got > 0;
    }
    c->free_ns[from] = begin_ns + (n->bytes_per_s > 0 ? (uint64_t)(p->bytes / n->bytes_per_s * 1e9) : 0);
    p->due_ns = c->free_ns[from] + (uint64_t)(delay_s * 1e9);
    c->queue[c->queued++] = p;
    return true;
}

/* Hands over what is due. Returns the milliseconds until more is. */
static int deliver(struct carrier *c) {
    uint64_t now_ns = clock_now_ns(), next_ns = now_ns + 20000000;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->queued; i++) {
        struct packet *p = c->queue[i];
        if (p->due_ns > now_ns) {
            if (p->due_ns < next_ns) next_ns = p->due_ns;
            c->queue[kept++] = p;
            continue;
        }
        if (write(c->device[p->to], p->data, p->bytes) < 0) { /* the rank has ended */
        }
        c->spare[c->spares++] = p;
    }
    c->queued = kept;
    return (int)((next_ns - now_ns) / 1000000);
}

static void carry(const struct network *network, const int device[], const pid_t pids[], int status[]) {
    static struct carrier c;
    struct pollfd polls[NETWORK_RANKS_MAX];
    uint32_t left = network->ranks;
    c = (struct carrier){.network = network, .random = network->seed * 0x9e3779b97f4a7c15u + 1};
    for (uint32_t r = 0; r < network->ranks; r++) c.device[r] = device[r], status[r] = -1;
    while (left) {
        for (uint32_t r = 0; r < network->ranks; r++)
            polls[r] = (struct pollfd){.fd = device[r], .events = POLLIN};
        poll(polls, network->ranks, deliver(&c));
        for (uint32_t r = 0; r < network->ranks; r++)
            for (uint32_t i = 0; i < 64 && polls[r].revents & POLLIN && accept_packet(&c, r); i++) continue;
        for (uint32_t r = 0; r < network->ranks; r++)
            if (status[r] < 0 && waitpid(pids[r], &status[r], WNOHANG) == pids[r]) left--;
    }
    while (c.spares) free(c.spare[--c.spares]);
    while (c.queued) free(c.queue[--c.queued]);
}

/* ---- the ranks ---- */

static void be_rank(const struct network *network, uint32_t rank, uint32_t most_s, int parent,
                    void (*body)(const zero_runtime *runtime, void *user), void *user) {
    char go;
    int device = enter(rank);
    send_descriptor(parent, device);
    if (device >= 0) close(device);
    if (read(parent, &go, 1) != 1) _exit(3); /* until all devices are there */
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .rank = rank,
                            .size = network->ranks,
                            .address = "10.77.0.1",
                            .port = PORT,
                            .threads = 1};
    alarm(most_s);
    body(&runtime, user);
    exit(check_end());
}

bool network_run(const struct network *network, uint32_t most_s,
                 void (*body)(const zero_runtime *runtime, void *user), void *user,
                 int status[NETWORK_RANKS_MAX]) {
    pid_t pids[NETWORK_RANKS_MAX];
    int device[NETWORK_RANKS_MAX], line[NETWORK_RANKS_MAX][2], why = 0;
    const uint32_t ranks = network->ranks;
    if (ranks > NETWORK_RANKS_MAX) abort();
    fflush(NULL);
    for (uint32_t r = 0; r < ranks; r++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line[r])) abort();
        pids[r] = fork();
        if (pids[r] == 0) be_rank(network, r, most_s, line[r][1], body, user);
        close(line[r][1]);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        device[r] = receive_descriptor(line[r][0]);
        if (device[r] < 0) why = errno;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        if (why)
            kill(pids[r], SIGKILL);
        else if (write(line[r][0], "g", 1) != 1)
            abort();
    }
    if (!why) carry(network, device, pids, status);
    for (uint32_t r = 0; r < ranks; r++) {
        if (why) waitpid(pids[r], &status[r], 0);
        if (device[r] >= 0) close(device[r]);
        close(line[r][0]);
    }
    errno = why;
    return !why;
}
