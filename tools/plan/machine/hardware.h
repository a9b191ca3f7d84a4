/* Devices, hosts, links and drives, by name. Descriptions are data: configs/hardware.json is built in. A user's file of
 * the same form adds entries, or replaces single values of existing ones. Vendors' figures are peaks; `achieved` is the
 * fraction of them that training reaches. Where a GPU's is missing,
 * hardware_choose assumes it. Rates are bytes or FLOP per second. Owns nothing; a struct hardware belongs
 * to one owner. Pure, except hardware_read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"
#include "engine/base/numbers/dtype.h"

enum { HARDWARE_NAME_BYTES = 48, HARDWARE_ENTRIES_MAX = 64, HARDWARE_TYPES = 3 /* fp32, bf16, fp16 */ };

typedef char hardware_name[HARDWARE_NAME_BYTES]; /* "": none */

/* A number that no file gives is NaN here; hardware_choose refuses a machine that lacks a necessary number. */
struct hardware_device {
    hardware_name name;
    double memory_bytes, memory_per_s;
    double flops[HARDWARE_TYPES]; /* dense, by enum dtype; NaN: the device does not multiply this type */
    double memory_achieved, flops_achieved[HARDWARE_TYPES];
    double attention_flops; /* FLOP per second of flash attention in 16 bits; NaN: the same as products */
    double price_per_hour;  /* of one device, in the user's currency; NaN: unknown */
    bool is_host;           /* its memory is the host's: offloading to cpu frees only budget */
    bool assumed[HARDWARE_TYPES]; /* no file gives flops_achieved: hardware_choose assumed it */
    bool shares_cores;            /* collectives and updates use the cores that compute: they take turns */
    /* the usual host, links and drive: names of the other sections */
    hardware_name host, inside, between, drive;
};

struct hardware_host {
    hardware_name name;
    double memory_bytes, memory_per_s, memory_achieved; /* of a node */
    double devices;                                     /* in a node */
    double device_per_s;                                /* host to device and back, each way, per device */
    /* that the update of one device's rank moves, on the cores which belong to it; default: the device's part of memory_per_s */
    double update_per_s;
};

struct hardware_link {
    hardware_name name;
    double per_s;        /* bytes that one rank sends while it receives as many */
    double reduce_per_s; /* the same in a reduce-scatter, with its additions; default: per_s */
    double latency_s;    /* of one message */
    double achieved;     /* fraction of per_s that collectives reach */
};

struct hardware_drive {
    hardware_name name;
    double bytes, read_per_s, write_per_s;
    double mixed_per_s; /* half read and half written at the same time; default: the slower of the two */
    double endurance_tbw;
};

struct hardware {
    struct hardware_device device[HARDWARE_ENTRIES_MAX];
    struct hardware_host host[HARDWARE_ENTRIES_MAX];
    struct hardware_link link[HARDWARE_ENTRIES_MAX];
    struct hardware_drive drive[HARDWARE_ENTRIES_MAX];
    uint32_t devices, hosts, links, drives;
};

/* Loads the built-in descriptions. ZERO_E_MEMORY is the only error. */
zero_status hardware_open(struct hardware *out, struct zero_error *error);

/* Adds a file's entries. ZERO_E_CONFIG: an error in the file, with the key's path; ZERO_E_IO: the file cannot be read.
 * After a failure `hardware` may hold a part of the file. */
zero_status hardware_read(struct hardware *hardware, const char *path, struct zero_error *error);
zero_status hardware_read_text(struct hardware *hardware, const char *text, size_t length, const char *name,
                               struct zero_error *error);
