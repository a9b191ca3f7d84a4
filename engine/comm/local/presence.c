#include "engine/comm/local/presence.h"

#include <pthread.h>
#include <stddef.h>

#include "engine/base/clock.h"
#include "engine/base/system/thread.h"

/* The key exists only while presences are open. Otherwise a thread that ends after the library was unloaded would call
 * into the unloaded library. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below, and all lists */
static uint32_t opened;
static bool has_key;
static pthread_key_t key;

static _Thread_local struct presence *mine; /* the ranks that this thread attends */

static void leave(struct presence *presence) {
    struct presence **link = atomic_load(&presence->list);
    if (!link) return;
    while (*link != presence) link = &(*link)->next;
    *link = presence->next;
    atomic_store(&presence->list, NULL);
}

static void end_thread(void *value) {
    pthread_mutex_lock(&mutex);
    while (mine) {
        atomic_store(&mine->alone_ns, clock_now_ns());
        leave(mine);
    }
    pthread_mutex_unlock(&mutex);
}

/* Other ranks may read alone_ns already. */
void presence_open(struct presence *presence) {
    atomic_store(&presence->list, NULL);
    atomic_store(&presence->alone_ns, 0);
    presence->next = NULL;
    pthread_mutex_lock(&mutex);
    if (opened++ == 0) has_key = pthread_key_create(&key, end_thread) == 0;
    pthread_mutex_unlock(&mutex);
}

void presence_close(struct presence *presence) {
    pthread_mutex_lock(&mutex);
    leave(presence);
    if (--opened == 0 && has_key) pthread_key_delete(key);
    pthread_mutex_unlock(&mutex);
}

/* Without a key, or without memory for its value, the end of the thread cannot be seen. Then no thread is recorded. */
void presence_enter(struct presence *presence) {
    if (atomic_load(&presence->list) == &mine || thread_is_own()) return;
    pthread_mutex_lock(&mutex);
    leave(presence);
    atomic_store(&presence->alone_ns, 0);
    if (has_key && pthread_setspecific(key, &mine) == 0) {
        presence->next = mine;
        mine = presence;
        atomic_store(&presence->list, &mine);
    }
    pthread_mutex_unlock(&mutex);
}
