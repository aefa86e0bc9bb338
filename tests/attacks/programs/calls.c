/* calls: tries what a container has no business with, in each way there is to ask the kernel, and prints a line each:
 *
 *   CALL WAY allowed|ERRNO
 *
 * WAY is `native`, `i386` (int 0x80), `x32`, or `wide`: filters that look at one kind of number only, or at bits that
 * the kernel does not look at, are walked around so. Each is tried in a process of its own, with arguments that change nothing outside of it. Prints `done` at the end, and
 * then waits without end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLED = 254, X32 = 0x40000000 };

static void tell(const char *call, const char *way, int code)
{
    const char *name = code == 0 ? "allowed" : code == KILLED ? "killed" : strerrorname_np(code);
    printf("%s %s %s\n", call, way, name ? name : "unknown");
    fflush(stdout);
}

/* The kernel's answer as an error number, 0 for success; of a child, so that what succeeds is gone with it. */
static void attempt(const char *call, const char *way, long (*act)(void))
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        long answer = act();
        _exit(answer < 0 ? (int)-answer : 0);
    }
    waitpid(child, &status, 0);
    tell(call, way, WIFEXITED(status) ? WEXITSTATUS(status) : KILLED);
}

static long answer(long result) { return result < 0 ? -errno : 0; }

/* A child of a child, which ends at once. */
static long ended(long pid)
{
    if (pid == 0)
        _exit(0);
    return answer(pid);
}

static long unshare_user(void) { return answer(syscall(SYS_unshare, CLONE_NEWUSER)); }
static long unshare_cgroup(void) { return answer(syscall(SYS_unshare, CLONE_NEWCGROUP)); }
static long unshare_mount(void) { return answer(syscall(SYS_unshare, CLONE_NEWNS)); }
static long clone_user(void) { return ended(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)); }
static long clone3_user(void)
{
    struct clone_args wanted = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    return ended(syscall(SYS_clone3, &wanted, sizeof wanted));
}
static long setns_own(void)
{
    int own = open("/proc/self/ns/user", O_RDONLY);
    long result = answer(syscall(SYS_setns, own, 0));
    return result == -EINVAL ? 0 : result; /* the kernel has looked at it: no filter was in the way */
}
static long mount_tmpfs(void) { return answer(syscall(SYS_mount, "none", "/proc/self", "tmpfs", 0, "size=4k")); }
static long open_tree_root(void) { return answer(syscall(428, AT_FDCWD, "/", 1)); }
static long fsopen_tmpfs(void) { return answer(syscall(430, "tmpfs", 0)); }
static long pivot(void) { return answer(syscall(SYS_pivot_root, "/", "/")); }
static long keyctl_session(void)
{
    return answer(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0));
}
static long keyctl_describe_user(void)
{
    char text[256];
    return answer(syscall(SYS_keyctl, KEYCTL_DESCRIBE, KEY_SPEC_USER_KEYRING, text, sizeof text));
}
static long add_key_process(void)
{
    return answer(syscall(SYS_add_key, "user", "evenkeel-attack", "x", 1, KEY_SPEC_PROCESS_KEYRING));
}
static long request_key_none(void)
{
    long result = answer(syscall(SYS_request_key, "user", "evenkeel-attack-none", NULL, 0));
    return result == -ENOKEY ? 0 : result;
}
static long bpf_map(void)
{
    union bpf_attr wanted = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    return answer(syscall(SYS_bpf, BPF_MAP_CREATE, &wanted, sizeof wanted));
}
static long perf_self(void)
{
    struct perf_event_attr wanted = {.type = PERF_TYPE_SOFTWARE, .size = sizeof wanted, .exclude_kernel = 1};
    return answer(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
}
static long open_by_handle(void)
{
    struct { struct file_handle head; char more[128]; } handle = {.head = {.handle_bytes = 8, .handle_type = 1}};
    long result = answer(syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY));
    return result == -ESTALE ? 0 : result;
}
static long userfault(void) { return answer(syscall(SYS_userfaultfd, O_CLOEXEC)); }
static long io_uring(void)
{
    char parameters[120] = {0};
    return answer(syscall(425, 1, parameters));
}
/* The kernel takes the family as 32 bits, and a filter sees 64: both are the same family. */
enum { ALG = 38, VSOCK = 40 };
static const long OTHER_HALF = 1L << 32;
static long socket_of(long family) { return answer(syscall(SYS_socket, family, family == VSOCK ? 1L : 5L, 0L)); }
static long socket_alg(void) { return socket_of(ALG); }
static long socket_vsock(void) { return socket_of(VSOCK); }
static long socket_alg_wide(void) { return socket_of(ALG | OTHER_HALF); }
static long socket_vsock_wide(void) { return answer(syscall(SYS_socket, VSOCK | OTHER_HALF, 1L, 0L)); }
static long lease_by(long command)
{
    int file = open("/proc/self/exe", O_RDONLY);
    long result = answer(syscall(SYS_fcntl, file, command, (long)F_RDLCK));
    return result == -EACCES || result == -EAGAIN ? 0 : result; /* the kernel has looked at it */
}
static long lease(void) { return lease_by(F_SETLEASE); }
static long lease_wide(void) { return lease_by(F_SETLEASE | OTHER_HALF); }

#ifdef __x86_64__
static long int80(long number, long first, long second)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(0L), "S"(0L) : "memory",
                     "r8", "r9", "r10", "r11");
    return (int)result;
}
static long i386_unshare_user(void) { return int80(310, CLONE_NEWUSER, 0); }
static long i386_clone_user(void)
{
    long pid = int80(120, CLONE_NEWUSER | SIGCHLD, 0);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? pid : 0;
}
static long i386_keyctl(void) { return int80(288, KEYCTL_GET_KEYRING_ID, (uint32_t)KEY_SPEC_SESSION_KEYRING) < 0 ? -EPERM : 0; }
static long i386_socketcall(void)
{
    uint32_t *wanted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    wanted[0] = VSOCK, wanted[1] = 1, wanted[2] = 0;
    long result = int80(102, 1, (long)(uintptr_t)wanted);
    return result < 0 ? result : result > 0 ? 0 : -ENOSYS; /* where it is not an i386 call it is getuid, of root */
}
static long i386_lease(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    long result = int80(221, file, F_SETLEASE);
    return result == -EACCES || result == -EAGAIN ? 0 : result;
}
static long x32_unshare_user(void) { return answer(syscall(X32 | SYS_unshare, CLONE_NEWUSER)); }
static long x32_clone_user(void) { return ended(syscall(X32 | SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)); }
static long x32_keyctl(void)
{
    return answer(syscall(X32 | SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0));
}
#endif

int main(void)
{
    attempt("unshare-user", "native", unshare_user);
    attempt("unshare-cgroup", "native", unshare_cgroup);
    attempt("unshare-mount", "native", unshare_mount);
    attempt("clone-user", "native", clone_user);
    attempt("clone3-user", "native", clone3_user);
    attempt("setns", "native", setns_own);
    attempt("mount", "native", mount_tmpfs);
    attempt("open_tree", "native", open_tree_root);
    attempt("fsopen", "native", fsopen_tmpfs);
    attempt("pivot_root", "native", pivot);
    attempt("keyctl", "native", keyctl_session);
    attempt("keyctl-describe", "native", keyctl_describe_user);
    attempt("add_key", "native", add_key_process);
    attempt("request_key", "native", request_key_none);
    attempt("bpf", "native", bpf_map);
    attempt("perf_event_open", "native", perf_self);
    attempt("open_by_handle_at", "native", open_by_handle);
    attempt("userfaultfd", "native", userfault);
    attempt("io_uring_setup", "native", io_uring);
    attempt("socket-alg", "native", socket_alg);
    attempt("socket-alg", "wide", socket_alg_wide);
    attempt("socket-vsock", "native", socket_vsock);
    attempt("socket-vsock", "wide", socket_vsock_wide);
    attempt("lease", "native", lease);
    attempt("lease", "wide", lease_wide);
#ifdef __x86_64__
    attempt("unshare-user", "i386", i386_unshare_user);
    attempt("clone-user", "i386", i386_clone_user);
    attempt("keyctl", "i386", i386_keyctl);
    attempt("socket-vsock", "i386", i386_socketcall);
    attempt("lease", "i386", i386_lease);
    attempt("unshare-user", "x32", x32_unshare_user);
    attempt("clone-user", "x32", x32_clone_user);
    attempt("keyctl", "x32", x32_keyctl);
#endif
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
