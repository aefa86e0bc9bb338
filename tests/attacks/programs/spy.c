/* spy MARKER: a pod that looks for a way out through the processes it sees, without pause and without end.
 *
 * MARKER is the path of a file that is on the host and not in the container. Of each process in /proc but itself, spy
 * tries fd/N, cwd, root and exe. A line is printed once for each kind of thing that should not be there:
 *
 *   out KIND        MARKER was opened from there: that is the host
 *   saw KIND LINK   a descriptor that is neither a pipe nor a device; or a program, memory or environment from outside
 *
 * Prints `looking` when it begins. Opens nothing for writing. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINES = 64, UP = 40 };
static const char *marker;
static char lines[MOST_LINES][512];
static int told;

static void tell_once(const char *form, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(line, sizeof line, form, arguments);
    va_end(arguments);
    for (int i = 0; i < told; i++)
        if (!strcmp(lines[i], line))
            return;
    if (told == MOST_LINES)
        return;
    strcpy(lines[told++], line);
    puts(line);
    fflush(stdout);
}

/* From a directory up to where there is no more, and down again to the marker. */
static int leads_out(int directory)
{
    char path[UP * 3 + 4096] = "";
    for (int i = 0; i < UP; i++)
        strcat(path, "../");
    strcat(path, marker + 1);
    int found = openat(directory, path, O_RDONLY | O_CLOEXEC);
    if (found < 0)
        return 0;
    close(found);
    return 1;
}

static void try_directory(const char *path, const char *kind)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return;
    if (leads_out(directory))
        tell_once("out %s", kind);
    close(directory);
}

static int is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int can_read(const char *path)
{
    char byte;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    int is_read = file >= 0 && read(file, &byte, 1) == 1;
    if (file >= 0)
        close(file);
    return is_read;
}

static void try_descriptors(const char *process)
{
    char path[PATH_MAX], link[256];
    snprintf(path, sizeof path, "%s/fd", process);
    DIR *all = opendir(path);
    if (!all)
        return;
    for (struct dirent *one; (one = readdir(all));) {
        struct stat seen, here;
        if (one->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/fd/%s", process, one->d_name);
        if (stat(path, &seen) || S_ISFIFO(seen.st_mode) || S_ISCHR(seen.st_mode))
            continue;
        ssize_t length = readlink(path, link, sizeof link - 1);
        if (length < 0)
            continue;
        link[length] = 0;
        if (!strncmp(link, "pipe:", 5))
            continue; /* a shell has put its own output back between the two looks */
        if (!S_ISDIR(seen.st_mode) && !stat(link, &here) && is_same(&seen, &here))
            continue; /* a file of the container's own */
        tell_once("saw fd %s", link);
        if (S_ISDIR(seen.st_mode))
            try_directory(path, "fd");
    }
    closedir(all);
}

static void try_program(const char *process)
{
    char path[PATH_MAX], link[256];
    struct stat seen, here;
    snprintf(path, sizeof path, "%s/exe", process);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0 || stat(path, &seen))
        return;
    link[length] = 0;
    if (!stat(link, &here) && is_same(&seen, &here))
        return; /* a program of the container's own */
    tell_once("saw exe %s", link);
    for (const char *const *name = (const char *const[]){"maps", "environ", "mem", NULL}; *name; name++) {
        snprintf(path, sizeof path, "%s/%s", process, *name);
        if (can_read(path))
            tell_once("saw %s of %s", *name, link);
    }
}

static void look(const char *name)
{
    char process[64], path[PATH_MAX];
    snprintf(process, sizeof process, "/proc/%.20s", name);
    try_descriptors(process);
    for (const char *const *kind = (const char *const[]){"cwd", "root", NULL}; *kind; kind++) {
        snprintf(path, sizeof path, "%s/%s", process, *kind);
        try_directory(path, *kind);
    }
    try_program(process);
}

int main(int count, char **arguments)
{
    if (count != 2 || arguments[1][0] != '/') {
        fprintf(stderr, "usage: spy MARKER\n");
        return 2;
    }
    marker = arguments[1];
    tell_once("looking");
    for (;;) {
        DIR *all = opendir("/proc");
        for (struct dirent *one; all && (one = readdir(all));)
            if (one->d_name[0] >= '1' && one->d_name[0] <= '9' && atoi(one->d_name) != getpid())
                look(one->d_name);
        if (all)
            closedir(all);
    }
}
