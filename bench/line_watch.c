/* line_watch LINE RISE SECONDS: how the machine's available memory falls below LINE KiB, and who stops that how soon.
 *
 * Says "ready". Reads MemAvailable all the time; from the moment at which it is below LINE it keeps the least it saw,
 * and when there are RISE KiB more than that, the growth has been stopped. Says then "crossed NS", "stopped NS" on the
 * machine's clock and "least KIB"; without "stopped" where nobody did within SECONDS. Gives up after a minute if the
 * line is not crossed at all. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int meminfo;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long available(void)
{
    char text[512] = "";
    if (pread(meminfo, text, sizeof text - 1, 0) <= 0)
        exit(3);
    const char *found = strstr(text, "MemAvailable:");
    return found ? atol(found + strlen("MemAvailable:")) : 0;
}

int main(int count, char **arguments)
{
    struct timespec pause = {.tv_nsec = 500000};
    struct sched_param first = {.sched_priority = 3};
    if (count != 4 || (meminfo = open("/proc/meminfo", O_RDONLY)) < 0)
        return 2;
    long line = atol(arguments[1]), rise = atol(arguments[2]), least;
    long long patience = atoll(arguments[3]) * 1000000000LL, deadline = now() + 60000000000LL, crossed;
    /* So that everything is seen when it is, however busy the others are. */
    sched_setscheduler(0, SCHED_RR, &first);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while ((least = available()) >= line) {
        nanosleep(&pause, NULL);
        if (now() > deadline)
            return 4;
    }
    crossed = now();
    printf("crossed %lld\n", crossed);
    for (;;) {
        long seen = available();
        if (seen < least)
            least = seen;
        if (seen >= least + rise) {
            printf("stopped %lld\n", now());
            break;
        }
        if (now() > crossed + patience)
            break;
        nanosleep(&pause, NULL);
    }
    printf("least %ld\n", least);
    return 0;
}
