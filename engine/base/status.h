/* The codes that the functions of the engine return. Names and meanings are generated from this one list. */
#ifndef ZERO_ENGINE_BASE_STATUS_H
#define ZERO_ENGINE_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_STATUS_LIST(X)                                                                                  \
    X(ZERO_OK, 0, "success")                                                                                 \
    X(ZERO_E_ARGUMENT, 1, "an argument is invalid")                                                          \
    X(ZERO_E_CONFIG, 2, "the configuration is invalid")                                                      \
    X(ZERO_E_ORDER, 3, "a call came out of order")                                                           \
    X(ZERO_E_MEMORY, 4, "the system refused memory")                                                         \
    X(ZERO_E_BUDGET, 5, "the plan does not fit a memory budget")                                             \
    X(ZERO_E_IO, 6, "a file or drive failed")                                                                \
    X(ZERO_E_PEER, 7, "another rank failed or is silent")                                                    \
    X(ZERO_E_DIVERGED, 8, "ranks did different things")                                                      \
    X(ZERO_E_UNSUPPORTED, 9, "not supported here")                                                           \
    X(ZERO_E_INTERRUPTED, 10, "interrupted")                                                                 \
    X(ZERO_E_INTERNAL, 11, "an invariant of the engine broke")                                               \
    X(ZERO_E_OVERFLOW, 12, "gradients overflow")                                                             \
    X(ZERO_E_ABSENT, 13, "there is no checkpoint")

typedef enum zero_status {
#define ZERO_STATUS_ENUM(name, code, meaning) name = code,
    ZERO_STATUS_LIST(ZERO_STATUS_ENUM)
#undef ZERO_STATUS_ENUM
} zero_status;

const char *zero_status_name(zero_status status);    /* "ZERO_E_PEER"; never NULL */
const char *zero_status_meaning(zero_status status); /* "another rank failed or is silent"; never NULL */

#ifdef __cplusplus
}
#endif
#endif
