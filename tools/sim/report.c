#include "tools/sim/job.h"

#include <inttypes.h>

#include "tools/plan/print/figure.h"

static struct figure seconds(uint64_t ns) { return figure_seconds((double)ns * 1e-9); }

static void print_job(const struct job *job, const struct job_ranks *r, FILE *out) {
    const struct sim_setup *s = &r->setup;
    uint32_t ranks = s->terms.mesh[AXIS_SHARD] * s->terms.mesh[AXIS_REPLICATE];
    fprintf(out, "%s, %s parameters in %" PRIu32 " units, %s; %" PRIu32 " ranks on %s", s->terms.stage->name,
            figure_count((double)r->parameters).chars, s->model->units,
            dtype_name(s->terms.precision.compute), ranks, job->machine.device.name);
    if (s->terms.mesh[AXIS_REPLICATE] > 1)
        fprintf(out, " (%" PRIu32 " shards x %" PRIu32 " copies)", s->terms.mesh[AXIS_SHARD],
                s->terms.mesh[AXIS_REPLICATE]);
    fprintf(out, ", %" PRIu32 " a node; %" PRIu32 " steps of %" PRIu32 " micro-step%s; seed %" PRIu64 "\n\n",
            job->machine.node_ranks, s->steps, s->terms.micro_steps, s->terms.micro_steps == 1 ? "" : "s",
            s->seed);
}

static void print_time(const char *what, uint64_t ns, const struct sim_result *r, const char *note,
                       FILE *out) {
    fprintf(out, "%-26s%10s%8.1f %%%s%s\n", what, seconds(ns).chars, 100 * (double)ns / (double)r->step_ns,
            *note ? "   " : "", note);
}

static void print_steps(const struct job_ranks *ranks, const struct sim_result *r, FILE *out) {
    static const char *const names[WAITS] = {"    gathers", "    reductions", "    agreements", "  updates",
                                             "  drives"};
    uint64_t communication = r->wait_ns[WAIT_GATHER] + r->wait_ns[WAIT_REDUCE] + r->wait_ns[WAIT_AGREE];
    char rate[64];
    snprintf(rate, sizeof rate, "the median; %s tokens/s",
             figure_count(ranks->tokens / ((double)r->step_ns * 1e-9)).chars);
    print_time("step", r->step_ns, r, rate, out);
    print_time("computing", r->compute_ns, r, "the mean over ranks, as are the waits for", out);
    print_time("  exposed communication", communication, r, "", out);
    for (int w = 0; w < WAITS; w++) print_time(names[w], r->wait_ns[w], r, "", out);
    print_time("waits, most of any rank", r->most_wait_ns, r, "", out);
}

static void print_bytes(const struct sim_result *r, FILE *out) {
    static const char *const tiers[TIERS] = {"device", "host", "drive"};
    fprintf(out, "\n%-26s", "peak memory per rank");
    for (int t = 0; t < TIERS; t++)
        if (r->planned_bytes[t])
            fprintf(out, "%s%s %s", t ? ", " : "", tiers[t], figure_bytes((double)r->planned_bytes[t]).chars);
    fprintf(out, "; as planned, activations apart\n%-26swire %s", "bytes per rank and step",
            figure_bytes((double)r->wire_bytes).chars);
    if (r->drive_write_bytes)
        fprintf(out, ", drive %s read, %s written", figure_bytes((double)r->drive_read_bytes).chars,
                figure_bytes((double)r->drive_write_bytes).chars);
    fputc('\n', out);
}

static void print_faults(const struct sim_result *r, FILE *out) {
    static const struct {
        enum sim_fault fault;
        const char *what, *verb;
    } stops[] = {{SIM_LOST, "rank", "was lost in"},
                 {SIM_NODE, "the node of rank", "was lost in"},
                 {SIM_STUCK, "rank", "did not go on from"}};
    const struct sim_faults *f = &r->faults;
    if (sim_fault_on(f, SIM_STRAGGLER))
        fprintf(out, "fault: rank %" PRIu32 " computes in %" PRIu32 " %% of the others' time\n",
                f->rank[SIM_STRAGGLER], f->straggler_percent);
    if (sim_fault_on(f, SIM_SLOW))
        fprintf(out, "fault: the link of rank %" PRIu32 " takes %" PRIu32 " %% of the others' time\n",
                f->rank[SIM_SLOW], f->slow_percent);
    if (sim_fault_on(f, SIM_DELAY)) fprintf(out, "fault: %s\n", sim_fault_text(SIM_DELAY));
    if (sim_fault_on(f, SIM_REORDER)) fprintf(out, "fault: %s\n", sim_fault_text(SIM_REORDER));
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        enum sim_fault fault = stops[i].fault;
        if (r->faulted >> fault & 1)
            fprintf(out, "fault: %s %" PRIu32 " %s step %" PRIu32 ", at %s\n", stops[i].what, f->rank[fault],
                    stops[i].verb, f->step[fault] + 1, seconds(r->fault_ns).chars);
    }
    if (r->faulted >> SIM_DRIVE & 1)
        fprintf(out, "fault: the drive of rank %" PRIu32 " refused request %" PRIu32 "\n", f->rank[SIM_DRIVE],
                f->drive_request + 1);
    if (!r->ended) return;
    fprintf(out, "%" PRIu32 " ranks ended, the last one %s after it: %s\n", r->ended,
            seconds(r->ended_ns - r->fault_ns).chars, r->ending);
}

void report_print(const struct job *job, const struct job_ranks *ranks, const struct sim_result *r,
                  FILE *out) {
    print_job(job, ranks, out);
    bool whole = !r->status && !r->faulted;
    if (whole) print_steps(ranks, r, out);
    if (whole) print_bytes(r, out);
    print_faults(r, out);
    fprintf(out,
            "\n%" PRIu64 " events in %s of virtual time; operations %016" PRIx64 ", schedule %016" PRIx64
            "\n",
            r->events, seconds(r->end_ns).chars, r->operations, r->schedule);
}
