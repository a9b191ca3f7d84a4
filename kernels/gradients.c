#include "kernels/gradients.h"

#include <omp.h>
#include <string.h>

#include "engine/base/integer.h"
#include "engine/base/numbers/dtype.h"
#include "engine/device/kernel.h"

enum { THREAD_ELEMENTS_MIN = 1 << 16 }; /* fewer are not worth a thread */

/* Elements [first, first + count) of an array. */
static void take(struct gradient_take_argument a, uint64_t first, uint64_t count) {
    uint64_t width = dtype_bytes((enum dtype)a.dtype);
    a.sum = (uint8_t *)a.sum + first * width;
    a.count = count;
    if (!a.gradient) {
        if (!a.add) memset(a.sum, 0, count * width);
        return;
    }
    a.gradient = (const uint8_t *)a.gradient + first * width;
    kernel_gradient_take.run(&a);
}

/* Elements [begin, end) of all arrays, counted one after another. */
static void take_range(gradient_item_fn item, const void *user, uint32_t items, uint64_t begin,
                       uint64_t end) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < items && at < end; i++) {
        struct gradient_take_argument a = item(user, i);
        uint64_t from = max64(begin, at), to = min64(end, at + a.count);
        if (from < to) take(a, from - at, to - from);
        at += a.count;
    }
}

void gradients_take(gradient_item_fn item, const void *user, uint32_t items, uint32_t threads) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < items; i++) all += item(user, i).count;
    uint64_t useful = all / THREAD_ELEMENTS_MIN;
    if (threads > useful) threads = (uint32_t)useful;
    if (threads < 2) {
        take_range(item, user, items, 0, all);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        uint64_t granted = (uint64_t)omp_get_num_threads(), me = (uint64_t)omp_get_thread_num();
        take_range(item, user, items, all * me / granted, all * (me + 1) / granted);
    }
}
