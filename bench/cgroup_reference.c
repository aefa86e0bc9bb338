/* What reading and making cgroups costs at the least: the system calls, and nothing between them.
 *
 *   cgroup_reference read     a file a line, then an empty line; they stay open. Told a number N, it reads each of them
 *                             N times from its start and says the CPU time of one round, in microseconds.
 *   cgroup_reference make     "m DIRECTORY" or "w FILE VALUE" a line, then an empty line. Told "go", it makes and writes
 *                             them in order and says the CPU time that took, in microseconds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINES = 65536 };
static char *lines[MOST_LINES];
static int descriptors[MOST_LINES];
static char content[8192];

static double cpu_microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void failed(const char *what)
{
    perror(what);
    exit(1);
}

static void read_all(int count)
{
    for (int i = 0; i < count; i++)
        if (pread(descriptors[i], content, sizeof content, 0) < 0)
            failed(lines[i]);
}

static void make_all(int count)
{
    for (int i = 0; i < count; i++) {
        char *name = lines[i] + 2;
        if (lines[i][0] == 'm') {
            if (mkdir(name, 0755))
                failed(name);
            continue;
        }
        char *value = name + strlen(name) + 1;
        int file = open(name, O_WRONLY | O_CLOEXEC);
        if (file < 0 || write(file, value, strlen(value)) < 0 || close(file))
            failed(name);
    }
}

int main(int arguments, char **argument)
{
    int is_reading = arguments == 2 && strcmp(argument[1], "read") == 0;
    char line[8192];
    int count = 0;
    while (count < MOST_LINES && fgets(line, sizeof line, stdin) && line[0] != '\n') {
        line[strcspn(line, "\n")] = 0;
        lines[count] = strdup(line);
        if (is_reading && (descriptors[count] = open(line, O_RDONLY | O_CLOEXEC)) < 0)
            failed(line);
        if (!is_reading && line[0] == 'w')
            lines[count][2 + strcspn(line + 2, "\t")] = 0;
        count++;
    }
    while (fgets(line, sizeof line, stdin)) {
        int rounds = is_reading ? atoi(line) : 1;
        double start = cpu_microseconds();
        for (int round = 0; round < rounds; round++) {
            if (is_reading)
                read_all(count);
            else
                make_all(count);
        }
        printf("%.1f\n", (cpu_microseconds() - start) / rounds);
        fflush(stdout);
    }
    return 0;
}
