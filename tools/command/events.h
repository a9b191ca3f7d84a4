/* Event files of TensorBoard: records of a length, its checksum, an Event message (tensorflow/core/util/event.proto) and its
 * checksum. The checksums are CRC-32C, masked (tensorflow/core/lib/io/record_writer.h). */
#ifndef ZERO_TOOLS_COMMAND_EVENTS_H
#define ZERO_TOOLS_COMMAND_EVENTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct scalar {
    const char *tag;
    double value;
};

/* Writes the record with which a file begins. */
void events_begin(FILE *out, double wall_s);

/* Writes one record with `count` scalars of at most 16. */
void events_write(FILE *out, double wall_s, uint64_t step, const struct scalar *scalar, size_t count);

#endif
