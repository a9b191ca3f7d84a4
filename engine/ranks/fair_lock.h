/* The lock that the host's thread and its progress thread take in turns. A mutex alone is not fair: a thread that polls in a
 * loop takes the mutex again before a waiting thread has woken up. The mutex knows its thread: one that has left it by a jump takes
 * it again, and one that does not have it gives nothing. */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct fair_lock {
    pthread_mutex_t mutex;
    atomic_uint wanted; /* threads that wait for it */
};

static inline void fair_lock_open(struct fair_lock *lock) {
    pthread_mutexattr_t checking;
    pthread_mutexattr_init(&checking);
    pthread_mutexattr_settype(&checking, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&lock->mutex, &checking);
    pthread_mutexattr_destroy(&checking);
    atomic_init(&lock->wanted, 0);
}

static inline void fair_lock_close(struct fair_lock *lock) { pthread_mutex_destroy(&lock->mutex); }

static inline void fair_lock_take(struct fair_lock *lock) {
    atomic_fetch_add(&lock->wanted, 1);
    pthread_mutex_lock(&lock->mutex);
    atomic_fetch_sub(&lock->wanted, 1);
}

static inline void fair_lock_give(struct fair_lock *lock) { pthread_mutex_unlock(&lock->mutex); }

/* The holder lets the waiting threads go first. */
static inline void fair_lock_yield(struct fair_lock *lock) {
    while (atomic_load(&lock->wanted)) {
        pthread_mutex_unlock(&lock->mutex);
        sched_yield();
        pthread_mutex_lock(&lock->mutex);
    }
}
