#include "tests/engine/disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/checksum.h"

enum { BLOCK = 4096, SECTOR = 512, NAME = 64, ROOT = 0 };

struct inode {
    bool directory;
    uint8_t *bytes;
    uint64_t size;
};

struct entry {
    uint32_t directory, inode;
    char name[NAME];
};

enum call_kind {
    CALL_LINK,
    CALL_UNLINK,
    CALL_RENAME,
    CALL_EXCHANGE,
    CALL_SYNC_DIRECTORY,
    CALL_WRITE,
    CALL_SYNC
};

/* Names resolved when the call was made, so that a part of the calls can be made again. */
struct call {
    enum call_kind kind;
    uint32_t directory, inode, other_directory, other;
    char name[NAME], other_name[NAME];
    uint64_t offset, count;
    uint8_t *bytes;
};

struct disk {
    struct storage head;
    pthread_mutex_t lock;
    int64_t free_bytes;
    bool no_exchange;
    struct inode *inode;
    uint32_t inodes;
    struct entry *entry;
    uint32_t entries;
    struct call *call;
    uint32_t calls;
    struct disk *base; /* as it was when it was settled; NULL: empty */
};

static void *grow(void *list, uint32_t count, size_t item) { return realloc(list, (count + 1) * item); }

/* ---- entries ---- */

static struct entry *find_entry(const struct disk *d, uint32_t directory, const char *name) {
    for (uint32_t i = 0; i < d->entries; i++)
        if (d->entry[i].directory == directory && strcmp(d->entry[i].name, name) == 0) return &d->entry[i];
    return NULL;
}

static void set_entry(struct disk *d, uint32_t directory, const char *name, uint32_t inode) {
    struct entry *e = find_entry(d, directory, name);
    if (!e) {
        d->entry = grow(d->entry, d->entries, sizeof *d->entry);
        e = &d->entry[d->entries++];
        memset(e, 0, sizeof *e);
        e->directory = directory;
        strcpy(e->name, name);
    }
    e->inode = inode;
}

static void clear_entry(struct disk *d, uint32_t directory, const char *name) {
    struct entry *e = find_entry(d, directory, name);
    if (e) *e = d->entry[--d->entries];
}

/* The directory that holds the path's last name: -1 where there is none. */
static int resolve(const struct disk *d, const char *path, char name[NAME]) {
    uint32_t directory = ROOT;
    for (path++;;) {
        size_t length = strcspn(path, "/");
        if (length >= NAME) return -1;
        memcpy(name, path, length);
        name[length] = 0;
        if (!path[length]) return (int)directory;
        struct entry *e = find_entry(d, directory, name);
        if (!e || !d->inode[e->inode].directory) return -1;
        directory = e->inode;
        path += length + 1;
    }
}

static int inode_at(const struct disk *d, const char *path) {
    char name[NAME];
    int directory = resolve(d, path, name);
    if (directory >= 0 && !*name) return directory;
    struct entry *e = directory < 0 ? NULL : find_entry(d, (uint32_t)directory, name);
    return e ? (int)e->inode : -ENOENT;
}

static uint32_t add_inode(struct disk *d, bool directory) {
    d->inode = grow(d->inode, d->inodes, sizeof *d->inode);
    d->inode[d->inodes] = (struct inode){.directory = directory};
    return d->inodes++;
}

static bool has_entries(const struct disk *d, uint32_t directory) {
    for (uint32_t i = 0; i < d->entries; i++)
        if (d->entry[i].directory == directory) return true;
    return false;
}

static void write_bytes(struct inode *inode, uint64_t offset, const uint8_t *bytes, uint64_t count) {
    if (offset + count > inode->size) {
        inode->bytes = realloc(inode->bytes, offset + count);
        memset(inode->bytes + inode->size, 0, offset + count - inode->size);
        inode->size = offset + count;
    }
    if (bytes) memcpy(inode->bytes + offset, bytes, count);
}

/* ---- making a call, and making it again ---- */

static void apply_entries(struct disk *d, const struct call *c) {
    if (c->kind == CALL_LINK) set_entry(d, c->directory, c->name, c->inode);
    if (c->kind == CALL_UNLINK || c->kind == CALL_RENAME) clear_entry(d, c->directory, c->name);
    if (c->kind == CALL_RENAME) set_entry(d, c->other_directory, c->other_name, c->inode);
    if (c->kind == CALL_EXCHANGE) {
        set_entry(d, c->directory, c->name, c->other);
        set_entry(d, c->other_directory, c->other_name, c->inode);
    }
}

static void record(struct disk *d, struct call call) {
    d->call = grow(d->call, d->calls, sizeof *d->call);
    d->call[d->calls++] = call;
    apply_entries(d, &call);
    if (call.kind == CALL_WRITE) write_bytes(&d->inode[call.inode], call.offset, call.bytes, call.count);
}

/* ---- the table ---- */

#define LOCKED(d) pthread_mutex_lock(&(d)->lock)
#define UNLOCKED(d, result) (pthread_mutex_unlock(&(d)->lock), (result))

static struct disk *disk_of(struct storage *s) { return (struct disk *)s; }

static int add(struct storage *s, const char *path, bool directory) {
    struct disk *d = disk_of(s);
    struct call call = {.kind = CALL_LINK};
    LOCKED(d);
    int in = resolve(d, path, call.name);
    if (in < 0) return UNLOCKED(d, -ENOENT);
    if (find_entry(d, (uint32_t)in, call.name)) return UNLOCKED(d, -EEXIST);
    call.directory = (uint32_t)in;
    call.inode = add_inode(d, directory);
    record(d, call);
    return UNLOCKED(d, (int)call.inode);
}

static int make_directory(struct storage *s, const char *path) {
    int inode = add(s, path, true);
    return inode < 0 ? inode : 0;
}

static storage_handle create(struct storage *s, const char *path, uint64_t bytes,
                             const struct storage_staging *staging) {
    return add(s, path, false);
}

static int take_away(struct storage *s, const char *path, bool directory) {
    struct disk *d = disk_of(s);
    struct call call = {.kind = CALL_UNLINK};
    LOCKED(d);
    int in = resolve(d, path, call.name), inode = inode_at(d, path);
    if (in < 0 || inode < 0) return UNLOCKED(d, -ENOENT);
    if (d->inode[inode].directory != directory) return UNLOCKED(d, -ENOTDIR);
    if (directory && has_entries(d, (uint32_t)inode)) return UNLOCKED(d, -ENOTEMPTY);
    call.directory = (uint32_t)in;
    record(d, call);
    return UNLOCKED(d, 0);
}

static int remove_directory(struct storage *s, const char *path) { return take_away(s, path, true); }
static int remove_file(struct storage *s, const char *path) { return take_away(s, path, false); }

static int move(struct storage *s, const char *from, const char *to, enum call_kind kind) {
    struct disk *d = disk_of(s);
    struct call call = {.kind = kind};
    LOCKED(d);
    int in = resolve(d, from, call.name), other_in = resolve(d, to, call.other_name);
    int inode = inode_at(d, from), other = inode_at(d, to);
    if (in < 0 || other_in < 0 || inode < 0 || (kind == CALL_EXCHANGE && other < 0))
        return UNLOCKED(d, -ENOENT);
    if (kind == CALL_RENAME && other >= 0 && d->inode[other].directory && has_entries(d, (uint32_t)other))
        return UNLOCKED(d, -ENOTEMPTY);
    call.directory = (uint32_t)in, call.other_directory = (uint32_t)other_in;
    call.inode = (uint32_t)inode, call.other = other < 0 ? 0 : (uint32_t)other;
    record(d, call);
    return UNLOCKED(d, 0);
}

static int rename_entry(struct storage *s, const char *from, const char *to) {
    return move(s, from, to, CALL_RENAME);
}
static int exchange(struct storage *s, const char *a, const char *b) {
    return disk_of(s)->no_exchange ? -EINVAL : move(s, a, b, CALL_EXCHANGE);
}

static int sync_directory(struct storage *s, const char *path) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    int inode = inode_at(d, path);
    if (inode >= 0) record(d, (struct call){.kind = CALL_SYNC_DIRECTORY, .directory = (uint32_t)inode});
    return UNLOCKED(d, inode < 0 ? inode : 0);
}

static int list(struct storage *s, const char *path, storage_name_fn fn, void *user) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    int inode = inode_at(d, path);
    for (uint32_t i = 0; inode >= 0 && i < d->entries; i++)
        if (d->entry[i].directory == (uint32_t)inode) fn(user, d->entry[i].name);
    return UNLOCKED(d, inode < 0 ? inode : 0);
}

static int check_owned(struct storage *s, const char *directory, const char *name) {
    struct disk *d = disk_of(s);
    char path[STORAGE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    LOCKED(d);
    int inode = inode_at(d, path);
    return UNLOCKED(d, inode < 0 ? inode : d->inode[inode].directory ? -EISDIR : 0);
}

static int remove_owned(struct storage *s, const char *directory, const char *name) {
    char path[STORAGE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return remove_file(s, path);
}

static int64_t free_bytes(struct storage *s, const char *path) { return disk_of(s)->free_bytes; }

static storage_handle open_file(struct storage *s, const char *path) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    int inode = inode_at(d, path);
    return UNLOCKED(d, inode >= 0 && d->inode[inode].directory ? -EISDIR : inode);
}

static int64_t size(struct storage *s, storage_handle handle) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    int64_t bytes = (int64_t)d->inode[handle].size;
    return UNLOCKED(d, bytes);
}

static int64_t read_file(struct storage *s, storage_handle handle, void *to, size_t bytes, uint64_t offset) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    const struct inode *inode = &d->inode[handle];
    uint64_t left = offset < inode->size ? inode->size - offset : 0;
    if (bytes > left) bytes = (size_t)left;
    if (bytes) memcpy(to, inode->bytes + offset, bytes);
    return UNLOCKED(d, (int64_t)bytes);
}

static int64_t write_file(struct storage *s, storage_handle handle, const void *from, size_t bytes,
                          uint64_t offset) {
    struct disk *d = disk_of(s);
    uint8_t *copy = malloc(bytes);
    memcpy(copy, from, bytes);
    LOCKED(d);
    record(
        d,
        (struct call){
            .kind = CALL_WRITE, .inode = (uint32_t)handle, .offset = offset, .count = bytes, .bytes = copy});
    return UNLOCKED(d, (int64_t)bytes);
}

static int sync_file(struct storage *s, storage_handle handle) {
    struct disk *d = disk_of(s);
    LOCKED(d);
    record(d, (struct call){.kind = CALL_SYNC, .inode = (uint32_t)handle});
    return UNLOCKED(d, 0);
}

static void close_file(struct storage *s, storage_handle handle) {}

static const struct storage_ops ops = {
    .make_directory = make_directory,
    .remove_directory = remove_directory,
    .list = list,
    .sync_directory = sync_directory,
    .rename = rename_entry,
    .exchange = exchange,
    .remove = remove_file,
    .list_owned = list,
    .check_owned = check_owned,
    .remove_owned = remove_owned,
    .free_bytes = free_bytes,
    .create = create,
    .open = open_file,
    .size = size,
    .read = read_file,
    .write = write_file,
    .sync = sync_file,
    .close = close_file,
};

/* ---- life ---- */

struct disk *disk_create(void) {
    struct disk *d = calloc(1, sizeof *d);
    d->head.ops = &ops;
    d->free_bytes = INT64_MAX;
    pthread_mutex_init(&d->lock, NULL);
    add_inode(d, true);
    return d;
}

void disk_free(struct disk *d) {
    if (!d) return;
    disk_free(d->base);
    for (uint32_t i = 0; i < d->inodes; i++) free(d->inode[i].bytes);
    for (uint32_t i = 0; i < d->calls; i++) free(d->call[i].bytes);
    free(d->inode);
    free(d->entry);
    free(d->call);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void disk_forbid_exchange(struct disk *d) { d->no_exchange = true; }
void disk_set_free(struct disk *d, int64_t bytes) { d->free_bytes = bytes; }
struct storage *disk_storage(struct disk *d) {
    return &d->head;
}
uint32_t disk_calls(const struct disk *d) { return d->calls; }

static struct disk *copy_of(const struct disk *from) {
    struct disk *d = disk_create();
    if (!from) return d;
    free(d->inode);
    d->inode = malloc(from->inodes * sizeof *d->inode);
    d->inodes = from->inodes;
    for (uint32_t i = 0; i < d->inodes; i++) {
        d->inode[i] = (struct inode){.directory = from->inode[i].directory};
        write_bytes(&d->inode[i], 0, from->inode[i].bytes, from->inode[i].size);
    }
    d->entry = malloc((from->entries + 1) * sizeof *d->entry);
    if (from->entries) memcpy(d->entry, from->entry, from->entries * sizeof *d->entry);
    d->entries = from->entries;
    return d;
}

void disk_settle(struct disk *d) {
    disk_free(d->base);
    d->base = copy_of(d);
    for (uint32_t i = 0; i < d->calls; i++) free(d->call[i].bytes);
    d->calls = 0;
}

/* ---- the crash ---- */

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static bool lost(const struct crash *crash, uint64_t *state) { return draw(state) % 100 < crash->lost; }

static bool syncs(const struct call *sync, const struct call *call) {
    if (call->kind == CALL_WRITE) return sync->kind == CALL_SYNC && sync->inode == call->inode;
    return sync->kind == CALL_SYNC_DIRECTORY && sync->directory == call->directory;
}

static bool durable(const struct disk *d, uint32_t index, const struct crash *crash) {
    for (uint32_t i = index + 1; i < crash->calls && !crash->fsync_lies; i++)
        if (syncs(&d->call[i], &d->call[index])) return true;
    return false;
}

/* Block by block; one that is lost may have come in part, or only its size. */
static void replay_write(struct disk *to, const struct call *c, bool safe, const struct crash *crash,
                         uint64_t *state) {
    struct inode *inode = &to->inode[c->inode];
    for (uint64_t at = c->offset, end = c->offset + c->count; at < end;) {
        uint64_t next = (at / BLOCK + 1) * BLOCK, count = (next < end ? next : end) - at, kept = count;
        if (!safe && lost(crash, state))
            kept = draw(state) % 4 ? 0 : draw(state) % (count / SECTOR + 1) * SECTOR;
        if (kept) write_bytes(inode, at, c->bytes + (at - c->offset), kept);
        if (kept < count && draw(state) % 2) write_bytes(inode, at + kept, NULL, count - kept);
        at += count;
    }
}

struct disk *disk_crash(const struct disk *d, const struct crash *crash) {
    struct disk *to = copy_of(d->base);
    uint64_t state = crash->seed;
    while (to->inodes < d->inodes) add_inode(to, d->inode[to->inodes].directory);
    for (uint32_t i = 0; i < crash->calls; i++) {
        const struct call *c = &d->call[i];
        bool safe = durable(d, i, crash);
        if (c->kind == CALL_WRITE)
            replay_write(to, c, safe, crash, &state);
        else if (safe || !lost(crash, &state))
            apply_entries(to, c);
    }
    return to;
}

/* Entries have no order: their hashes add up. */
static uint64_t hash_directory(const struct disk *d, uint32_t directory) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->entries; i++) {
        const struct entry *e = &d->entry[i];
        const struct inode *inode = &d->inode[e->inode];
        if (e->directory != directory) continue;
        uint64_t below = inode->directory ? hash_directory(d, e->inode) : inode->size,
                 hash =
                     checksum_seeded(inode->bytes, inode->size, below + checksum(e->name, strlen(e->name)));
        sum += draw(&hash);
    }
    return sum;
}

uint64_t disk_hash(const struct disk *d) { return hash_directory(d, ROOT); }

bool disk_file(struct disk *d, uint32_t index, const char **out_name, uint8_t **out_bytes,
               uint64_t *out_count) {
    for (uint32_t i = 0; i < d->entries; i++) {
        struct inode *inode = &d->inode[d->entry[i].inode];
        if (inode->directory || index--) continue;
        *out_name = d->entry[i].name, *out_bytes = inode->bytes, *out_count = inode->size;
        return true;
    }
    return false;
}
