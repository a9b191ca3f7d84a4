/* Work on the host's stream of the device: copies and sums between the flat buffers and the host's memory. If the program
 * computes on the CPU, there is no stream, and the work is done at once. A failure is the device's; the calls that begin and end
 * uses find it. */
#ifndef ZERO_ENGINE_PASS_HOST_STREAM_H
#define ZERO_ENGINE_PASS_HOST_STREAM_H

#include "engine/run/run.h"
#include "kernels/gradients.h"

void host_stream_copy(struct running *run, void *target, const void *source, uint64_t bytes);
void host_stream_clear(struct running *run, void *memory, uint64_t bytes);

/* gradients_take, on the host's stream. */
void host_stream_take_gradients(struct running *run, gradient_item_fn item, const void *user, uint32_t items,
                                uint32_t threads);

#endif
