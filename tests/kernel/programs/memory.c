/* memory: holds anonymous memory and does as it is told, one line at a time, each answered once it is done:
 *
 *   allocate BYTES [BYTES_PER_SECOND]   more memory, every page written; "allocated TOTAL"
 *   huge BYTES                          the same on huge pages of 2 MiB
 *   touch                               writes every page again; "touched TOTAL"
 *   free                                gives all of it back; "freed 0"
 *
 * Ends with its input. Never holds more than 4 GiB. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, BLOCKS = 1024 };
static const unsigned long long MOST = 4ULL << 30;

static struct { char *start; size_t size; } blocks[BLOCKS];
static int used;
static unsigned long long total;

static void write_pages(char *start, size_t size, double bytes_per_second)
{
    struct timespec began, due;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (size_t at = 0; at < size; at += PAGE) {
        start[at]++;
        if (bytes_per_second > 0) {
            double ahead = began.tv_sec + began.tv_nsec / 1e9 + at / bytes_per_second;
            due.tv_sec = (time_t)ahead;
            due.tv_nsec = (long)((ahead - due.tv_sec) * 1e9);
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        }
    }
}

static int allocate(unsigned long long size, double bytes_per_second, int flags)
{
    if (used == BLOCKS || size > MOST || total + size > MOST)
        return -1;
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (start == MAP_FAILED)
        return -1;
    madvise(start, size, MADV_NOHUGEPAGE); /* charged by the page, as it is written */
    blocks[used].start = start;
    blocks[used++].size = size;
    total += size;
    write_pages(start, size, bytes_per_second);
    return 0;
}

int main(void)
{
    char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long size;
        double bytes_per_second = 0;
        if (sscanf(line, "allocate %llu %lf", &size, &bytes_per_second) >= 1) {
            if (allocate(size, bytes_per_second, 0))
                return 3;
            printf("allocated %llu\n", total);
        } else if (sscanf(line, "huge %llu", &size) == 1) {
            if (allocate(size, 0, MAP_HUGETLB))
                return 3;
            printf("allocated %llu\n", total);
        } else if (strcmp(line, "touch\n") == 0) {
            for (int i = 0; i < used; i++)
                write_pages(blocks[i].start, blocks[i].size, 0);
            printf("touched %llu\n", total);
        } else if (strcmp(line, "free\n") == 0) {
            while (used > 0) {
                used--;
                munmap(blocks[used].start, blocks[used].size);
            }
            total = 0;
            printf("freed 0\n");
        } else {
            fprintf(stderr, "memory: what is %s", line);
            return 2;
        }
    }
    return 0;
}
