/* The operation MATRIX. */
#ifndef ZERO_ENGINE_EXECUTOR_MATRIX_H
#define ZERO_ENGINE_EXECUTOR_MATRIX_H

#include "engine/executor/executor_internal.h"

zero_status change_matrices(struct executor *e, struct item *item);

#endif
