#include "tools/metrics/metrics.h"

#include <string.h>

/* ---- the message: protobuf's wire format ---- */

enum { EVENT_MAX = 2048, SCALARS_MAX = 16, TAG_MAX = 64 };
enum wire { VARINT, BYTES_8, STRING, BYTES_4 = 5 };

struct message {
    uint8_t bytes[EVENT_MAX];
    size_t count;
};

static void put(struct message *m, const void *bytes, size_t count) {
    if (m->count + count > sizeof m->bytes) return; /* SCALARS_MAX tags of TAG_MAX characters fit */
    memcpy(m->bytes + m->count, bytes, count);
    m->count += count;
}

static void put_varint(struct message *m, uint64_t value) {
    for (; value >= 128; value >>= 7) put(m, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put(m, &(uint8_t){(uint8_t)value}, 1);
}

static void put_key(struct message *m, uint32_t field, enum wire wire) {
    put_varint(m, field << 3 | (uint32_t)wire);
}

static void put_string(struct message *m, uint32_t field, const void *bytes, size_t count) {
    put_key(m, field, STRING);
    put_varint(m, count);
    put(m, bytes, count);
}

/* ---- the record ---- */

static uint32_t crc32c(const void *bytes, size_t count) {
    uint32_t crc = UINT32_MAX;
    for (const uint8_t *b = bytes, *end = b + count; b < end; b++) {
        crc ^= *b;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *bytes, size_t count) {
    uint32_t crc = crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void write_record(FILE *out, const struct message *m) {
    uint64_t length = m->count;
    uint32_t of_length = masked(&length, sizeof length), of_bytes = masked(m->bytes, m->count);
    fwrite(&length, sizeof length, 1, out);
    fwrite(&of_length, sizeof of_length, 1, out);
    fwrite(m->bytes, 1, m->count, out);
    fwrite(&of_bytes, sizeof of_bytes, 1, out);
}

/* ---- events ---- */

enum { WALL_TIME = 1, STEP = 2, FILE_VERSION = 3, SUMMARY = 5, SUMMARY_VALUE = 1, TAG = 1, SIMPLE_VALUE = 2 };

static void put_time(struct message *event, double wall_s) {
    put_key(event, WALL_TIME, BYTES_8);
    put(event, &wall_s, sizeof wall_s);
}

void events_begin(FILE *out, double wall_s) {
    static const char version[] = "brain.Event:2";
    struct message event = {.count = 0};
    put_time(&event, wall_s);
    put_string(&event, FILE_VERSION, version, strlen(version));
    write_record(out, &event);
}

void events_write(FILE *out, double wall_s, uint64_t step, const struct scalar *scalar, size_t count) {
    struct message event = {.count = 0}, summary = {.count = 0};
    for (size_t i = 0; i < count && i < SCALARS_MAX; i++) {
        struct message value = {.count = 0};
        float number = (float)scalar[i].value;
        put_string(&value, TAG, scalar[i].tag, strnlen(scalar[i].tag, TAG_MAX));
        put_key(&value, SIMPLE_VALUE, BYTES_4);
        put(&value, &number, sizeof number);
        put_string(&summary, SUMMARY_VALUE, value.bytes, value.count);
    }
    put_time(&event, wall_s);
    put_key(&event, STEP, VARINT);
    put_varint(&event, step);
    put_string(&event, SUMMARY, summary.bytes, summary.count);
    write_record(out, &event);
}
