/* Which of cuBLASLt's algorithms each product of a training pass uses. (attention_choice.c chooses attention's kernels.)
 * The units' own functions tell which products there are: they run while launches are off, with slots that point to other memory, and
 * the products are noted instead of enqueued. The text of a choice: gpt.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "tools/gpt/cuda/attention_choice.h"
#include "tools/gpt/cuda/choices.h"

enum { SHAPE_BYTES = 160, WORDS = 8, HEX_DIGITS = 16 };

/* ---- the products of a pass ---- */

static void note(void *user, const struct product *product) {
    struct product_list *list = user;
    struct product_shape shape = product_shape(product);
    for (uint32_t i = 0; i < list->count; i++)
        if (memcmp(&list->item[i].shape, &shape, sizeof shape) == 0) return;
    if (list->count < CHOICES_MAX) list->item[list->count++] = (struct listed_product){*product, shape};
}

/* All parameters at one place, all gradients `bytes` behind it. */
static void point_slots(struct gpt *gpt, char *memory, uint64_t bytes, int add) {
    for (uint32_t u = 0; u < gpt_units(&gpt->config); u++)
        for (uint32_t p = 0; p < UNIT_PARAMS_MAX; p++)
            gpt->units[u].slot[p] =
                gpt->units[u].view[p].count ? (zero_slot){memory, memory + bytes, add} : (zero_slot){0};
}

/* With weights that adjoin as far as possible, then with none: the engine knows only after its commit. */
static void run_units(struct gpt *gpt, bool adjoin) {
    for (uint32_t u = 0; u < gpt_units(&gpt->config); u++)
        for (uint32_t p = 0; p < UNIT_PARAMS_MAX; p++) gpt->units[u].view[p].adjoins = adjoin;
    for (uint32_t i = 0; i < gpt->config.layers; i++) {
        cuda_block_forward(gpt, i, true);
        cuda_block_backward(gpt, i);
    }
    cuda_head_backward(gpt);
}

zero_status choices_list(struct gpt *gpt, char *memory, uint64_t bytes, struct product_list *out) {
    struct cuda_gpt *c = gpt->cuda;
    struct pass pass = gpt->pass;
    size_t size = gpt_units(&gpt->config) * sizeof *gpt->units;
    struct unit *kept = malloc(size);
    out->count = 0;
    if (!kept) return ZERO_E_MEMORY;
    memcpy(kept, gpt->units, size);
    gpt->pass = (struct pass){.batch = gpt->batch,
                              .length = gpt->config.context,
                              .rows = gpt->batch * gpt->config.context,
                              .micros = 1,
                              .divisor = 1,
                              .scale = 1};
    c->lists = true;
    cublaslt_watch(c->products, note, out);
    for (int add = 0; add < 2; add++) {
        point_slots(gpt, memory, bytes, add);
        run_units(gpt, true);
        run_units(gpt, false);
    }
    cublaslt_watch(c->products, NULL, NULL);
    c->lists = false;
    gpt->pass = pass;
    memcpy(gpt->units, kept, size);
    free(kept);
    return c->error.code;
}

/* Their shapes alone: the addresses only have to be aligned. */
static zero_status list_shapes(struct gpt *gpt, struct product_list **out, struct zero_error *error) {
    struct product_list *list = *out = malloc(sizeof *list);
    zero_status status = list ? choices_list(gpt, gpt->cuda->memory.device, 0, list) : ZERO_E_MEMORY;
    if (gpt->cuda->error.code) error_pass(error, &gpt->cuda->error);
    return status;
}

/* ---- text ---- */

void choices_place(const struct cuda_gpt *c, char out[PLACE_BYTES]) {
    char name[100] = "";
    int driver = 0;
    c->driver.cuDriverGetVersion(&driver);
    c->driver.cuDeviceGetName(name, sizeof name, c->device);
    snprintf(out, PLACE_BYTES, "cuBLASLt %" PRIu64 ", driver %d, %s", cublaslt_version(c->products), driver,
             name);
}

static void describe_shape(const struct product_shape *s, char out[SHAPE_BYTES]) {
    snprintf(out, SHAPE_BYTES,
             "%ux%ux%u type %u%s end %u transposed %u %u adds %u strides %" PRIu64 " %" PRIu64 " %" PRIu64
             " aligned %u ",
             s->m, s->n, s->k, s->type, s->wide ? " wide" : "", s->end, s->transposed_a, s->transposed_b,
             s->adds, s->lda, s->ldb, s->ldc, s->alignment);
}

char *choices_write(char *text, const struct listed_product *item, const struct algorithm *algorithm) {
    char shape[SHAPE_BYTES];
    describe_shape(&item->shape, shape);
    text += sprintf(text, "%s", shape);
    for (int i = 0; algorithm && i < WORDS; i++) text += sprintf(text, "%016" PRIx64, algorithm->data[i]);
    return text + sprintf(text, algorithm ? "\n" : "-\n");
}
_Static_assert((int)GPT_PRODUCTS_BYTES >=
                   (int)PLACE_BYTES + (CHOICES_MAX + 1) * (SHAPE_BYTES + WORDS * HEX_DIGITS + 2),
               "the text of all choices has room");

/* Reads 128 digits. */
static bool read_algorithm(const char *text, struct algorithm *out) {
    for (int i = 0; i < WORDS; i++, text += HEX_DIGITS) {
        char word[HEX_DIGITS + 1] = "", *end;
        memcpy(word, text, strnlen(text, HEX_DIGITS));
        out->data[i] = strtoull(word, &end, 16);
        if (end != word + HEX_DIGITS) return false;
    }
    return true;
}

/* Reads the line of an item. Returns the line after it; NULL: the line is another's. *out_chosen: false: the first. */
static const char *read_line(const char *text, const struct listed_product *item, struct algorithm *out,
                             bool *out_chosen) {
    char shape[SHAPE_BYTES];
    describe_shape(&item->shape, shape);
    size_t length = strlen(shape);
    if (strncmp(text, shape, length) != 0) return NULL;
    text += length;
    *out_chosen = *text != '-';
    if (*out_chosen && !read_algorithm(text, out)) return NULL;
    text += *out_chosen ? WORDS * HEX_DIGITS : 1;
    return *text == '\n' ? text + 1 : NULL;
}

static const char *attention_shape(const struct gpt *gpt, char out[SHAPE_BYTES]) {
    const struct gpt_config *c = &gpt->config;
    snprintf(out, SHAPE_BYTES,
             "attention and its backward %" PRIu32 "x%" PRIu32 " heads %" PRIu32 " %" PRIu32 " of %" PRIu32,
             gpt->batch, c->context, c->heads, c->kv_heads, c->head_width);
    return out;
}

zero_status cuda_products_question(struct gpt *gpt, struct gpt_products_question *out,
                                   struct zero_error *error) {
    struct product_list *list;
    uint64_t hash = HASH_START;
    char shape[SHAPE_BYTES];
    zero_status status = list_shapes(gpt, &list, error);
    for (uint32_t i = 0; !status && i < list->count; i++) {
        describe_shape(&list->item[i].shape, shape);
        hash = hash_string(hash, shape);
    }
    if (gpt->config.attention == GPT_ATTENTION_TIMED) hash = hash_string(hash, attention_shape(gpt, shape));
    choices_place(gpt->cuda, out->place);
    if (!status)
        snprintf(out->shapes, sizeof out->shapes, "%" PRIu32 " shapes %016" PRIx64 "%s%s", list->count, hash,
                 gpt->config.times_products ? "" : " not timed",
                 gpt->config.attention == GPT_ATTENTION_TIMED ? " and attention" : "");
    free(list);
    return status;
}

/* ---- use ---- */

#define REMEDY "give all ranks GPUs and libraries of one kind, or set device.products to \"first\""

/* Returns the text after the first line; NULL: an error is set. */
static const char *check_place(const struct cuda_gpt *c, const char *text, struct zero_error *error) {
    char begins[48];
    const char *end = strchr(text, '\n');
    snprintf(begins, sizeof begins, "cuBLASLt %" PRIu64 ",", cublaslt_version(c->products));
    if (!end || strncmp(text, begins, strcspn(begins, " ")) != 0)
        return error_set(error, ZERO_E_ARGUMENT, "the choice of products has no first line"), NULL;
    if (strncmp(text, begins, strlen(begins)) == 0) return end + 1;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "products were chosen on %.*s, and this rank has cuBLASLt %" PRIu64 ": " REMEDY,
                     (int)(end - text < PLACE_BYTES ? end - text : PLACE_BYTES), text,
                     cublaslt_version(c->products)),
           NULL;
}

static zero_status use_line(struct cuda_gpt *c, const char *place, const struct listed_product *item,
                            const char **text, struct zero_error *error) {
    struct algorithm algorithm;
    struct zero_error refused;
    char own[PLACE_BYTES];
    bool chosen;
    *text = read_line(*text, item, &algorithm, &chosen);
    if (!*text)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the choice of products is damaged, or for other shapes: " REMEDY);
    error_clear(&refused);
    zero_status status = cublaslt_choose(c->products, &item->product, chosen ? &algorithm : NULL, &refused);
    if (status != ZERO_E_UNSUPPORTED) return status ? error_pass(error, &refused) : ZERO_OK;
    choices_place(c, own);
    return error_set(error, status,
                     "products were chosen on %.*s, and this rank (%s) cannot multiply %u x %u x %u in that "
                     "way: " REMEDY,
                     (int)strcspn(place, "\n"), place, own, item->product.m, item->product.n,
                     item->product.k);
}

static zero_status use_lines(struct gpt *gpt, const struct product_list *list, const char *text,
                             struct zero_error *error) {
    struct cuda_gpt *c = gpt->cuda;
    const char *at = check_place(c, text, error);
    if (!at) return error->code;
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < list->count && !status; i++)
        status = use_line(c, text, &list->item[i], &at, error);
    if (!status) status = attention_use(gpt, &at, error);
    if (!status && *at)
        status = error_set(error, ZERO_E_ARGUMENT, "the choice of products is for more shapes");
    return status;
}

zero_status cuda_products_use(struct gpt *gpt, const char *choice, struct zero_error *error) {
    struct zero_error ignored;
    struct product_list *list;
    zero_status status = list_shapes(gpt, &list, error);
    if (!status) status = use_lines(gpt, list, choice, error);
    if (status) attention_forget(gpt);
    error_clear(&ignored);
    for (uint32_t i = 0; list && status && i < list->count; i++)
        cublaslt_choose(gpt->cuda->products, &list->item[i].product, NULL, &ignored);
    free(list);
    return status;
}
