/* The engine's threads block signals, so that signals go to the host program's threads. Only a fault of the thread
 * itself (SIGSEGV, SIGBUS, ...) reaches an engine thread. */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* *out: the signals to block. These are all signals except those that a fault of the thread itself raises, because no
 * other thread can handle such a fault. */
static inline void thread_blocked(sigset_t *out) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(out);
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++) sigdelset(out, own[i]);
}

/* As pthread_create, for a thread of the engine: the new thread blocks these signals. */
int thread_start(pthread_t *out_thread, void *(*body)(void *argument), void *argument);

/* Whether thread_start started the calling thread. If not, it is a thread of the host program. */
bool thread_is_own(void);
