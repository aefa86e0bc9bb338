/* lease PATH...: tries to take leases on the files, with which the kernel makes everybody wait who opens them. Prints
 * `PATH read|write|none` for each, the strongest that it got, and `done`. Takes a lease again that was broken, for
 * ever. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const char *leased(int file)
{
    if (fcntl(file, F_SETLEASE, F_WRLCK) == 0)
        return "write";
    return fcntl(file, F_SETLEASE, F_RDLCK) == 0 ? "read" : "none";
}

int main(int count, char **arguments)
{
    int files[64];
    signal(SIGIO, SIG_IGN);
    for (int i = 1; i < count && i < 64; i++) {
        files[i] = open(arguments[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        printf("%s %s\n", arguments[i], files[i] < 0 ? "unreadable" : leased(files[i]));
    }
    puts("done");
    fflush(stdout);
    for (;;) {
        usleep(10000);
        for (int i = 1; i < count && i < 64; i++)
            if (files[i] >= 0 && fcntl(files[i], F_GETLEASE) == F_UNLCK)
                leased(files[i]);
    }
}
