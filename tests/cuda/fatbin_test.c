/* Every fatbin holds machine code for each GPU that is built for, and PTX for later ones:
 *   fatbin_test FILE...
 * The format is nvcc's own and undocumented: a head (magic, version, its bytes, bytes of the rest), then images, each with a head (kind,
 * version, its bytes, bytes of the image; the architecture at 28).
 *
 * No kernel keeps arrays in a thread's stack, which is in slow memory: section .nv.info of an image is records of a format, an
 * attribute, and 16 bits that with FORMAT_BYTES are how many bytes follow; FRAME_SIZE's are a symbol and the stack's bytes. */
#include <elf.h>
#include <stdlib.h>

#include "tests/check.h"

enum { KIND_PTX = 1, KIND_ELF = 2, FILE_BYTES_MAX = 64 << 20 };

static const struct {
    uint16_t kind;
    uint32_t architecture;
} wanted[] = {{KIND_ELF, 80}, {KIND_ELF, 90}, {KIND_ELF, 100}, {KIND_PTX, 100}};

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

enum {
    FORMAT_BYTES = 4,
    FRAME_SIZE = 0x11,
    FRAME_BYTES_MAX = 96 /* some registers of attention's; arrays have more */
};

struct record {
    uint8_t format, attribute;
    uint16_t bytes;
};

/* The largest stack; *frames: of how many kernels. */
static uint32_t largest_frame(const unsigned char *info, uint64_t bytes, uint32_t *frames) {
    uint32_t most = 0;
    for (uint64_t at = 0; at + sizeof(struct record) <= bytes;) {
        struct record r;
        uint32_t frame[2];
        memcpy(&r, info + at, sizeof r);
        at += sizeof r;
        if (r.format != FORMAT_BYTES) continue;
        if (r.attribute == FRAME_SIZE && r.bytes == sizeof frame && at + sizeof frame <= bytes) {
            memcpy(frame, info + at, sizeof frame);
            most = frame[1] > most ? frame[1] : most, ++*frames;
        }
        at += r.bytes;
    }
    return most;
}

static void check_frames(const char *path, const struct image_head *head, const unsigned char *image) {
    Elf64_Ehdr elf;
    uint32_t most = 0, frames = 0;
    memcpy(&elf, image, sizeof elf);
    if (!CHECK(elf.e_shentsize == sizeof(Elf64_Shdr) && elf.e_shstrndx < elf.e_shnum &&
               elf.e_shoff + elf.e_shnum * sizeof(Elf64_Shdr) <= head->bytes))
        return;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(const void *)(image + elf.e_shoff);
    const char *names = (const char *)image + section[elf.e_shstrndx].sh_offset;
    for (uint32_t i = 0; i < elf.e_shnum; i++)
        if (strcmp(names + section[i].sh_name, ".nv.info") == 0)
            most = largest_frame(image + section[i].sh_offset, section[i].sh_size, &frames);
    if (!(CHECK(frames > 0) & CHECK(most <= FRAME_BYTES_MAX)))
        fprintf(stderr, "  a kernel of sm_%u has a stack of %u bytes in %s\n", head->architecture, most,
                path);
}

static void check_image(const char *path, const struct image_head *head, const unsigned char *image) {
    static const unsigned char elf_magic[] = {0x7f, 'E', 'L', 'F'};
    if (head->kind != KIND_ELF) return;
    if (CHECK_BYTES(image, elf_magic, sizeof elf_magic))
        check_frames(path, head, image);
    else
        fprintf(stderr, "  in %s\n", path);
}

static void check_file(const char *path, const unsigned char *bytes, uint64_t size) {
    struct file_head head;
    unsigned found = 0;
    memcpy(&head, bytes, sizeof head);
    CHECK_INT(head.magic, 0xba55ed50);
    if (!CHECK(head.head_bytes + head.bytes <= size)) return;
    for (uint64_t at = head.head_bytes; at < head.head_bytes + head.bytes;) {
        struct image_head image;
        memcpy(&image, bytes + at, sizeof image);
        if (!CHECK(image.head_bytes >= sizeof image && at + image.head_bytes + image.bytes <= size)) return;
        check_image(path, &image, bytes + at + image.head_bytes);
        for (unsigned w = 0; w < sizeof wanted / sizeof *wanted; w++)
            if (image.kind == wanted[w].kind && image.architecture == wanted[w].architecture)
                found |= 1u << w;
        at += image.head_bytes + image.bytes;
    }
    if (!CHECK_INT(found, (1 << sizeof wanted / sizeof *wanted) - 1)) fprintf(stderr, "  in %s\n", path);
}

int main(int argc, char **argv) {
    unsigned char *bytes = malloc(FILE_BYTES_MAX);
    CHECK(bytes && argc > 1);
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        uint64_t size = file ? fread(bytes, 1, FILE_BYTES_MAX, file) : 0;
        if (CHECK(size > sizeof(struct file_head) && size < FILE_BYTES_MAX)) check_file(argv[i], bytes, size);
        if (file) fclose(file);
    }
    free(bytes);
    return check_end();
}
