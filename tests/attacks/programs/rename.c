/* rename DIRECTORY BYTES FILES WAY: writes BYTES beside FILES empty files, says "done", and from then on gives what it
   has written another name as fast as it may, so that nobody finds it under the name that he has read. WAY is what is
   renamed: "file"; "directory", with the file in it; or "exchange", which gives the directory and an empty one the name
   of the other. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int fill(const char *path, long bytes)
{
    static char block[1 << 16];
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    memset(block, 'x', sizeof block);
    for (; file >= 0 && bytes > 0; bytes -= sizeof block)
        if (write(file, block, sizeof block) != sizeof block)
            return -1;
    return file < 0 ? -1 : close(file);
}

int main(int argc, char **argv)
{
    char name[32], next[32];
    unsigned long number = 0;
    if (argc != 5 || chdir(argv[1]))
        return fail("rename");
    for (long left = atol(argv[3]); left > 0; left--) {
        snprintf(name, sizeof name, "beside-%ld", left);
        if (mknod(name, S_IFREG | 0600, 0))
            return fail(name);
    }
    snprintf(name, sizeof name, "moves-0");
    if (!strcmp(argv[4], "file")) {
        if (fill(name, atol(argv[2])))
            return fail("fill");
    } else if (mkdir(name, 0700) || mkdir("empty", 0700) || chdir(name) || fill("big", atol(argv[2])) || chdir("..")) {
        return fail("fill");
    }
    printf("done\n");
    fflush(stdout);
    for (;;) {
        if (!strcmp(argv[4], "exchange")) {
            renameat2(AT_FDCWD, name, AT_FDCWD, "empty", RENAME_EXCHANGE);
            continue;
        }
        snprintf(next, sizeof next, "moves-%lu", ++number);
        if (rename(name, next))
            return fail(next);
        strcpy(name, next);
    }
}
