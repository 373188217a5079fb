/* For LD_PRELOAD: CLOCK_MONOTONIC plus the seconds that stand in the file $CLOCK_SHIFT.
   The file may change at any time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    static const char *path;
    char text[32];
    if (!real) {
        real = dlsym(RTLD_NEXT, "clock_gettime");
        path = getenv("CLOCK_SHIFT");
    }
    int failed = real(id, now);
    if (!failed && id == CLOCK_MONOTONIC && path) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            ssize_t length = read(file, text, sizeof text - 1);
            close(file);
            if (length > 0) {
                text[length] = 0;
                now->tv_sec += atol(text) + 2000000;
            }
        }
    }
    return failed;
}
