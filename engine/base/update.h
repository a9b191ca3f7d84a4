/* An update as a row of legs, by what an optimizer needs at once. Each leg is an UPDATE on the elements of a shard. The table says which
 * arrays of an element it reads and changes, what it hands to the next leg, and which operations follow it. The policies, the plan of
 * chunks, the executor and the planner ask this table; none of them asks for the scope. */
#pragma once

#include "engine/base/operation.h"

/* kernels/optimizer.h says what an optimizer of each scope does. */
enum optimizer_scope { SCOPE_ELEMENT, SCOPE_TENSOR, SCOPE_MATRIX, SCOPES };

/* The arrays of an element, as bits. Moments are the optimizer's own states. Weights are its averages and masters. */
enum { ARRAY_GRADIENT = 1, ARRAY_MOMENTS = 2, ARRAY_WEIGHTS = 4, ARRAY_PARAMS = 8 };

enum { UPDATE_LEGS_MAX = 2, LEG_FOLLOWS_MAX = 3 };

struct update_leg {
    uint8_t object;        /* of its operations (enum object) */
    uint8_t reads, writes; /* arrays */
    /* The buffer that it writes for the next leg, and that which it reads in place of the gradient (enum buffer_kind); 0: none. */
    uint8_t makes, takes;
    /* operations on what it makes, in order: GATHER, MATRIX, REDUCE; 0: none */
    uint8_t follow[LEG_FOLLOWS_MAX];
    bool ordered; /* its items share unfinished blocks of elements, so they come one after another */
};

struct update_row {
    uint8_t legs;
    /* legs that at the step come before all other legs, of all regions: so no region waits for the other ranks */
    uint8_t leads;
    struct update_leg leg[UPDATE_LEGS_MAX];
};

extern const struct update_row update_rows[SCOPES];

/* Some leg makes this buffer. */
bool update_makes(enum optimizer_scope scope, enum buffer_kind kind);

/* Some leg reads state or parameters that another leg has changed. */
bool update_rereads(enum optimizer_scope scope);

/* Where all bits of a weight are: in the parameter, in its master, or half in each. */
enum weight_place { WEIGHT_IN_PARAM, WEIGHT_SPLIT, WEIGHT_IN_MASTER };

/* The arrays that an element needs in memory for the leg (kind UPDATE), and those that the leg's FETCH or STORE moves. A leg that leaves
 * the weights reads them once, where they lie in two arrays. An update that is repeated finds the parameters of before the step in the
 * record; one that is taken back reads what it changed, and stores only parameters. */
uint8_t leg_moves(const struct update_leg *leg, enum weight_place place, enum operation_kind kind,
                  enum outcome outcome);
