/* Preloaded into a kernel in user mode (`user_mode.py`): sets the whole state of a traced process's registers.
 *
 * The kernel of the host takes that state only as a whole. Its size depends on the processor: with AMX it is 11 KiB.
 * Linux 6.1 in user mode has room for 2696 bytes, as much as processors had before AMX, and the host refuses them. No
 * process of the guest uses AMX, which a process has to ask for: the rest of the state is zero. */
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Not on the stack: those of the kernel are small. Only one thread of it traces. */
static char whole[1 << 16];
static size_t size;

static long forwarded(long request, long pid, long address, void *data)
{
    return syscall(SYS_ptrace, request, pid, address, data);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    long pid = va_arg(rest, pid_t), address = va_arg(rest, long);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) {
        long value = -1; /* as the C library does it */
        return forwarded(request, pid, address, &value) < 0 ? -1 : value;
    }
    if (request != PTRACE_SETREGSET || address != NT_X86_XSTATE)
        return forwarded(request, pid, address, data);
    const struct iovec *given = data;
    if (size == 0) {
        struct iovec all = {.iov_base = whole, .iov_len = sizeof whole};
        if (forwarded(PTRACE_GETREGSET, pid, address, &all) < 0)
            return -1;
        size = all.iov_len;
    }
    if (given->iov_len >= size)
        return forwarded(request, pid, address, data);
    memcpy(whole, given->iov_base, given->iov_len);
    memset(whole + given->iov_len, 0, size - given->iov_len);
    struct iovec all = {.iov_base = whole, .iov_len = size};
    return forwarded(request, pid, address, &all);
}
