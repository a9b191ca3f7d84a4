/* One row per key that a configuration may hold: its type, its use in this engine, and its texts for help and
 * errors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum key_type {
    KEY_BOOL,   /* field: bool */
    KEY_INT,    /* field: uint64_t (int64_t if min < 0); 5e8 is an integer, too, as in DeepSpeed's files */
    KEY_LIMIT,  /* field: uint64_t; null may be written, and is 0 */
    KEY_REAL,   /* field: double */
    KEY_STAGE,  /* field: uint64_t, the number of a row of stages */
    KEY_CHOICE, /* field: int, the index of the choice; upper or lower case */
    KEY_SWITCH, /* the same; true and false are choices, and are written without quotes */
    KEY_STRING, /* no field: accepted or refused only */
    KEY_SIZE,   /* field: uint64_t bytes: 8589934592, 8e9, "8GiB", "512MB", "unlimited" */
    KEY_BETAS,  /* field: double[2], each in [0, 1) */
    KEY_NUMBERS, /* field: struct lr_numbers: a number of at least 0, or a list of one for each parameter group */
    KEY_PATHS,  /* field: struct config_paths: a string or a list of strings */
    KEY_GROUP,  /* field: uint64_t: true: 0, false: 1, or a number of ranks */
    KEY_GROUPS, /* field: struct config_groups: a list of objects */
    KEY_EVAL,   /* field: struct config_eval: a fraction or paths */
    KEY_LIST,   /* no field: any list */
    KEY_OPAQUE, /* no field: any value; the reader does not look inside */
    KEY_TYPES
};

enum key_use {
    KEY_USED,
    KEY_ACCEPTED, /* has no effect in this engine; one log line says so */
    KEY_REFUSED   /* any value except the default is an error, because it would change the result */
};

/* As a key's `max`: a limit that has none of its own. Larger values, inf too, are this one. */
#define KEY_UNBOUNDED 1e18

struct config_key {
    const char *path; /* "zero_optimization.stage" */
    enum key_type type;
    enum key_use use;
    size_t offset;        /* of the field in struct config; USED only */
    const char *fallback; /* the default as JSON text; NULL: none, and null may be written */
    double min, max;      /* INT, REAL: inclusive; see config_key_max */
    /* CHOICE, SWITCH: "none|cpu|!nvme"; a | may end it. ! marks a choice that DeepSpeed has and the engine refuses. Before
     * these come the names of a table's rows, if the key names one: row(0), row(1) ... until NULL. */
    const char *choices;
    const char *(*row)(uint32_t index);
    const char *automatic; /* the value of "auto", as JSON text; NULL: "auto" is an error; "": config_resolve
                              decides, and until then an INT's field is 0 */
    /* ACCEPTED: what the engine does instead. REFUSED and refused choices: why, and what to do. NULL with refused
     * choices: config_key_reason names those that are not refused. */
    const char *note;
    const char *help;
};

uint32_t config_key_count(void);
const struct config_key *config_key_at(uint32_t index); /* in the order of keys.def */
uint32_t config_key_index(const struct config_key *key);
const struct config_key *config_key_find(const char *path); /* NULL: no such key */
bool config_key_is_object(const char *path);                /* keys exist below it */

double config_key_max(const struct config_key *key);  /* of a STAGE: by the table of stages */
const char *config_key_type_name(enum key_type type); /* "an integer" */

struct key_choice {
    const char *text;
    int length;
    bool refused;
};

/* false: there are not so many choices. */
bool config_key_choice_at(const struct config_key *key, uint32_t index, struct key_choice *out);

/* The index of `text` among the choices, in upper or lower case; -1: not a choice. */
int config_key_choice(const struct config_key *key, const char *text, bool *out_refused);

bool config_key_takes_auto(const struct config_key *key); /* not if "auto" is one of its choices */

/* Why a choice is refused, and what to do. `text`: room for this text. */
const char *config_key_reason(const struct config_key *key, char text[256]);
