#include "tools/plan/print/print.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "offload/tier.h"
#include "tools/plan/print/figure.h"

/* ---- for people ---- */

static void print_head(const struct scenario *s, const struct price *p, FILE *out) {
    const struct machine *m = &s->machine;
    fprintf(out, "%s: %s parameters, %" PRIu64 " layers of %" PRIu64 ", sequences of %" PRIu64 " tokens\n",
            s->shapes.name, figure_count((double)p->parameters).chars, s->shapes.layers, s->shapes.width,
            s->shapes.context);
    if (s->shapes.vocab_block && s->shapes.vocab_block < s->shapes.vocab)
        fprintf(out, "embedding and head in units of %u rows of the vocabulary%s\n", s->shapes.vocab_block,
                s->shapes.tied
                    ? "; they are tied, so the gradients of all of them stay whole during a backward"
                    : "");
    fprintf(out, "%u ranks on %u %s: %s of %s each; %s inside a node", s->ranks, s->nodes,
            s->nodes == 1 ? "node" : "nodes", m->device.name, figure_bytes(m->device.memory_bytes).chars,
            m->inside.name);
    if (s->nodes > 1) fprintf(out, ", %s between nodes", m->between.name);
    if (m->drive.name[0]) fprintf(out, "; drive %s per node", m->drive.name);
    fputs("\n\n", out);
}

/* `open`: rows have gradients and micro-batches of their own. */
static void print_columns(bool price, bool open, FILE *out) {
    fprintf(out, "%-*s%-48s%-26s%s\n", open ? 50 : 37, "", "bytes of a rank", "on its tiers",
            "bytes of a step");
    fprintf(out,
            "   stage state  params recompute%s %8s%8s%8s%8s%8s%8s  %8s%8s%8s  %8s%8s%8s  %9s%10s%6s  %s%s\n",
            open ? " grads  micro" : "", "params", "grads", "states", "flight", "activ.", "staging", "device",
            "cpu", "nvme", "wire", "read", "written", "step", "tokens/s", "MFU", "bound",
            price ? "    per G tokens" : "");
}

/* Removes the blank before the unit. */
static struct figure tight(uint64_t bytes) {
    struct figure f = figure_bytes((double)bytes);
    char *blank = strchr(f.chars, ' ');
    if (blank) memmove(blank, blank + 1, strlen(blank));
    if (!bytes) strcpy(f.chars, "-");
    return f;
}

static void print_shortage(const struct price *p, FILE *out) {
    const char *before = "  short of ";
    for (int t = 0; t < SHORTAGES; t++) {
        if (!p->short_bytes[t]) continue;
        fprintf(out, "%s%s on %s", before, figure_bytes((double)p->short_bytes[t]).chars,
                tier_table[t]->name);
        before = ", ";
    }
    fputs("\n", out);
}

static void print_own(const struct price *p, FILE *out) {
    const struct cell *c = &p->cell;
    fprintf(out, " %-6s %5" PRIu64, c->grads ? tier_table[c->grads - 1]->name : "", p->micro_batch);
}

static void print_row(const struct price *p, bool best, bool open, FILE *out) {
    char recompute[16] = "no"; /* recomputation: each block alone, or several together */
    if (p->cell.recompute)
        snprintf(recompute, sizeof recompute, p->cell.recompute > 1 ? "by %u" : "yes", p->cell.recompute);
    fprintf(out, "%s %5u %-6s %-6s %-9s", best ? "->" : "  ", p->cell.stage,
            p->cell.tiered ? "tiered" : tier_table[p->cell.optimizer]->name, tier_table[p->cell.params]->name,
            recompute);
    if (open) print_own(p, out);
    fprintf(out, " %8s%8s%8s%8s%8s%8s  %8s%8s%8s", tight(p->param_bytes).chars, tight(p->grad_bytes).chars,
            tight(p->state_bytes).chars, tight(p->gathered_bytes).chars, tight(p->activation_bytes).chars,
            tight(p->staging_bytes).chars, tight(p->tier_bytes[ZERO_DEVICE]).chars,
            tight(p->tier_bytes[ZERO_CPU]).chars, tight(p->tier_bytes[ZERO_NVME]).chars);
    if (!p->fits) {
        print_shortage(p, out);
        return;
    }
    fprintf(out, "  %8s%8s%8s  %9s%10s%5.0f%%  %-7s", tight(p->step.wire_bytes).chars,
            tight(p->step.drive_read_bytes).chars, tight(p->step.drive_write_bytes).chars,
            figure_seconds(p->step.seconds).chars, figure_count(p->tokens_per_s).chars, 100 * p->flops_share,
            resource_name(p->bound));
    if (!isnan(p->cost_per_giga)) fprintf(out, "  %.4g", p->cost_per_giga);
    if (!isnan(p->drive_days)) fprintf(out, "  drives last %.0f days", p->drive_days);
    if (p->step.repeat_write_bytes)
        fprintf(out, "  clipped: %s, reads %s more, writes %s more",
                figure_seconds(p->step.repeated_seconds).chars, tight(p->step.repeat_read_bytes).chars,
                tight(p->step.repeat_write_bytes).chars);
    fputs("\n", out);
}

static bool repeats(const struct table *t) {
    bool any = false;
    for (uint32_t i = 0; i < t->rows; i++) any |= t->row[i].step.repeated_seconds > 0;
    return any;
}

/* Prints the assumptions behind times and memory; the hardware file names the sources. */
static void print_assumptions(const struct scenario *s, const struct table *t, FILE *out) {
    const struct machine *m = &s->machine;
    const struct price *p = &t->row[0];
    fprintf(out,
            "Assumes products in %s at %sFLOP/s of a peak of %sFLOP/s, device memory at %s/s, %s/s to the "
            "host and back",
            dtype_name(p->compute), figure_count(m->device.flops[p->compute]).chars,
            figure_count(m->device.flops[p->compute] / m->device.flops_achieved[p->compute]).chars,
            figure_bytes(m->device.memory_per_s).chars, figure_bytes(m->host.device_per_s).chars);
    fprintf(out, "; a rank sends %s/s inside its node", figure_bytes(m->inside.per_s).chars);
    if (s->nodes > 1) fprintf(out, ", %s/s out of it", figure_bytes(m->between.per_s).chars);
    if (m->drive.name[0])
        fprintf(out, "; a node's drives read %s/s and write %s/s", figure_bytes(m->drive.read_per_s).chars,
                figure_bytes(m->drive.write_per_s).chars);
    if (repeats(t)) fputs("; that no step is clipped, and beside `clipped` that every step is", out);
    fputs("; the rest: zero help plan.\n", out);
    char assumption[200];
    if (machine_assumes(m, p->compute, assumption, sizeof assumption))
        fprintf(out, "Assumed: %s.\n", assumption);
}

/* Of the row with the arrow. */
static void print_kept(const struct scenario *s, const struct price *p, FILE *out) {
    if (p->spare_bytes)
        fprintf(out,
                "It has room to keep outputs for the backward: of norms in %u of %" PRIu64
                " blocks, of activations in %u, %s (device.keep_outputs).\n",
                p->kept[GPT_NORMS], s->shapes.layers, p->kept[GPT_ACTIVATIONS],
                figure_bytes((double)p->spare_bytes).chars);
    if (p->kept_s > 0)
        fprintf(out,
                "Among them are attention in %u blocks and MLPs in %u, whose repetition would take %.3g s.\n",
                p->kept[GPT_ATTENTION], p->kept[GPT_MLP], p->kept_s);
}

void print_table(const struct scenario *s, const struct table *t, bool all, FILE *out) {
    print_head(s, &t->row[0], out);
    bool open = s->space && s->space->open;
    print_columns(!isnan(s->machine.device.price_per_hour), open, out);
    for (uint32_t i = 0; i < t->rows; i++)
        if (all || table_shown(t, i) || i == t->best) print_row(&t->row[i], i == t->best, open, out);
    fprintf(out, "\n%s\n", t->advice);
    print_kept(s, &t->row[t->best], out);
    print_assumptions(s, t, out);
}

void print_largest(const struct largest *l, FILE *out) {
    static const char *const places[SHORTAGES] = {"the device's memory", "host memory", "the drive"};
    const struct shapes *s = &l->shapes;
    if (l->found)
        fprintf(out,
                "Largest   %s of %s parameters: %" PRIu64 " layers, %" PRIu64 " wide, %" PRIu64
                " heads, sequences of %" PRIu64 "\n",
                s->name, figure_count((double)shapes_parameters(s)).chars, s->layers, s->width, s->heads,
                s->context);
    else
        fprintf(out, "Largest   none: even %" PRIu64 " layers of %" PRIu64 " do not fit\n", s->layers,
                s->width);
    if (l->bounded)
        fprintf(out, "Binds     %s: %s of %" PRIu64 " layers, %" PRIu64 " wide, lacks %s of it at best\n\n",
                places[l->binds], l->next.name, l->next.layers, l->next.width,
                figure_bytes((double)l->nearest.short_bytes[l->binds]).chars);
    else
        fputs("Binds     nothing that was tried\n\n", out);
}

/* ---- for programs ---- */

/* Escapes names, which come from users' descriptions. */
static void json_text(FILE *out, const char *key, const char *text) {
    fprintf(out, "\"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        if ((unsigned char)*text >= 0x20) fputc(*text, out);
    }
    fputc('"', out);
}

static void json_number(FILE *out, const char *key, double value) {
    if (isfinite(value))
        fprintf(out, ", \"%s\": %.9g", key, value);
    else
        fprintf(out, ", \"%s\": null", key);
}

static void json_bytes(FILE *out, const char *key, uint64_t bytes) {
    fprintf(out, ", \"%s\": %" PRIu64, key, bytes);
}

static void json_step(const struct price *p, FILE *out) {
    json_bytes(out, "wire_bytes", p->step.wire_bytes);
    json_bytes(out, "drive_read_bytes", p->step.drive_read_bytes);
    json_bytes(out, "drive_write_bytes", p->step.drive_write_bytes);
    json_bytes(out, "repeat_read_bytes", p->step.repeat_read_bytes);
    json_bytes(out, "repeat_write_bytes", p->step.repeat_write_bytes);
    json_number(out, "step_s", p->step.seconds);
    if (p->step.repeated_seconds > 0) json_number(out, "repeated_step_s", p->step.repeated_seconds);
    for (int r = 0; r < RESOURCES; r++) {
        char key[32];
        snprintf(key, sizeof key, "%s_s", resource_name((enum resource)r));
        json_number(out, key, p->step.busy_s[r]);
    }
    json_number(out, "tokens", p->tokens);
    json_number(out, "tokens_per_s", p->tokens_per_s);
    json_number(out, "mfu", p->flops_share);
    json_number(out, "drive_days", p->drive_days);
    json_number(out, "cost_per_giga_tokens", p->cost_per_giga);
    fputs(", ", out);
    json_text(out, "bound", resource_name(p->bound));
}

static void json_row(const struct price *p, FILE *out) {
    fprintf(out,
            "{\"stage\": %u, \"offload_optimizer\": \"%s\", \"offload_param\": \"%s\", \"recompute\": %s, "
            "\"fits\": %s",
            p->cell.stage, p->cell.tiered ? "tiered" : tier_table[p->cell.optimizer]->choice,
            tier_table[p->cell.params]->choice, p->cell.recompute ? "true" : "false",
            p->fits ? "true" : "false");
    json_bytes(out, "recompute_blocks", p->cell.recompute);
    if (p->cell.grads) fprintf(out, ", \"offload_gradients\": \"%s\"", tier_table[p->cell.grads - 1]->choice);
    if (p->cell.micro_batch) json_bytes(out, "micro_batch", p->micro_batch);
    json_bytes(out, "param_bytes", p->param_bytes);
    json_bytes(out, "grad_bytes", p->grad_bytes);
    json_bytes(out, "state_bytes", p->state_bytes);
    json_bytes(out, "gathered_bytes", p->gathered_bytes);
    json_bytes(out, "activation_bytes", p->activation_bytes);
    json_bytes(out, "kept_norm_blocks", p->kept[GPT_NORMS]);
    json_bytes(out, "kept_activation_blocks", p->kept[GPT_ACTIVATIONS]);
    json_bytes(out, "kept_attention_blocks", p->kept[GPT_ATTENTION]);
    json_bytes(out, "kept_mlp_blocks", p->kept[GPT_MLP]);
    json_bytes(out, "kept_bytes", p->spare_bytes);
    json_bytes(out, "staging_bytes", p->staging_bytes);
    for (int t = 0; t < ZERO_TIERS; t++) {
        char key[32];
        snprintf(key, sizeof key, "%s_bytes", tier_table[t]->name);
        json_bytes(out, key, p->tier_bytes[t]);
        snprintf(key, sizeof key, "%s_short_bytes", tier_table[t]->name);
        json_bytes(out, key, p->short_bytes[t]);
    }
    if (p->fits) json_step(p, out);
    fputs("}", out);
}

void print_json(const struct scenario *s, const struct table *t, FILE *out) {
    fputs("{", out);
    json_text(out, "model", s->shapes.name);
    json_bytes(out, "parameters", t->row[0].parameters);
    json_bytes(out, "ranks", s->ranks);
    json_bytes(out, "nodes", s->nodes);
    fputs(", ", out);
    json_text(out, "device", s->machine.device.name);
    if (s->machine.device.assumed[t->row[0].compute])
        json_number(out, "assumed_achieved", s->machine.device.flops_achieved[t->row[0].compute]);
    fprintf(out, ", \"best\": %u, ", t->best);
    json_text(out, "advice", t->advice);
    fputs(", \"rows\": [", out);
    for (uint32_t i = 0; i < t->rows; i++) {
        fputs(i ? ",\n " : "\n ", out);
        json_row(&t->row[i], out);
    }
    fputs("]}\n", out);
}
