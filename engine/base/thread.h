/* Threads of the engine take no signals: these are the host program's, and go to its threads. Faults of the thread itself
 * (SIGSEGV, SIGBUS, ...) do reach it. */
#ifndef ZERO_ENGINE_BASE_THREAD_H
#define ZERO_ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* All signals but those that a fault of the thread itself raises: none of these can wait for another thread. */
static inline void thread_blocked(sigset_t *out) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(out);
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++) sigdelset(out, own[i]);
}

/* As pthread_create, for a thread of the engine: it has these signals blocked. */
int thread_start(pthread_t *out_thread, void *(*body)(void *argument), void *argument);

/* Whether thread_start began the calling thread: the host's threads began otherwise. */
bool thread_is_own(void);

#endif
