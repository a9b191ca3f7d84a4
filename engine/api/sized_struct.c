#include "engine/api/engine.h"

#include <string.h>

#include "engine/ranks/failure.h"

zero_status sized_check(size_t size, const char *what) {
    if (size) return ZERO_OK;
    return refuse(ZERO_E_ARGUMENT, "%s.struct_size is 0: set it to sizeof(%s)", what, what);
}

zero_status sized_take(void *to, size_t known, const void *from, size_t size, const char *what) {
    const unsigned char *bytes = from;
    zero_status status = sized_check(size, what);
    for (size_t i = known; i < size && !status; i++)
        if (bytes[i])
            status = refuse(ZERO_E_ARGUMENT,
                            "%s.struct_size is %zu, and byte %zu is set; this library knows %zu bytes: build "
                            "against its own header, or leave the rest zero",
                            what, size, i, known);
    if (!status) memcpy(to, from, size < known ? size : known);
    return status;
}

void sized_fill(void *to, size_t size, const void *from, size_t known) {
    size_t both = size < known ? size : known, head = sizeof(size_t);
    if (both > head) memcpy((char *)to + head, (const char *)from + head, both - head);
    if (size > known) memset((char *)to + known, 0, size - known);
}
