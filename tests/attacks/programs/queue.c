/* queue KIND MOST: fills queues of its own sockets with about MOST MiB, and reads nothing of it. Prints `holds MIB`, with
 * what the kernel says of these sockets, and `done`. Holds them. KIND is
 *
 *   netlink   messages to itself (NETLINK_USERSOCK), each large
 *   hidden    the same, and each socket is sent to itself and closed, so that it is only under way
 *   replies   answers of the kernel to small requests (NETLINK_ROUTE)
 *   udp       datagrams over loopback
 *   tcp       connections over loopback */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

enum { MESSAGE = 60 << 10, ASKED = 64 << 20, WORDS = 9, READ = 0, WRITTEN = 2, MOST_PAIRS = 1 << 16, SENT = 8 };

static long long held; /* bytes, as the kernel counts them */
static int last;       /* netlink socket that was made */

static void count(int socket)
{
    unsigned words[WORDS] = {0};
    socklen_t size = sizeof words;
    if (!getsockopt(socket, SOL_SOCKET, SO_MEMINFO, words, &size))
        held += words[READ] + (long long)words[WRITTEN];
}

static int with_room(int socket)
{
    int size = ASKED; /* the kernel gives what net.core.rmem_max allows */
    setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return socket;
}

static int netlink(void)
{
    static char text[MESSAGE];
    struct sockaddr_nl self = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof self;
    int made = with_room(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_USERSOCK));
    if (made < 0 || bind(made, (struct sockaddr *)&self, sizeof self) ||
        getsockname(made, (struct sockaddr *)&self, &length))
        return -1;
    while (sendto(made, text, sizeof text, MSG_DONTWAIT, (struct sockaddr *)&self, sizeof self) > 0)
        ;
    count(made);
    last = made;
    return 0;
}

static int hidden(void)
{
    static int ways[2] = {-1, -1}, sent;
    int made = -1;
    if (sent % SENT == 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ways))
        return -1;
    sent++;
    if (netlink())
        return -1;
    made = last;
    char control[CMSG_SPACE(sizeof made)] = {0}, byte = 0;
    struct iovec text = {&byte, 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof made);
    memcpy(CMSG_DATA(rights), &made, sizeof made);
    if (sendmsg(ways[0], &message, MSG_DONTWAIT) < 0)
        return -1;
    return close(made);
}

static int replies(void)
{
    struct {
        struct nlmsghdr header;
        struct ifinfomsg link;
    } request = {{sizeof request, RTM_GETLINK, NLM_F_REQUEST, 0, 0}, {.ifi_index = 1}};
    int made = with_room(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
    if (made < 0)
        return -1;
    /* The kernel says nothing of a reply for which there is no room: the queue stops growing. */
    for (long long before = -1, start = held; held > before;) {
        before = held;
        for (int i = 0; i < 64; i++)
            send(made, &request, sizeof request, MSG_DONTWAIT);
        held = start;
        count(made);
    }
    return 0;
}

static int udp(void)
{
    static char text[MESSAGE];
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof self;
    int made = with_room(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (made < 0 || bind(made, (struct sockaddr *)&self, sizeof self) ||
        getsockname(made, (struct sockaddr *)&self, &length))
        return -1;
    for (int i = 0; i < 256; i++) /* what finds no room is dropped without a word */
        sendto(made, text, sizeof text, MSG_DONTWAIT, (struct sockaddr *)&self, sizeof self);
    count(made);
    return 0;
}

static int tcp(void)
{
    static char text[MESSAGE];
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof self;
    int door = with_room(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), here, there;
    if (door < 0 || bind(door, (struct sockaddr *)&self, sizeof self) || listen(door, 1) ||
        getsockname(door, (struct sockaddr *)&self, &length))
        return -1;
    here = with_room(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (here < 0 || connect(here, (struct sockaddr *)&self, sizeof self))
        return -1;
    there = accept(door, NULL, NULL);
    close(door);
    if (there < 0)
        return -1;
    for (int pauses = 0; pauses < 3;) {
        if (send(here, text, sizeof text, MSG_DONTWAIT) > 0)
            pauses = 0;
        else if (errno != EAGAIN)
            break;
        else {
            pauses++;
            usleep(1000); /* the other end takes what it has room for */
        }
    }
    count(here);
    count(there);
    return 0;
}

int main(int arguments_count, char **arguments)
{
    const char *kind = arguments_count > 2 ? arguments[1] : "";
    long long most = arguments_count > 2 ? atoll(arguments[2]) << 20 : 0;
    int (*fill)(void) = !strcmp(kind, "netlink") ? netlink
                        : !strcmp(kind, "hidden")  ? hidden
                        : !strcmp(kind, "replies") ? replies
                        : !strcmp(kind, "udp")     ? udp
                                                   : tcp;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < MOST_PAIRS && held < most && !fill(); i++)
        ;
    printf("holds %lld\ndone\n", held >> 20);
    fflush(stdout);
    for (;;)
        pause();
}
