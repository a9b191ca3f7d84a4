/* One rank of mpirun's that trains over a drive until it is killed or hears of a failure.
 * Scratch goes to the drive and comes back, too.
 * endless_trainer CONFIG DIRECTORY: writes DIRECTORY/pid.RANK at its start, DIRECTORY/ready.RANK after a step. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/engine/plain.h"

static const struct plain_param model[] = {
    {"a", "a.w", 33000, 0, NULL}, {"b", "b.w", 33000, 0, NULL}, {"c", "c.w", 33000, 0, NULL}};

static void write_pid(const char *directory, const char *name) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[2][1024];
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof path[i], "%s/%s.%s%s", directory, name, rank ? rank : "0", i ? "" : ".new");
    FILE *file = fopen(path[0], "w");
    if (!file) return;
    fprintf(file, "%ld\n", (long)getpid());
    fclose(file);
    rename(path[0], path[1]);
}

enum { PLACE = 65536, PLACES = 4 };

static zero_status step(struct plain *p, uint32_t micros, zero_scratch *scratch) {
    static _Alignas(4096) unsigned char memory[PLACES][PLACE];
    zero_status status = ZERO_OK;
    for (uint64_t i = 0; i < PLACES && !status; i++) status = zero_scratch_store(scratch, i, memory[i]);
    for (uint64_t i = 0; i < PLACES && !status; i++) status = zero_scratch_fetch(scratch, i, memory[i]);
    if (!status) status = plain_step(p, micros, NULL);
    for (uint64_t i = 0; i < PLACES && !status; i++) status = zero_scratch_wait(scratch, i);
    return status;
}

int main(int argc, char **argv) {
    struct plain p;
    if (argc != 3) return 2;
    write_pid(argv[2], "pid");
    zero_engine *engine = zero_engine_init(argv[1]);
    const zero_scratch_needs needs = {
        .struct_size = sizeof needs, .name = "scratch", .place_bytes = PLACE, .places = PLACES};
    zero_scratch *scratch;
    zero_status status = engine ? zero_engine_add_scratch(engine, &needs, &scratch) : ZERO_E_CONFIG;
    if (!status) status = plain_open(&p, engine, model, 3, NULL);
    uint32_t micros = status ? 1 : (uint32_t)zero_engine_use_micros(engine);
    if (!status) status = step(&p, micros, scratch);
    if (!status) write_pid(argv[2], "ready");
    while (!status) status = step(&p, micros, scratch);
    fprintf(stderr, "%s\n", zero_last_error());
    zero_engine_destroy(engine);
    return 1;
}
