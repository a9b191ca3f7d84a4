/* RUN/run.json, which `zero report` reads. */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/numbers/dtype.h"
#include "engine/base/utf8.h"
#include "engine/checkpoint/json.h"
#include "engine/config/text/tree.h"
#include "offload/tier.h"
#include "tools/run_directory/run_directory.h"
#include "tools/text/format.h"

static void write_text(FILE *file, const char *before, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs(before, file);
    json_write_string(file, text);
}

static void write_settings(FILE *file, const struct run_directory *run, const struct run_facts *facts) {
    const struct config *c = run->request->config;
    uint32_t ranks = zero_engine_size(run->engine), threads = zero_engine_threads(run->engine);
    write_text(file, " \"settings\": [\n  ", "ZeRO stage %" PRIu64, c->stage);
    if (c->optimizer_tier)
        write_text(file, ",\n  ", "optimizer state on %s%s", c->terms.device_share > 0 ? "device and " : "",
                   tier_table[c->optimizer_tier]->name);
    if (c->param_tier) write_text(file, ",\n  ", "parameters on %s", tier_table[c->param_tier]->name);
    write_text(file, ",\n  ", "%" PRIu32 " rank%s, %" PRIu32 " CPU thread%s each", ranks,
               ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
    write_text(file, ",\n  ", "%s, %s", dtype_name((enum dtype)c->compute_dtype), c->optimizer.name);
    write_text(file, ",\n  ", "%" PRIu64 " samples of %" PRIu32 " tokens per step", c->train_batch,
               facts->model->context);
    fputs("],\n", file);
}

static void write_memory(FILE *file, const zero_engine *engine) {
    zero_memory_row row = {.struct_size = sizeof row};
    fputs(" \"memory\": [", file);
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        fprintf(file, "%s\n  {\"tier\": \"%s\", \"name\": ", i ? "," : "", tier_table[row.tier]->name);
        json_write_string(file, row.name);
        fprintf(file, ", \"planned\": %" PRIu64 ", \"measured\": %" PRIu64 "}", row.planned, row.measured);
    }
    fputs("]\n}\n", file);
}

static void write_run(FILE *file, const struct run_directory *run, const struct run_facts *facts,
                      const char *kept) {
    const struct gpt_config *model = facts->model;
    const char *config = run->request->config_path;
    uint32_t ranks = zero_engine_size(run->engine);
    write_text(file, "{\n \"version\": ", "%s", zero_version());
    write_text(file, ",\n \"model\": ", "%s, %s parameters: %u layers, %u wide", gpt_title(model),
               format_count((double)gpt_parameters(model)).chars, model->layers, model->width);
    fputs(",\n \"config\": ", file);
    json_write_string(file, access(config, F_OK) ? "configuration" /* a text */
                            : utf8_is(config)    ? config
                                                 : "a path that is not UTF-8");
    fputs(",\n", file);
    write_settings(file, run, facts);
    fprintf(file,
            " \"steps\": %" PRIu64 ",\n \"drive_read_bytes\": %" PRIu64 ",\n \"drive_write_bytes\": %" PRIu64
            ",\n",
            facts->steps, facts->plan->drive_read_bytes * ranks, facts->plan->drive_write_bytes * ranks);
    if (facts->wire_bytes) fprintf(file, " \"wire_bytes\": %" PRIu64 ",\n", facts->wire_bytes);
    if (*facts->peak) write_text(file, " \"peak\": ", "%s", facts->peak), fputs(",\n", file);
    if (kept) fprintf(file, " \"kept\": %s,\n", kept);
    write_memory(file, run->engine);
}

char *run_json(const struct run_directory *run, const struct run_facts *facts) {
    struct json_object *object = run->request->kept;
    char *text = NULL, *kept = object ? config_tree_print(object, JSON_C_TO_STRING_NOSLASHESCAPE) : NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    bool whole = file && (kept || !object);
    if (file) {
        write_run(file, run, facts, kept);
        whole &= !ferror(file);
        whole &= fclose(file) == 0;
    }
    free(kept);
    return whole ? text : (free(text), NULL);
}
