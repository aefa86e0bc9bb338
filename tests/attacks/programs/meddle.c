/* meddle PID...: tries to change, stop or look into processes of the machine by their numbers, and prints a line each:
 *
 *   CALL PID allowed|ERRNO
 *
 * Nothing of it ends a process that it reaches. What it traces it lets go. Prints `done` at the end, and waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NICE = 19, IOPRIO_IDLE = 3 << 13, IOPRIO_WHO_PROCESS = 1 };

static void tell(const char *call, long pid, long result)
{
    const char *name = result < 0 ? strerrorname_np(errno) : "allowed";
    printf("%s %ld %s\n", call, pid, name ? name : "unknown");
    fflush(stdout);
}

static long look_into(pid_t pid)
{
    char byte;
    struct iovec own = {&byte, 1}, theirs = {(void *)0x400000, 1};
    long result = process_vm_readv(pid, &own, 1, &theirs, 1, 0);
    return result < 0 && errno == EFAULT ? 0 : result; /* it may look, and nothing is there */
}

static long take_descriptor(pid_t pid)
{
    int process = syscall(SYS_pidfd_open, pid, 0);
    return process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, 0, 0);
}

static long open_of(pid_t pid, const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    return open(path, O_RDONLY);
}

static long trace(pid_t pid)
{
    long result = ptrace(PTRACE_SEIZE, pid, NULL, NULL);
    if (result == 0) {
        ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
        waitpid(pid, NULL, __WALL);
        ptrace(PTRACE_DETACH, pid, NULL, NULL);
    }
    return result;
}

static long limit(pid_t pid)
{
    struct rlimit few = {64, 64};
    return prlimit(pid, RLIMIT_CORE, &few, NULL);
}

static void meddle(pid_t pid)
{
    cpu_set_t first;
    struct sched_param none = {0};
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    tell("kill", pid, kill(pid, 0));
    tell("tgkill", pid, syscall(SYS_tgkill, pid, pid, 0));
    tell("pidfd_open", pid, syscall(SYS_pidfd_open, pid, 0));
    tell("pidfd_getfd", pid, take_descriptor(pid));
    tell("ptrace", pid, trace(pid));
    tell("process_vm_readv", pid, look_into(pid));
    tell("prlimit", pid, limit(pid));
    tell("setpriority", pid, setpriority(PRIO_PROCESS, pid, NICE));
    tell("ioprio_set", pid, syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_IDLE));
    tell("sched_setaffinity", pid, sched_setaffinity(pid, sizeof first, &first));
    tell("sched_setscheduler", pid, sched_setscheduler(pid, SCHED_IDLE, &none));
    tell("kcmp", pid, syscall(SYS_kcmp, getpid(), pid, 2, 0, 0));
    tell("status", pid, open_of(pid, "status"));
    tell("mem", pid, open_of(pid, "mem"));
    tell("root", pid, open_of(pid, "root/."));
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++)
        meddle(atoi(arguments[i]));
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
