/* Serves a run's page to browsers of this machine, made anew for each request. A client has ten seconds; with more than 16 of them
 * the oldest is hung up on. */
#ifndef ZERO_TOOLS_REPORT_SERVE_H
#define ZERO_TOOLS_REPORT_SERVE_H

#include <stdint.h>

#include "engine/base/error.h"

enum { SERVE_REFRESH_S = 5 };

/* Listens on 127.0.0.1 alone; port 0: a free one. Prints the page's address once it can be loaded. Returns only after a failure. */
zero_status serve_run(const char *directory, uint16_t port, struct zero_error *error);

#endif
