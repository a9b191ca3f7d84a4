/* The functions that the stand-in libcuda.so.1 offers beyond cuda.h: to the other stand-ins (libnccl, libcublasLt),
 * which find them with dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), ...), and to tests.
 *
 * The stand-in has no threads. Enqueued work runs later, inside a call of the driver, in a random order that respects
 * only streams and events; a host that does not wait reads or overwrites memory too early. Copies from pageable memory
 * are late, too; the real driver's are not. Device memory is accessible only while the stand-in works on it: a host
 * that touches it crashes. Allocated memory holds 0xff, and a write after an allocation's end ends the test with a
 * message; so does an unmap under queued work. Contexts are per thread, as in the real driver, and are destroyed after their last release; the default
 * stream is refused. A stream holds 1000 operations; a call that enqueues one more waits, as the real driver's. Calls
 * that free memory wait for all work on the context's streams. Kernels may not get an address of pageable memory. A
 * call that the real driver forbids during a capture ends the capture.
 *
 * cuInit reads the environment: FAKE_CUDA_SEED (default 1), FAKE_CUDA_MEMORY (bytes of a device, default 1 GiB),
 * FAKE_CUDA_DEVICES (default 1; 0: no device), FAKE_CUDA_INIT (its result, default 0), FAKE_CUDA_VERSION (of the driver; default the header's),
 * FAKE_CUDA_CAPABILITY (the devices' major one, default 9), FAKE_CUDA_VIRTUAL (default 1; 0: no virtual memory), FAKE_CUDA_NODE (the host's memory node beside the
 * devices, default 0; -1: unknown), and these, which may change later: FAKE_CUDA_CAPTURES
 * (default 1; 0: captures are refused; 2: they begin, and each call in them fails), FAKE_CUDA_GRAPHS (the most graphs at
 * once that there is memory for), FAKE_CUDA_REGISTERS (default 1; 0: the host's memory cannot be registered),
 * FAKE_CUDA_UNMAP_FAILS (if set, each unmap returns an error once it is done),
 * FAKE_CUDA_IDLE (the name of a kernel that does nothing). If FAKE_CUDA_COUNTS is set, the process writes the counts below into
 * that file when it ends.
 *
 * To run a test with the stand-in: cuda_test in emulated.bzl. To let it run a kernel: add a line to this folder's
 * BUILD. */
#ifndef ZERO_TESTS_CUDA_FAKE_CUDA_H
#define ZERO_TESTS_CUDA_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues host code that works on device memory. `run` gets a copy of the argument once the stream has reached it and
 * `ready` (or NULL), which is called repeatedly, returns true. Both run with the driver locked and must not call the
 * driver. */
CUresult fake_cuda_enqueue(CUstream stream, bool (*ready)(void *argument), void (*run)(void *argument),
                           const void *argument, size_t bytes);

/* True if a GPU reaches all of the memory: the memory is in one device allocation, or in one page-locked piece. Must
 * not be called from enqueued work. */
bool fake_cuda_reaches(const void *memory, size_t bytes);

/* Counts a product. `rounds_again`: it is added to its own earlier result in 16 bits. */
void fake_cuda_count_product(bool rounds_again);

/* Counts of the whole process: kernels launched directly and during a capture; copies; kernels loaded after the first
 * launch, for which the real driver may wait until the GPU is idle; graphs launched; matrix products, and those whose result is
 * rounded again. */
struct fake_cuda_counts {
    unsigned long long kernels, recorded, copies, late_loads, graphs, products, roundings;
};
void fake_cuda_counts(struct fake_cuda_counts *out);

enum { FAKE_NCCL_RANKS_MAX = 16 };

/* Of the stand-in for NCCL: communicators that ranks of this process joined, calls that they put on streams, and the bytes that they
 * sent straight, by their numbers in the communicator and the receivers'. */
struct fake_nccl_counts {
    unsigned long long communicators, splits, calls, exchanges,
        sent[FAKE_NCCL_RANKS_MAX][FAKE_NCCL_RANKS_MAX];
};
void fake_nccl_counts(struct fake_nccl_counts *out);
unsigned long long fake_nccl_gathers_queued(void); /* the most all-gathers of a communicator that were on a stream and not done */

#ifdef __cplusplus
}
#endif
#endif
