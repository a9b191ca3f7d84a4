/* The lock that the host's thread and its progress thread take in turns. A mutex alone is not fair: a thread that polls in a
 * loop takes the mutex again before a waiting thread has woken up. */
#ifndef ZERO_ENGINE_RANKS_TURN_H
#define ZERO_ENGINE_RANKS_TURN_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct turn {
    pthread_mutex_t mutex;
    atomic_uint wanted; /* threads that wait for it */
};

static inline void turn_open(struct turn *turn) {
    pthread_mutex_init(&turn->mutex, NULL);
    atomic_init(&turn->wanted, 0);
}

static inline void turn_close(struct turn *turn) { pthread_mutex_destroy(&turn->mutex); }

static inline void turn_take(struct turn *turn) {
    atomic_fetch_add(&turn->wanted, 1);
    pthread_mutex_lock(&turn->mutex);
    atomic_fetch_sub(&turn->wanted, 1);
}

static inline void turn_give(struct turn *turn) { pthread_mutex_unlock(&turn->mutex); }

/* The holder lets the waiting threads go first. */
static inline void turn_yield(struct turn *turn) {
    while (atomic_load(&turn->wanted)) {
        pthread_mutex_unlock(&turn->mutex);
        sched_yield();
        pthread_mutex_lock(&turn->mutex);
    }
}

#endif
