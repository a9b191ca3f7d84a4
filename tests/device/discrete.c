#include "tests/device/discrete.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

struct extent {
    struct extent *next;
    void *memory;
    uint64_t bytes;
};

/* The memory has a protection key (pkeys(7)): a register of each thread says whether the thread may touch it. Without such keys mprotect
 * closes the memory to all threads, and opens it for each piece of work. */
static int key = -1; /* none */
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static _Thread_local uint32_t key_depth; /* of enter without leave */

static void key_open(void) { key = pkey_alloc(0, PKEY_DISABLE_ACCESS); }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct extent *extents;
static uint32_t inside; /* without a key: threads between enter and leave */

static void protect_all(int protection) {
    for (const struct extent *e = extents; e; e = e->next) mprotect(e->memory, e->bytes, protection);
}

static void *allocate(uint64_t bytes) {
    struct extent *e = malloc(sizeof *e);
    void *memory =
        e ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(e);
        return NULL;
    }
    pthread_once(&key_once, key_open);
    if (key >= 0 && pkey_mprotect(memory, bytes, PROT_READ | PROT_WRITE, key)) {
        munmap(memory, bytes);
        free(e);
        return NULL;
    }
    pthread_mutex_lock(&mutex);
    *e = (struct extent){extents, memory, bytes};
    extents = e;
    if (key < 0 && !inside) mprotect(memory, bytes, PROT_NONE);
    pthread_mutex_unlock(&mutex);
    return memory;
}

static void release(void *memory, uint64_t bytes) {
    pthread_mutex_lock(&mutex);
    struct extent **link = &extents, *e;
    while ((*link)->memory != memory) link = &(*link)->next;
    e = *link;
    *link = e->next;
    pthread_mutex_unlock(&mutex);
    munmap(memory, bytes);
    free(e);
}

void discrete_enter(void) {
    pthread_once(&key_once, key_open);
    if (key >= 0) {
        if (key_depth++ == 0) pkey_set(key, 0);
        return;
    }
    pthread_mutex_lock(&mutex);
    if (inside++ == 0) protect_all(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&mutex);
}

void discrete_leave(void) {
    if (key >= 0) {
        if (--key_depth == 0) pkey_set(key, PKEY_DISABLE_ACCESS);
        return;
    }
    pthread_mutex_lock(&mutex);
    if (--inside == 0) protect_all(PROT_NONE);
    pthread_mutex_unlock(&mutex);
}

const struct device_guard discrete_guard = {allocate, release, discrete_enter, discrete_leave};
