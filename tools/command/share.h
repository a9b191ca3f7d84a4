/* Shares text between ranks; the engine itself only shares sums. */
#ifndef ZERO_TOOLS_COMMAND_SHARE_H
#define ZERO_TOOLS_COMMAND_SHARE_H

#include "engine/zero.h"

/* Copies rank 0's text, of less than `capacity` bytes, to all ranks. Collective. */
zero_status share_text(zero_engine *engine, char *text, size_t capacity);

#endif
