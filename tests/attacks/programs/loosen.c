/* loosen BYTES: a pod that takes its own limits away, and then uses BYTES of memory.
 *
 * In each of several ways it gets at a cgroup filesystem that it may write to, and writes there, over and over while it
 * allocates: memory, processes, CPU time, the kernel's OOM killer. Prints `loosened FILE` for each file that took it,
 * `refused WHAT ERRNO` for each way that is closed, `holds BYTES` when all of its memory is there; then waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEP = 1 << 20 };
static const char *const WRITES[][2] = {
    {"memory.oom_control", "1"}, {"memory.memsw.limit_in_bytes", "-1"}, {"memory.limit_in_bytes", "-1"},
    {"memory.max", "max"},       {"memory.high", "max"},                {"memory.swap.max", "max"},
    {"memory.oom.group", "0"},   {"pids.max", "max"},                   {"cpu.max", "max"},
    {"cpu.cfs_quota_us", "-1"},  {"cpu.shares", "262144"},              {"cpu.weight", "10000"},
};
static const char *const KINDS[][2] = {
    {"cgroup2", ""}, {"cgroup", "memory"}, {"cgroup", "pids"}, {"cgroup", "cpu"}, {"cgroup", "cpu,cpuacct"},
};
static char places[8][64];
static int found, said[8][16];

static void refused(const char *what) { printf("refused %s %s\n", what, strerrorname_np(errno)); fflush(stdout); }

static int put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int written = write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
    close(file);
    return written;
}

/* New namespaces, in which one is root; by `how` unshare takes them. */
static void become_root(void)
{
    char map[64];
    unsigned int uid = getuid(), gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP)) {
        refused("unshare-user");
        if (unshare(CLONE_NEWNS | CLONE_NEWCGROUP))
            refused("unshare-mount");
        return;
    }
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", uid);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", gid);
    put("/proc/self/gid_map", map);
}

static void mount_cgroups(void)
{
    if (mount("none", "/tmp", "tmpfs", 0, "size=64k")) {
        refused("mount");
        return;
    }
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        snprintf(places[found], sizeof *places, "/tmp/%zu", i);
        mkdir(places[found], 0700);
        if (mount("none", places[found], KINDS[i][0], 0, *KINDS[i][1] ? KINDS[i][1] : NULL) == 0)
            found++;
    }
}

static void write_all(void)
{
    char path[256];
    for (int place = 0; place < found; place++)
        for (size_t i = 0; i < sizeof WRITES / sizeof *WRITES; i++) {
            snprintf(path, sizeof path, "%s/%s", places[place], WRITES[i][0]);
            if (put(path, WRITES[i][1]) == 0 && !said[place][i]++) {
                printf("loosened %s\n", WRITES[i][0]);
                fflush(stdout);
            }
        }
}

int main(int count, char **arguments)
{
    long long bytes = count == 2 ? atoll(arguments[1]) : 0;
    if (bytes <= 0) {
        fprintf(stderr, "usage: loosen BYTES\n");
        return 2;
    }
    become_root();
    mount_cgroups();
    strcpy(places[found++], "/sys/fs/cgroup");
    strcpy(places[found++], "/sys/fs/cgroup/memory");
    write_all();
    printf("begins\n");
    fflush(stdout);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    for (long long at = 0; memory != MAP_FAILED && at < bytes; at += STEP) {
        write_all();
        memset(memory + at, 1, STEP);
    }
    printf("holds %lld\n", bytes);
    fflush(stdout);
    for (;;)
        pause();
}
