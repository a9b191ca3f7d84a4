#include "engine/open/choices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/blueprint/blueprint.h"
#include "kernels/quantize.h"

static void log_model_ranks(const struct choices *c) {
    if (c->ranks->model_size == 1) return;
    log_line(&c->ranks->log, ZERO_LOG_INFO,
             "the host program has cut its model for %" PRIu32 " model ranks, each on %" PRIu32 " data ranks",
             c->ranks->model_size, c->ranks->data_size);
}

static void log_mesh(const struct choices *c) {
    uint64_t group = c->config->shard_ranks;
    if (group == c->ranks->data_size) return;
    log_line(&c->ranks->log, ZERO_LOG_INFO, "ranks share in %" PRIu64 " groups of %" PRIu64 ": %s",
             c->ranks->data_size / group, group,
             c->config->reshard == RESHARD_GROUP
                 ? "each group keeps a second shard of the parameters between forward and backward"
                 : "each group shares one copy; gradients are then added over the copies");
    if (c->config->node_group % group)
        log_line(
            &c->ranks->log, ZERO_LOG_WARN,
            "groups of %" PRIu64 " adjacent ranks cross from one node to another, and groups of %" PRIu64
            " do not: number ranks node by node (mpirun --map-by slot), or choose a divisor of that number",
            group, c->config->node_group);
}

static void log_codes(const struct choices *c) {
    const struct config_groups *groups = &c->config->groups;
    enum code_format run = (enum code_format)c->config->weight_code;
    if (run)
        log_line(&c->ranks->log, ZERO_LOG_WARN,
                 "inexact by request (zero_quantized_weights): parameters are gathered in blockwise %s",
                 code_format_name(run));
    for (uint32_t g = 0; g < groups->count; g++) {
        int own = groups->item[g].weight_code;
        if (own > CODE_NONE && own != (int)run)
            log_line(&c->ranks->log, ZERO_LOG_WARN,
                     "inexact by request (param_groups[%" PRIu32
                     "].zero_quantized_weights): its parameters are gathered in blockwise %s",
                     g, code_format_name((enum code_format)own));
        else if (own == CODE_NONE && run)
            log_line(&c->ranks->log, ZERO_LOG_INFO,
                     "param_groups[%" PRIu32 "]: its parameters are gathered as they are", g);
    }
}

static void log_keys(const struct choices *c, const char *keys) {
    log_line(&c->ranks->log, ZERO_LOG_INFO,
             "accepted, and without effect here (zero config --changed says why): %s", keys);
}

/* Lines name all keys that have no effect; with one such key the line says what is done instead. */
static void log_accepted(const struct choices *c) {
    char keys[900];
    size_t at = 0;
    uint64_t count = c->config->line_count;
    if (count == 1) log_line(&c->ranks->log, ZERO_LOG_INFO, "%s", c->config->lines[0]);
    for (uint64_t i = 0; i < count && count > 1; i++) {
        const char *line = c->config->lines[i];
        int length = (int)strcspn(line, " ");
        if (at + (size_t)length + 2 >= sizeof keys) log_keys(c, keys), at = 0;
        at += (size_t)sprintf(keys + at, "%s%.*s", at ? ", " : "", length, line);
    }
    if (at) log_keys(c, keys);
}

void choices_log(const struct choices *c) {
    if (c->ranks->rank) return;
    if (c->without_gpu->code)
        log_line(&c->ranks->log, ZERO_LOG_WARN, "computes on the CPU, not on this machine's NVIDIA GPU: %s",
                 c->without_gpu->message);
    log_accepted(c);
    char idle[1000];
    for (uint32_t i = 0; config_idle(c->config, i, idle, sizeof idle); i++)
        if (*idle) log_line(&c->ranks->log, ZERO_LOG_INFO, "%s", idle);
    char of[64] = "";
    if (c->cpus)
        snprintf(of, sizeof of, " (%" PRIu32 " CPUs, shared by %" PRIu32 " ranks)", c->cpus, c->sharers);
    log_line(&c->ranks->log, ZERO_LOG_INFO,
             "%s, %" PRIu32 " ranks over %s, %" PRIu32
             " threads each%s, compute in %s, gradients reduced %s in %s",
             blueprint_stage(c->config)->name, c->ranks->size, comm_name(c->ranks->data), c->threads, of,
             dtype_name(c->precision.compute), accumulations[c->config->accumulation_mode].when,
             dtype_name(c->precision.reduced));
    log_model_ranks(c);
    log_mesh(c);
    if (c->config->prescale && c->config->predivide != 1)
        log_line(&c->ranks->log, ZERO_LOG_WARN,
                 "gradient_predivide_factor = %g: has no effect beside prescale_gradients, which divides by "
                 "all ranks",
                 c->config->predivide);
    if (lr_schedule_key(c->config->schedule_row, "total_num_steps") &&
        c->schedule->warmup_num_steps > c->schedule->total_num_steps)
        log_line(&c->ranks->log, ZERO_LOG_WARN,
                 "scheduler.params.total_num_steps: %s ends after %" PRId64 " steps, before its %" PRId64
                 " steps of warmup do",
                 c->config->schedule_row->name, (int64_t)c->schedule->total_num_steps,
                 (int64_t)c->schedule->warmup_num_steps);
    log_codes(c);
    if (c->config->quantized_gradients)
        log_line(
            &c->ranks->log, ZERO_LOG_WARN,
            "inexact by request (zero_quantized_gradients): gradients are reduced in blockwise int%" PRIu64,
            c->config->comm.quantized_gradient_bits);
    if (c->precision.state != DTYPE_F32)
        log_line(&c->ranks->log, ZERO_LOG_WARN,
                 "inexact by request (bf16.bf16_optimizer_states): optimizer states are bf16, rounded "
                 "stochastically from seed %" PRIu64,
                 c->config->seed);
}
