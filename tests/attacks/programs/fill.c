/* fill BYTES DEVICE:INODE PATH...: writes up to BYTES into each of the files, and prints `PATH BYTES` with what could be
 * written. The file DEVICE:INODE, which is the host's own, is not written to: then `PATH host`. Prints `done`, and
 * waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    static char zeros[1 << 16];
    long long bytes = count > 3 ? atoll(arguments[1]) : 0;
    unsigned long device = 0, inode = 0;
    if (count > 3)
        sscanf(arguments[2], "%lu:%lu", &device, &inode);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 3; i < count; i++) {
        long long written = 0;
        struct stat seen;
        if (!stat(arguments[i], &seen) && seen.st_dev == device && seen.st_ino == inode) {
            printf("%s host\n", arguments[i]);
            continue;
        }
        int file = open(arguments[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        for (ssize_t now = 1; file >= 0 && written < bytes && now > 0; written += now > 0 ? now : 0)
            now = write(file, zeros, sizeof zeros);
        printf("%s %lld\n", arguments[i], file < 0 ? -1LL : written);
        fflush(stdout);
    }
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
