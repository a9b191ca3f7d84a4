#include "engine/base/numbers/dtype.h"

#include <stddef.h>

const struct dtype_row dtype_rows[DTYPES] = {[DTYPE_F32] = {"fp32", "float32", "F32"},
                                             [DTYPE_BF16] = {"bf16", "bfloat16", "BF16"},
                                             [DTYPE_F16] = {"fp16", "float16", "F16"},
                                             [DTYPE_U8] = {"u8", NULL, "U8"}};
