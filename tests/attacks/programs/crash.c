/* crash DIRECTORY NAME...: for each name copies itself there under it, and runs the copy, which crashes. The kernel writes
 * down the name. `\\n` in a name is the end of a line. Then takes memory until it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void copy_to(const char *path)
{
    struct stat seen;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    if (from < 0 || to < 0 || fstat(from, &seen))
        exit(1);
    for (off_t at = 0; at < seen.st_size;)
        if (sendfile(to, from, &at, seen.st_size - at) <= 0)
            exit(1);
    close(to);
    close(from);
}

int main(int count, char **arguments)
{
    if (count == 1) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    for (int i = 2; i < count; i++) {
        char path[4096];
        char *end = strstr(arguments[i], "\\n");
        if (end) {
            *end = '\n';
            memmove(end + 1, end + 2, strlen(end + 2) + 1);
        }
        snprintf(path, sizeof path, "%s/%s", arguments[1], arguments[i]);
        copy_to(path);
        pid_t child = fork();
        if (child == 0) {
            execl(path, path, NULL);
            _exit(1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("crashed %d\n", WIFSIGNALED(status));
    }
    fflush(stdout);
    for (;;)
        memset(malloc(1 << 20), 1, 1 << 20);
}
