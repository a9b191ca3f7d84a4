/* Free order within a bound: the room. Without a bound, these functions do nothing. */
#ifndef ZERO_STAGES_ROOM_H
#define ZERO_STAGES_ROOM_H

#include "stages/policy.h"

void room_open(struct policy *policy);
/* True if the region's buffer for this object counts in the room. */
bool takes_room(const struct region *region, enum object object);
/* An operation takes the bytes of a region's buffer, and waits until they are free. */
void room_take(struct policy *policy, enum object object, uint16_t region, struct operation *op);
/* The bytes are free once the operations emitted so far have read the buffer. */
void room_give(struct policy *policy, enum object object, uint16_t region, bool released);

#endif
