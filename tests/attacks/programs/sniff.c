/* sniff: tries to see what others say on the network that the pod shares with the host: packet and raw sockets.
 * Prints `KIND allowed|ERRNO` each, then `done`, and waits. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void attempt(const char *kind, int family, int type, int protocol)
{
    int made = socket(family, type | SOCK_CLOEXEC, protocol);
    printf("%s %s\n", kind, made >= 0 ? "allowed" : strerrorname_np(errno));
    if (made >= 0)
        close(made);
}

int main(void)
{
    attempt("packet-raw", AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    attempt("packet-datagram", AF_PACKET, SOCK_DGRAM, htons(ETH_P_ALL));
    attempt("tcp-raw", AF_INET, SOCK_RAW, IPPROTO_TCP);
    attempt("tcp6-raw", AF_INET6, SOCK_RAW, IPPROTO_TCP);
    attempt("icmp-raw", AF_INET, SOCK_RAW, IPPROTO_ICMP);
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
