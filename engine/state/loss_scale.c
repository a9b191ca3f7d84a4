#include "engine/state/loss_scale.h"

enum { FACTOR = 2 };

/* The largest power of two in fp32. The scale gets there only if all gradients are zero. */
static const double value_max = 0x1p127;

static bool lower(struct loss_scale *s) {
    s->stable = 0;
    if (s->allowed > 1) {
        s->allowed--;
        return true;
    }
    if (s->value == s->min) return false;
    s->value = s->value / FACTOR > s->min ? s->value / FACTOR : s->min;
    return true;
}

static void raise(struct loss_scale *s) {
    if (s->consecutive) s->allowed = s->hysteresis;
    if (s->stable > 0 && s->stable % s->window == 0) {
        s->allowed = s->hysteresis;
        if (s->value < value_max) s->value *= FACTOR;
    }
    s->stable++;
}

bool loss_scale_update(struct loss_scale *s, bool overflow) {
    if (!s->dynamic) return true;
    if (overflow) return lower(s);
    raise(s);
    return true;
}

void loss_scale_resume(struct loss_scale *s, double value, uint64_t allowed, uint64_t stable) {
    if (!s->dynamic || !allowed) return;
    s->value = value;
    s->allowed = allowed;
    s->stable = stable;
}
