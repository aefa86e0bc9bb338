/* nameless BYTES WAY: holds a file of so many bytes in the root directory that has no name any more. WAY is `open`;
 * `chroot`: its root is another filesystem then; `crowd`: behind some thousand others that are empty, so that only who
 * looks behind them finds it; or `mapped`: nothing but a mapping of its first page holds it. Prints `done`, and waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CROWD = 5000 };

static int nameless(const char *path, long long bytes)
{
    static char zeros[1 << 16];
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || unlink(path)) {
        perror(path);
        exit(1);
    }
    for (ssize_t now; bytes > 0; bytes -= now)
        if ((now = write(file, zeros, sizeof zeros)) <= 0) {
            perror("write");
            exit(1);
        }
    return file;
}

int main(int count, char **arguments)
{
    const char *way = count > 2 ? arguments[2] : "open";
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    if (!strcmp(way, "crowd"))
        for (int i = 0; i < CROWD; i++)
            nameless("/nameless", 0);
    int file = nameless("/nameless", count > 1 ? atoll(arguments[1]) : 0);
    if (!strcmp(way, "mapped")) {
        if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        close(file);
    }
    if (!strcmp(way, "chroot") && (chdir("/dev/shm") || chroot("."))) {
        perror("chroot");
        return 1;
    }
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
