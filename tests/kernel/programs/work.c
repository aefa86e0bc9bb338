/* work: uses processor time as it is told, one line at a time, each answered once it is done:
 *
 *   work MICROSECONDS   uses that much processor time; "worked MICROSECONDS"
 *
 * Ends with its input. Never uses more than a minute at a time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

static const long long MOST = 60LL * 1000 * 1000;

static long long used(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

int main(void)
{
    char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        long long microseconds;
        if (sscanf(line, "work %lld", &microseconds) != 1 || microseconds < 0 || microseconds > MOST) {
            fprintf(stderr, "work: what is %s", line);
            return 2;
        }
        for (long long began = used(); used() - began < microseconds;)
            ;
        printf("worked %lld\n", microseconds);
    }
    return 0;
}
