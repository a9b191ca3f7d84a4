/* What the stand-in libcuda.so.1 offers beyond cuda.h: to the other stand-ins (libnccl, libcublasLt), which find it with
 * dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), ...), and to tests.
 *
 * The stand-in has no threads. What is enqueued runs later, inside some call of the driver, in a random order that respects only
 * streams and events; a host that does not wait reads or overwrites memory too early. Copies from pageable memory, too, are late,
 * which the real driver's are not. Device memory has no access rights except while the stand-in works on it: a host that touches it
 * crashes. It holds 0xff when it is allocated, and what is written behind an allocation's end ends the test with a sentence.
 * Contexts are per thread, as in the real driver, and gone when nobody retains them; the default stream is refused. What frees memory
 * waits for all that the context's streams hold. Kernels are given no address of pageable memory. Calls that the real driver forbids
 * while a stream is captured end the capture.
 *
 * Read at cuInit, from the environment: FAKE_CUDA_SEED (default 1), FAKE_CUDA_MEMORY (bytes of a device, default 1 GiB),
 * FAKE_CUDA_DEVICES (default 1; 0: none is there), FAKE_CUDA_VERSION (the driver's, default the header's), FAKE_CUDA_CAPABILITY (the
 * devices' major one, default 9), FAKE_CUDA_CAPTURES (default 1; 0: captures are refused). At the process's end the
 * counts below are written into the file FAKE_CUDA_COUNTS, if it is set.
 *
 * To run a test on it: cuda_test in emulated.bzl. To let it run a kernel: a line in this folder's BUILD. */
#ifndef ZERO_TESTS_CUDA_FAKE_CUDA_H
#define ZERO_TESTS_CUDA_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues host code that works on device memory: `run` gets a copy of the argument when the stream has come to it and
 * `ready` (or NULL), which is asked now and then, returns true. Both run with the driver locked: they call nothing of it. */
CUresult fake_cuda_enqueue(CUstream stream, bool (*ready)(void *argument), void (*run)(void *argument),
                           const void *argument, size_t bytes);

/* Whether a GPU reaches all of the memory: in one allocation of its own, or page-locked in one piece. Not from within what was
 * enqueued. */
bool fake_cuda_reaches(const void *memory, size_t bytes);

/* Of the whole process: kernels launched, by themselves and while a stream was captured; copies; kernels loaded after the first was
 * launched, for which the real driver may wait until the GPU is idle; graphs launched. */
struct fake_cuda_counts {
    unsigned long long kernels, recorded, copies, late_loads, graphs;
};
void fake_cuda_counts(struct fake_cuda_counts *out);

#ifdef __cplusplus
}
#endif
#endif
