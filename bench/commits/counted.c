/* Preloaded into a program, it counts its calls of fsync and fdatasync, and makes each take SLOW_MS milliseconds longer, as a busy disk
   does. It writes the count to the file COUNT_TO when the program ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static atomic_long calls;

static int counted(const char *name, int file) {
    const char *slow = getenv("SLOW_MS");
    const long ms = slow ? atol(slow) : 0;
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    int (*call)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    atomic_fetch_add(&calls, 1);
    nanosleep(&pause, NULL);
    return call(file);
}

int fsync(int file) { return counted("fsync", file); }

int fdatasync(int file) { return counted("fdatasync", file); }

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("COUNT_TO");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", (long)calls);
        fclose(file);
    }
}
