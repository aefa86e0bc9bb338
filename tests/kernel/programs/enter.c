/* enter SCORE DIRECTORY… -- PROGRAM ARGUMENT…
 *
 * Moves itself into the cgroups at DIRECTORY…, takes SCORE as its oom_score_adj ("-" leaves it), then becomes
 * PROGRAM: it is in its place before its first instruction. It is killed when the test run dies, and by an alarm
 * after five minutes; both outlive the exec. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LIFE_SECONDS = 300, REFUSED = 126 };

static int put(const char *path, const char *value)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, value, strlen(value)) < 0) {
        fprintf(stderr, "enter: %s: %s\n", path, strerror(errno));
        return -1;
    }
    return close(file);
}

int main(int count, char **arguments)
{
    int next = 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFE_SECONDS);
    for (; next < count && strcmp(arguments[next], "--") != 0; next++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/cgroup.procs", arguments[next]);
        if (put(path, "0"))
            return REFUSED;
    }
    if (next + 1 >= count) {
        fprintf(stderr, "usage: enter SCORE DIRECTORY... -- PROGRAM ARGUMENT...\n");
        return 2;
    }
    if (strcmp(arguments[1], "-") != 0 && put("/proc/self/oom_score_adj", arguments[1]))
        return REFUSED;
    execvp(arguments[next + 1], arguments + next + 1);
    fprintf(stderr, "enter: %s: %s\n", arguments[next + 1], strerror(errno));
    return REFUSED;
}
