#include "tools/text/output.h"

#include <stdbool.h>
#include <stdint.h>

static void put_wrong(struct printer *p) {
    fputs("\xEF\xBF\xBD", p->out);
    p->count = p->wanted = 0;
}

/* The length of the character that begins with this byte; 0: none does. */
static unsigned length_of(unsigned char first) {
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* True for an overlong form, a surrogate, or a code beyond the last character. */
static bool is_character(uint32_t code, unsigned length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return code >= least[length] && code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
}

static bool is_control(uint32_t code) {
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
}

static void put_character(struct printer *p) {
    uint32_t code = p->count == 1 ? p->held[0] : p->held[0] & (0x7Fu >> p->count);
    for (unsigned i = 1; i < p->count; i++) code = code << 6 | (p->held[i] & 0x3Fu);
    if (!is_character(code, p->count)) return put_wrong(p);
    if (is_control(code))
        fputc('.', p->out);
    else
        fwrite(p->held, 1, p->count, p->out);
    p->count = p->wanted = 0;
}

static void put_byte(struct printer *p, unsigned char byte) {
    if (p->wanted && (byte & 0xC0) != 0x80) put_wrong(p);
    if (!p->wanted) p->wanted = length_of(byte);
    if (!p->wanted) return put_wrong(p);
    p->held[p->count++] = byte;
    if (p->count == p->wanted) put_character(p);
}

void printer_put(struct printer *p, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) put_byte(p, (unsigned char)bytes[i]);
}

void printer_end(struct printer *p) {
    if (p->wanted) put_wrong(p);
}
