/* Chooses a machine by names. */
#include "tools/plan/machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/machine/entries.h"

static zero_status no_entry(const struct hardware *h, const struct entry_section *s, const char *name,
                            struct zero_error *error) {
    const char *names[HARDWARE_ENTRIES_MAX];
    uint32_t count = *entry_count(h, s);
    char all[600] = "";
    for (uint32_t i = 0; i < count; i++) {
        names[i] = entry_at(h, s, i);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = entry_nearest(name, names, count);
    return error_set(error, ZERO_E_ARGUMENT,
                     "\"%s\" is none of the %s: %s%s%s; describe it in a file of your own (--hardware)",
                     entry_show(name).chars, s->name, near ? "did you mean " : "", near ? near : all,
                     near ? "?" : "");
}

static zero_status take(const struct hardware *h, int section, const char *name, void *out,
                        struct zero_error *error) {
    const struct entry_section *s = &entry_sections[section];
    const char *found = entry_find(h, s, name);
    if (!found) return no_entry(h, s, name, error);
    memcpy(out, found, s->entry_bytes);
    for (const struct entry_key *key = s->keys; key->name; key++) {
        bool missing = key->type == ENTRY_NAME ? !found[key->offset]
                                               : key->type == ENTRY_NUMBER && isnan(*entry_number(key, out));
        if (key->required && missing)
            return error_set(error, ZERO_E_CONFIG, "%s.%s.%s is missing: write %s", s->name, name, key->name,
                             key->unit);
        if (key->type == ENTRY_FRACTION && section != SECTION_DEVICES && isnan(*entry_number(key, out)))
            *entry_number(key, out) = 1;
    }
    return ZERO_OK;
}

static const char *skip_blanks(const char *text) {
    while (*text == ' ') text++;
    return text;
}

bool hardware_parse_speed(const char *text, double *out_per_s, const char **out_rest) {
    static const char letters[] = "kMGTP";
    char *end;
    double value = strtod(text, &end), base = 1000, factor = 1;
    if (end == text || !(value > 0) || value > 1e18) return false;
    const char *at = skip_blanks(end);
    const char *letter = *at ? strchr(letters, *at) : NULL;
    if (letter) at++;
    if (letter && *at == 'i') base = 1024, at++;
    for (long i = letter ? letter - letters : -1; i >= 0; i--) factor *= base;
    if (*at == 'b')
        factor /= 8, at++;
    else if (*at == 'B')
        at++;
    else if (letter)
        return false; /* unclear: bits or bytes? */
    if (strncmp(at, "it", 2) == 0) at += 2;
    if (strncmp(at, "ps", 2) == 0 || (at[0] == '/' && at[1] == 's')) at += 2;
    *out_per_s = value * factor;
    *out_rest = at;
    return true;
}

static zero_status choose_link(const struct hardware *h, const char *text, double node_ranks,
                               struct hardware_link *link, struct zero_error *error) {
    double per_s;
    const char *rest;
    bool speed =
        !entry_find(h, &entry_sections[SECTION_LINKS], text) && hardware_parse_speed(text, &per_s, &rest);
    bool per_node = speed && strcmp(rest, "/node") == 0;
    if (!speed || (*rest && !per_node)) return take(h, SECTION_LINKS, text, link, error);
    *link = (struct hardware_link){.per_s = per_node ? per_s / node_ranks : per_s,
                                   .reduce_per_s = NAN,
                                   .latency_s = 15e-6, /* as in the built-in networks */
                                   .achieved = 0.85};
    snprintf(link->name, sizeof link->name, "%.40s", text);
    return ZERO_OK;
}

static zero_status choose_drive(const struct hardware *h, const char *text, const char *usual,
                                struct hardware_drive *drive, struct zero_error *error) {
    double read, write;
    const char *rest;
    bool speed =
        !entry_find(h, &entry_sections[SECTION_DRIVES], text) && hardware_parse_speed(text, &read, &rest);
    write = speed ? read : 0;
    if (speed && *rest == ',') speed = hardware_parse_speed(rest + 1, &write, &rest);
    if (!speed || *rest) return take(h, SECTION_DRIVES, text, drive, error);
    zero_status status = ZERO_OK; /* size and endurance of the usual drive */
    *drive = (struct hardware_drive){.bytes = INFINITY, .endurance_tbw = NAN};
    if (*usual) status = take(h, SECTION_DRIVES, usual, drive, error);
    drive->read_per_s = read, drive->write_per_s = write, drive->mixed_per_s = NAN;
    snprintf(drive->name, sizeof drive->name, "%.40s", text);
    return status;
}

/* Of a GPU's peak, about what the built-in GPUs reach. A CPU's figures are measured. */
static void assume_achieved(struct hardware_device *d) {
    const double products = d->is_host ? 1 : 0.5, memory = d->is_host ? 1 : 0.85;
    if (isnan(d->memory_achieved)) d->memory_achieved = memory;
    for (int t = 0; t < HARDWARE_TYPES; t++) {
        if (!isnan(d->flops_achieved[t])) continue;
        d->flops_achieved[t] = products;
        d->assumed[t] = !d->is_host;
    }
}

bool machine_assumes(const struct machine *m, enum dtype compute, char *out, size_t capacity) {
    const struct hardware_device *d = &m->device;
    if (!d->assumed[compute]) return false;
    snprintf(
        out, capacity,
        "%s has no measured rate of products in %s: %.0f %% of its peak are assumed; write %s_achieved where "
        "you know it",
        d->name, dtype_name(compute), 100 * d->flops_achieved[compute], dtype_name(compute));
    return true;
}

static void apply_achieved(struct machine *m) {
    m->device.memory_per_s *= m->device.memory_achieved;
    m->host.memory_per_s *= m->host.memory_achieved;
    if (isnan(m->host.update_per_s)) m->host.update_per_s = m->host.memory_per_s / m->host.devices;
    for (int t = 0; t < HARDWARE_TYPES; t++) m->device.flops[t] *= m->device.flops_achieved[t];
    struct hardware_link *links[] = {&m->inside, &m->between};
    for (int i = 0; i < 2; i++) {
        if (isnan(links[i]->reduce_per_s)) links[i]->reduce_per_s = links[i]->per_s;
        links[i]->per_s *= links[i]->achieved;
        links[i]->reduce_per_s *= links[i]->achieved;
    }
    if (isnan(m->drive.mixed_per_s)) m->drive.mixed_per_s = fmin(m->drive.read_per_s, m->drive.write_per_s);
}

zero_status hardware_choose(const struct hardware *h, const struct hardware_choice *choice,
                            struct machine *out, struct zero_error *error) {
    struct machine m = {0};
    zero_status status = take(h, SECTION_DEVICES, choice->device, &m.device, error);
    const char *host = choice->host ? choice->host : m.device.host;
    if (!status) status = take(h, SECTION_HOSTS, host, &m.host, error);
    if (status) return status;
    const char *between = choice->between ? choice->between : m.device.between,
               *drive = choice->drive ? choice->drive : m.device.drive;
    status =
        choose_link(h, choice->inside ? choice->inside : m.device.inside, m.host.devices, &m.inside, error);
    if (!status && *between) status = choose_link(h, between, m.host.devices, &m.between, error);
    if (!status && *drive && strcmp(drive, "none") != 0)
        status = choose_drive(h, drive, m.device.drive, &m.drive, error);
    if (status) return status;
    assume_achieved(&m.device);
    apply_achieved(&m);
    m.node_ranks = (uint32_t)fmax(1, fmin(m.host.devices, 1e6));
    *out = m;
    return ZERO_OK;
}

/* The device that the user named, else the only device in the user's file. */
static zero_status find_device(const struct hardware *h, uint32_t builtin, const char **device,
                               struct zero_error *error) {
    if (!*device && h->devices == builtin + 1) *device = h->device[builtin].name;
    if (*device) return ZERO_OK;
    char all[400] = "";
    for (uint32_t i = 0; i < h->devices; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", h->device[i].name);
    return error_set(error, ZERO_E_ARGUMENT, "--gpu is missing; there are %s", all);
}

zero_status hardware_machine(const char *file, const struct hardware_choice *choice, struct machine *out,
                             struct zero_error *error) {
    struct hardware *h = malloc(sizeof *h);
    if (!h) return error_set(error, ZERO_E_MEMORY, "no memory for descriptions of hardware");
    struct hardware_choice chosen = *choice;
    zero_status status = hardware_open(h, error);
    uint32_t builtin = status ? 0 : h->devices;
    if (!status && file) status = hardware_read(h, file, error);
    if (!status) status = find_device(h, builtin, &chosen.device, error);
    if (!status) status = hardware_choose(h, &chosen, out, error);
    free(h);
    return status;
}

/* ---- as speeds ---- */

static uint64_t whole(double value) {
    return value < 1 ? 1 : value < 1e19 ? (uint64_t)value : (uint64_t)1e19;
}

static struct speeds_link link_of(const struct hardware_link *link) {
    return (struct speeds_link){whole(link->per_s), whole(link->reduce_per_s),
                                (uint64_t)llround(link->latency_s * 1e9)};
}

struct speeds machine_speeds(const struct machine *m, double node_ranks, enum dtype compute) {
    enum { DRIVE_LATENCY_NS = 100000 };
    bool drive = m->drive.name[0], host = m->device.is_host;
    double memory = host ? m->device.memory_per_s : m->host.memory_per_s / node_ranks;
    return (struct speeds){.flops_per_s = whole(m->device.flops[compute]),
                           .device_bytes_per_s = whole(m->device.memory_per_s),
                           .host_bytes_per_s = whole(memory),
                           .update_bytes_per_s = whole(host ? memory : fmin(m->host.update_per_s, memory)),
                           .bus_bytes_per_s = host ? 0 : whole(fmin(m->host.device_per_s, memory)),
                           .inside = link_of(&m->inside),
                           .between = link_of(m->between.name[0] ? &m->between : &m->inside),
                           .drive_read_bytes_per_s = drive ? whole(m->drive.read_per_s / node_ranks) : 1,
                           .drive_write_bytes_per_s = drive ? whole(m->drive.write_per_s / node_ranks) : 1,
                           .drive_mixed_bytes_per_s = drive ? whole(m->drive.mixed_per_s / node_ranks) : 1,
                           .drive_latency_ns = DRIVE_LATENCY_NS,
                           .node_ranks = (uint32_t)node_ranks,
                           .matrix_flops_per_s =
                               m->device.flops[DTYPE_F32] > 0 ? whole(m->device.flops[DTYPE_F32]) : 0};
}
