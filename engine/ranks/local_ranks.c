#include "engine/ranks/local_ranks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "engine/ranks/failure.h"

struct outliving {
    struct outliving *next;
    struct tier *tier[TIERS];
    struct device *device;
    void *message;
};

struct zero_local {
    struct local_world *world;
    uint32_t ranks;
    pthread_mutex_t mutex; /* of outliving */
    struct outliving *outliving;
};

/* For ranks that are processes. The list is never freed, so that leak checkers see that the memory is in use. */
static pthread_mutex_t outliving_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct outliving *outliving_process;

static void keep(zero_local *local, struct outliving *outliving) {
    pthread_mutex_t *mutex = local ? &local->mutex : &outliving_mutex;
    struct outliving **list = local ? &local->outliving : &outliving_process;
    pthread_mutex_lock(mutex);
    outliving->next = *list;
    *list = outliving;
    pthread_mutex_unlock(mutex);
}

static void close_outliving(struct outliving *outliving) {
    for (int t = 0; t < TIERS; t++)
        if (outliving->tier[t]) outliving->tier[t]->ops->close(outliving->tier[t]);
    if (outliving->device) outliving->device->ops->close(outliving->device);
    free(outliving->message);
    free(outliving);
}

zero_local *zero_local_create(uint32_t ranks) {
    failure_call("zero_local_create", NULL);
    if (ranks == 0 || ranks > RANKS_MAX) {
        refuse(ZERO_E_ARGUMENT, "zero_local_create: %" PRIu32 " ranks; 1 to %d are possible", ranks,
               RANKS_MAX);
        return NULL;
    }
    zero_local *local = calloc(1, sizeof *local);
    if (local) local->world = local_world_create(ranks);
    if (!local || !local->world) {
        refuse(ZERO_E_MEMORY, "zero_local_create: no memory for a world of %" PRIu32 " ranks", ranks);
        free(local);
        return NULL;
    }
    local->ranks = ranks;
    pthread_mutex_init(&local->mutex, NULL);
    return local;
}

void zero_local_destroy(zero_local *local) {
    if (!local) return;
    local_world_destroy(local->world);
    for (struct outliving *outliving = local->outliving, *next; outliving; outliving = next) {
        next = outliving->next;
        close_outliving(outliving);
    }
    pthread_mutex_destroy(&local->mutex);
    free(local);
}

uint32_t local_ranks(const zero_local *local) { return local->ranks; }
struct local_world *local_world_of(const zero_local *local) {
    return local->world;
}

struct outliving *outliving_create(void) {
    return calloc(1, sizeof(struct outliving));
}

void outliving_take(struct outliving *outliving, void *message) {
    free(outliving->message);
    outliving->message = message;
}

void *outliving_message(struct outliving *outliving, uint64_t bytes) {
    outliving_take(outliving, calloc(1, bytes));
    return outliving->message;
}

/* A tier without an address belongs to this rank alone: peers do not reach it. Closing it waits for its transfers to and
 * from the memory of other tiers. */
static void close_drives(struct tier *tier[TIERS]) {
    for (int t = 0; t < TIERS; t++) {
        if (!tier[t] || tier[t]->ops->address(tier[t])) continue;
        tier[t]->ops->close(tier[t]);
        tier[t] = NULL;
    }
}

void outliving_release(struct outliving *outliving, zero_local *local, struct tier *tier[TIERS],
                       struct device *device, bool peers_use_it) {
    close_drives(tier);
    memcpy(outliving->tier, tier, sizeof outliving->tier);
    outliving->device = device;
    if (peers_use_it)
        keep(local, outliving);
    else
        close_outliving(outliving);
}
