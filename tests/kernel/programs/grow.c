/* grow KIND BYTES RATE [FILE]: uses more and more memory in one way, and then holds it; for pods that are to be a load.
 *
 *   anon      private pages            map       shared pages, not of a file
 *   small     of many processes, each a little and most of it for itself
 *   tree      of processes that fork others, each with a part of the rest
 *   file      writes FILE (on a disk, or in memory: a tmpfs), and reads it again
 *
 * BYTES in all, RATE bytes a second (0: as fast as can be), both whole numbers. With BYTES 0 it only waits.
 * Says nothing, ends never: it is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, STEP = 64 * PAGE, PROCESSES = 24 };
static double rate;
static struct timespec began;
static unsigned long long done;

static void keep_pace(unsigned long long more)
{
    done += more;
    if (rate > 0) {
        double ahead = began.tv_sec + began.tv_nsec / 1e9 + done / rate;
        struct timespec due = {.tv_sec = (time_t)ahead, .tv_nsec = (long)((ahead - (time_t)ahead) * 1e9)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
}

static void start_clock(void)
{
    done = 0;
    clock_gettime(CLOCK_MONOTONIC, &began);
}

static void touch(unsigned long long size, int flags)
{
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    if (start == MAP_FAILED)
        exit(3);
    start_clock();
    for (unsigned long long at = 0; at < size; at += PAGE) {
        start[at] = 1;
        if (at % STEP == 0)
            keep_pace(STEP);
    }
}

static void child_of(pid_t child)
{
    if (child < 0)
        exit(3);
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void small(unsigned long long size)
{
    rate /= PROCESSES;
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        child_of(child);
        if (child == 0) {
            touch(size / PROCESSES, MAP_PRIVATE);
            for (;;)
                pause();
        }
    }
}

static void tree(unsigned long long size)
{
    for (int depth = 0; depth < 6 && size > 4 * STEP; depth++) {
        size /= 2;
        touch(size, MAP_PRIVATE);
        pid_t child = fork();
        child_of(child);
        if (child > 0)
            break; /* the child has the rest */
    }
}

static void file(unsigned long long size, const char *path)
{
    static char block[STEP];
    int out = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        exit(3);
    memset(block, 'x', sizeof block);
    start_clock();
    for (unsigned long long at = 0; at < size; at += STEP) {
        if (write(out, block, STEP) != STEP)
            break; /* no more room */
        keep_pace(STEP);
    }
    for (;;) {
        lseek(out, 0, SEEK_SET);
        while (read(out, block, STEP) > 0)
            ;
        usleep(100000);
    }
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: grow anon|map|small|tree|file BYTES RATE [FILE]\n");
        return 2;
    }
    const char *kind = arguments[1];
    unsigned long long size = strtoull(arguments[2], NULL, 10);
    rate = (double)strtoull(arguments[3], NULL, 10);
    if (size > 0) {
        if (strcmp(kind, "anon") == 0)
            touch(size, MAP_PRIVATE);
        else if (strcmp(kind, "map") == 0)
            touch(size, MAP_SHARED);
        else if (strcmp(kind, "small") == 0)
            small(size);
        else if (strcmp(kind, "tree") == 0)
            tree(size);
        else if (strcmp(kind, "file") == 0 && count == 5)
            file(size, arguments[4]);
        else
            return 2;
    }
    for (;;)
        pause();
}
