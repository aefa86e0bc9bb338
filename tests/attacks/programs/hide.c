/* hide DIRECTORY BYTES: writes so many bytes into a directory some levels below DIRECTORY, and gives each directory on
 * the way there a new name all the time. Each lies among many files, so that who reads their names comes to it late.
 * Prints `done` when the bytes are written, and goes on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEVELS = 2, CROWD = 1500, NAMES = 1000000 };

static void stop(const char *what)
{
    perror(what);
    exit(1);
}

/* Makes the files and a directory `n0` among them, and opens that. */
static int level(int above)
{
    char name[32];
    for (int i = 0; i < CROWD; i++) {
        snprintf(name, sizeof name, "crowd%d", i);
        close(openat(above, name, O_WRONLY | O_CREAT, 0600));
    }
    if (mkdirat(above, "n0", 0700))
        stop("mkdir");
    return openat(above, "n0", O_RDONLY | O_DIRECTORY);
}

static void rename_all_the_time(int above)
{
    char old[32], new[32];
    for (int i = 0;; i = (i + 1) % NAMES) {
        snprintf(old, sizeof old, "n%d", i);
        snprintf(new, sizeof new, "n%d", (i + 1) % NAMES);
        if (renameat(above, old, above, new))
            stop("rename");
    }
}

static void fill(int directory, long long bytes)
{
    static char zeros[1 << 16];
    int file = openat(directory, "file", O_WRONLY | O_CREAT, 0600);
    if (file < 0)
        stop("file");
    for (ssize_t now; bytes > 0; bytes -= now)
        if ((now = write(file, zeros, sizeof zeros)) <= 0)
            stop("write");
}

int main(int count, char **arguments)
{
    int ways[LEVELS + 1];
    if (count < 3 || (ways[0] = open(arguments[1], O_RDONLY | O_DIRECTORY)) < 0)
        stop("begin");
    for (int i = 0; i < LEVELS; i++)
        if ((ways[i + 1] = level(ways[i])) < 0)
            stop("level");
    for (int i = 0; i < LEVELS; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rename_all_the_time(ways[i]);
        }
    sleep(1); /* all of them have begun */
    fill(ways[LEVELS], atoll(arguments[2]));
    puts("done");
    fflush(stdout);
    pause();
}
