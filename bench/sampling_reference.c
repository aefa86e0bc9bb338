/* What sampling costs, and how close it comes, at the least. DIRECTORY has the files of a cgroup of v2.
 *
 * sampling_reference looks DIRECTORY LOOKS NANOSECONDS: reads memory.current and memory.stat there and /proc/meminfo,
 * LOOKS times in NANOSECONDS at equal distances. Says "took NS" of a processor, and "after NS" on the clock.
 *
 * sampling_reference line DIRECTORY MARK BACK [KILL]: says "ready", reads memory.current all the time until it is above
 * MARK, writes into the file KILL if there is one, and waits until it is below BACK. Says "crossed NS" and, if there was
 * something to write, "sent NS" on the machine's clock, and "most BYTES" that were in use. Gives up after two minutes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16384 };
static const long long SECOND = 1000000000LL;

static long long now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static int in(const char *directory, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        exit(3);
    return file;
}

static const char *text_of(int file)
{
    static char text[MOST];
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    if (length <= 0)
        exit(3);
    text[length] = 0;
    return text;
}

static long long number(const char *text, const char *name)
{
    const char *found = strstr(text, name);
    return found ? atoll(found + strlen(name)) : 0;
}

static int looks(const char *directory, long long count, long long duration)
{
    static const char *const names[] = {
        "\ninactive_file ", "\nactive_file ", "\nfile_dirty ", "\nfile_writeback ", "\nshmem ", "\nslab_reclaimable ",
    };
    int current = in(directory, "memory.current"), stat = in(directory, "memory.stat"), node = in("/proc", "meminfo");
    long long began = now(CLOCK_MONOTONIC), before = now(CLOCK_PROCESS_CPUTIME_ID), sum = 0;
    for (long long done = 0; done < count; done++) {
        long long due = began + (long long)((double)duration * (double)(done + 1) / (double)count);
        struct timespec at = {.tv_sec = due / SECOND, .tv_nsec = due % SECOND};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        sum += atoll(text_of(current));
        const char *text = text_of(stat);
        for (size_t place = 0; place < sizeof names / sizeof *names; place++)
            sum -= number(text, names[place]);
        text = text_of(node);
        sum += number(text, "MemTotal:") - number(text, "MemAvailable:");
    }
    printf("took %lld\nafter %lld\n", now(CLOCK_PROCESS_CPUTIME_ID) - before, now(CLOCK_MONOTONIC) - began);
    return sum == 0 ? 5 : 0; /* so that all of it is really looked at */
}

static int line(const char *directory, long long mark, long long back, const char *kill)
{
    /* Before all others, so that the crossing is seen when it is. */
    struct sched_param first = {.sched_priority = 3};
    struct timespec pause = {.tv_nsec = 200000};
    long long deadline = now(CLOCK_MONOTONIC) + 120 * SECOND, crossed = 0, sent = 0, most = 0, used;
    int current = in(directory, "memory.current"), kill_file = kill ? open(kill, O_WRONLY | O_CLOEXEC) : -1;
    if (kill && kill_file < 0)
        return 3;
    sched_setscheduler(0, SCHED_RR, &first);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    do {
        used = atoll(text_of(current));
        if (!crossed && used > mark) {
            crossed = now(CLOCK_MONOTONIC);
            if (kill) {
                if (write(kill_file, "1", 1) != 1)
                    return 3;
                sent = now(CLOCK_MONOTONIC);
            }
        }
        if (used > most)
            most = used;
        nanosleep(&pause, NULL);
        if (now(CLOCK_MONOTONIC) > deadline)
            return 4;
    } while (!crossed || used > back);
    printf("crossed %lld\n", crossed);
    if (sent)
        printf("sent %lld\n", sent);
    printf("most %lld\n", most);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 5 && !strcmp(arguments[1], "looks"))
        return looks(arguments[2], atoll(arguments[3]), atoll(arguments[4]));
    if ((count == 5 || count == 6) && !strcmp(arguments[1], "line"))
        return line(arguments[2], atoll(arguments[3]), atoll(arguments[4]), count == 6 ? arguments[5] : NULL);
    return 2;
}
