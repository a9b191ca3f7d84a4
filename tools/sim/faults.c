#include "tools/sim/faults.h"

#include <string.h>

#include "tools/sim/random.h"

static const struct {
    const char *word, *text;
} kinds[SIM_FAULT_KINDS] = {
#define FAULT_ROW(name, word, text) [SIM_##name] = {word, text},
    FAULT_KINDS(FAULT_ROW)
#undef FAULT_ROW
};

const char *sim_fault_word(enum sim_fault fault) { return kinds[fault].word; }
const char *sim_fault_text(enum sim_fault fault) { return kinds[fault].text; }

zero_status sim_faults_parse(const char *words, uint32_t *out_mask, struct zero_error *error) {
    *out_mask = 0;
    for (const char *at = words; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        uint32_t fault = 0;
        while (fault < SIM_FAULT_KINDS &&
               (strlen(kinds[fault].word) != length || strncmp(kinds[fault].word, at, length)))
            fault++;
        if (fault == SIM_FAULT_KINDS)
            return error_set(error, ZERO_E_ARGUMENT,
                             "there is no fault \"%.*s\"; there are straggler, lost, slow, delay, reorder, "
                             "drive, stuck and node",
                             (int)length, at);
        *out_mask |= 1u << fault;
        at += length;
    }
    return ZERO_OK;
}

struct sim_faults sim_faults_draw(uint32_t mask, uint64_t seed, uint32_t ranks, uint32_t steps,
                                  uint32_t uses) {
    enum { RANK, STEP, USE };
#define DRAW(fault, what, end) (uint32_t) random_below(random_draw(seed, RANDOM_FAULTS, fault, what), end)
    /* From the draws of faults that hit no rank, and of none. */
    struct sim_faults faults = {.mask = mask,
                                .straggler_percent = 200 + DRAW(SIM_DELAY, 0, 301),
                                .slow_percent = 200 + DRAW(SIM_REORDER, 0, 801),
                                .drive_request = DRAW(SIM_FAULT_KINDS, 0, 2 * steps)};
    for (uint32_t f = 0; f < SIM_FAULT_KINDS; f++) {
        faults.rank[f] = DRAW(f, RANK, ranks);
        faults.step[f] = DRAW(f, STEP, steps);
        faults.use[f] = DRAW(f, USE, uses);
    }
#undef DRAW
    return faults;
}
