/* hoard KIND MOST: takes as many things of a kind as it can get, at most MOST, and prints `NUMBER KIND` and `done`.
 * Holds them. KIND is
 *
 *   terminals   of /dev/pts, of which the machine has so many
 *   inotify     instances, of which a user has so many
 *   epoll       watches, of which a user has so many */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EVENTS = 512 }; /* files that each instance of epoll watches */

static int terminal(void) { return open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC); }

static int inotify(void) { return inotify_init1(IN_CLOEXEC); }

static int watch(void)
{
    static int events[EVENTS], instance, next = EVENTS;
    struct epoll_event wanted = {.events = EPOLLIN};
    if (next == EVENTS) {
        for (int i = 0; i < EVENTS && !events[i]; i++)
            events[i] = eventfd(0, EFD_CLOEXEC);
        instance = epoll_create1(EPOLL_CLOEXEC);
        next = 0;
    }
    return epoll_ctl(instance, EPOLL_CTL_ADD, events[next++], &wanted);
}

int main(int count, char **arguments)
{
    const char *kind = count > 2 ? arguments[1] : "";
    int most = count > 2 ? atoi(arguments[2]) : 0, got = 0;
    int (*take)(void) = !strcmp(kind, "terminals") ? terminal : !strcmp(kind, "inotify") ? inotify : watch;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    while (got < most && take() >= 0)
        got++;
    printf("%d %s\ndone\n", got, kind);
    fflush(stdout);
    for (;;)
        pause();
}
