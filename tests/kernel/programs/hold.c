/* hold LOCK DOUBLE PROGRAM ARGUMENT…
 *
 * Takes the lock on the file LOCK and becomes PROGRAM, which holds it for as long as anything of it lives. Where another
 * holds it, makes the file DOUBLE and ends with status 99. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { REFUSED = 126, HELD = 99 };

int main(int count, char **arguments)
{
    int lock = count > 3 ? open(arguments[1], O_RDWR | O_CREAT, 0600) : -1;
    if (lock < 0) {
        fprintf(stderr, "usage: hold LOCK DOUBLE PROGRAM ARGUMENT... (LOCK a file that can be written)\n");
        return 2;
    }
    if (flock(lock, LOCK_EX | LOCK_NB)) {
        close(open(arguments[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        return HELD;
    }
    execvp(arguments[3], arguments + 3);
    fprintf(stderr, "hold: %s: %s\n", arguments[3], strerror(errno));
    return REFUSED;
}
