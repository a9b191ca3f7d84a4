/* When gradients are reduced, if a step has several micro-steps. */
#ifndef ZERO_STAGES_ACCUMULATION_H
#define ZERO_STAGES_ACCUMULATION_H

enum accumulation {
    ACCUMULATE_LAST,  /* in the last micro-step: gradients stay PARTIAL until then (FSDP's no_sync) */
    ACCUMULATE_EVERY, /* in every micro-step: reduced shards add up */
    ACCUMULATIONS
};

/* Names in the configuration (gradient_accumulation_mode) and in sentences. Index: enum accumulation. */
struct accumulation_name {
    const char *name, *when;
};
extern const struct accumulation_name accumulations[ACCUMULATIONS];

#endif
