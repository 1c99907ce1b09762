/* The C member: two threads, each waiting in line. */

#include "evidence.h"
#include <pthread.h>
#include <string.h>

enum { WAITERS = 2 };

static wgl_limiter *limiter;
static int starts;

static const char *setting(const char *name) {
    const char *value = getenv(name);
    if (value == NULL) {
        fprintf(stderr, "%s is not set: the conductor does that\n", name);
        exit(1);
    }
    return value;
}

static void *work(void *unused) {
    (void)unused;
    long job_ms = atol(setting("FLEET_JOB_MS"));
    struct timespec job = {job_ms / 1000, job_ms % 1000 * 1000000};

    static const char ready[] = "c\n";
    if (write(1, ready, strlen(ready)) < 0)
        exit(1);
    close(open(setting("FLEET_GO"), O_RDONLY)); /* as soon as the conductor has opened its end */
    for (;;) {
        wgl_permit permit;
        uint64_t asked = now_ns();
        must(wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL));
        evidence_start(starts, asked, limiter, &permit);
        nanosleep(&job, NULL);
        must(wgl_complete(limiter, &permit));
    }
}

int main(void) {
    wgl_store *store;
    must(wgl_store_open(setting("FLEET_STORE"), NULL, &store));
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = strtoull(setting("FLEET_LIMIT"), NULL, 10);
    options.window_ns = (uint64_t)(atof(setting("FLEET_WINDOW")) * 1e9);
    must(wgl_rate_limiter_new(store, "fleet", &options, &limiter));
    starts = evidence_open(setting("FLEET_STARTS"));

    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            return 1;
    for (int i = 0; i < WAITERS; i++)
        pthread_join(threads[i], NULL);
}
