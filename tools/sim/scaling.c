#include "tools/sim/scaling.h"

#include <inttypes.h>

#include "tools/plan/print/figure.h"
#include "tools/report/draw.h"

/* ---- the simulations ---- */

static const char *const names[SCALING_MESHES] = {"full shard", "hybrid"};

static zero_status run_point(const struct job *job, uint32_t shards, uint32_t steps, uint64_t seed,
                             struct scaling_point *point, enum scaling_mesh mesh, struct zero_error *error) {
    struct job_ranks r;
    TRY(job_place(job, point->ranks, shards, &r, error));
    r.setup.steps = steps;
    r.setup.seed = seed;
    zero_status status = sim_run(&r.setup, &point->result[mesh], error);
    point->tokens = r.tokens;
    job_release(&r);
    return status ? status : error_pass(error, &point->result[mesh].error);
}

zero_status scaling_run(const struct job *job, uint32_t most, uint32_t steps, uint64_t seed, FILE *progress,
                        struct scaling *out, struct zero_error *error) {
    *out = (struct scaling){0};
    for (uint32_t ranks = 8; ranks <= most && out->points < SCALING_POINTS_MAX; ranks *= 2) {
        struct scaling_point *point = &out->point[out->points++];
        uint32_t node = job->machine.node_ranks < ranks ? job->machine.node_ranks : ranks;
        while (ranks % node) node--;
        point->ranks = ranks;
        if (progress) fprintf(progress, "zero sim: %" PRIu32 " ranks\n", ranks);
        TRY(run_point(job, ranks, steps, seed, point, SCALING_FULL, error));
        TRY(run_point(job, node, steps, seed, point, SCALING_HYBRID, error));
    }
    return out->points
               ? ZERO_OK
               : error_set(error, ZERO_E_ARGUMENT, "scaling begins at 8 ranks: give --ranks 8 or more");
}

static double rate(const struct scaling_point *p, enum scaling_mesh mesh) { /* tokens per second and rank */
    return p->tokens / p->ranks / ((double)p->result[mesh].step_ns * 1e-9);
}

void scaling_csv(const struct scaling *s, FILE *file) {
    fputs("ranks,mesh,step_s,tokens_per_s,tokens_per_s_per_rank,efficiency,compute_s,exposed_communication_s,"
          "wire_bytes_per_rank_and_step,device_bytes_per_rank\n",
          file);
    for (int m = 0; m < SCALING_MESHES; m++)
        for (uint32_t i = 0; i < s->points; i++) {
            const struct scaling_point *p = &s->point[i];
            const struct sim_result *r = &p->result[m];
            uint64_t exposed = r->wait_ns[WAIT_GATHER] + r->wait_ns[WAIT_REDUCE] + r->wait_ns[WAIT_AGREE];
            fprintf(file, "%" PRIu32 ",%s,%.9f,%.3f,%.3f,%.5f,%.9f,%.9f,%" PRIu64 ",%" PRIu64 "\n", p->ranks,
                    names[m], (double)r->step_ns * 1e-9, rate(p, (enum scaling_mesh)m) * p->ranks,
                    rate(p, (enum scaling_mesh)m),
                    rate(p, (enum scaling_mesh)m) / rate(&s->point[0], SCALING_FULL),
                    (double)r->compute_ns * 1e-9, (double)exposed * 1e-9, r->wire_bytes,
                    r->planned_bytes[TIER_DEVICE]);
        }
}

/* What a page of `zero report` has for a plot (tools/report/page.c). */
static const char style[] =
    "text,.unit{font-size:11px;font-weight:400;fill:#59636e}.title{font-size:14px;font-weight:600;fill:#"
    "1f2328}"
    ".grid{stroke:#e6e9ed}"
    "polyline{fill:none;stroke-width:1.8}circle{fill:#fff;stroke-width:1.8}"
    ".c0{stroke:#1f6fb2}.c1{stroke:#d1602b}.f0{fill:#1f6fb2}.f1{fill:#d1602b}"
    ".p rect{fill:transparent}.p text{visibility:hidden}.p:hover rect{fill:#59636e;opacity:.35}"
    ".p:hover text{visibility:visible}";

void scaling_svg(const struct scaling *s, const struct job *job, FILE *file) {
    char note[256], model[64];
    double ranks[SCALING_POINTS_MAX], rates[SCALING_MESHES][SCALING_POINTS_MAX];
    if (job->units)
        snprintf(model, sizeof model, "%s parameters in %" PRIu32 " units",
                 figure_count((double)job->params).chars, job->units);
    else
        snprintf(model, sizeof model, "%s", job->shapes.name);
    snprintf(note, sizeof note,
             "%s on %s, nodes of %" PRIu32 "; hybrid: sharded in a node, copied between nodes", model,
             job->machine.device.name, job->machine.node_ranks);
    struct plot plot = {.title = "Weak scaling, simulated",
                        .unit = "tokens per second and rank",
                        .x_name = "ranks",
                        .from_zero = true,
                        .doubles = true,
                        .curves = SCALING_MESHES};
    for (int m = 0; m < SCALING_MESHES; m++) {
        plot.curve[m] = (struct curve){names[m], ranks, rates[m], s->points};
        for (uint32_t i = 0; i < s->points; i++)
            ranks[i] = s->point[i].ranks, rates[m][i] = rate(&s->point[i], (enum scaling_mesh)m);
    }
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"840\" height=\"426\" viewBox=\"0 0 560 284\" "
            "font-family=\"Helvetica, Arial, sans-serif\">\n<style>%s</style>\n"
            "<rect width=\"560\" height=\"284\" fill=\"#fff\"/><text x=\"16\" y=\"276\">",
            style);
    markup_text(file, note);
    fputs("</text>\n", file);
    plot_write(&plot, file);
    fputs("</svg>\n", file);
}
