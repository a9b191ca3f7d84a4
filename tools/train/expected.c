#include "tools/train/trainer.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "tools/automatic/automatic.h"
#include "tools/plan/choice.h"
#include "tools/plan/machine/hardware.h"
#include "tools/plan/price.h"
#include "tools/text/format.h"

/* ---- the peak ---- */

static double peak_of(const struct machine *m, enum dtype dtype) {
    return m->device.flops[dtype] / m->device.flops_achieved[dtype];
}

/* "NVIDIA H200" is "h200"; "rtx4090" is in "NVIDIA GeForce RTX 4090". Cards on PCIe are slower than the modules of the same name,
 * which are described. */
static bool is_named(const char *entry, const char *gpu) {
    char plain[128];
    size_t length = 0, name = strcspn(entry, "-");
    for (; *gpu && length < sizeof plain - 1; gpu++)
        if (isalnum((unsigned char)*gpu)) plain[length++] = (char)tolower((unsigned char)*gpu);
    plain[length] = 0;
    char part[HARDWARE_NAME_BYTES];
    snprintf(part, sizeof part, "%.*s", (int)name, entry);
    return strstr(plain, part) && !strstr(plain, "pcie") && !strstr(plain, "nvl");
}

static bool find_gpu(struct gpt *gpt, struct machine *out) {
    char name[GPT_DEVICE_NAME_BYTES];
    struct zero_error unused = ERROR_NONE;
    struct hardware *h = malloc(sizeof *h);
    bool found = false;
    gpt_device_name(gpt, name);
    if (h && hardware_open(h, &unused) == ZERO_OK)
        for (uint32_t i = 0; *name && i < h->devices && !found; i++)
            found = !h->device[i].is_host && is_named(h->device[i].name, name) &&
                    hardware_choose(h, &(struct hardware_choice){.device = h->device[i].name}, out,
                                    &unused) == ZERO_OK;
    free(h);
    return found;
}

static void find_peak(const struct job *job, zero_engine *engine, struct gpt *gpt,
                      const struct shapes *shapes, uint32_t node_ranks, struct expected *out) {
    struct machine m;
    struct zero_error unused = ERROR_NONE;
    bool on_gpu = zero_engine_cuda(engine, NULL) >= 0, given = job->gpu || job->hardware;
    bool measured = !on_gpu && !given;
    uint32_t ranks = zero_engine_size(engine), devices = on_gpu && job->local ? 1 : ranks;
    enum dtype dtype = (enum dtype)zero_engine_dtype(engine);
    bool found = given    ? hardware_machine(job->hardware, &(struct hardware_choice){.device = job->gpu}, &m,
                                             &unused) == ZERO_OK
                 : on_gpu ? find_gpu(gpt, &m)
                          : automatic_known(&job->config, shapes, job->local ? NULL : job->transport,
                                            node_ranks, zero_engine_threads(engine), &m);
    if (!found || !(peak_of(&m, dtype) > 0)) return;
    out->peak_flops = peak_of(&m, dtype) * devices;
    snprintf(out->source, sizeof out->source, "%sFLOP/s in %s%s, %s %s",
             format_count(peak_of(&m, dtype)).chars, dtype_name(dtype), devices > 1 ? " a device" : "",
             measured ? "measured on" : "stated for", measured ? "this machine" : m.device.name);
}

/* ---- the bytes ---- */

/* The machine does not change them. */
static uint64_t planned_wire(const struct job *job, const zero_engine *engine, const struct shapes *shapes,
                             uint32_t node_ranks) {
    bool on_gpu = zero_engine_cuda(engine, NULL) >= 0;
    uint32_t ranks = zero_engine_size(engine), on_node = node_ranks ? node_ranks : 1;
    struct cell cell = space_cell_of(&job->config);
    struct scenario s = {.shapes = *shapes,
                         .config = job->run.config_json,
                         .ranks = ranks,
                         .nodes = ranks % on_node ? 1 : ranks / on_node,
                         .threads = zero_engine_threads(engine),
                         .checkpoints = choice_checkpoints(&job->config),
                         .times_always = true,
                         .processes = !job->local && !on_gpu,
                         .outputs = (enum gpt_outputs)job->config.device_outputs};
    struct price price = {0};
    struct zero_error unused = ERROR_NONE;
    if (ranks == 1 || hardware_machine(NULL, &(struct hardware_choice){.device = on_gpu ? "h200" : "cpu"},
                                       &s.machine, &unused))
        return 0;
    for (int t = 0; t < HARDWARE_TYPES; t++)
        if (!(s.machine.device.flops[t] > 0)) s.machine.device.flops[t] = 1e12;
    return price_cell(&s, &cell, &price, &unused) ? 0 : price.step.wire_bytes * ranks;
}

void expected_find(const struct job *job, zero_engine *engine, struct gpt *gpt, struct expected *out) {
    struct shapes shapes = shapes_of(&job->config.model);
    uint32_t node_ranks;
    engine_comm(engine, &node_ranks);
    *out = (struct expected){.peak_flops = NAN};
    out->flops =
        shapes_step_flops(&shapes, (double)job->config.train_batch * (double)job->config.model.context);
    find_peak(job, engine, gpt, &shapes, node_ranks, out);
    out->wire_bytes = planned_wire(job, engine, &shapes, node_ranks);
}
