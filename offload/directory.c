#include "offload/directory.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "engine/base/system/durable.h"

static zero_status fail(struct zero_error *error, const char *what, const char *path, int number) {
    return error_set(error, ZERO_E_IO, "tier nvme: cannot %s %s: %s", what, path, strerror(number));
}

/* ---- what the text means ---- */

static const char *variable(const char *name) {
    const char *value = getenv(name);
    if (value && *value) return value;
    if (strcmp(name, "ZERO_SWAP") != 0) return NULL;
    value = getenv("SLURM_TMPDIR");
    return value && *value ? value : "/var/tmp";
}

/* The length of the variable's name at `text`, behind the $. `*out_length`: that of all that it takes, braces included. */
static size_t name_at(const char *text, const char **out_name, size_t *out_length) {
    size_t brace = *text == '{', n = 0;
    *out_name = text + brace;
    while (isalnum((unsigned char)(*out_name)[n]) || (*out_name)[n] == '_') n++;
    if (!n || (brace && (*out_name)[n] != '}')) return 0;
    *out_length = n + 2 * brace;
    return n;
}

static zero_status expand(const char *text, char out[PATH_MAX], struct zero_error *error) {
    size_t length = 0;
    for (const char *at = text; *at;) {
        char name[256] = "HOME", one[2] = {*at, 0};
        const char *begin, *value = one;
        size_t taken = 1, n = 0;
        bool home = at == text && *at == '~' && (!at[1] || at[1] == '/');
        if (*at == '$' && (n = name_at(at + 1, &begin, &taken)) > 0) {
            if (n < sizeof name) snprintf(name, sizeof name, "%.*s", (int)n, begin);
            taken++;
        }
        if (home || n) value = variable(name);
        if (!value)
            return error_set(error, ZERO_E_CONFIG,
                             "tier nvme: nvme_path \"%s\" needs %s, which the environment does not have: set "
                             "it for every rank, or write the directory",
                             text, name);
        size_t bytes = strlen(value);
        if (length + bytes >= PATH_MAX)
            return error_set(error, ZERO_E_CONFIG,
                             "tier nvme: nvme_path \"%.200s\" is longer than a path may be", text);
        memcpy(out + length, value, bytes + 1);
        length += bytes, at += taken;
    }
    return ZERO_OK;
}

/* Whether somebody else can make a file or a link there. */
static bool is_shared(const struct stat *found) {
    return found->st_uid != geteuid() || found->st_mode & S_IWOTH;
}

static void own_name(char out[32]) { snprintf(out, 32, "zero-%lu", (unsigned long)geteuid()); }

zero_status swap_directory_path(const char *text, bool named, char **out, struct zero_error *error) {
    char path[PATH_MAX] = "", own[32] = "";
    struct stat found;
    TRY(expand(text, path, error));
    if (named && stat(path, &found) == 0 && is_shared(&found)) own_name(own);
    if (asprintf(out, "%s%s%s", path, *own ? "/" : "", own) < 0)
        return error_set(error, ZERO_E_MEMORY, "tier nvme: no memory for a path");
    return ZERO_OK;
}

/* ---- its filesystem ---- */

static const char
    in_memory[] = "its files take memory, not a drive; name a directory of a drive",
    in_container[] = "it is a container's own layer, slow or in memory; mount a drive's directory there",
    on_network[] =
        "each transfer crosses the network, to servers that all ranks share; name a drive of the node";

/* clang-format off */
static const struct {
    uint32_t magic;
    const char *name, *meaning;
} filesystems[] = {
    {TMPFS_MAGIC,           "tmpfs",   in_memory},
    {RAMFS_MAGIC,           "ramfs",   in_memory},
    {OVERLAYFS_SUPER_MAGIC, "overlay", in_container},
    {NFS_SUPER_MAGIC,       "NFS",     on_network},
    {CIFS_SUPER_MAGIC,      "CIFS",    on_network},
    {SMB2_SUPER_MAGIC,      "SMB",     on_network},
    {CEPH_SUPER_MAGIC,      "Ceph",    on_network},
    {0x0BD00BD0,            "Lustre",  on_network}, /* LL_SUPER_MAGIC of its own sources */
    {0x47504653,            "GPFS",    on_network}, /* its letters */
};
/* clang-format on */

static void find_caution(struct swap_directory *d) {
    struct statfs found;
    d->caution[0] = 0;
    if (fstatfs(d->handle, &found) != 0) return;
    for (size_t i = 0; i < sizeof filesystems / sizeof *filesystems; i++)
        if ((uint32_t)found.f_type == filesystems[i].magic)
            snprintf(d->caution, sizeof d->caution, "is on %s: %s", filesystems[i].name,
                     filesystems[i].meaning);
}

uint64_t swap_free_bytes(int handle) {
    struct statvfs found;
    return fstatvfs(handle, &found) == 0 ? (uint64_t)found.f_bavail * found.f_frsize : 0;
}

/* ---- open and close ---- */

static zero_status make_levels(const char *path, struct zero_error *error) {
    char level[PATH_MAX];
    snprintf(level, sizeof level, "%s", path);
    int number = durable_parents(level, 0700);
    if (!number) number = durable_directory(level, 0700);
    return number && number != EEXIST ? fail(error, "make the directory", level, number) : ZERO_OK;
}

/* True for a symbolic link of another user (not root). A directory that others can write to may have such a link. With "/" or "/." at
 * the end lstat would look at the link's target. */
static bool link_of_stranger(const char *path) {
    char name[PATH_MAX];
    struct stat link;
    snprintf(name, sizeof name, "%s", path);
    for (size_t n = strlen(name);
         n > 1 && (name[n - 1] == '/' || (name[n - 1] == '.' && name[n - 2] == '/'));)
        name[--n] = 0;
    return lstat(name, &link) == 0 && S_ISLNK(link.st_mode) && link.st_uid != geteuid() && link.st_uid != 0;
}

/* Replaces the handle of a shared directory by that of the user's own one in it. */
static zero_status enter_own(struct swap_directory *d, struct zero_error *error) {
    char name[32];
    struct stat found;
    own_name(name);
    int made = mkdirat(d->handle, name, 0700), number = errno;
    int own = openat(d->handle, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (own < 0) return fail(error, "open the directory", d->path, made && number != EEXIST ? number : errno);
    if (!made) durable(d->handle);
    close(d->handle);
    d->handle = own;
    if (fstat(own, &found) == 0 && found.st_uid == geteuid() && !(found.st_mode & 077)) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "tier nvme: %s is not private to this user; remove it, or name another nvme_path",
                     d->path);
}

zero_status swap_directory_open(const char *text, bool named, struct swap_directory *out,
                                struct zero_error *error) {
    char shared[PATH_MAX] = "";
    struct swap_directory d = {.handle = -1};
    struct stat found;
    zero_status status = expand(text, shared, error);
    if (!status) status = make_levels(shared, error);
    if (!status) status = swap_directory_path(text, named, &d.path, error);
    if (status) return status;
    if (link_of_stranger(shared)) {
        status =
            error_set(error, ZERO_E_IO,
                      "tier nvme: %s is a symbolic link of another user; name the directory itself", shared);
        goto free_path;
    }
    d.handle = open(shared, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d.handle < 0) {
        status = fail(error, "open the directory", shared, errno);
        goto free_path;
    }
    if (strcmp(shared, d.path) != 0) status = enter_own(&d, error);
    if (!status && fstat(d.handle, &found) != 0) status = fail(error, "look at", d.path, errno);
    if (status) goto close_handle;
    d.device = found.st_dev;
    find_caution(&d);
    *out = d;
    return ZERO_OK;
close_handle:
    close(d.handle);
free_path:
    free(d.path);
    return status;
}

void swap_directory_close(struct swap_directory *directory) {
    close(directory->handle);
    free(directory->path);
}
