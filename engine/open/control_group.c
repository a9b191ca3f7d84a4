#include "engine/open/control_group.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"

enum { PATH_BYTES = CONTROL_GROUP_PATH_BYTES };

struct walk {
    const char *root, *controller;
    void (*take)(void *user, const char *folder, bool unified);
    void *user;
};

/* A container may see its own group as the root: then the path does not exist there, and the root's file has the limit. */
static void visit(const struct walk *w, const char *tree, char *group, bool unified) {
    char folder[PATH_BYTES];
    for (;;) {
        if (snprintf(folder, sizeof folder, "%s%s", tree, group) < PATH_BYTES)
            w->take(w->user, folder, unified);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

/* Whether the list "cpu,cpuacct" has the name. */
static bool lists(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length])) return true;
    return false;
}

/* A line of /proc/self/cgroup: "4:cpu,cpuacct:/path" of version 1, "0::/path" of version 2. A path may have colons, too. */
static void read_membership(const struct walk *w, char *line) {
    char tree[PATH_BYTES], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    line[strcspn(line, "\n")] = 0;
    if (!group) return;
    *controllers++ = 0, *group++ = 0;
    bool unified = strcmp(line, "0") == 0;
    if (!unified && !lists(controllers, w->controller)) return;
    if (strcmp(group, "/") == 0) *group = 0;
    int length = snprintf(tree, sizeof tree, "%s/sys/fs/cgroup%s%s", w->root, unified ? "" : "/",
                          unified ? "" : w->controller);
    if (length < PATH_BYTES) visit(w, tree, group, unified);
}

void control_group_each(const char *root, const char *controller,
                        void (*take)(void *user, const char *folder, bool unified), void *user) {
    struct walk w = {root, controller, take, user};
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) read_membership(&w, line);
    if (file) fclose(file);
}

bool control_group_line(const char *folder, const char *name, char out_path[PATH_BYTES], char out_line[64]) {
    if (snprintf(out_path, PATH_BYTES, "%s/%s", folder, name) >= PATH_BYTES) return false;
    FILE *file = fopen(out_path, "re");
    if (!file) return false;
    bool found = fgets(out_line, 64, file) != NULL;
    fclose(file);
    return found;
}

uint64_t control_group_identity(const char *path) {
    char host[256] = "";
    struct stat file;
    gethostname(host, sizeof host - 1);
    uint64_t identity = hash_string(hash_string(HASH_START, host), path);
    if (stat(path, &file) == 0) /* containers see groups of their own under one path */
        identity = hash_bytes(hash_bytes(identity, &file.st_dev, sizeof file.st_dev), &file.st_ino,
                              sizeof file.st_ino);
    return identity;
}
