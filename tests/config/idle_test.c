/* Written keys that have no effect because of other keys. */
#include "engine/config/config.h"
#include "tests/check.h"

/* A written key without effect is reported with the reason; keys with an effect, and keys that were not written, are
 * not. */
static void idle_keys(void) {
    static const struct {
        const char *json, *lines;
    } rows[] = {
        {"", ""},
        {", \"fp16\": {\"enabled\": true, \"loss_scale\": 2}", ""},
        {", \"fp16\": {\"enabled\": false, \"loss_scale\": 2, \"hysteresis\": 3}",
         "fp16.loss_scale, fp16.hysteresis: no effect while fp16.enabled is false\n"},
        {", \"zero_optimization\": {\"stage\": 2, \"stage3_max_live_parameters\": 9}",
         "zero_optimization.stage3_max_live_parameters: no effect below stage 3, where parameters are whole "
         "on every "
         "rank\n"},
        {", \"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": 9, "
         "\"zero_quantized_gradients\": true}, "
         "\"comm\": {\"quantized_gradient_bits\": 8}",
         ""},
        {", \"zero_optimization\": {\"stage\": 1, \"cpu_offload_param\": true}",
         "zero_optimization.cpu_offload_param: no effect below stage 3, where parameters are whole on every "
         "rank\n"},
        {", \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}, "
         "\"offload_param\": {\"device\": "
         "\"nvme\"}}",
         "zero_optimization.offload_param.device: no effect below stage 3, where parameters are whole on "
         "every rank\n"},
        {", \"zero_optimization\": {\"micro_order\": \"vertical\"}",
         "zero_optimization.micro_order: no effect while a step has one micro-step\n"},
        {", \"gradient_accumulation_steps\": 1, \"comm\": {\"quantized_gradient_bits\": 8}",
         "comm.quantized_gradient_bits: no effect while zero_optimization.zero_quantized_gradients is "
         "false\n"},
        {", \"checkpoint\": {\"async_bytes\": \"2MiB\"}, \"aio\": {\"queue_depth\": 3}, "
         "\"zero_optimization\": "
         "{\"offload_optimizer\": {\"device\": \"none\", \"buffer_count\": 2}, \"offload_param\": "
         "{\"device\": "
         "\"none\", \"nvme_path\": \"/x\"}}",
         "checkpoint.async_bytes: no effect while checkpoint.async is false\n"
         "aio.queue_depth: no effect while nothing is on NVMe\n"
         "zero_optimization.offload_optimizer.buffer_count: no effect while neither state nor parameters are "
         "on NVMe\n"
         "zero_optimization.offload_param.nvme_path: no effect but for zero_engine_park while its device is "
         "not "
         "\"nvme\"\n"},
        {", \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 9, \"offload_optimizer\": {\"device\": "
         "\"cpu\", "
         "\"buffer_count\": 2, \"nvme_path\": \"/x\", \"ratio\": 1}, \"offload_param\": {\"device\": "
         "\"cpu\", \"nvme_path\": "
         "\"/x\"}}",
         "zero_optimization.sub_group_size: no effect but where a GPU's host updates, while neither state "
         "nor parameters are on "
         "NVMe\n"
         "zero_optimization.offload_optimizer.buffer_count: no effect while neither state nor parameters are "
         "on NVMe\n"
         "zero_optimization.offload_optimizer.nvme_path: no effect but for zero_engine_park while its device "
         "is not \"nvme\"\n"
         "zero_optimization.offload_param.nvme_path: no effect but for zero_engine_park while its device is "
         "not \"nvme\"\n"},
        {", \"zero_optimization\": {\"sub_group_size\": 9, \"offload_optimizer\": {\"device\": \"none\", "
         "\"ratio\": 1}}",
         "zero_optimization.sub_group_size: no effect but where a GPU's host updates, while neither state "
         "nor parameters are on "
         "NVMe\n"
         "zero_optimization.offload_optimizer.ratio: no effect while its device is \"none\"\n"},
        /* The device's share is cut between chunks; parameters on the drive have slots. */
        {", \"zero_optimization\": {\"sub_group_size\": 9, \"offload_optimizer\": {\"device\": \"cpu\", "
         "\"ratio\": 0.5}}",
         ""},
        {", \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 9, \"offload_optimizer\": {\"device\": "
         "\"none\", "
         "\"buffer_count\": 2}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/x\"}}",
         ""},
        {", \"aio\": {\"queue_depth\": 3}, \"zero_optimization\": {\"offload_optimizer\": {\"device\": "
         "\"nvme\", "
         "\"nvme_path\": \"/x\", \"buffer_count\": 2}}",
         ""},
        {", \"ema\": {\"decay\": 0, \"every\": 3, \"warmup\": true}",
         "ema.every, ema.warmup: no effect while ema.decay is 0\n"},
        {", \"ema\": {\"decay\": 0.5, \"begin\": 3}", ""},
        {", \"activation_checkpointing\": {\"nvme_path\": \"/x\"}",
         "activation_checkpointing.nvme_path: no effect but for zero_engine_add_scratch while "
         "activation_checkpointing.nvme_checkpointing is "
         "false\n"},
        {", \"aio\": {\"queue_depth\": 3}, \"activation_checkpointing\": {\"nvme_checkpointing\": true, "
         "\"nvme_path\": \"/x\"}",
         ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct config config;
        struct zero_error error;
        char json[512], line[1024], lines[1024] = "";
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_batch_size\": 1%s}", rows[i].json);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        config.host_obeys = true;
        CHECK_INT(config_resolve(&config, 1, &error), ZERO_OK);
        for (uint32_t k = 0; config_idle(&config, k, line, sizeof line); k++)
            if (*line) strcat(lines, line), strcat(lines, "\n");
        CHECK_STRING(lines, rows[i].lines);
        config_free(&config);
    }
}

int main(void) {
    idle_keys();
    return check_end();
}
