/* The largest model that fits a machine. */
#pragma once

#include "tools/plan/print/table.h"

/* The kinds of models among which the largest is searched. One number, at least 1, gives the model. */
enum largest_kind {
    LARGEST_LLAMA, /* Llama's shape: so many blocks of 128 times that width, and heads 128 wide, as in Llama 2 7B and 13B */
    LARGEST_DEEPER /* the scenario's model with so many blocks */
};

struct largest {
    struct shapes shapes; /* of the largest one that fits */
    bool found;           /* false: even the smallest does not fit, and shapes are of that */
    struct price fits;    /* its first row that fits; bytes alone */
    bool bounded;         /* a larger model was tried and does not fit: */
    struct shapes next;
    struct price nearest; /* the row of that model that lacks the fewest bytes */
    enum shortage binds;  /* the tier in which it lacks most */
};

/* Doubles and halves: assumes that a smaller model of the kind fits in each row where a larger one does. */
zero_status largest_find(const struct scenario *scenario, enum largest_kind kind, struct largest *out,
                         struct zero_error *error);
