/* Every fatbin holds machine code for each GPU that is built for, and PTX for later ones (that of products of warpgroups: for sm_90a
 * alone); and what the compiler made of each kernel fits a GPU and the table:
 *   fatbin_test TABLE FILE...            checks
 *   fatbin_test --write FILE... >TABLE   writes the table anew, after a look at what has changed
 * The table's first line names the toolkit (CUDA_VERSION): another one's compiler may need other registers, so with another one the
 * table is not compared. A line of the table is a kernel, in the type that needs most; its threads; and on sm_80 and sm_90 the registers of a
 * thread, the shared memory of a block (dynamic memory included), and how many warps a multiprocessor then holds at once, of 64. A
 * kernel may need less. No kernel spills registers, or keeps arrays in a thread's stack, which is in slow memory: on sm_100, whose
 * compiler is younger, a few numbers.
 *
 * The format of a fatbin is nvcc's own and undocumented: a head (magic, version, its bytes, bytes of the rest), then
 * images, each with a head (kind, version, its bytes, bytes of the image; the architecture at 28). */
#include <stdbool.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/kernel_facts.h"
#include "tools/gpt/cuda/kernels/kernels.h"

enum { KIND_PTX = 1, KIND_ELF = 2, FILE_BYTES_MAX = 64 << 20, KERNELS_MAX = 64, ROWS_MAX = 128 };

static const struct {
    uint16_t kind;
    uint32_t architecture;
} wanted[] = {{KIND_ELF, 80}, {KIND_ELF, 90}, {KIND_ELF, 100}, {KIND_PTX, 100}};
enum { WANTED = sizeof wanted / sizeof *wanted, WANTED_ALL = (1 << WANTED) - 1, WANTED_90 = 1 << 1 };

/* Of a GPU: registers of a multiprocessor, which a block must fit; shared memory that a block has unasked, that every GPU gives if
 * asked (the RTX 4090 no more), and that GPUs of sm_90 give, which alone have kernels of warpgroups. SHARED_OWN of each block is the
 * system's; from sm_90 on the compiler counts it. */
enum {
    REGISTERS_MAX = 65536,
    SHARED_MAX = 48 << 10,
    SHARED_ASKED = 99 << 10,
    SHARED_ASKED_90 = 227 << 10,
    SHARED_OWN = 1 << 10,
    WARPS_MAX = 64,
    BLOCKS_MAX = 32,
    STACK_MAX = 0,
    STACK_MAX_100 = 96
};

/* ---- the table ---- */

enum { ARCHITECTURES = 2 };
static const uint32_t architectures[ARCHITECTURES] = {80, 90};
static const uint32_t multiprocessor_shared[ARCHITECTURES] = {164 << 10, 228 << 10};

static const struct {
    const char *name; /* of a family */
    uint32_t bytes;
} dynamic[] = {
#define DYNAMIC(name, bytes) {#name, bytes},
    GPT_CUDA_DYNAMIC_SHARED(DYNAMIC)
#undef DYNAMIC
};

struct row {
    char name[KERNEL_NAME_BYTES];
    uint32_t threads, registers[ARCHITECTURES], shared_bytes[ARCHITECTURES], warps[ARCHITECTURES];
};
struct rows {
    struct row row[ROWS_MAX];
    uint32_t count, toolkit;
};
static struct rows table, found;

static struct row *row_of(struct rows *rows, const char *name) {
    for (uint32_t i = 0; i < rows->count; i++)
        if (strcmp(rows->row[i].name, name) == 0) return &rows->row[i];
    return NULL;
}

static bool read_table(const char *path) {
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "# CUDA_VERSION %u", &table.toolkit) == 1) continue;
        struct row *r = &table.row[table.count];
        if (*line == '#') continue;
        if (table.count == ROWS_MAX || sscanf(line, "%63s %u %u %u %u %u %u %u", r->name, &r->threads,
                                              &r->registers[0], &r->shared_bytes[0], &r->warps[0],
                                              &r->registers[1], &r->shared_bytes[1], &r->warps[1]) != 8)
            return false;
        table.count++;
    }
    if (file) fclose(file);
    return table.count > 0;
}

static void write_table(void) {
    printf("# CUDA_VERSION %d\n", TOOLKIT);
    printf(
        "# kernel, threads; on sm_80 registers, bytes of shared memory, warps at once; the same on sm_90\n");
    for (uint32_t i = 0; i < found.count; i++) {
        const struct row *r = &found.row[i];
        printf("%-28s %4u  %3u %6u %2u  %3u %6u %2u\n", r->name, r->threads, r->registers[0],
               r->shared_bytes[0], r->warps[0], r->registers[1], r->shared_bytes[1], r->warps[1]);
    }
}

/* The name without the type at its end. */
static void family_of(const char *name, char out[KERNEL_NAME_BYTES]) {
    static const char *const types[] = {"_f32", "_bf16", "_f16"};
    strcpy(out, name);
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(name), end = strlen(types[i]);
        if (length > end && strcmp(name + length - end, types[i]) == 0) out[length - end] = 0;
    }
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* A GPU gives registers to a warp by eights for each thread. */
static uint32_t given(uint32_t registers) { return (registers + 7) / 8 * 8; }

static uint32_t dynamic_of(const char *name) {
    char family[KERNEL_NAME_BYTES];
    family_of(name, family);
    for (size_t i = 0; i < sizeof dynamic / sizeof *dynamic; i++)
        if (strcmp(dynamic[i].name, family) == 0) return dynamic[i].bytes;
    return 0;
}

static uint32_t warps_at_once(const struct row *r, int a) {
    if (!r->registers[a]) return 0; /* it does not exist there */
    uint32_t warps = (r->threads + 31) / 32, own = architectures[a] >= 90 ? 0 : SHARED_OWN,
             blocks = smaller(BLOCKS_MAX, WARPS_MAX / warps);
    blocks = smaller(blocks, REGISTERS_MAX / (r->registers[a] * 32 * warps));
    return warps * smaller(blocks, multiprocessor_shared[a] / larger(r->shared_bytes[a] + own, 1));
}

static void note(const struct kernel_facts *k, uint32_t architecture) {
    char name[KERNEL_NAME_BYTES];
    family_of(k->name, name);
    struct row *r = row_of(&found, name);
    if (!r && found.count < ROWS_MAX) strcpy((r = &found.row[found.count++])->name, name);
    if (!CHECK(r != NULL)) return;
    r->threads = larger(r->threads, k->threads);
    for (int i = 0; i < ARCHITECTURES; i++) {
        if (architectures[i] != architecture) continue;
        r->registers[i] = larger(r->registers[i], given(k->registers));
        r->shared_bytes[i] = larger(r->shared_bytes[i], k->shared_bytes + dynamic_of(k->name));
        r->warps[i] = warps_at_once(r, i);
    }
}

static void compare_rows(void) {
    for (uint32_t i = 0; i < found.count; i++) {
        const struct row *r = &found.row[i], *most = row_of(&table, r->name);
        bool fits = CHECK(most != NULL);
        for (int a = 0; a < ARCHITECTURES && most; a++)
            fits &= CHECK(r->registers[a] <= most->registers[a]) &
                    CHECK(r->shared_bytes[a] <= most->shared_bytes[a]) & CHECK(r->warps[a] >= most->warps[a]);
        if (most) fits &= CHECK_INT(r->threads, most->threads);
        if (!fits) fprintf(stderr, "  kernel %s is not as in the table\n", r->name);
    }
    for (uint32_t i = 0; i < table.count; i++)
        if (!CHECK(row_of(&found, table.row[i].name) != NULL))
            fprintf(stderr, "  the table has %s, no fatbin has it\n", table.row[i].name);
}

/* ---- a fatbin ---- */

struct file_head {
    uint32_t magic;
    uint16_t version, head_bytes;
    uint64_t bytes;
};

struct image_head {
    uint16_t kind, version;
    uint32_t head_bytes;
    uint64_t bytes;
    uint32_t unknown[3], architecture;
};

/* The fatbin is for GPUs of sm_90 alone. */
static bool is_for_90(const char *path) { return strstr(path, "/warpgroup_") != NULL; }

static void check_kernel(const char *path, const struct kernel_facts *k, uint32_t architecture) {
    uint32_t own = architecture >= 90 ? SHARED_OWN : 0,
             stack = architecture >= 100 ? STACK_MAX_100 : STACK_MAX, asked = dynamic_of(k->name),
             most = !asked            ? SHARED_MAX
                    : is_for_90(path) ? SHARED_ASKED_90
                                      : SHARED_ASKED;
    bool fits = CHECK(k->threads > 0) & CHECK(k->registers > 0) & CHECK(k->stack_bytes <= stack) &
                CHECK(given(k->registers) * k->threads <= REGISTERS_MAX) &
                CHECK(k->shared_bytes + asked <= most + own);
    if (!fits)
        fprintf(stderr,
                "  %s on sm_%u: %u threads, %u registers, %u bytes shared, %u bytes of stack; in %s\n",
                k->name, architecture, k->threads, k->registers, k->shared_bytes, k->stack_bytes, path);
    note(k, architecture);
}

static void check_image(const char *path, const struct image_head *head, const unsigned char *image) {
    static const unsigned char elf_magic[] = {0x7f, 'E', 'L', 'F'};
    struct kernel_facts kernels[KERNELS_MAX];
    if (head->kind != KIND_ELF) return;
    uint32_t count = CHECK_BYTES(image, elf_magic, sizeof elf_magic)
                         ? kernel_facts_read(image, head->bytes, kernels, KERNELS_MAX)
                         : 0;
    if (!CHECK(count > 0)) fprintf(stderr, "  in %s\n", path);
    for (uint32_t i = 0; i < count; i++) check_kernel(path, &kernels[i], head->architecture);
}

static void check_file(const char *path, const unsigned char *bytes, uint64_t size) {
    struct file_head head;
    unsigned images = 0;
    memcpy(&head, bytes, sizeof head);
    CHECK_INT(head.magic, 0xba55ed50);
    if (!CHECK(head.head_bytes + head.bytes <= size)) return;
    for (uint64_t at = head.head_bytes; at < head.head_bytes + head.bytes;) {
        struct image_head image;
        memcpy(&image, bytes + at, sizeof image);
        if (!CHECK(image.head_bytes >= sizeof image && at + image.head_bytes + image.bytes <= size)) return;
        check_image(path, &image, bytes + at + image.head_bytes);
        for (unsigned w = 0; w < WANTED; w++)
            if (image.kind == wanted[w].kind && image.architecture == wanted[w].architecture)
                images |= 1u << w;
        at += image.head_bytes + image.bytes;
    }
    if (!CHECK_INT(images, is_for_90(path) ? WANTED_90 : WANTED_ALL)) fprintf(stderr, "  in %s\n", path);
}

int main(int argc, char **argv) {
    unsigned char *bytes = malloc(FILE_BYTES_MAX);
    bool writes = argc > 1 && strcmp(argv[1], "--write") == 0;
    CHECK(bytes && argc > 2);
    if (!writes && argc > 1) CHECK(read_table(argv[1]));
    for (int i = 2; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        uint64_t size = file ? fread(bytes, 1, FILE_BYTES_MAX, file) : 0;
        if (CHECK(size > sizeof(struct file_head) && size < FILE_BYTES_MAX)) check_file(argv[i], bytes, size);
        if (file) fclose(file);
    }
    if (writes)
        write_table();
    else if (table.toolkit == TOOLKIT)
        compare_rows();
    else
        printf("the table is of CUDA_VERSION %u, this is %d: not compared\n", table.toolkit, TOOLKIT);
    free(bytes);
    return check_end();
}
