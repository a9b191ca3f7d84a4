/* All OpenMP code of the GPT. */
#include "tools/gpt/math/parallel.h"

#include <omp.h>

void parallel_run(uint32_t threads, uint32_t count, parallel_fn task, void *context) {
    if (threads > count) threads = count;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (uint32_t i = 0; i < count; i++) task(context, i, (uint32_t)omp_get_thread_num());
}

uint32_t parallel_limit(uint32_t threads) {
    uint32_t before = (uint32_t)omp_get_max_threads();
    omp_set_num_threads((int)threads);
    return before;
}
