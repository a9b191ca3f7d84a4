#include "engine/base/system/thread.h"

#include <semaphore.h>

struct start { /* lives until the new thread has copied it */
    void *(*body)(void *argument);
    void *argument;
    sem_t taken;
};

static _Thread_local bool own;

bool thread_is_own(void) { return own; }

static void *run(void *argument) {
    struct start *start = argument;
    void *(*body)(void *) = start->body;
    void *of_body = start->argument;
    own = true;
    sem_post(&start->taken);
    return body(of_body);
}

/* Waits until the new thread has copied `start`. Signals are blocked meanwhile, so no signal interrupts the wait. */
int thread_start(pthread_t *out_thread, void *(*body)(void *argument), void *argument) {
    struct start start = {.body = body, .argument = argument};
    sigset_t blocked, before;
    sem_init(&start.taken, 0, 0);
    thread_blocked(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int refused = pthread_create(out_thread, NULL, run, &start);
    while (!refused && sem_wait(&start.taken) != 0) continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sem_destroy(&start.taken);
    return refused;
}
