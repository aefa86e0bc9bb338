/* reach PATH...: what of the host's files a pod could change, without changing any.
 *
 * Prints for each path `PATH DEVICE INODE may-write|ERRNO`, where may-write says that it could be opened for writing (a
 * directory: that a file without a name could be made in it, or that the kernel would let us). Then `done`, and waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int may_write(const char *path, const struct stat *seen)
{
    if (S_ISDIR(seen->st_mode) || S_ISCHR(seen->st_mode))
        return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0)
        close(file);
    return file < 0 ? -1 : 0;
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        struct stat seen;
        if (stat(arguments[i], &seen)) {
            printf("%s 0 0 %s\n", arguments[i], strerrorname_np(errno));
            continue;
        }
        const char *outcome = may_write(arguments[i], &seen) ? strerrorname_np(errno) : "may-write";
        printf("%s %lu %lu %s\n", arguments[i], (unsigned long)seen.st_dev, (unsigned long)seen.st_ino, outcome);
    }
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
