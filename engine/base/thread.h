/* The engine's own threads take no signals: these are the host program's, and go to its threads. */
#ifndef ZERO_ENGINE_BASE_THREAD_H
#define ZERO_ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create; the new thread has all signals blocked. */
static inline int thread_start(pthread_t *out_thread, void *(*run)(void *argument), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(out_thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return refused;
}

#endif
