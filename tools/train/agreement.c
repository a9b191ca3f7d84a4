#include "tools/train/job.h"

#include "tools/gpt/gpt.h"
#include "tools/train/interrupt.h"

zero_status agreement_engine_failed(zero_status status, struct zero_error *error) {
    const char *message = *gpt_last_error() ? gpt_last_error() : zero_last_error();
    return error_set(error, status, "%s", *message ? message : zero_status_meaning(status));
}

zero_status agreement_sum(zero_engine *engine, double *values, uint32_t count, struct zero_error *error) {
    values[FAILED] = error->code != ZERO_OK;
    values[SIGNALS] = interrupt_asked();
    values[INTERRUPTED] = values[SIGNALS] != 0;
    zero_status status = zero_engine_sum(engine, values, count);
    if (status != ZERO_OK) {
        values[FAILED] = values[INTERRUPTED] = 0; /* the ranks agreed on nothing */
        return agreement_engine_failed(status, error);
    }
    if (values[FAILED] == zero_engine_size(engine) && zero_engine_rank(engine))
        error_clear(error); /* all ranks have the same failure: rank 0 reports it */
    if (values[INTERRUPTED] > 0) interrupt_take_over(values[SIGNALS], values[INTERRUPTED]);
    if (values[FAILED] > 0) return error_set(error, ZERO_E_PEER, "%s", "");
    if (values[INTERRUPTED] > 0) return error_set(error, ZERO_E_INTERRUPTED, "%s", "");
    return ZERO_OK;
}
