#include "engine/checkpoint/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

zero_status storage_check(int64_t result, const char *what, const char *path, struct zero_error *error) {
    if (result >= 0) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "cannot %s %s: %s", what, path,
                     result == -STORAGE_NO_FILE ? "it is not a regular file" : strerror((int)-result));
}

zero_status storage_join(const char *directory, const char *name, char out[STORAGE_PATH_BYTES],
                         struct zero_error *error) {
    int length = snprintf(out, STORAGE_PATH_BYTES, "%s/%s", directory, name);
    if (length > 0 && length < STORAGE_PATH_BYTES) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT, "the path %s/%s is longer than %d bytes; use a shorter one",
                     directory, name, STORAGE_PATH_BYTES - 1);
}

/* ---- files ---- */

static zero_status start(struct storage *storage, storage_handle handle, const char *what, const char *path,
                         struct storage_file *out, struct zero_error *error) {
    TRY(storage_check(handle, what, path, error));
    *out = (struct storage_file){.storage = storage, .handle = handle};
    snprintf(out->path, sizeof out->path, "%s", path);
    return ZERO_OK;
}

zero_status storage_create(struct storage *storage, const char *path, uint64_t bytes,
                           const struct storage_staging *staging, struct storage_file *out,
                           struct zero_error *error) {
    return start(storage, storage->ops->create(storage, path, bytes, staging), "create", path, out, error);
}

zero_status storage_open(struct storage *storage, const char *path, struct storage_file *out,
                         struct zero_error *error) {
    return start(storage, storage->ops->open(storage, path), "open", path, out, error);
}

void storage_close(struct storage_file *file) {
    if (file->storage) file->storage->ops->close(file->storage, file->handle);
    file->storage = NULL;
}

zero_status storage_size(struct storage_file *file, uint64_t *out_bytes, struct zero_error *error) {
    int64_t bytes = file->storage->ops->size(file->storage, file->handle);
    zero_status status = storage_check(bytes, "look at", file->path, error);
    if (!status) *out_bytes = (uint64_t)bytes;
    return status;
}

zero_status storage_read(struct storage_file *file, void *to, size_t bytes, uint64_t offset,
                         struct zero_error *error) {
    struct storage *s = file->storage;
    for (size_t done = 0; done < bytes;) {
        int64_t got = s->ops->read(s, file->handle, (char *)to + done, bytes - done, offset + done);
        if (got == -EINTR) continue;
        if (got < 0) return storage_check(got, "read", file->path, error);
        if (got == 0)
            return error_set(error, ZERO_E_IO, "%s ends at byte %" PRIu64 ", short of byte %" PRIu64,
                             file->path, offset + done, offset + bytes);
        done += (size_t)got;
    }
    return ZERO_OK;
}

static zero_status write_failed(struct storage_file *file, int64_t result, size_t bytes, uint64_t offset,
                                struct zero_error *error) {
    struct storage *s = file->storage;
    int64_t left = s->ops->free_bytes(s, file->path);
    return error_set(error, ZERO_E_IO,
                     "cannot write %zu bytes at offset %" PRIu64 " of %s: %s; %" PRId64 " bytes are free",
                     bytes, offset, file->path, strerror((int)-result), left < 0 ? 0 : left);
}

zero_status storage_write(struct storage_file *file, const void *from, size_t bytes, uint64_t offset,
                          struct zero_error *error) {
    struct storage *s = file->storage;
    if (file->broken) return storage_check(-EIO, "write", file->path, error);
    for (size_t done = 0; done < bytes;) {
        int64_t put = s->ops->write(s, file->handle, (const char *)from + done, bytes - done, offset + done);
        if (put == -EINTR) continue;
        if (put <= 0) return write_failed(file, put ? put : -ENOSPC, bytes - done, offset + done, error);
        done += (size_t)put;
    }
    return ZERO_OK;
}

zero_status storage_sync(struct storage_file *file, struct zero_error *error) {
    struct storage *s = file->storage;
    if (file->broken) return storage_check(-EIO, "sync", file->path, error);
    int result = s->ops->sync(s, file->handle);
    file->broken = result < 0;
    return storage_check(result, "make durable (fsync)", file->path, error);
}

/* ---- small files ---- */

zero_status storage_read_text(struct storage *storage, const char *path, size_t bytes_max, char **out,
                              size_t *out_bytes, struct zero_error *error) {
    struct storage_file file;
    uint64_t bytes = 0;
    char *text = NULL;
    TRY(storage_open(storage, path, &file, error));
    zero_status status = storage_size(&file, &bytes, error);
    if (!status && bytes > bytes_max)
        status = error_set(error, ZERO_E_IO, "%s has %" PRIu64 " bytes; at most %zu are possible", path,
                           bytes, bytes_max);
    if (!status && !(text = malloc((size_t)bytes + 1)))
        status = error_set(error, ZERO_E_MEMORY, "no memory for the %" PRIu64 " bytes of %s", bytes, path);
    if (!status) status = storage_read(&file, text, (size_t)bytes, 0, error);
    storage_close(&file);
    if (status) {
        free(text);
        return status;
    }
    text[bytes] = 0;
    *out = text;
    *out_bytes = (size_t)bytes;
    return ZERO_OK;
}

zero_status storage_write_text(struct storage *storage, const char *path, const char *text, size_t bytes,
                               struct zero_error *error) {
    struct storage_file file;
    TRY(storage_create(storage, path, 0, NULL, &file, error));
    zero_status status = storage_write(&file, text, bytes, 0, error);
    if (!status) status = storage_sync(&file, error);
    storage_close(&file);
    return status;
}

zero_status storage_sync_name(struct storage *storage, const char *path, struct zero_error *error) {
    char parent[STORAGE_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", path);
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/') parent[--length] = 0;
    char *slash = strrchr(parent, '/');
    if (slash == parent) slash++;
    if (slash) *slash = 0;
    return storage_check(storage->ops->sync_directory(storage, slash ? parent : "."), "make durable (fsync)",
                         slash ? parent : ".", error);
}

zero_status storage_make_parents(struct storage *storage, const char *path, struct zero_error *error) {
    char parent[STORAGE_PATH_BYTES];
    size_t length = strlen(path);
    if (length >= sizeof parent) return error_set(error, ZERO_E_ARGUMENT, "the path %s is too long", path);
    strcpy(parent, path);
    while (length > 1 && parent[length - 1] == '/') parent[--length] = 0;
    for (char *at = parent + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        int made = storage->ops->make_directory(storage, parent);
        if (made != -EEXIST && made != 0) return storage_check(made, "make the directory", parent, error);
        TRY(made ? ZERO_OK : storage_sync_name(storage, parent, error));
        *at = '/';
    }
    return ZERO_OK;
}
