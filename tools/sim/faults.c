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
                             "drive and stuck",
                             (int)length, at);
        *out_mask |= 1u << fault;
        at += length;
    }
    return ZERO_OK;
}

struct sim_faults sim_faults_draw(uint32_t mask, uint64_t seed, uint32_t ranks, uint32_t steps,
                                  uint32_t uses) {
    enum {
        STRAGGLER,
        LOST,
        SLOW,
        DRIVE,
        HOW_SLOW,
        HOW_LATE,
        WHICH_STEP,
        WHICH_USE,
        WHICH_REQUEST,
        STUCK,
        STUCK_STEP,
        STUCK_USE
    };
#define DRAW(what, end) (uint32_t) random_below(random_draw(seed, RANDOM_FAULTS, what, 0), end)
    return (struct sim_faults){.mask = mask,
                               .straggler = DRAW(STRAGGLER, ranks),
                               .lost = DRAW(LOST, ranks),
                               .slow = DRAW(SLOW, ranks),
                               .drive = DRAW(DRIVE, ranks),
                               .straggler_percent = 200 + DRAW(HOW_LATE, 301),
                               .slow_percent = 200 + DRAW(HOW_SLOW, 801),
                               .lost_step = DRAW(WHICH_STEP, steps),
                               .lost_use = DRAW(WHICH_USE, uses),
                               .stuck = DRAW(STUCK, ranks),
                               .stuck_step = DRAW(STUCK_STEP, steps),
                               .stuck_use = DRAW(STUCK_USE, uses),
                               .drive_request = DRAW(WHICH_REQUEST, 2 * steps)};
#undef DRAW
}
