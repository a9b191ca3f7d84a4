/* A configuration in base64, as DeepSpeed's tuner hands it to a program. */
#ifndef ZERO_ENGINE_CONFIG_BASE64_H
#define ZERO_ENGINE_CONFIG_BASE64_H

#include <stdbool.h>

/* The text behind the base64, with + and / or with - and _; the caller frees it. NULL: this is no base64 of an object, it is longer than
 * a configuration may be, or there is no memory. */
char *config_base64_text(const char *base64);

/* Whether a text is more likely base64, whole or not, than a path: it may hold a secret, and no message repeats it. */
bool config_base64_like(const char *text);

#endif
