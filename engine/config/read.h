/* The interface between read.c, which gets the text, and parse.c, which parses it. */
#ifndef ZERO_ENGINE_CONFIG_READ_H
#define ZERO_ENGINE_CONFIG_READ_H

#include "engine/config/config.h"

/* Stores every member of the object `text` (zero-terminated) as a key below `parent`; "" for the top. */
zero_status config_parse(struct config *config, const char *text, size_t length, const char *name,
                         const char *parent, enum config_source source, struct zero_error *error);

#endif
