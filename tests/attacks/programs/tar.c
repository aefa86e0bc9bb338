/* tar: what a hostile container has in place of a tar. The last path that it is asked for says what it writes:
 *
 *   outside   an entry above the target
 *   link      a link, and a file through it
 *   speaks    256 MiB of complaints, and fails */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void entry(const char *name, char kind, unsigned long long size, const char *link)
{
    unsigned char block[512] = {0};
    unsigned sum = 0;
    snprintf((char *)block, 100, "%s", name);
    snprintf((char *)block + 100, 8, "%07o", 0755);
    snprintf((char *)block + 124, 12, "%011llo", size);
    memset(block + 148, ' ', 8);
    block[156] = kind;
    snprintf((char *)block + 157, 100, "%s", link);
    memcpy(block + 257, "ustar\00000", 8);
    for (unsigned i = 0; i < sizeof block; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
    fwrite(block, sizeof block, 1, stdout);
}

int main(int count, char **arguments)
{
    static char block[65536];
    const char *way = strrchr(arguments[count - 1], '/');
    way = way ? way + 1 : arguments[count - 1];
    signal(SIGPIPE, SIG_IGN);
    memset(block, 'x', sizeof block);
    if (!strcmp(way, "speaks")) {
        for (int i = 0; i < 4096; i++)
            if (write(2, block, sizeof block) < 0)
                break;
        return 1;
    }
    if (!strcmp(way, "outside")) {
        entry("outside", '5', 0, "");
        entry("outside/../../made", '0', 512, "");
    } else {
        entry("link", '5', 0, "");
        entry("link/up", '2', 0, "..");
        entry("link/up/made", '0', 512, "");
    }
    fwrite(block, 512, 1, stdout);
    memset(block, 0, 1024);
    fwrite(block, 1024, 1, stdout);
    return 0;
}
