/* peek PARENT: looks into the memory of every new child of a process, without pause and without end, as long as the
 * child has its parent's name, and so executes no program of its own yet.
 *
 * Prints `looking` when it begins, and `read` once if the memory of such a child could be read: a single byte of its
 * program. Nothing is read of other processes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_text(const char *path, char *text, int size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    int length = (int)read(file, text, size - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* Its name and its parent's number; an empty name if there is no such process. */
static int parent_of(int pid, char name[64])
{
    char path[64], text[512];
    int parent = 0;
    name[0] = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_text(path, text, sizeof text))
        sscanf(text, "%*d (%63[^)]) %*c %d", name, &parent);
    return parent;
}

static int is_copy(int pid, int parent)
{
    char name[64], of_parent[64];
    parent_of(parent, of_parent);
    return parent_of(pid, name) == parent && strcmp(name, of_parent) == 0;
}

/* Where its program is in memory: nobody but who may look into a process reads this from another number than 0. */
static int can_read(int pid)
{
    char path[64], text[4096], byte;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    if (!read_text(path, text, sizeof text))
        return 0;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    if (memory < 0)
        return 0;
    int is_read = pread(memory, &byte, 1, (off_t)strtoull(text, NULL, 16)) == 1;
    close(memory);
    return is_read;
}

static int last_number(void)
{
    char text[256];
    return read_text("/proc/loadavg", text, sizeof text) ? atoi(strrchr(text, ' ')) : 0;
}

int main(int count, char **arguments)
{
    int parent = count > 1 ? atoi(arguments[1]) : 0;
    int seen = last_number();
    puts("looking");
    fflush(stdout);
    for (int is_told = 0;;) {
        int last = last_number();
        if (last < seen) /* the numbers have begun again */
            seen = 0;
        for (; seen < last; seen++)
            while (is_copy(seen + 1, parent))
                if (can_read(seen + 1) && is_copy(seen + 1, parent) && !is_told) {
                    is_told = 1;
                    puts("read");
                    fflush(stdout);
                }
    }
}
