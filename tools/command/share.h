/* What the engine does not carry between ranks: text. */
#ifndef ZERO_TOOLS_COMMAND_SHARE_H
#define ZERO_TOOLS_COMMAND_SHARE_H

#include "engine/zero.h"

/* Rank 0's text on all ranks, of less than `capacity` bytes. Collective. */
zero_status share_text(zero_engine *engine, char *text, size_t capacity);

#endif
