#include "engine/config/value.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/key.h"
#include "engine/config/suggest.h"
#include "kernels/optimizer.h"
#include "kernels/quantize.h"

struct reading {
    const char *path;
    uint32_t index;
    struct config_group *group;
    struct zero_error *error;
};

static zero_status wrong(const struct reading *r, const char *member, const char *text,
                         const char *expected) {
    return error_set(r->error, ZERO_E_CONFIG, "%s[%u].%s: %.*s stands where %s is expected", r->path,
                     r->index, member, utf8_fit(text, 70), text, expected);
}

static zero_status no_memory(struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the parameter groups");
}

static bool is_text(const struct config_value *v) { return v->kind == VALUE_STRING && v->string[0]; }

static zero_status read_match(struct reading *r, const struct config_value *v) {
    uint64_t count = v->kind == VALUE_LIST ? v->count : 1;
    const struct config_value *item = v->kind == VALUE_LIST ? v->items : v;
    bool good = count > 0 && count <= CONFIG_MATCH_MAX;
    for (uint64_t i = 0; i < count && good; i++) good = is_text(&item[i]);
    if (!good) return wrong(r, v->name, v->text, "a pattern or a list of at most 64 patterns");
    r->group->match = calloc(count, sizeof *r->group->match);
    for (; r->group->match && r->group->match_count < count; r->group->match_count++) {
        char *copy = strdup(item[r->group->match_count].string);
        if (!copy) return no_memory(r->error);
        r->group->match[r->group->match_count] = copy;
    }
    return r->group->match ? ZERO_OK : no_memory(r->error);
}

static zero_status read_number(struct reading *r, const struct config_value *v, double *out) {
    bool number = v->kind == VALUE_INT || v->kind == VALUE_REAL;
    if (!number || !(v->real >= 0 && v->real <= 1e30))
        return wrong(r, v->name, v->text, "a number from 0 to 1e+30");
    *out = v->real;
    return ZERO_OK;
}

static zero_status read_lr(struct reading *r, const struct config_value *v) {
    return read_number(r, v, &r->group->lr);
}

static zero_status read_decay(struct reading *r, const struct config_value *v) {
    return read_number(r, v, &r->group->weight_decay);
}

/* The group's own optimizer, by name. */
static zero_status read_optimizer(struct reading *r, const struct config_value *v) {
    const struct optimizer *row = v->kind == VALUE_STRING ? optimizer_find(v->string) : NULL;
    if (!row) return wrong(r, v->name, v->text, "the name of an optimizer, as \"AdamW\",");
    r->group->optimizer = row;
    return ZERO_OK;
}

static zero_status read_betas(struct reading *r, const struct config_value *v) {
    bool good = v->kind == VALUE_LIST && v->count == 2;
    for (uint64_t i = 0; i < 2 && good; i++)
        good = (v->items[i].kind == VALUE_INT || v->items[i].kind == VALUE_REAL) && v->items[i].real >= 0 &&
               v->items[i].real < 1;
    if (!good) return wrong(r, v->name, v->text, "a list of two numbers of at least 0 and less than 1");
    for (int i = 0; i < 2; i++) r->group->betas[i] = v->items[i].real;
    return ZERO_OK;
}

static zero_status read_frozen(struct reading *r, const struct config_value *v) {
    if (v->kind != VALUE_BOOL) return wrong(r, v->name, v->text, "true or false");
    r->group->frozen = v->boolean;
    return ZERO_OK;
}

/* Everything else has the run's type: bf16.enabled, fp16.enabled. */
static zero_status read_dtype(struct reading *r, const struct config_value *v) {
    if (v->kind != VALUE_STRING || strcmp(v->string, "fp32"))
        return wrong(r, v->name, v->text, "\"fp32\", for parameters that stay fp32 in a bf16 or fp16 run,");
    r->group->keeps_fp32 = true;
    return ZERO_OK;
}

/* As the run's key of the same name. */
static zero_status read_code(struct reading *r, const struct config_value *v) {
    const struct config_key *key = config_key_find("zero_optimization.zero_quantized_weights");
    const char *text = v->kind == VALUE_BOOL ? v->text : v->kind == VALUE_STRING ? v->string : "";
    bool refused, boolean;
    int choice = config_key_choice(key, text, &refused);
    boolean = choice == CODE_NONE || choice == CODE_FORMATS;
    if (choice < 0 || boolean != (v->kind == VALUE_BOOL))
        return wrong(r, v->name, v->text, "true, false, \"int4\", \"int8\" or \"fp8_e4m3\"");
    r->group->weight_code = config_weight_code(choice);
    return ZERO_OK;
}

static const struct config_key member_names = {
    .choices = "match|lr|weight_decay|frozen|dtype|optimizer|betas|zero_quantized_weights"};

static const struct {
    const char *name;
    zero_status (*read)(struct reading *, const struct config_value *);
} members[] = {{"match", read_match},        {"lr", read_lr},
               {"weight_decay", read_decay}, {"frozen", read_frozen},
               {"dtype", read_dtype},        {"optimizer", read_optimizer},
               {"betas", read_betas},        {"zero_quantized_weights", read_code}};

static zero_status read_member(struct reading *r, const struct config_value *v) {
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (strcmp(members[i].name, v->name) == 0) return members[i].read(r, v);
    char near[72];
    suggest_choice(&member_names, v->name, near, sizeof near);
    return error_set(r->error, ZERO_E_CONFIG, "%s[%u].%.*s: unknown key: %s%s%s", r->path, r->index,
                     utf8_fit(v->name, 60), v->name,
                     *near ? "did you mean \""
                           : "a group has match, lr, weight_decay, frozen, dtype, optimizer, betas and "
                             "zero_quantized_weights",
                     near, *near ? "\"?" : "");
}

static zero_status read_group(struct reading *r, const struct config_value *v) {
    zero_status status = ZERO_OK;
    *r->group = (struct config_group){.lr = -1, .weight_decay = -1, .betas = {-1, -1}, .weight_code = -1};
    if (v->kind != VALUE_OBJECT)
        return error_set(r->error, ZERO_E_CONFIG, "%s[%u]: %.*s stands where an object is expected", r->path,
                         r->index, utf8_fit(v->text, 70), v->text);
    for (uint64_t i = 0; i < v->count && !status; i++) status = read_member(r, &v->items[i]);
    if (!status && r->group->betas[0] >= 0 && !r->group->optimizer)
        return error_set(r->error, ZERO_E_CONFIG,
                         "%s[%u].betas: only a group with its own \"optimizer\" has betas: "
                         "optimizer.params.betas are those of all other parameters",
                         r->path, r->index);
    if (status || r->group->match) return status;
    return error_set(r->error, ZERO_E_CONFIG,
                     "%s[%u]: match is missing: name the parameters, as \"match\": [\"*.bias\"]", r->path,
                     r->index);
}

void config_groups_free(struct config_groups *groups) {
    for (uint32_t g = 0; g < groups->count; g++) {
        for (uint32_t i = 0; i < groups->item[g].match_count; i++) free(groups->item[g].match[i]);
        free(groups->item[g].match);
    }
    free(groups->item);
    *groups = (struct config_groups){0};
}

zero_status config_groups_read(const struct config_value *value, const char *path, struct config_groups *out,
                               struct zero_error *error) {
    struct config_groups read = {0};
    zero_status status = ZERO_OK;
    if (value->count > CONFIG_GROUPS_MAX)
        return error_set(error, ZERO_E_CONFIG, "%s: %llu groups are more than %d: put patterns together",
                         path, (unsigned long long)value->count, CONFIG_GROUPS_MAX);
    read.item = calloc(value->count + 1, sizeof *read.item);
    if (!read.item) return no_memory(error);
    for (uint64_t i = 0; i < value->count && !status; i++) {
        struct reading reading = {path, (uint32_t)i, &read.item[read.count++], error};
        status = read_group(&reading, &value->items[i]);
    }
    if (status) {
        config_groups_free(&read);
        return status;
    }
    config_groups_free(out);
    *out = read;
    return ZERO_OK;
}
