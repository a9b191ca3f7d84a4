/* The control groups of this process (cgroups, version 1 and 2), which limit what it may take. Threads: any. */
#ifndef ZERO_ENGINE_OPEN_CONTROL_GROUP_H
#define ZERO_ENGINE_OPEN_CONTROL_GROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CONTROL_GROUP_PATH_BYTES = 512 };

/* Calls `take` with the folder of the group that has the controller ("memory", "cpu"), and of each group above. `root`: what stands
 * before /proc and /sys; "" but in tests. `unified`: version 2. */
void control_group_each(const char *root, const char *controller,
                        void (*take)(void *user, const char *folder, bool unified), void *user);

/* The first line of a file of the group, and the file's path. False: there is no such file. */
bool control_group_line(const char *folder, const char *name, char out_path[CONTROL_GROUP_PATH_BYTES],
                        char out_line[64]);

/* A number that is equal for the processes of this host that share the limit in the file. */
uint64_t control_group_identity(const char *path);

#endif
