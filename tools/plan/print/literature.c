#include "tools/plan/print/literature.h"

#include <stdlib.h>

#include "engine/api/inside.h"
#include "tools/plan/print/figure.h"

#define ZERO_TABLE "ZeRO, table 1"
#define ZERO_FORMULA "ZeRO, section 5"
#define INFINITY_TABLE "ZeRO-Infinity, figure 2a"

#define SAME "the same 2 + 2 + 12 bytes"
#define SMALL "the same; vectors stay whole (stage3_param_persistence_threshold)"
#define WHOLE "the same, and beside the whole gradient the reduced shard"
#define FLIGHT "the same; a unit's whole gradient lives only until it is reduced, in `flight`"

static const struct literature_row rows[] = {
    {"7.5B", 64, {.stage = 0}, 2, LITERATURE_RANK, 120e9, 7.5e9, ZERO_TABLE, SAME},
    {"7.5B", 64, {.stage = 1}, 2, LITERATURE_RANK, 31.4e9, 7.5e9, ZERO_TABLE, WHOLE},
    {"7.5B", 64, {.stage = 2}, 1, LITERATURE_RANK, 16.6e9, 7.5e9, ZERO_TABLE, FLIGHT},
    {"7.5B", 64, {.stage = 3}, 1, LITERATURE_RANK, 1.88e9, 7.5e9, ZERO_TABLE, SMALL},
    {"70B", 8, {.stage = 0}, 2, LITERATURE_RANK, 1120e9, 70e9, ZERO_FORMULA, SAME},
    {"70B", 8, {.stage = 1}, 2, LITERATURE_RANK, 385e9, 70e9, ZERO_FORMULA, WHOLE},
    {"70B", 8, {.stage = 2}, 1, LITERATURE_RANK, 262.5e9, 70e9, ZERO_FORMULA, FLIGHT},
    {"70B", 8, {.stage = 3}, 1, LITERATURE_RANK, 140e9, 70e9, ZERO_FORMULA, SMALL},
    {"70B",
     8,
     {.stage = 3, .optimizer = ZERO_CPU},
     1,
     LITERATURE_DEVICE,
     35e9,
     70e9,
     ZERO_FORMULA,
     "it keeps gradients on the device; here they leave, as ZeRO-Offload's (Ren et al. 2021): 2 bytes, not "
     "4"},
    {"175B", 128, {.stage = 3}, 1, LITERATURE_RANK, 21.9e9, 175e9, ZERO_FORMULA, SMALL},
    {"175B", 256, {.stage = 3}, 1, LITERATURE_RANK, 10.9e9, 175e9, ZERO_FORMULA, SMALL},
    {"175B", 512, {.stage = 3}, 1, LITERATURE_RANK, 5.47e9, 175e9, ZERO_FORMULA, SMALL},
    {"1T", 1024, {.stage = 3}, 1, LITERATURE_RANK, 15.6e9, 1e12, ZERO_TABLE, SMALL},
    {"1T",
     512,
     {.stage = 3, .optimizer = ZERO_NVME, .params = ZERO_NVME},
     1,
     LITERATURE_ALL,
     18.31 * 1099511627776.,
     1.0066e12,
     INFINITY_TABLE,
     "it counts 20 bytes, with gradients in fp32 too; here they are bf16, and a master on the drive is the "
     "16 bits that its bf16 parameter lacks: 2 + 2 + 2 + 8 bytes"},
};

const struct literature_row *literature_at(uint32_t index) {
    return index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

static uint64_t counted(const struct literature_row *row, const zero_plan *plan, const struct plan *p) {
    uint64_t all = plan->param_bytes + plan->grad_bytes + plan->state_bytes + plan->master_bytes, device = 0;
    static const enum memory_row kinds[] = {MEMORY_PARAMETERS, MEMORY_GRADIENTS, MEMORY_STATE0, MEMORY_STATE1,
                                            MEMORY_MASTERS};
    for (int i = 0; i < 5; i++)
        if (p->row_tier[kinds[i]] == TIER_DEVICE) device += p->row_bytes[kinds[i]];
    return row->of == LITERATURE_DEVICE ? device : row->of == LITERATURE_ALL ? all * row->ranks : all;
}

static zero_status plan(const struct literature_row *row, const struct shapes *shapes, zero_engine *engine,
                        double *out_bytes, double *out_parameters) {
    zero_plan planned = {.struct_size = sizeof planned};
    zero_slot unused; /* nothing is gathered */
    TRY(shapes_declare(shapes, (struct shapes_recompute){.blocks = row->cell.recompute}, engine, &unused,
                       NULL));
    TRY(zero_engine_plan(engine, &planned));
    *out_bytes = (double)counted(row, &planned, &engine_blueprint(engine)->plan);
    *out_parameters = (double)planned.params;
    return ZERO_OK;
}

zero_status literature_bytes(const struct literature_row *row, double *out_bytes, double *out_parameters,
                             struct zero_error *error) {
    const struct shapes *shapes = shapes_find(row->model);
    char *general = edit_default(1, DTYPE_BF16),
         *batched = general ? edit_batch(general, 1, row->micro_steps) : NULL;
    char *text = batched ? edit_cell(batched, &row->cell, shapes) : NULL;
    zero_runtime runtime = {.struct_size = sizeof runtime,
                            .threads = 1,
                            .plan_ranks = row->ranks,
                            .cuda = row->of == LITERATURE_DEVICE};
    zero_engine *engine = text ? zero_engine_init_with(text, &runtime) : NULL;
    free(general), free(batched), free(text);
    zero_status status = engine ? plan(row, shapes, engine, out_bytes, out_parameters) : ZERO_E_INTERNAL;
    if (status) error_set(error, status, "%s on %u ranks: %s", row->model, row->ranks, zero_last_error());
    zero_engine_destroy(engine);
    return status;
}

zero_status literature_print(FILE *out, struct zero_error *error) {
    static const char *const of[] = {"a rank", "its device", "all ranks"};
    const struct literature_row *row;
    fprintf(out, "%-6s%6s%7s %-12s%-10s%10s%10s%8s%8s  %s\n", "model", "ranks", "stage", "offload",
            "bytes of", "source's", "ours", "ratio", "/param", "source; why they differ");
    for (uint32_t i = 0; (row = literature_at(i)); i++) {
        double bytes, parameters;
        TRY(literature_bytes(row, &bytes, &parameters, error));
        double per_source = row->bytes / row->parameters, per_ours = bytes / parameters;
        fprintf(out, "%-6s%6u%7u %-12s%-10s%10s%10s%8.3f%8.3f  %s; %s\n", row->model, row->ranks,
                row->cell.stage,
                row->cell.optimizer == ZERO_NVME  ? "both nvme"
                : row->cell.optimizer == ZERO_CPU ? "state cpu"
                                                  : "none",
                of[row->of], figure_bytes(row->bytes).chars, figure_bytes(bytes).chars, bytes / row->bytes,
                per_ours / per_source, row->source, row->why);
    }
    fputs("\n/param: ratio of the bytes per parameter. ZeRO: Rajbhandari et al. 2020; ZeRO-Infinity: "
          "Rajbhandari et al. 2021. Both reckon with\nround numbers of parameters, here models have their "
          "published shapes (`zero plan --models`), padded to ranks and cache lines.\nAt stages 0 and 1 "
          "gradients are reduced in the last of two micro-steps, as ZeRO's table supposes; with one "
          "micro-step\nno whole gradient is kept at stage 1, which then takes what stage 2 does.\n",
          out);
    return ZERO_OK;
}
