#include "tools/plan/measure/measure.h"

#include <inttypes.h>
#include <unistd.h>

/* ---- parts ---- */

/* Starts processes by mpirun, as a training does; the first one prints the result. */
static bool measure_processes(const struct measure_options *o, struct measured_link *out) {
    char command[1024], line[256];
    snprintf(command, sizeof command,
             "mpirun -np %" PRIu32 " --bind-to none --oversubscribe%s '%s' plan --measure-link %" PRIu64
             " 2>/dev/null",
             o->ranks, geteuid() == 0 ? " --allow-run-as-root" : "", o->program, o->bytes);
    FILE *pipe = popen(command, "r");
    bool found = false;
    while (pipe && fgets(line, sizeof line, pipe))
        found |= sscanf(line, "link %lf %lf %lf", &out->per_s, &out->reduce_per_s, &out->latency_s) == 3;
    if (pipe) pclose(pipe);
    return found;
}

static double host_bytes(void) { return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE); }

static void say(const struct measure_options *o, const char *what) {
    if (!o->brief) fprintf(stderr, "zero plan: measuring %s\n", what);
}

static bool wanted(const struct measure_options *o, zero_dtype dtype) {
    return !o->brief || dtype == ZERO_F32 || dtype == o->dtype;
}

/* Measures the links of threads, and of processes that it starts. Ranks that are processes have measured their link
 * already. */
static zero_status measure_links(const struct measure_options *o, struct measured *m,
                                 struct zero_error *error) {
    if (o->link) return m->local = *o->link, ZERO_OK;
    if (o->ranks == 1) return ZERO_OK;
    say(o, "collectives");
    zero_status status = measure_local(o, &m->local, error);
    if (!status && o->program && !measure_processes(o, &m->mpi))
        fprintf(stderr, "zero plan: mpirun started no ranks: no link between processes was measured\n");
    return status;
}

zero_status measure(const struct measure_options *o, struct measured *out, struct zero_error *error) {
    static const struct {
        zero_dtype dtype;
        const char *name;
    } types[] = {
        {ZERO_F32, "computing in fp32"}, {ZERO_BF16, "computing in bf16"}, {ZERO_F16, "computing in fp16"}};
    struct measured m = {.memory_bytes = host_bytes() / o->ranks};
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        if (!wanted(o, types[i].dtype)) continue;
        say(o, types[i].name);
        TRY(measure_compute(o, types[i].dtype, &m.flops[types[i].dtype], error));
    }
    say(o, "memory");
    TRY(measure_memory(o, &m.memory_per_s, error));
    TRY(measure_links(o, &m, error));
    if (o->drive) say(o, "the drive");
    if (o->drive) TRY(measure_drive(o, &m.drive, error));
    *out = m;
    return ZERO_OK;
}

/* ---- the file ---- */

static void print_link(const char *name, const struct measured_link *l, const char *comma, FILE *out) {
    fprintf(out, "%s\n    \"%s\": {\"per_s\": %.4g, \"reduce_per_s\": %.4g, \"latency_s\": %.4g}", comma,
            name, l->per_s, l->reduce_per_s, l->latency_s);
}

void measure_print(const struct measure_options *o, const struct measured *m, FILE *out) {
    const struct measured_link alone = {1e12, 1e12, 1e-6}; /* of a rank without other ranks */
    bool spare = sysconf(_SC_NPROCESSORS_ONLN) > (long)(o->ranks * o->threads);
    fprintf(out, "{\n  \"devices\": {\"here\": {\n");
    fprintf(out,
            "    \"source\": \"zero plan --measure: %u ranks of %u threads, blocks of width %u, %u x %u "
            "tokens\",\n",
            o->ranks, o->threads, o->model.width, o->batch, o->model.context);
    fprintf(out, "    \"memory\": %.4g, \"memory_per_s\": %.4g, \"fp32_flops\": %.4g,", m->memory_bytes,
            m->memory_per_s, m->flops[ZERO_F32]);
    if (m->flops[ZERO_BF16] > 0) fprintf(out, " \"bf16_flops\": %.4g,", m->flops[ZERO_BF16]);
    if (m->flops[ZERO_F16] > 0) fprintf(out, " \"fp16_flops\": %.4g,", m->flops[ZERO_F16]);
    fprintf(out,
            "\n    \"is_host\": true, \"shares_cores\": %s, \"host\": \"here\", \"inside\": \"local\", "
            "\"between\": \"%s\"%s\n  }},\n",
            spare ? "false" : "true", m->mpi.per_s > 0 ? "mpi" : "local",
            m->drive.read_per_s > 0 ? ", \"drive\": \"here\"" : "");
    fprintf(out,
            "  \"hosts\": {\"here\": {\"memory\": %.4g, \"memory_per_s\": %.4g, \"devices\": %u, "
            "\"device_per_s\": %.4g}},\n",
            m->memory_bytes * o->ranks, m->memory_per_s * o->ranks, o->ranks, m->memory_per_s);
    fprintf(out, "  \"links\": {");
    print_link("local", m->local.per_s > 0 ? &m->local : &alone, "", out);
    if (m->mpi.per_s > 0) print_link("mpi", &m->mpi, ",", out);
    fprintf(out, "\n  }");
    if (m->drive.read_per_s > 0)
        fprintf(out,
                ",\n  \"drives\": {\"here\": {\"bytes\": %.4g, \"read_per_s\": %.4g, \"write_per_s\": %.4g, "
                "\"mixed_per_s\": %.4g}}",
                m->drive.bytes, m->drive.read_per_s, m->drive.write_per_s, m->drive.mixed_per_s);
    fprintf(out, "\n}\n");
}
