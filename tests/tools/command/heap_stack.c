/* A library for LD_PRELOAD: dnnl_sgemm as some of oneDNN's kernels run it, with the stack pointer inside the heap
 * (oneDNN's issue 4845, "Heap corruption caused by signal handling"; mended in oneDNN 3.11.2). Those kernels run on
 * AVX-512 alone; this library shows the same damage on every processor.
 *
 * Before each product the calling thread puts its stack pointer into a block of memory and computes there for a
 * moment. A signal handler that runs on that thread writes its frame below the stack pointer. The library then finds
 * other bytes than it left there, says so and aborts, as malloc does later.
 *
 * HEAP_STACK_ALARM_US=N: the program also has a handler of SIGALRM that runs every N microseconds, as a host program, a
 * profiler or Open MPI might install one. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 64 * 1024, RED_ZONE_BYTES = 128, SPINS = 100000, PATTERN = 0xa5 };

typedef int sgemm_fn(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *,
                     int64_t, float, float *, int64_t);

static void count(int signal) {}

static sgemm_fn *real;

__attribute__((constructor)) static void install(void) {
    real = (sgemm_fn *)(uintptr_t)dlsym(RTLD_NEXT, "dnnl_sgemm");
    const char *text = getenv("HEAP_STACK_ALARM_US");
    if (!text) return;
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    struct timeval period = {.tv_usec = atoi(text)};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){period, period}, NULL);
}

/* Counts down with the stack pointer at `stack`. Nothing is written below it but by signals. */
__attribute__((noinline)) static void compute_on(void *stack) {
    long spins = SPINS;
#if defined(__aarch64__)
    __asm__ volatile("mov x9, sp\n\t"
                     "mov sp, %1\n\t"
                     "1: subs %0, %0, #1\n\t"
                     "b.ne 1b\n\t"
                     "mov sp, x9\n\t"
                     : "+r"(spins)
                     : "r"(stack)
                     : "x9", "memory", "cc");
#else
    __asm__ volatile("mov %%rsp, %%r15\n\t"
                     "mov %1, %%rsp\n\t"
                     "1: dec %0\n\t"
                     "jnz 1b\n\t"
                     "mov %%r15, %%rsp\n\t"
                     : "+r"(spins)
                     : "r"(stack)
                     : "r15", "memory", "cc");
#endif
}

int dnnl_sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    static _Thread_local unsigned char *block;
    if (!block) block = malloc(BLOCK_BYTES);
    memset(block, PATTERN, BLOCK_BYTES);
    compute_on((void *)((uintptr_t)(block + BLOCK_BYTES - 1024) & ~(uintptr_t)63));
    for (unsigned i = 0; i < BLOCK_BYTES - 1024 - RED_ZONE_BYTES; i++)
        if (block[i] != PATTERN) {
            static const char line[] =
                "heap_stack: a signal's frame overwrote the heap of a thread that computes\n";
            if (write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(1);
            abort();
        }
    return real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
