/* Threads of the engine take no signals: these are the host program's, and go to its threads. Faults of the thread itself
 * (SIGSEGV, SIGBUS, ...) do reach it. */
#ifndef ZERO_ENGINE_BASE_THREAD_H
#define ZERO_ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* All signals but those that a fault of the thread itself raises: none of these can wait for another thread. */
static inline void thread_blocked(sigset_t *out) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(out);
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++) sigdelset(out, own[i]);
}

/* As pthread_create; the new thread has these signals blocked. */
static inline int thread_start(pthread_t *out_thread, void *(*run)(void *argument), void *argument) {
    sigset_t blocked, before;
    thread_blocked(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int refused = pthread_create(out_thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return refused;
}

#endif
