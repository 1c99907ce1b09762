/* Shifts the wall clock of programs that load this first (LD_PRELOAD) by CLOCK_OFFSET seconds. Monotonic clocks are
   unchanged. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find(void) {
    const char *text = getenv("CLOCK_OFFSET");
    offset = text ? atol(text) : 0;
    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_clock)
        find();
    int failed = real_clock(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    if (!failed)
        *now = (struct timeval){time.tv_sec, time.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
