/* Tests that are specific to the nvme tier: its messages, the options that it refuses before it writes, and the files
 * that it leaves. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/offload/tier_conformance.h"
#include "tests/synced.h"

enum { PAGE = 4096, EXTENT = 1 << 20, KILLS = 20, REOPENS = 20 };

/* ---- helpers ---- */

static char lines[4096]; /* what was logged since lines_clear */
static int line_count;

static void keep_line(void *user, zero_log_level level, const char *line) {
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
    line_count++;
}

static void lines_clear(void) { lines[0] = 0, line_count = 0; }

static const struct log logger = {.write = keep_line};

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) count++;
    return count;
}

static zero_status try_open(const struct tier_options *options, struct tier **out_tier,
                            struct zero_error *error) {
    error_clear(error);
    lines_clear();
    return tier_open(&tier_nvme, options, out_tier, error);
}

static void opens_and_works(const struct tier_options *options) {
    struct zero_error error;
    struct tier *tier;
    if (!CHECK_INT(try_open(options, &tier, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return;
    }
    uint8_t *out = page_alloc(EXTENT), *in = page_alloc(EXTENT);
    for (int i = 0; i < EXTENT; i++) out[i] = (uint8_t)(i * 31 >> 3);
    CHECK_INT(tier_perform(tier, true, 0, EXTENT, out, &error), ZERO_OK);
    CHECK_INT(tier_perform(tier, false, 0, EXTENT, in, &error), ZERO_OK);
    CHECK_BYTES(in, out, EXTENT);
    free(in);
    free(out);
    tier->ops->close(tier);
}

static void refused(const struct tier_options *options, zero_status status, const char *says,
                    const char *says_too) {
    struct zero_error error;
    struct tier *tier = NULL;
    CHECK_INT(try_open(options, &tier, &error), status);
    CHECK(!tier);
    CHECK_CONTAINS(error.message, says);
    CHECK_CONTAINS(error.message, says_too);
}

/* Runs a check in a child, which may change what the system allows it; its failures count. */
static void in_child(void (*run)(const char *directory), const char *directory) {
    pid_t child = fork();
    if (child == 0) {
        atomic_store(&check_failures, 0);
        run(directory);
        fflush(stderr);
        _exit(check_end());
    }
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

static struct tier_options options_for(const char *const *paths, uint32_t count) {
    return (struct tier_options){.bytes = EXTENT,
                                 .log = &logger,
                                 .nvme = {.paths = paths, .path_count = count, .block_bytes = 64 << 10}};
}

/* ---- what it says ---- */

static void the_pool_is_said_once(const char *directory) {
    const char *paths[] = {directory, directory};
    struct tier_options options = options_for(paths, 2);
    options.nvme.no_uring = true;
    opens_and_works(&options);
    CHECK_INT(occurrences(lines, "pread and pwrite"), 1);
    CHECK_CONTAINS(lines, "io_uring is switched off");
}

static void io_uring_is_not_worth_a_word(const char *directory) {
    struct tier_options options = options_for(&directory, 1);
    opens_and_works(&options);
    /* Other tests may have used up the user's memlock limit: that line is right. */
    CHECK_INT(occurrences(lines, "io_uring"), occurrences(lines, "memlock limit"));
    CHECK_CONTAINS(lines, "reserved ");
}

static void memory_in_place_of_a_drive_is_said_once(const char *directory) {
    char in_memory[200];
    directory_make(in_memory, sizeof in_memory, true);
    const char *paths[] = {in_memory, in_memory};
    struct tier_options options = options_for(paths, 2);
    opens_and_works(&options);
    CHECK_INT(occurrences(lines, "is on tmpfs"), 1);
    CHECK_INT(occurrences(lines, "page cache"), 0);
    CHECK_CONTAINS(lines, in_memory);
    directory_remove(in_memory);
}

static bool forbid(long call, int why) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)why),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void io_uring_without(long call, const char *directory) {
    if (!CHECK(forbid(call, EPERM))) return;
    struct tier_options options = options_for(&directory, 1);
    opens_and_works(&options);
    CHECK_INT(occurrences(lines, "the system refuses io_uring: Operation not permitted; threads with pread"),
              1);
}

static void where_io_uring_is_forbidden(const char *directory) {
    io_uring_without(__NR_io_uring_setup, directory);
}

static void where_a_ring_opens_and_takes_nothing(const char *directory) {
    io_uring_without(__NR_io_uring_enter, directory);
}

/* Capabilities lift the limit: they go first. */
static void with_little_memlock(const char *directory) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    struct rlimit limit;
    CHECK_INT(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_cur > 64 << 10) limit.rlim_cur = 64 << 10;
    CHECK_INT(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    CHECK_INT(syscall(SYS_capset, &header, none), 0);
    struct device_span span = {page_alloc(EXTENT), EXTENT};
    const char *paths[] = {directory, directory};
    struct tier_options options = options_for(paths, 2);
    options.nvme.buffers = &span;
    options.nvme.buffer_count = 1;
    opens_and_works(&options);
    /* Newer kernels count the ring itself, and what other processes of the user have locked. */
    int unregistered = occurrences(lines, "not registered with io_uring");
    int refusals = occurrences(lines, "refuses io_uring");
    CHECK(unregistered <= 1 && refusals <= 1 && unregistered + refusals);
    CHECK_CONTAINS(lines, "memlock");
    free(span.data);
}

/* ---- what it refuses ---- */

static void bad_options(const char *directory) {
    struct tier_options options = options_for(&directory, 0);
    refused(&options, ZERO_E_ARGUMENT, "0 paths", "1 to 16");
    options = options_for(&directory, TIER_PATHS_MAX + 1);
    refused(&options, ZERO_E_ARGUMENT, "17 paths", "1 to 16");
    options = options_for(&directory, 1);
    options.nvme.block_bytes = 5000;
    refused(&options, ZERO_E_ARGUMENT, "blocks of 5000 bytes", "multiple of 4096");
    options = options_for(&directory, 1);
    options.nvme.queue_depth = 100000;
    refused(&options, ZERO_E_ARGUMENT, "queue depth of 100000", "at most 4096");
    options = options_for(&directory, 1);
    options.bytes = EXTENT + 1;
    refused(&options, ZERO_E_ARGUMENT, "no multiple of", "1048577");
}

static uint64_t free_bytes(const char *path) {
    struct statvfs found;
    CHECK_INT(statvfs(path, &found), 0);
    return (uint64_t)found.f_bavail * found.f_frsize;
}

/* Before anything is written; two paths on one filesystem share what is free. */
static void too_little_space(const char *directory) {
    const char *paths[] = {directory, directory};
    struct tier_options options = options_for(paths, 1);
    options.bytes = UINT64_C(1) << 60;
    refused(&options, ZERO_E_IO, "too little space: needs 1.0 EiB, ", " free");
    options = options_for(paths, 2);
    options.bytes = free_bytes(directory) / 2 * 3 / PAGE * PAGE;
    refused(&options, ZERO_E_IO, "too little space: needs ", directory);
}

/* Some file systems of a network have no locks. That is not another run. */
static void without_locks(const char *directory) {
    if (!CHECK(forbid(__NR_flock, ENOLCK))) return;
    struct tier_options options = options_for(&directory, 1);
    options.nvme.keep = "kept";
    refused(&options, ZERO_E_IO, "cannot lock kept in ",
            "No locks available; name an nvme_path on a drive of this machine");
}

/* A second run on a path whose kept file a run uses is refused, after two seconds; the first one keeps its file, and its data. */
static void one_run_at_a_time(const char *directory) {
    struct tier_options options = options_for(&directory, 1);
    struct zero_error error;
    struct tier *tier;
    uint8_t *memory = page_alloc(PAGE), *read = page_alloc(PAGE);
    char path[300];
    options.nvme.keep = "kept";
    if (!CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) return;
    memset(memory, 7, PAGE);
    CHECK_INT(tier_perform(tier, true, 0, PAGE, memory, &error), ZERO_OK);
    refused(&options, ZERO_E_IO, "kept in ", "is in use by another run; give this one another nvme_path");
    CHECK_INT(tier_perform(tier, false, 0, PAGE, read, &error), ZERO_OK);
    CHECK_BYTES(read, memory, PAGE);
    tier->ops->close(tier);
    if (CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) tier->ops->close(tier);
    free(memory), free(read);
    snprintf(path, sizeof path, "%s/kept", directory);
    CHECK_INT(unlink(path), 0);
}

/* A kept file stays if something was written to it, and not if the start failed, or nothing was. */
static void keeps_what_was_written(const char *directory) {
    char missing[300];
    const char *paths[] = {directory, missing};
    struct tier_options options = options_for(paths, 1);
    struct zero_error error;
    struct tier *tier;
    uint8_t *memory = page_alloc(PAGE);
    options.nvme.keep = "kept";
    for (int writes = 0; writes < 2; writes++) {
        if (!CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) return;
        if (writes) CHECK_INT(tier_perform(tier, true, 0, PAGE, memory, &error), ZERO_OK);
        tier->ops->close(tier);
        CHECK_INT(directory_entries(directory, true), writes);
        if (writes) CHECK(was_synced(directory)); /* the file has its name also after a power loss */
    }
    if (!CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) return;
    CHECK(tier->found);
    tier->ops->close(tier);
    CHECK_INT(directory_entries(directory, true), 1); /* what an earlier run wrote */
    free(memory);
    options.nvme.keep = "other";
    snprintf(missing, sizeof missing, "%s/second", directory);
    CHECK_INT(mkdir(missing, 0700), 0);
    char in_the_way[320];
    snprintf(in_the_way, sizeof in_the_way, "%s/other", missing);
    CHECK_INT(mkdir(in_the_way, 0700), 0);
    options.nvme.path_count = 2;
    refused(&options, ZERO_E_IO, "cannot open the kept file in ", missing);
    CHECK_INT(directory_entries(directory, true), 3); /* kept, second, second/other */
    CHECK_INT(rmdir(in_the_way), 0), CHECK_INT(rmdir(missing), 0);
    snprintf(in_the_way, sizeof in_the_way, "%s/kept", directory);
    CHECK_INT(unlink(in_the_way), 0);
}

/* Opens kept files, and checks that all of the extent is 0 (`before` 0) or was kept (`before` its bytes); then writes `after`. */
static void keeps(const struct tier_options *options, uint8_t before, uint8_t after) {
    struct zero_error error;
    struct tier *tier;
    if (!CHECK_INT(try_open(options, &tier, &error), ZERO_OK)) {
        fprintf(stderr, "%s\n", error.message);
        return;
    }
    uint8_t *expected = page_alloc(options->bytes), *memory = page_alloc(options->bytes);
    CHECK_INT(tier->found, before != 0);
    memset(expected, before, options->bytes);
    CHECK_INT(tier_perform(tier, false, 0, options->bytes, memory, &error), ZERO_OK);
    CHECK_BYTES(memory, expected, options->bytes);
    memset(memory, after, options->bytes);
    CHECK_INT(tier_perform(tier, true, 0, options->bytes, memory, &error), ZERO_OK);
    tier->ops->close(tier);
    free(expected), free(memory);
}

static void remove_kept(const char *directory) {
    char path[1000];
    snprintf(path, sizeof path, "%s/kept", directory);
    CHECK_INT(unlink(path), 0);
}

/* `discard` makes anew what otherwise would be refused, and nothing else. */
static void discards_what_does_not_fit(const char *directory) {
    char name[3][300];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s/%d", directory, i);
        CHECK_INT(mkdir(name[i], 0700), 0);
    }
    const char *first[] = {name[0], name[1]}, *other[] = {name[0], name[2]};
    struct tier_options old = options_for(first, 2), moved = options_for(other, 2),
                        larger = options_for(first, 2);
    larger.bytes += old.nvme.block_bytes; /* only the first path's file has another size */
    old.nvme.keep = moved.nvme.keep = larger.nvme.keep = "kept";
    keeps(&old, 0, 1);
    refused(&moved, ZERO_E_IO, "the kept file kept is in ", "and not in ");
    refused(&larger, ZERO_E_IO, "of a run with another model or configuration", "--discard-shadow");
    keeps(&old, 1, 2);
    old.nvme.discard = moved.nvme.discard = larger.nvme.discard = true;
    keeps(&old, 2, 3); /* it fits */
    keeps(&larger, 0, 4);
    keeps(&old, 0, 5);
    keeps(&moved, 0, 6);
    old.bytes = UINT64_C(1) << 60;
    refused(&old, ZERO_E_IO, "too little space", "needs 1.0 EiB");
    keeps(&moved, 6, 7); /* what was refused has emptied nothing */
    for (int i = 0; i < 3; i++) remove_kept(name[i]), CHECK_INT(rmdir(name[i]), 0);
}

/* A start that was killed took the space of one path, or a part of it. */
static void takes_over_what_nothing_was_written_to(const char *directory) {
    char name[2][300], path[320];
    const char *paths[] = {name[0], name[1]};
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "%s/%d", directory, i);
    struct tier_options options = options_for(paths, 2);
    const off_t sizes[] = {PAGE, EXTENT / 2, EXTENT, 2 * EXTENT};
    options.nvme.keep = "kept";
    snprintf(path, sizeof path, "%s/kept", name[0]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        mkdir(name[0], 0700);
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        CHECK_INT(fallocate(file, 0, 0, sizes[i]), 0), CHECK_INT(close(file), 0);
        keeps(&options, 0, 1);
        keeps(&options, 1, 2);
        CHECK_INT(truncate(path, 0), 0),
            CHECK_INT(truncate(path, PAGE), 0); /* the other path's file has data */
        refused(&options, ZERO_E_IO, "the kept file kept is in ", "and not in ");
        CHECK_INT(truncate(path, EXTENT / 2), 0); /* none of this path's blocks was written yet */
        struct zero_error error;
        struct tier *tier;
        if (CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) CHECK(tier->found), tier->ops->close(tier);
        for (int k = 0; k < 2; k++) remove_kept(name[k]), CHECK_INT(rmdir(name[k]), 0);
    }
}

/* An extent of two blocks on three paths. */
static void keeps_fewer_blocks_than_paths(const char *directory) {
    char name[3][300];
    const char *paths[3];
    for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "%s/%d", directory, i), paths[i] = name[i];
    struct tier_options options = options_for(paths, 3);
    options.bytes = 2 * options.nvme.block_bytes;
    options.nvme.keep = "kept";
    keeps(&options, 0, 1);
    keeps(&options, 1, 2);
    for (int i = 0; i < 3; i++) remove_kept(name[i]), CHECK_INT(rmdir(name[i]), 0);
}

/* A kept file of the right size whose second half is a hole: a copy, or what a kill left of a first start. Without `reserves` the
 * filesystem cannot reserve space. */
static void fills_holes(const struct tier_options *shared, bool reserves) {
    struct tier_options options = *shared;
    const char *directory = options.nvme.paths[0];
    struct zero_error error;
    struct tier *tier;
    uint8_t *bytes = page_alloc(EXTENT), *memory = page_alloc(EXTENT);
    char path[320];
    struct stat found;
    options.nvme.keep = "kept";
    memset(bytes, 5, EXTENT / 2);
    snprintf(path, sizeof path, "%s/kept", directory);
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK_INT(write(file, bytes, EXTENT / 2), EXTENT / 2);
    CHECK_INT(ftruncate(file, EXTENT), 0);
    if (CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) {
        CHECK(tier->found);
        CHECK_INT(fstat(file, &found), 0);
        CHECK(found.st_blocks * 512 >= EXTENT);
        CHECK_INT(occurrences(lines, "by writing it once"), !reserves);
        CHECK_INT(tier->read_bytes + tier->written_bytes, 0);
        CHECK_INT(tier_perform(tier, false, 0, EXTENT, memory, &error), ZERO_OK);
        CHECK_BYTES(memory, bytes, EXTENT);
        tier->ops->close(tier);
    }
    CHECK_INT(close(file), 0), CHECK_INT(unlink(path), 0);
    free(bytes), free(memory);
}

static void where_nothing_can_be_reserved(const char *directory) {
    if (!CHECK(forbid(__NR_fallocate, EOPNOTSUPP))) return;
    const char *paths[] = {directory, directory};
    struct tier_options options = options_for(paths, 2);
    opens_and_works(&options);
    CHECK_INT(occurrences(lines, "by writing it once"), 1);
    options = options_for(&directory, 1);
    fills_holes(&options, false);
}

/* Some filesystems ask for space for the whole file, also for what it has. */
static void where_reserving_asks_for_more(const char *directory) {
    if (!CHECK(forbid(__NR_fallocate, ENOSPC))) return;
    struct tier_options options = options_for(&directory, 1);
    refused(&options, ZERO_E_IO, "cannot take the space for a file in ", "No space left on device");
    fills_holes(&options, false);
}

/* A hole needs space, too. */
static void counts_holes(const struct tier_options *shared) {
    struct tier_options options = *shared;
    const char *directory = options.nvme.paths[0];
    char path[320], other[320];
    options.nvme.keep = "kept";
    snprintf(path, sizeof path, "%s/kept", directory);
    snprintf(other, sizeof other, "%s/other", directory);
    int file = open(path, O_CREAT | O_WRONLY, 0600), filler = open(other, O_CREAT | O_WRONLY, 0600);
    CHECK_INT(ftruncate(file, EXTENT), 0);
    CHECK_INT(fallocate(filler, 0, 0, EXTENT / 2), 0);
    refused(&options, ZERO_E_IO, "too little space: needs 1.0 MiB, 512.0 KiB free", directory);
    CHECK_INT(close(file), 0), CHECK_INT(close(filler), 0);
    CHECK_INT(unlink(path), 0), CHECK_INT(unlink(other), 0);
}

/* A drive that has no room for the old and the new files. */
static void discards_before_it_counts(const struct tier_options *options) {
    struct tier_options old = *options;
    old.nvme.keep = "kept";
    old.bytes = EXTENT / 2;
    keeps(&old, 0, 1);
    struct tier_options new = old;
    new.bytes = EXTENT;
    refused(&new, ZERO_E_IO, "has 512.0 KiB, of a run with another model or configuration",
            "--discard-shadow");
    keeps(&old, 1, 2);
    new.nvme.discard = true;
    keeps(&new, 0, 3);
    remove_kept(options->nvme.paths[0]);
}

/* A process that holds the whole drive until it is killed. `twin`: it is forked when the tier is open, and the tier is closed here. */
static pid_t start_holder(const struct tier_options *options, bool twin) {
    struct zero_error error;
    struct tier *tier = NULL;
    int ready[2];
    char byte = 0;
    CHECK_INT(pipe(ready), 0);
    if (twin && !CHECK_INT(try_open(options, &tier, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    pid_t child = fork();
    if (child == 0) {
        byte = (char)(twin ? ZERO_OK : try_open(options, &tier, &error));
        if (write(ready[1], &byte, 1) == 1) pause();
        _exit(1);
    }
    CHECK_INT(read(ready[0], &byte, 1), 1);
    CHECK_INT(byte, ZERO_OK);
    if (twin && tier) tier->ops->close(tier);
    close(ready[0]), close(ready[1]);
    return child;
}

static void end_holder(pid_t child) {
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, NULL, 0), child);
}

/* The kernel closes a ring later than the process does, and a child has what its parent had. */
static void the_space_is_free_again(const struct tier_options *options) {
    for (int i = 0; i < REOPENS; i++) opens_and_works(options);
    pid_t child = start_holder(options, true);
    opens_and_works(options);
    end_holder(child);
    for (int i = 0; i < REOPENS; i++) {
        end_holder(start_holder(options, false));
        opens_and_works(options);
    }
}

static void a_small_tmpfs(const char *directory) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", directory, "tmpfs", 0, "size=1m,mode=700") != 0) {
        fprintf(stderr, "not tested: a mount is not permitted here\n");
        return;
    }
    struct tier_options options = options_for(&directory, 1);
    options.bytes = 2 * EXTENT;
    refused(&options, ZERO_E_IO, "needs 2.0 MiB, 1.0 MiB free", directory);
    options.bytes = EXTENT;
    counts_holes(&options);
    fills_holes(&options, true);
    discards_before_it_counts(&options);
    the_space_is_free_again(&options);
    options.nvme.no_uring = true;
    the_space_is_free_again(&options);
}

static void with_a_file_limit(const char *directory) {
    struct rlimit limit = {.rlim_cur = EXTENT / 2, .rlim_max = EXTENT / 2};
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct tier_options options = options_for(&directory, 1);
    refused(&options, ZERO_E_IO, "limit of 512.0 KiB", "ulimit -f");
}

static void bad_paths(const char *directory) {
    char path[300];
    const char *name = path;
    struct tier_options options = options_for(&name, 1);
    snprintf(path, sizeof path, "/proc/no/such");
    refused(&options, ZERO_E_IO, "cannot make the directory /proc/no:", "No such file or directory");
    snprintf(path, sizeof path, "%s/file", directory);
    CHECK(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
    refused(&options, ZERO_E_IO, path, "Not a directory");
    CHECK_INT(unlink(path), 0);
}

static void links(const char *directory) {
    char target[300], path[300];
    const char *name = path;
    struct tier_options options = options_for(&name, 1);
    snprintf(target, sizeof target, "%s/target", directory);
    snprintf(path, sizeof path, "%s/link", directory);
    CHECK_INT(mkdir(target, 0700), 0);
    CHECK_INT(symlink(target, path), 0);
    opens_and_works(&options);
    CHECK_INT(directory_entries(target, true), 0);
    static const char *const ends[] = {"", "/", "//", "/.", "/./", "/.//./"};
    size_t length = strlen(path);
    bool given = lchown(path, 12345, 12345) == 0;
    if (!given) fprintf(stderr, "not tested: files cannot be given away here\n");
    for (size_t i = 0; given && i < sizeof ends / sizeof *ends; i++) {
        snprintf(path + length, sizeof path - length, "%s", ends[i]);
        refused(&options, ZERO_E_IO, "symbolic link of another user", path);
    }
    path[length] = 0;
    CHECK_INT(unlink(path), 0);
    CHECK_INT(rmdir(target), 0);
}

/* ---- what it leaves ---- */

/* Modes of this process's open files that have no name any more. */
static int check_nameless_files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(directory));) {
        char link[64], target[400];
        struct stat found;
        snprintf(link, sizeof link, "/proc/self/fd/%.20s", entry->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0 || stat(link, &found) != 0) continue;
        target[length] = 0;
        if (!S_ISREG(found.st_mode) || !strstr(target, "zero-tier-")) continue;
        CHECK_INT(found.st_nlink, 0);
        CHECK_INT(found.st_mode & 07777, 0600);
        CHECK(found.st_blocks * 512 >= EXTENT);
        count++;
    }
    closedir(directory);
    return count;
}

static void modes(const char *directory, bool named) {
    char path[300];
    const char *name = path;
    snprintf(path, sizeof path, "%s/made", directory);
    struct tier_options options = options_for(&name, 1);
    options.nvme.named_files = named;
    struct zero_error error;
    struct tier *tier;
    mode_t mask = umask(0);
    if (!CHECK_INT(try_open(&options, &tier, &error), ZERO_OK)) return;
    umask(mask);
    struct stat found;
    CHECK_INT(stat(path, &found), 0);
    CHECK_INT(found.st_mode & 07777, 0700);
    CHECK_INT(directory_entries(path, true), 0);
    CHECK_INT(check_nameless_files(), 1);
    tier->ops->close(tier);
    CHECK_INT(check_nameless_files(), 0);
    CHECK_INT(rmdir(path), 0);
}

static void write_for_ever(const char *directory) {
    const char *paths[] = {directory, directory};
    struct tier_options options = options_for(paths, 2);
    struct zero_error error;
    uint8_t *memory = page_alloc(EXTENT);
    memset(memory, 1, EXTENT);
    for (;;) {
        struct tier *tier;
        if (try_open(&options, &tier, &error)) _exit(1);
        for (int i = 0; i < 3; i++)
            if (tier_perform(tier, true, 0, EXTENT, memory, &error)) _exit(1);
        tier->ops->close(tier);
    }
}

static void a_kill_leaves_nothing(const char *directory) {
    uint64_t random = 99;
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        if (child == 0) write_for_ever(directory);
        random = random * 6364136223846793005u + 1442695040888963407u;
        nanosleep(&(struct timespec){.tv_nsec = (long)(random >> 33) % 40000000}, NULL);
        CHECK_INT(kill(child, SIGKILL), 0);
        int status;
        CHECK_INT(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));
        CHECK_INT(directory_entries(directory, true), 0);
    }
}

static void a_refusal_leaves_nothing(const char *directory) {
    CHECK_INT(directory_entries(directory, true), 0);
}

int main(void) {
    char directory[200];
    directory_make(directory, sizeof directory, false);
    in_child(where_io_uring_is_forbidden, directory);
    in_child(where_a_ring_opens_and_takes_nothing, directory);
    in_child(with_little_memlock, directory);
    in_child(a_small_tmpfs, directory);
    in_child(with_a_file_limit, directory);
    in_child(where_nothing_can_be_reserved, directory);
    in_child(where_reserving_asks_for_more, directory);
    the_pool_is_said_once(directory);
    io_uring_is_not_worth_a_word(directory);
    memory_in_place_of_a_drive_is_said_once(directory);
    bad_options(directory);
    too_little_space(directory);
    in_child(without_locks, directory);
    a_refusal_leaves_nothing(directory);
    keeps_what_was_written(directory);
    discards_what_does_not_fit(directory);
    takes_over_what_nothing_was_written_to(directory);
    keeps_fewer_blocks_than_paths(directory);
    one_run_at_a_time(directory);
    bad_paths(directory);
    links(directory);
    a_refusal_leaves_nothing(directory);
    modes(directory, false);
    modes(directory, true);
    a_kill_leaves_nothing(directory);
    directory_remove(directory);
    return check_end();
}
