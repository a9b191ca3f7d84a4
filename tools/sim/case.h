/* Simulations drawn from a seed: a small model, any stage, mesh, tiers and accumulation, chance or speeds, faults, with
 * data or without; and what is left of one that fails when all is taken away that it fails without. */
#ifndef ZERO_TOOLS_SIM_CASE_H
#define ZERO_TOOLS_SIM_CASE_H

#include "tools/sim/sim.h"

enum { CASE_UNITS_MAX = 6, CASE_PARAMS_MAX = 3 * CASE_UNITS_MAX };

struct sim_case {
    struct sim_unit unit[CASE_UNITS_MAX];
    struct sim_param param[CASE_PARAMS_MAX];
    struct sim_model model;
    struct sim_setup setup;
    bool with_data;
};

/* The setup points into *out. */
void case_make(uint64_t seed, struct sim_case *out);
zero_status case_run(const struct sim_setup *setup, bool with_data, struct sim_result *out,
                     struct zero_error *error);

/* What fails, as short as was found: with fewer ranks, units, steps, faults; then with chance for fewer events. */
struct sim_shortest {
    struct sim_model model; /* the first of the failing one's units: borrowed */
    struct sim_setup setup;
    struct sim_result result;
    uint32_t tried;
};
void case_shorten(const struct sim_setup *failing, bool with_data, struct sim_shortest *out);

/* One line. */
void case_print(const struct sim_setup *setup, bool with_data, FILE *out);

/* What happened in them. */
struct sim_tally {
    uint64_t runs, with_data, recomputed, chaotic;
    uint64_t fault[SIM_FAULT_KINDS]; /* of those that end ranks: that came */
};

/* `count` cases from seed `first` on; `sabotage`: NULL, or for tests. What fails is told on `out`, with its seed and the
 * shortest schedule found. Returns how many failed; `tally`: or NULL. */
uint64_t case_check(uint64_t first, uint64_t count, const struct sim_sabotage *sabotage, FILE *out,
                    struct sim_tally *tally);

#endif
