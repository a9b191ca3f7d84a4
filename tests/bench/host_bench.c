/* What a device has of its host: copies over the link, the host's memory, and AdamW in it, alone and while copies run. The figures are
 * those of an entry of hosts in configs/hardware.json: device_per_s (in, out), memory_per_s (memory, and what `together` adds up to) and
 * update_per_s (adamw).
 *
 *   host_bench [--device cuda|host] [--params 268435456] [--mib 256] [--rounds 5] [--threads N] [--json FILE]
 *
 * --params: elements of the update: 28 bytes of each move, with a gradient and parameters of 16 bits. --mib: of one copy. --threads: all
 * cores. One JSON array on stdout, and in FILE: medians of the rounds, in bytes per second; of `both` and `together` the copies' bytes are
 * those of both ways. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "kernels/optimizer.h"
#include "tests/bench/stream.h"

enum { ROUNDS_MAX = 101, STAGGER_BYTES = 832, UPDATE_BYTES = 28 };
enum { IN, OUT, WAYS };

struct bench {
    const char *device_name, *json;
    double params, mib, rounds, threads;
    struct device *device;
    struct zero_error error;
    void *here[WAYS], *there[WAYS]; /* of each way: in the device's memory, and pinned on the host */
    float *array[3], *gradient;     /* weights and two states; a gradient of 16 bits */
    uint16_t *out;
    FILE *to;
    bool follows; /* of the array's objects, not the first */
};

static void must(struct bench *b, zero_status status) {
    if (status == ZERO_OK) return;
    fprintf(stderr, "host_bench: %s\n", b->error.message);
    exit(1);
}

static void *claim(struct bench *b, uint64_t bytes, enum device_memory kind) {
    void *memory = b->device->ops->allocate(b->device, bytes, kind);
    if (memory) return memory;
    printf("skipped: no %llu bytes of memory\n", (unsigned long long)bytes);
    exit(0);
}

static uint64_t copy_bytes(const struct bench *b) { return (uint64_t)b->mib << 20; }

static void open_all(struct bench *b) {
    struct device_options options = {.index = -1};
    bool host = strcmp(b->device_name, "host") == 0;
    must(b, device_table[host ? DEVICE_HOST : DEVICE_CUDA]->open(&options, &b->device, &b->error));
    uint64_t each = (uint64_t)b->params * sizeof(float) + STAGGER_BYTES;
    char *memory = claim(b, 5 * each, DEVICE_PINNED);
    for (int i = 0; i < 3; i++) b->array[i] = (float *)(memory + i * each);
    b->gradient = (float *)(memory + 3 * each), b->out = (uint16_t *)(memory + 4 * each);
    memset(memory, 0, 5 * each);
    for (int way = 0; way < WAYS; way++) {
        b->here[way] = claim(b, copy_bytes(b), DEVICE_MEMORY);
        b->there[way] = claim(b, copy_bytes(b), DEVICE_PINNED);
        memset(b->there[way], 0, copy_bytes(b));
    }
}

/* ---- work ---- */

static uint64_t start_copy(struct bench *b, int way) {
    uint64_t ticket;
    void *to = way == IN ? b->here[way] : b->there[way], *from = way == IN ? b->there[way] : b->here[way];
    must(b, b->device->ops->copy(b->device, way == IN ? DEVICE_IN : DEVICE_OUT, to, from, copy_bytes(b),
                                 &ticket, &b->error));
    return ticket;
}

static bool is_done(struct bench *b, uint64_t ticket) {
    bool done = false;
    must(b, b->device->ops->test(b->device, ticket, &done, &b->error));
    return done;
}

static void update(struct bench *b) {
    const struct optimizer *adamw = optimizer_find("adamw");
    struct optimizer_scalars scalars;
    optimizer_prepare(adamw, &adamw->defaults, 1, &scalars);
    optimizer_update(adamw, &(struct optimizer_args){.count = (uint64_t)b->params,
                                                     .master = b->array[0],
                                                     .state = {b->array[1], b->array[2]},
                                                     .gradient = b->gradient,
                                                     .gradient_dtype = DTYPE_BF16,
                                                     .gradient_scale = 1,
                                                     .out = b->out,
                                                     .out_dtype = DTYPE_BF16,
                                                     .scalars = &scalars,
                                                     .threads = (uint32_t)b->threads});
}

static void stream(struct bench *b) {
    stream_run(&(struct stream_args){.count = (uint64_t)b->params,
                                     .array = {b->array[0], b->array[1], b->array[2]},
                                     .array_count = 3,
                                     .source = b->gradient,
                                     .source_bytes = 2,
                                     .target = b->out,
                                     .keep = 1,
                                     .threads = (uint32_t)b->threads});
}

/* ---- rounds ---- */

static double seconds_since(uint64_t start) { return (double)(clock_now_ns() - start) * 1e-9; }

static double copies(struct bench *b, bool in, bool out) {
    uint64_t start = clock_now_ns(), ticket[WAYS] = {0};
    if (in) ticket[IN] = start_copy(b, IN);
    if (out) ticket[OUT] = start_copy(b, OUT);
    while ((in && !is_done(b, ticket[IN])) || (out && !is_done(b, ticket[OUT]))) usleep(20);
    return seconds_since(start);
}

/* Copies of both ways go on as long as the update does. Returns the copied bytes. */
static double together(struct bench *b, double *out_update_s, double *out_all_s) {
    enum { AHEAD = 8 };
    uint64_t start = clock_now_ns(), ticket[WAYS] = {0}, sent = 0;
    double expected_s = *out_update_s;
    double each_s = copies(b, true, true);
    uint64_t pairs = (uint64_t)(1.2 * expected_s / each_s) + AHEAD;
    start = clock_now_ns();
    for (uint64_t i = 0; i < pairs && i < DEVICE_QUEUE_MAX; i++, sent++)
        for (int way = 0; way < WAYS; way++) ticket[way] = start_copy(b, way);
    update(b);
    *out_update_s = seconds_since(start);
    while (!is_done(b, ticket[IN]) || !is_done(b, ticket[OUT])) usleep(20);
    *out_all_s = seconds_since(start);
    return 2. * (double)sent * (double)copy_bytes(b);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void say(struct bench *b, const char *name, double bytes, double *seconds) {
    qsort(seconds, (size_t)b->rounds, sizeof *seconds, compare);
    double median = seconds[(int)b->rounds / 2];
    FILE *to[] = {stdout, b->to};
    for (int i = 0; i < 2 && to[i]; i++)
        fprintf(to[i], "%s{\"name\": \"%s\", \"bytes\": %.0f, \"seconds\": %.6f, \"bytes_per_second\": %.4g}",
                b->follows ? ",\n " : "[", name, bytes, median, bytes / median);
    b->follows = true;
}

static void measure(struct bench *b) {
    double seconds[ROUNDS_MAX], during[ROUNDS_MAX], moved = UPDATE_BYTES * b->params, copied = 0;
    static const struct {
        const char *name;
        bool in, out;
    } ways[] = {{"in", true, false}, {"out", false, true}, {"both", true, true}};
    for (int w = 0; w < 3; w++) {
        copies(b, ways[w].in, ways[w].out);
        for (int i = 0; i < b->rounds; i++) seconds[i] = copies(b, ways[w].in, ways[w].out);
        say(b, ways[w].name, (double)copy_bytes(b) * (ways[w].in + ways[w].out), seconds);
    }
    for (int i = -1; i < b->rounds; i++) {
        uint64_t start = clock_now_ns();
        stream(b);
        if (i >= 0) seconds[i] = seconds_since(start);
    }
    say(b, "memory", moved, seconds);
    for (int i = -1; i < b->rounds; i++) {
        uint64_t start = clock_now_ns();
        update(b);
        if (i >= 0) seconds[i] = seconds_since(start);
    }
    say(b, "adamw", moved, seconds);
    double alone = seconds[(int)b->rounds / 2];
    for (int i = 0; i < b->rounds; i++) {
        during[i] = alone;
        copied = together(b, &during[i], &seconds[i]);
    }
    say(b, "adamw, while copies run", moved, during);
    say(b, "together", moved + copied, seconds);
}

int main(int argc, char **argv) {
    static struct bench b = {.device_name = "cuda", .params = 268435456, .mib = 256, .rounds = 5};
    b.threads = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const struct {
        const char *name, **text;
        double *number;
    } options[] = {
        {"--device", &b.device_name, NULL}, {"--params", NULL, &b.params},   {"--mib", NULL, &b.mib},
        {"--rounds", NULL, &b.rounds},      {"--threads", NULL, &b.threads}, {"--json", &b.json, NULL}};
    for (int i = 1; i < argc; i += 2) {
        size_t o = 0, count = sizeof options / sizeof *options;
        while (o < count && strcmp(options[o].name, argv[i]) != 0) o++;
        if (o == count || i + 1 == argc) {
            fprintf(stderr, "host_bench: %s: no such option, or no value: see the head of the source\n",
                    argv[i]);
            return 2;
        }
        if (options[o].text) *options[o].text = argv[i + 1];
        if (options[o].number) *options[o].number = strtod(argv[i + 1], NULL);
    }
    if (!(b.rounds >= 1 && b.rounds <= ROUNDS_MAX)) b.rounds = ROUNDS_MAX;
    b.to = b.json ? fopen(b.json, "a") : NULL;
    open_all(&b);
    measure(&b);
    printf("]\n");
    if (b.to) fprintf(b.to, "]\n"), fclose(b.to);
    b.device->ops->close(b.device);
    return 0;
}
