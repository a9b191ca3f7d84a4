/* Transfers by threads that call pread and pwrite, for systems that refuse io_uring. One thread per transfer in
 * flight, up to a limit. One lock guards the whole struct. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/system/thread.h"
#include "offload/io.h"

enum { POOL_THREADS_MAX = 16 };

struct pool {
    struct io base;
    int file;
    uint32_t depth, thread_count;
    pthread_mutex_t lock;
    pthread_cond_t queue_filled, done_filled;
    struct io_transfer *queue; /* a ring of depth rows */
    uint32_t queue_first, queue_count;
    struct io_done *done; /* depth rows */
    uint32_t done_count;
    bool woken, stopping;
    pthread_t threads[POOL_THREADS_MAX];
};

static int32_t perform(int file, const struct io_transfer *t) {
    ssize_t moved = t->write ? pwrite(file, t->memory, t->bytes, (off_t)t->offset)
                             : pread(file, t->memory, t->bytes, (off_t)t->offset);
    return moved < 0 ? -errno : (int32_t)moved;
}

static void *work(void *argument) {
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->queue_count && !pool->stopping) pthread_cond_wait(&pool->queue_filled, &pool->lock);
        if (!pool->queue_count) break;
        struct io_transfer transfer = pool->queue[pool->queue_first];
        pool->queue_first = (pool->queue_first + 1) % pool->depth;
        pool->queue_count--;
        pthread_mutex_unlock(&pool->lock);
        int32_t result = perform(pool->file, &transfer);
        pthread_mutex_lock(&pool->lock);
        pool->done[pool->done_count++] = (struct io_done){.tag = transfer.tag, .result = result};
        pthread_cond_signal(&pool->done_filled);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void pool_close(struct io *io) {
    struct pool *pool = (struct pool *)io;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->queue_filled);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->done_filled);
    pthread_cond_destroy(&pool->queue_filled);
    pthread_mutex_destroy(&pool->lock);
    free(pool->done);
    free(pool->queue);
    free(pool);
}

static zero_status pool_open(const struct io_options *options, struct io **out_io, struct zero_error *error) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool) return error_set(error, ZERO_E_MEMORY, "no memory for a thread pool");
    pool->base.ops = &io_pool;
    pool->file = options->file;
    pool->depth = options->depth;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->queue_filled, NULL);
    pthread_cond_init(&pool->done_filled, NULL);
    pool->queue = calloc(pool->depth, sizeof *pool->queue);
    pool->done = calloc(pool->depth, sizeof *pool->done);
    if (!pool->queue || !pool->done) {
        pool_close(&pool->base);
        return error_set(error, ZERO_E_MEMORY, "no memory for a thread pool");
    }
    uint32_t wanted = pool->depth < POOL_THREADS_MAX ? pool->depth : POOL_THREADS_MAX;
    int refused = 0;
    while (pool->thread_count < wanted && !refused) {
        refused = thread_start(&pool->threads[pool->thread_count], work, pool);
        if (!refused) pool->thread_count++;
    }
    if (!pool->thread_count) {
        pool_close(&pool->base);
        return error_set(error, ZERO_E_MEMORY, "the system refuses a thread: %s", strerror(refused));
    }
    *out_io = &pool->base;
    return ZERO_OK;
}

static void pool_submit(struct io *io, const struct io_transfer *transfer) {
    struct pool *pool = (struct pool *)io;
    pthread_mutex_lock(&pool->lock);
    pool->queue[(pool->queue_first + pool->queue_count++) % pool->depth] = *transfer;
    pthread_cond_signal(&pool->queue_filled);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_start(struct io *io) {} /* a thread has taken the transfer already */

static uint32_t pool_wait(struct io *io, struct io_done *out_done, uint32_t capacity) {
    struct pool *pool = (struct pool *)io;
    pthread_mutex_lock(&pool->lock);
    while (!pool->done_count && !pool->woken) pthread_cond_wait(&pool->done_filled, &pool->lock);
    pool->woken = false;
    uint32_t count = 0;
    while (count < capacity && pool->done_count) out_done[count++] = pool->done[--pool->done_count];
    pthread_mutex_unlock(&pool->lock);
    return count;
}

static void pool_wake(struct io *io) {
    struct pool *pool = (struct pool *)io;
    pthread_mutex_lock(&pool->lock);
    pool->woken = true;
    pthread_cond_signal(&pool->done_filled);
    pthread_mutex_unlock(&pool->lock);
}

const struct io_ops io_pool = {.name = "pread and pwrite",
                               .open = pool_open,
                               .close = pool_close,
                               .submit = pool_submit,
                               .start = pool_start,
                               .wait = pool_wait,
                               .wake = pool_wake};
