/* pause: the infrastructure container of a pod. Takes note of the end of processes that nobody else waits for, and ends
 * when it is asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

static void reap(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

int main(void)
{
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}
