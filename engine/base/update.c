#include "engine/base/update.h"

enum { G = ARRAY_GRADIENT, M = ARRAY_MOMENTS, W = ARRAY_WEIGHTS, P = ARRAY_PARAMS };

/* MATRIX: each rank makes the directions of its shard, and they are gathered. Each matrix's owner changes its direction, and all other
 * ranks leave zeros; a reduction, which adds one number and zeros, brings each rank the directions of its shard.
 * TENSOR: each rank takes its part of the norms, which are gathered. */
/* clang-format off */
const struct update_row update_rows[SCOPES] = {
    /* legs, leads, then each leg: object, reads, writes, makes, takes, follow, ordered */
    [SCOPE_ELEMENT] = {1, 0, {{OBJECT_STATE, G | M | W | P, M | W | P, 0, 0, {0}, false}}},
    [SCOPE_MATRIX] = {2, 0, {{OBJECT_DIRECTION, G | M, M, BUFFER_DIRECTION, 0, {OP_GATHER, OP_MATRIX, OP_REDUCE}, false},
                             {OBJECT_STATE, W | P, W | P, 0, BUFFER_DIRECTION, {0}, false}}},
    [SCOPE_TENSOR] = {2, 1, {{OBJECT_NORM, G | M | W | P, M, BUFFER_TENSOR_NORMS, 0, {OP_GATHER}, true},
                             {OBJECT_STATE, M | W | P, W | P, 0, BUFFER_TENSOR_NORMS, {0}, false}}},
};
/* clang-format on */

bool update_makes(enum optimizer_scope scope, enum buffer_kind kind) {
    bool makes = false;
    for (uint8_t i = 0; i < update_rows[scope].legs; i++) makes |= update_rows[scope].leg[i].makes == kind;
    return makes;
}

bool update_rereads(enum optimizer_scope scope) {
    const struct update_row *row = &update_rows[scope];
    bool rereads = false;
    for (uint8_t i = 0; i < row->legs; i++)
        for (uint8_t k = 0; k < row->legs; k++) rereads |= i != k && row->leg[i].writes & row->leg[k].reads;
    return rereads;
}

uint8_t leg_moves(const struct update_leg *leg, enum weight_place place, enum operation_kind kind,
                  enum outcome outcome) {
    bool back = outcome == OUTCOME_SKIPPED, leaves = !(leg->writes & P);
    /* arrays with no bit of a weight that is not elsewhere */
    uint8_t again = leaves && place == WEIGHT_IN_MASTER ? P : leaves && place == WEIGHT_IN_PARAM ? W : 0;
    if (kind == OP_UPDATE) return (leg->reads | leg->writes) & ~(again & P);
    if (kind == OP_STORE) return back ? leg->writes & P : leg->writes;
    if (back) return leg->writes & (M | W);
    return leg->reads & ~(outcome == OUTCOME_REPEATED ? P : again);
}
