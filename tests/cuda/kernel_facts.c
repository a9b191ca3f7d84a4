/* NVIDIA documents no format. Section .nv.info of an image is records of a format, an attribute, and 16 bits that with
 * FORMAT_BYTES are how many bytes follow. REGISTERS and STACK have a symbol and a number. Section .nv.info.NAME is
 * records of kernel NAME; THREADS has the most threads of a block by dimension. Section .nv.shared.NAME is as long as
 * the kernel's shared memory. */
#include "tests/cuda/kernel_facts.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT_BYTES = 4, THREADS = 0x05, STACK = 0x11, REGISTERS = 0x2f };

#define INFO ".nv.info"
#define SHARED ".nv.shared."
#define CODE ".text."

struct elf {
    const unsigned char *image;
    const Elf64_Shdr *section;
    uint32_t sections;
    const char *names; /* of sections */
    const Elf64_Sym *symbol;
    uint64_t symbols;
    const char *symbol_names;
};

static const char *name_of(const struct elf *elf, uint32_t section) {
    return elf->names + elf->section[section].sh_name;
}

static bool open(const unsigned char *image, uint64_t bytes, struct elf *out) {
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    if (head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shstrndx >= head.e_shnum ||
        head.e_shoff + head.e_shnum * sizeof(Elf64_Shdr) > bytes)
        return false;
    *out = (struct elf){.image = image, .sections = head.e_shnum};
    out->section = (const Elf64_Shdr *)(const void *)(image + head.e_shoff);
    out->names = (const char *)image + out->section[head.e_shstrndx].sh_offset;
    for (uint32_t i = 0; i < out->sections; i++) {
        const Elf64_Shdr *s = &out->section[i];
        if (s->sh_type != SHT_SYMTAB || s->sh_link >= out->sections) continue;
        out->symbol = (const Elf64_Sym *)(const void *)(image + s->sh_offset);
        out->symbols = s->sh_size / sizeof(Elf64_Sym);
        out->symbol_names = (const char *)image + out->section[s->sh_link].sh_offset;
    }
    return out->symbols > 0;
}

struct list {
    struct kernel_facts *kernel;
    uint32_t count;
};

static struct kernel_facts *find(const struct list *list, const char *name) {
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->kernel[i].name, name) == 0) return &list->kernel[i];
    return NULL;
}

static const char *after(const char *name, const char *start) {
    return strncmp(name, start, strlen(start)) == 0 ? name + strlen(start) : NULL;
}

/* Takes a record's numbers. `own`: the kernel of the section, or NULL. */
static void take(const struct elf *elf, const struct list *list, struct kernel_facts *own, uint8_t attribute,
                 const uint32_t *number, uint32_t numbers) {
    if (own && attribute == THREADS && numbers == 3) own->threads = number[0] * number[1] * number[2];
    if (own || numbers != 2 || number[0] >= elf->symbols) return;
    struct kernel_facts *kernel = find(list, elf->symbol_names + elf->symbol[number[0]].st_name);
    if (kernel && attribute == STACK) kernel->stack_bytes = number[1];
    if (kernel && attribute == REGISTERS) kernel->registers = number[1];
}

static void take_records(const struct elf *elf, const struct list *list, uint32_t section,
                         struct kernel_facts *own) {
    struct record {
        uint8_t format, attribute;
        uint16_t bytes;
    } r;
    const unsigned char *info = elf->image + elf->section[section].sh_offset;
    uint64_t bytes = elf->section[section].sh_size;
    for (uint64_t at = 0; at + sizeof r <= bytes;) {
        uint32_t number[3] = {0};
        memcpy(&r, info + at, sizeof r);
        at += sizeof r;
        if (r.format != FORMAT_BYTES) continue;
        if (at + r.bytes > bytes) return;
        if (r.bytes <= sizeof number) memcpy(number, info + at, r.bytes);
        if (r.bytes <= sizeof number) take(elf, list, own, r.attribute, number, r.bytes / 4);
        at += r.bytes;
    }
}

static void take_section(const struct elf *elf, const struct list *list, uint32_t section) {
    const char *name = name_of(elf, section), *shared = after(name, SHARED), *info = after(name, INFO);
    struct kernel_facts *kernel = shared ? find(list, shared) : NULL;
    if (kernel) kernel->shared_bytes = (uint32_t)elf->section[section].sh_size;
    if (!info) return;
    struct kernel_facts *own = *info == '.' ? find(list, info + 1) : NULL;
    if (own || !*info) take_records(elf, list, section, own);
}

uint32_t kernel_facts_read(const unsigned char *image, uint64_t bytes, struct kernel_facts *out,
                           uint32_t most) {
    struct elf elf;
    struct list list = {out, 0};
    if (!open(image, bytes, &elf)) return 0;
    for (uint32_t i = 0; i < elf.sections; i++) {
        const char *name = after(name_of(&elf, i), CODE);
        if (!name) continue;
        if (list.count == most) return 0;
        struct kernel_facts *kernel = &out[list.count++];
        *kernel = (struct kernel_facts){.threads = 0};
        snprintf(kernel->name, sizeof kernel->name, "%s", name);
    }
    for (uint32_t i = 0; i < elf.sections; i++) take_section(&elf, &list, i);
    return list.count;
}
