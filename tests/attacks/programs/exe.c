/* exe: stands in a hostile image where programs of the host have their loader. Whoever executes such a program inside
 * runs this instead, with /proc/self/exe leading to the host's program. Says in /tmp/exe whether that could be changed,
 * and ends. Changes nothing. Uses no C library: it is loaded as a loader is. */
#include <fcntl.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

void _start(void)
{
    static const char yes[] = "may-write\n", no[] = "may-not\n";
    long file = call(SYS_open, (long)"/tmp/exe", O_WRONLY | O_CREAT | O_APPEND, 0644, 0);
    long refused = call(SYS_access, (long)"/proc/self/exe", 2, 0, 0);
    call(SYS_write, file, (long)(refused ? no : yes), refused ? sizeof no - 1 : sizeof yes - 1, 0);
    call(SYS_exit_group, 1, 0, 0, 0);
}
