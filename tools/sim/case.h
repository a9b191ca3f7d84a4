/* Simulations drawn from a seed: a small model; any stage, mesh, tiers and accumulation; random times or speeds;
 * faults; with or without data. A case that fails is shortened: everything that the failure does not need is
 * removed. */
#pragma once

#include "tools/sim/sim.h"

enum { CASE_UNITS_MAX = 6, CASE_PARAMS_MAX = 3 * CASE_UNITS_MAX };

struct sim_case {
    struct sim_unit unit[CASE_UNITS_MAX];
    struct sim_param param[CASE_PARAMS_MAX];
    struct sim_model model;
    struct sim_setup setup;
    bool with_data;
};

/* *out owns everything that its setup points to. */
void case_make(uint64_t seed, struct sim_case *out);
zero_status case_run(const struct sim_setup *setup, bool with_data, struct sim_result *out,
                     struct zero_error *error);

/* The shortest case found that still fails: with fewer ranks, units, steps and faults, then with fewer random
 * events. */
struct sim_shortest {
    struct sim_model model; /* a prefix of the failing model's units: borrowed */
    struct sim_setup setup;
    struct sim_result result;
    uint32_t tried;
};
void case_shorten(const struct sim_setup *failing, bool with_data, struct sim_shortest *out);

/* Prints one line. */
void case_print(const struct sim_setup *setup, bool with_data, FILE *out);

/* Counts of cases and of what happened in them. */
struct sim_tally {
    uint64_t runs, with_data, recomputed, chaotic;
    uint64_t fault[SIM_FAULT_KINDS]; /* faults that end ranks: counted if they happened */
};

/* Runs `count` cases from seed `first` on. `sabotage`: NULL, or for tests. Prints each failure to `out`, with its seed
 * and the shortest schedule found. Returns the number of failures; `tally`: may be NULL. */
uint64_t case_check(uint64_t first, uint64_t count, const struct sim_sabotage *sabotage, FILE *out,
                    struct sim_tally *tally);
