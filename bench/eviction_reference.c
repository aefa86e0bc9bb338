/* eviction_reference DIRECTORY MARK BACK [KILL]: what happens to the memory of the cgroup whose files are in DIRECTORY.
 *
 * Waits until its usage crosses MARK (on cgroup v1 by the kernel's own event, on v2 by reading all the time), writes
 * into the file KILL if there is one, and waits until the usage is below BACK. Says "ready", and then the times on the
 * machine's clock, in nanoseconds: "crossed NS", "sent NS", "back NS". Gives up after a minute.
 *
 * The kernel compares usage and MARK once in 128 pages. Where somebody else was so quick that the usage fell before, it
 * never reports the crossing; then "crossed" is 0. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { CLOSE = 32 << 20 }; /* bytes below MARK */
static int usage_file;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long long usage(void)
{
    char text[64] = "";
    if (pread(usage_file, text, sizeof text - 1, 0) <= 0)
        return 0;
    return atoll(text);
}

static int in(const char *directory, const char *name, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, flags | O_CLOEXEC);
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    long long mark = atoll(arguments[2]), back = atoll(arguments[3]), deadline = now() + 60000000000LL;
    int kill_file = count > 4 ? open(arguments[4], O_WRONLY | O_CLOEXEC) : -1;
    int control = in(arguments[1], "cgroup.event_control", O_WRONLY);
    usage_file = in(arguments[1], control >= 0 ? "memory.usage_in_bytes" : "memory.current", O_RDONLY);
    if (usage_file < 0 || (count > 4 && kill_file < 0))
        return 3;
    /* Before the agent's own watch, so that the crossing is seen when it is; where that is not allowed, as any other. */
    struct sched_param first = {.sched_priority = 2};
    sched_setscheduler(0, SCHED_RR, &first);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_reported = 1;
    if (control >= 0) {
        char text[128];
        struct pollfd event = {.fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN};
        snprintf(text, sizeof text, "%d %d %lld", event.fd, usage_file, mark);
        if (write(control, text, strlen(text)) < 0)
            return 3;
        puts("ready");
        /* The first is upwards. By the time this runs, somebody quicker may have made it less again. */
        int is_close = 0;
        while (poll(&event, 1, 10) == 0) {
            is_close |= usage() > mark - CLOSE;
            if (is_close && usage() < mark - 2 * CLOSE) {
                is_reported = 0;
                break;
            }
            if (now() > deadline)
                return 4;
        }
    } else {
        struct timespec pause = {.tv_nsec = 20000};
        puts("ready");
        while (usage() < mark) {
            nanosleep(&pause, NULL);
            if (now() > deadline)
                return 4;
        }
    }
    long long crossed = is_reported ? now() : 0, sent = 0;
    if (kill_file >= 0) {
        if (write(kill_file, "1", 1) != 1)
            return 3;
        sent = now();
    }
    struct timespec pause = {.tv_nsec = 100000};
    while (usage() > back) {
        nanosleep(&pause, NULL);
        if (now() > deadline)
            return 4;
    }
    printf("crossed %lld\n", crossed);
    if (sent)
        printf("sent %lld\n", sent);
    printf("back %lld\n", now());
    return 0;
}
