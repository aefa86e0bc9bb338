/* family: a process with others below it, to be counted, scored, frozen or killed. Says "ready COUNT" when they
 * are there.
 *
 *   family tree DEPTH WIDTH   WIDTH children each, DEPTH generations
 *   family zombies COUNT      children that have ended and are not waited for
 *   family respawn COUNT      lines of descent that fork and end, for ever: a list of processes is never current
 *
 * At most 256 processes at a time. They end with the first of them. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 256, GENERATION_MILLISECONDS = 1 };
static int born[2];

static void tree(int depth, int width)
{
    for (int i = 0; depth > 0 && i < width; i++) {
        pid_t child = fork();
        if (child < 0)
            exit(3);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (write(born[1], "b", 1) != 1)
                exit(3);
            tree(depth - 1, width);
            for (;;)
                pause();
        }
    }
}

static void respawn(void)
{
    struct pollfd first = {.fd = born[0]};
    close(born[1]); /* held by the first process alone now: its end is the pipe's end */
    while (poll(&first, 1, GENERATION_MILLISECONDS) == 0)
        if (fork() > 0)
            break;
    _exit(0);
}

static int descendants(int depth, int width)
{
    int count = 0, generation = 1;
    while (depth-- > 0 && count < MOST)
        count += generation *= width;
    return count;
}

int main(int count, char **arguments)
{
    const char *kind = count > 2 ? arguments[1] : "";
    int number = count > 2 ? atoi(arguments[2]) : 0;
    int expected = number;
    if (strcmp(kind, "tree") == 0)
        expected = count > 3 ? descendants(number, atoi(arguments[3])) : 0;
    if (expected < 1 || expected >= MOST || pipe(born)) {
        fprintf(stderr, "usage: family tree DEPTH WIDTH | zombies COUNT | respawn COUNT (fewer than %d)\n", MOST);
        return 2;
    }
    if (strcmp(kind, "tree") == 0) {
        char byte;
        tree(number, atoi(arguments[3]));
        for (int i = 0; i < expected; i++)
            if (read(born[0], &byte, 1) != 1)
                return 3;
    } else if (strcmp(kind, "zombies") == 0) {
        for (int i = 0; i < number; i++) {
            pid_t child = fork();
            siginfo_t ended;
            if (child == 0)
                _exit(0);
            if (child < 0 || waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT))
                return 3;
        }
    } else if (strcmp(kind, "respawn") == 0) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        signal(SIGCHLD, SIG_IGN); /* nobody needs to wait for those that end */
        for (int i = 0; i < number; i++)
            if (fork() == 0)
                respawn();
    }
    printf("ready %d\n", expected);
    fflush(stdout);
    for (;;)
        pause();
}
