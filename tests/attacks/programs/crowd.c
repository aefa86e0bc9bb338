/* crowd PORT COUNT: keeps COUNT connections to a port of this machine, and says nothing on them. A third of them begin a
 * handshake and do not end it. One that is ended is made again. Prints `crowded` when all were there once. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const unsigned char HALF_A_HELLO[] = {0x16, 3, 1, 0x02, 0x00, 1, 0, 0x01, 0xfc, 3, 3};

static int connection(int port, int number)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, (struct sockaddr *)&to, sizeof to)) {
        close(made);
        return -1;
    }
    if (made >= 0 && number % 3 == 0)
        (void)!write(made, HALF_A_HELLO, sizeof HALF_A_HELLO);
    return made;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int port = atoi(argv[1]), count = atoi(argv[2]);
    struct pollfd *held = calloc(count, sizeof *held);
    char lost[512];
    for (int number = 0; number < count; number++)
        held[number] = (struct pollfd){connection(port, number), POLLIN, 0};
    puts("crowded");
    fflush(stdout);
    for (;;) {
        if (poll(held, count, 200) < 0 && errno != EINTR)
            return 1;
        for (int number = 0; number < count; number++) {
            int is_over = held[number].fd < 0 || (held[number].revents && read(held[number].fd, lost, sizeof lost) <= 0);
            if (!is_over)
                continue;
            if (held[number].fd >= 0)
                close(held[number].fd);
            held[number].fd = connection(port, number);
            usleep(1000);
        }
    }
}
