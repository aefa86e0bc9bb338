/* ticks: says how many thousand ticks the processor's time stamp counter makes in a second, or 0 where it has none. */
#include <stdio.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Both clocks at one moment: the closest of many looks, for this process may be interrupted between them. */
static void look(long long *ns, unsigned long long *ticks)
{
    long long closest = 1LL << 62;
    for (int i = 0; i < 1000; i++) {
        long long before = now_ns();
        unsigned long long between = __rdtsc();
        long long width = now_ns() - before;
        if (width < closest) {
            closest = width;
            *ns = before + width / 2;
            *ticks = between;
        }
    }
}

int main(void)
{
    struct timespec pause = {0, 50000000};
    long long began_ns, ended_ns;
    unsigned long long began, ended;
    look(&began_ns, &began);
    nanosleep(&pause, NULL);
    look(&ended_ns, &ended);
    printf("%.0f\n", (double)(ended - began) * 1e6 / (double)(ended_ns - began_ns));
    return 0;
}
#else
int main(void)
{
    puts("0");
    return 0;
}
#endif
