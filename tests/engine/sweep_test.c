/* What the calls between steps move to and from the drive: each chunk once, and only the parts that the call needs. Several
 * chunks are in flight, in one slot or in several, with the same bits. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/api/inside.h"
#include "tests/check.h"
#include "tests/engine/disk.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

/* Chunks of 1,024 elements: none ends where a parameter does. Regions are cut into one chunk or many. */
static const struct plain_param model[] = {{"a", "a.w", 20000, 0, NULL},
                                           {"a", "a.v", 70000, 0, NULL},
                                           {"b", "b.w", 900, 0, NULL},
                                           {"c", "c.w", 33333, 0, NULL},
                                           {"c", "c.f", 5000, ZERO_FROZEN, NULL}};

enum { PARAMS = sizeof model / sizeof *model };

static const struct format {
    const char *json;
    bool records; /* a record has masters: a fill writes it */
} formats[] = {{"", false}, {", \"bf16\": {\"enabled\": true}", true}};

struct moved {
    uint64_t read, written;
};

struct run {
    const struct format *format;
    char hash[33];
};

static struct moved count(zero_engine *engine) {
    zero_counters c = {.struct_size = sizeof c};
    CHECK_INT(zero_engine_counters(engine, &c), ZERO_OK);
    return (struct moved){c.drive_read_bytes, c.drive_write_bytes};
}

/* Since the call before. */
static struct moved since(zero_engine *engine, struct moved *before) {
    struct moved now = count(engine), moved = {now.read - before->read, now.written - before->written};
    *before = now;
    return moved;
}

/* All chunks, as they are on the drive. */
static void measure(zero_engine *engine, uint64_t *out_records, uint64_t *out_params) {
    const struct chunk_layout *layout = &engine_blueprint(engine)->plan.layout;
    *out_records = *out_params = 0;
    for (uint32_t r = 0; r < engine_blueprint(engine)->policy.regions; r++)
        for (uint32_t i = 0; i < layout->region[r].chunks; i++) {
            struct chunk c = chunk_layout_at(layout, r, i);
            *out_records += c.state ? chunk_record_bytes(&c) : 0;
            *out_params += c.params ? c.param_bytes : 0;
        }
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    struct disk *disk = disk_create();
    uint64_t records, params;
    char again[33];
    if (!CHECK(engine)) return;
    CHECK_INT(plain_declare(&p, engine, model, PARAMS), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    measure(engine, &records, &params);
    struct moved before = count(engine), moved;
    CHECK_INT(zero_engine_fill(engine, toy_fill, NULL), ZERO_OK);
    moved = since(engine, &before);
    CHECK_INT(moved.read, 0);
    CHECK_INT(moved.written, params + (run->format->records ? records : 0));
    for (int i = 0; i < 2; i++) CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    since(engine, &before);
    CHECK_INT(zero_engine_hash(engine, run->hash), ZERO_OK);
    moved = since(engine, &before);
    CHECK_INT(moved.read, params + (run->format->records ? records : 0));
    CHECK_INT(moved.written, 0);
    CHECK_INT(engine_save(engine, disk_storage(disk), "/run"), ZERO_OK);
    moved = since(engine, &before);
    CHECK_INT(moved.read, params + records);
    CHECK_INT(moved.written, 0);
    CHECK_INT(engine_load(engine, disk_storage(disk), "/run", 0), ZERO_OK);
    moved = since(engine, &before);
    CHECK_INT(moved.read, 0);
    CHECK_INT(moved.written, params + records);
    CHECK_INT(zero_engine_hash(engine, again), ZERO_OK);
    CHECK_STRING(again, run->hash);
    disk_free(disk);
}

/* The hash after it; `slots` 0: without a drive. */
static void train(const struct format *format, uint32_t slots, ranks_fn run_body, struct run *run) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    char json[3000], drive[1200];
    snprintf(drive, sizeof drive, "{\"device\": \"%s\", \"nvme_path\": \"%s/swap\", \"buffer_count\": %u}",
             slots ? "nvme" : "none", directory, slots ? slots : 1);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"optimizer\": {\"type\": \"AdamW\"}, "
             "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, "
             "\"sub_group_size\": 1024, \"offload_optimizer\": %s, \"offload_param\": %s}%s}",
             drive, drive, format->json);
    *run = (struct run){.format = format};
    ranks_run(1, json, run_body, run);
}

static void in_memory(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    if (!CHECK(engine)) return;
    CHECK_INT(plain_open(&p, engine, model, PARAMS, NULL), ZERO_OK);
    for (int i = 0; i < 2; i++) CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    CHECK_INT(zero_engine_hash(engine, run->hash), ZERO_OK);
}

int main(void) {
    static const uint32_t slots[] = {1, 2, 4, 9};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct run expected, run;
        train(&formats[f], 0, in_memory, &expected);
        for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
            train(&formats[f], slots[i], body, &run);
            CHECK_STRING(run.hash, expected.hash);
        }
    }
    return check_end();
}
