/* keys put: makes a key in its session keyring, and prints `put KEY KEYRING`, their numbers.
 * keys take KEY KEYRING: tries to get at it in each way there is, and prints `WAY allowed|ERRNO` for each; before that
 * `session KEYRING COUNT`, its own session keyring and how many keys are in it.
 *
 * Both print `done` at the end, and wait. Not for containers with a filter, which have no keys at all. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char SECRET[] = "secret", NAME[] = "evenkeel-attack";

static long keyctl(int operation, long first, long second, long third)
{
    return syscall(SYS_keyctl, operation, first, second, third, 0L);
}

static void tell(const char *way, long result)
{
    const char *name = result < 0 ? strerrorname_np(errno) : "allowed";
    printf("%s %s\n", way, name ? name : "unknown");
}

static void take(long key, long keyring)
{
    char content[64];
    long own = keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1, 0);
    long bytes = keyctl(KEYCTL_READ, KEY_SPEC_SESSION_KEYRING, 0, 0);
    printf("session %ld %ld\n", own, bytes < 0 ? bytes : bytes / 4);
    tell("read", keyctl(KEYCTL_READ, key, (long)content, sizeof content));
    tell("link", keyctl(KEYCTL_LINK, key, KEY_SPEC_PROCESS_KEYRING, 0));
    tell("link-keyring", keyctl(KEYCTL_LINK, keyring, KEY_SPEC_PROCESS_KEYRING, 0));
    tell("read-keyring", keyctl(KEYCTL_READ, keyring, (long)content, sizeof content));
    tell("search", syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", NAME, 0L));
    tell("search-keyring", syscall(SYS_keyctl, KEYCTL_SEARCH, keyring, "user", NAME, 0L));
    tell("request", syscall(SYS_request_key, "user", NAME, NULL, 0L));
    tell("update", keyctl(KEYCTL_UPDATE, key, (long)"taken", 5));
    tell("revoke", keyctl(KEYCTL_REVOKE, key, 0, 0));
    tell("permit", keyctl(KEYCTL_SETPERM, key, 0x3f3f3f3f, 0));
}

int main(int count, char **arguments)
{
    if (count == 4) {
        take(atol(arguments[2]), atol(arguments[3]));
    } else {
        long keyring = keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1, 0);
        long key = syscall(SYS_add_key, "user", NAME, SECRET, sizeof SECRET, KEY_SPEC_SESSION_KEYRING);
        printf("put %ld %ld\n", key, keyring);
    }
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
