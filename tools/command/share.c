#include "tools/command/share.h"

#include <stdbool.h>
#include <string.h>

/* A sum is the only exchange that the engine offers to programs. */
zero_status share_text(zero_engine *engine, char *text, size_t capacity) {
    enum { AT_ONCE = 64 };
    bool first = zero_engine_rank(engine) == 0;
    for (size_t at = 0; at < capacity; at += AT_ONCE) {
        double values[AT_ONCE] = {0};
        size_t count = capacity - at < AT_ONCE ? capacity - at : AT_ONCE;
        for (size_t i = 0; first && i < count; i++) values[i] = (unsigned char)text[at + i];
        zero_status status = zero_engine_sum(engine, values, (uint32_t)count);
        if (status != ZERO_OK) return status;
        for (size_t i = 0; i < count; i++) text[at + i] = (char)(unsigned char)values[i];
        if (memchr(text + at, 0, count)) break;
    }
    return ZERO_OK;
}
