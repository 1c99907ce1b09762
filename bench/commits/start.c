/* start URL try_acquire STARTS AT_ONCE: makes starts in threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <workglow_limit.h>

static wgl_limiter *limiter;
static long starts;

static void check(int32_t status) {
    if (status != WGL_OK) {
        fprintf(stderr, "%d: %s\n", status, wgl_last_error());
        exit(1);
    }
}

static void *start(void *unused) {
    (void)unused;
    for (long i = 0; i < starts; i++) {
        wgl_permit permit;
        uint64_t retry_after;
        check(wgl_try_acquire(limiter, "", 0, 1, &permit, &retry_after));
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    const int threads = atoi(argv[4]);
    starts = atol(argv[3]) / threads;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    options.durability = WGL_DURABILITY_COMMIT;
    wgl_store *store;
    check(wgl_store_open(argv[1], &options, &store));
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    rate.max_executions = 100000, rate.window_ns = 3600000000000;
    check(wgl_rate_limiter_new(store, "api", &rate, &limiter));
    wgl_permit permit;
    uint64_t retry_after;
    check(wgl_try_acquire(limiter, "", 0, 1, &permit, &retry_after));
    pthread_t running[64];
    for (int i = 0; i < threads; i++) pthread_create(&running[i], NULL, start, NULL);
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    return 0;
}
