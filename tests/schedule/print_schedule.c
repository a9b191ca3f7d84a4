/* print_schedule CONFIG.json UPDATES: lr, beta1 and beta2 of each update, all their digits. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/config/config.h"

int main(int argc, char **argv) {
    struct config config;
    struct zero_error error;
    error_clear(&error);
    if (argc != 3) return 2;
    zero_status status = config_read(argv[1], &config, &error);
    if (!status) status = config_resolve(&config, 1, &error);
    if (status) return fprintf(stderr, "%s\n", error.message), 1;
    const struct config_optimizer *o = &config.optimizer;
    for (uint64_t i = 0; i < strtoull(argv[2], NULL, 10); i++) {
        struct lr_setting s = lr_schedule_at(config.schedule_row, &config.schedule, 0, i,
                                             (struct lr_setting){o->lr, o->betas[0], o->betas[1]});
        printf("%.17g %.17g %.17g\n", s.lr, s.beta1, s.beta2);
    }
    config_free(&config);
    return 0;
}
