/* cache FILE: works the page cache of FILE as it is told, one line at a time, each answered once it is done:
 *
 *   write BYTES   makes FILE that large, on disk; "wrote BYTES"
 *   read          reads all of it; "read BYTES"
 *   drop          takes it out of the cache; "dropped"
 *
 * A cached page is charged to whoever brought it in first. Ends with its input. Never writes more than 1 GiB. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const unsigned long long MOST = 1ULL << 30;
static char block[1 << 16];

static int fill(int file, unsigned long long size)
{
    if (size > MOST || ftruncate(file, 0) || lseek(file, 0, SEEK_SET))
        return -1;
    for (unsigned long long left = size; left > 0;) {
        ssize_t written = write(file, block, left < sizeof block ? left : sizeof block);
        if (written <= 0)
            return -1;
        left -= (unsigned long long)written;
    }
    return fsync(file);
}

int main(int count, char **arguments)
{
    char line[128];
    int file = count == 2 ? open(arguments[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) {
        fprintf(stderr, "usage: cache FILE (that can be written)\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long size = 0;
        if (sscanf(line, "write %llu", &size) == 1) {
            if (fill(file, size))
                return 3;
            printf("wrote %llu\n", size);
        } else if (strcmp(line, "read\n") == 0) {
            ssize_t got;
            lseek(file, 0, SEEK_SET);
            while ((got = read(file, block, sizeof block)) > 0)
                size += (unsigned long long)got;
            printf("read %llu\n", size);
        } else if (strcmp(line, "drop\n") == 0) {
            if (fsync(file) || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
                return 3;
            printf("dropped\n");
        } else {
            fprintf(stderr, "cache: what is %s", line);
            return 2;
        }
    }
    return 0;
}
