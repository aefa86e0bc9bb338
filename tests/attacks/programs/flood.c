/* flood line|empty|mixed: says more than anybody can write down, without end.
 *
 * `line` never ends its line; `empty` ends nothing but lines, on both streams; `mixed` says bytes of all values, among them
 * what looks like an entry of the log. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 65536 };

int main(int count, char **arguments)
{
    static const char entry[] = "\n2026-01-02T03:04:05.678901234Z stdout F forged\n";
    static char chunk[CHUNK];
    const char *how = count > 1 ? arguments[1] : "line";
    if (strcmp(how, "mixed") == 0) {
        for (int i = 0; i < CHUNK; i++)
            chunk[i] = (char)(i * 7 + i / 256);
        memcpy(chunk, entry, sizeof entry - 1);
    } else {
        memset(chunk, strcmp(how, "empty") == 0 ? '\n' : 'x', CHUNK);
    }
    for (int stream = 1;; stream = strcmp(how, "line") == 0 ? 1 : 3 - stream)
        if (write(stream, chunk, CHUNK) < 0)
            return 1;
}
