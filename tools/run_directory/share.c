#include "tools/run_directory/run_directory.h"

#include <string.h>

/* A sum is the only exchange that the engine offers to programs. A double holds integers of 53 bits, so each value carries the
 * whole bytes that fit into them. The other ranks add zeros. */
enum { NUMBERS = 64, NUMBER_BYTES = 6, AT_ONCE = NUMBERS * NUMBER_BYTES };

static void pack(const char *text, size_t count, double *numbers) {
    for (size_t i = count; i-- > 0;)
        numbers[i / NUMBER_BYTES] = numbers[i / NUMBER_BYTES] * 256 + (unsigned char)text[i];
}

static void unpack(const double *numbers, size_t count, char *text) {
    for (size_t i = 0; i < count; i++)
        text[i] = (char)((uint64_t)numbers[i / NUMBER_BYTES] >> i % NUMBER_BYTES * 8);
}

zero_status share_text(zero_engine *engine, char *text, size_t capacity) {
    bool first = zero_engine_rank(engine) == 0;
    for (size_t at = 0; at < capacity; at += AT_ONCE) {
        double numbers[NUMBERS] = {0};
        size_t count = capacity - at < AT_ONCE ? capacity - at : AT_ONCE;
        if (first) pack(text + at, count, numbers);
        TRY(zero_engine_sum(engine, numbers, NUMBERS));
        unpack(numbers, count, text + at);
        if (memchr(text + at, 0, count)) break;
    }
    return ZERO_OK;
}
