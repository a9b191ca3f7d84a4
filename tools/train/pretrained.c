#include "tools/train/job.h"

#include <string.h>
#include <sys/stat.h>

/* The model may differ from that of the directory, because the configuration can override it. */
static zero_status check_params(const struct pretrained *p, const struct gpt_config *model,
                                struct zero_error *error) {
    struct gpt_param own, there;
    bool has_own = true, has_there = true;
    for (uint32_t i = 0; has_own && has_there; i++) {
        has_own = gpt_param_at(model, i, &own);
        has_there = gpt_param_at(&p->weights->model, i, &there);
        if (!has_own && !has_there) return ZERO_OK;
        if (!has_own || !has_there || strcmp(own.name, there.name) != 0 || own.dims != there.dims ||
            memcmp(own.shape, there.shape, sizeof own.shape) != 0)
            break;
    }
    return error_set(
        error, ZERO_E_CONFIG,
        "%s: its weights are of another model than the one to train: parameter \"%s\" has another "
        "shape or is not there: train the model of its config.json, or begin with --random",
        p->directory, has_own ? own.name : there.name);
}

/* False without an error: the directory has no weights, or the path is a file. */
static zero_status has_weights(const char *directory, bool *out, struct zero_error *error) {
    struct stat found;
    struct zero_error why = ERROR_NONE;
    const char *file = NULL;
    bool listed = stat(directory, &found) == 0 && S_ISDIR(found.st_mode);
    zero_status status = listed ? weights_in_directory(directory, &file, &why) : ZERO_OK;
    *out = file != NULL;
    if (!status) return ZERO_OK;
    return error_set(error, status, "%s; or begin with random weights by --random", why.message);
}

zero_status pretrained_open(struct pretrained *out, const struct gpt_config *model,
                            struct zero_error *error) {
    bool here;
    zero_status status = has_weights(out->directory, &here, error);
    if (status != ZERO_OK || !here) return status;
    status = weights_open(out->directory, &out->weights, error);
    if (status == ZERO_OK) status = check_params(out, model, error);
    if (status == ZERO_OK) status = out->weights->format->identify(out->weights, &out->identity, error);
    if (status != ZERO_OK) pretrained_close(out);
    return status;
}

void pretrained_close(struct pretrained *pretrained) {
    weights_close(pretrained->weights);
    pretrained->weights = NULL;
}

void pretrained_fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    struct pretrained_fill *fill = user;
    struct weights *weights = fill->from->weights;
    struct gpt_param p = {.count = count};
    struct zero_error error = ERROR_NONE;
    snprintf(p.name, sizeof p.name, "%s", param);
    zero_status status = weights->format->read(weights, &p, first, count, out, &error);
    if (status == ZERO_OK) return;
    memset(out, 0, count * sizeof *out);
    if (!fill->error->code) error_pass(fill->error, &error);
}
