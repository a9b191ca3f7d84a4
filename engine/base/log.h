/* Lines for people. The engine writes nothing by itself: every line goes to the host program's callback. */
#ifndef ZERO_ENGINE_BASE_LOG_H
#define ZERO_ENGINE_BASE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zero_log_level { ZERO_LOG_DEBUG, ZERO_LOG_INFO, ZERO_LOG_WARN, ZERO_LOG_ERROR } zero_log_level;

/* `line` has no newline and is valid during the call only. May be called from the progress thread. */
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *line);

#ifdef __cplusplus
}
#endif

/* Inside the engine: the callback that takes the lines of one engine. */
struct log {
    zero_log_fn write; /* NULL: lines are dropped */
    void *user;
};

void log_line(const struct log *log, zero_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
