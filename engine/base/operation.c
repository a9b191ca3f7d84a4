#include "engine/base/operation.h"

struct operation *operation_append(struct operation_list *list) {
    if (list->count < list->capacity) return &list->item[list->count++];
    list->capacity = 0;
    return list->item;
}

const char *operation_kind_name(enum operation_kind kind) {
    static const char *const names[] = {
#define OPERATION_NAME(name) [OP_##name] = #name,
        OPERATION_KINDS(OPERATION_NAME)
#undef OPERATION_NAME
    };
    return names[kind];
}

const char *object_name(enum object object) {
    static const char *const names[OBJECTS] = {"param", "grad", "state", "norm", "direction"};
    return names[object];
}

const char *stream_name(enum stream stream) {
    static const char *const names[STREAMS] = {"compute", "gather", "reduce", "update", "fetch",
                                               "store",   "param",  "grad",   "control"};
    return names[stream];
}
