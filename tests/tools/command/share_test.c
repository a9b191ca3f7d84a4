/* Texts of rank 0 on all ranks: of all bytes, of lengths around what one exchange carries, and cut off by the capacity. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tools/run_directory/run_directory.h"

enum { CAPACITY = 1200, RANKS = 3 };

static const struct plain_param params[] = {{"a", "a.w", 100, 0, NULL}};

static void shared(zero_engine *engine, uint32_t rank, size_t length, size_t capacity) {
    char text[CAPACITY], expected[CAPACITY];
    for (size_t i = 0; i < CAPACITY; i++) expected[i] = (char)(i < length ? 1 + (i * 7 + length) % 255 : 0);
    memcpy(text, expected, sizeof text);
    if (rank) memset(text, 'x', sizeof text);
    CHECK_INT(share_text(engine, text, capacity), ZERO_OK);
    CHECK_BYTES(text, expected, length < capacity ? length + 1 : capacity);
    if (rank && capacity < CAPACITY) CHECK_INT(text[capacity], 'x');
}

static void share(zero_engine *engine, uint32_t rank, void *user) {
    static const size_t lengths[] = {0, 1, 5, 6, 7, 255, 383, 384, 385, 767, 768, 1000};
    struct plain p;
    if (!CHECK(engine) || !CHECK_INT(plain_open(&p, engine, params, 1, NULL), ZERO_OK)) return;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        shared(engine, rank, lengths[i], CAPACITY);
        shared(engine, rank, lengths[i], lengths[i] + 1);
    }
}

int main(void) {
    ranks_run(RANKS, "{\"train_micro_batch_size_per_gpu\": 1}", share, NULL);
    return check_end();
}
