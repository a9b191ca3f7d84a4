/* The lines that the engine gives to the host program. It writes nothing by itself. */
#ifndef ZERO_ENGINE_BASE_LOG_LEVEL_H
#define ZERO_ENGINE_BASE_LOG_LEVEL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zero_log_level { ZERO_LOG_DEBUG, ZERO_LOG_INFO, ZERO_LOG_WARN, ZERO_LOG_ERROR } zero_log_level;

/* `line` has no newline and is valid during the call only. May be called from the progress thread. */
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
