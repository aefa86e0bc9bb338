/* spin: says "spinning", then uses all the processor time it is given. */
#include <stdio.h>

int main(void)
{
    volatile unsigned long turns = 0;
    puts("spinning");
    fflush(stdout);
    for (;;)
        turns++;
}
