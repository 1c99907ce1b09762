// Threads that share limiters, for helgrind and ThreadSanitizer with the suppressions that are installed.
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, STARTS = 25 };

static wgl_limiter *rate, *jobs;
static atomic_int admitted;

static void *works(void *key) {
    wgl_decision decision = WGL_DECISION_INIT;
    for (int i = 0; i < STARTS; i++) {
        wgl_permit permit;
        admitted += wgl_try_acquire(rate, key, 1, 1, &permit, NULL) == WGL_OK;
        MUST(wgl_acquire(jobs, NULL, 0, 1, WGL_FOREVER, &permit, NULL));
        MUST(wgl_complete(jobs, &permit));
        wgl_decide(rate, NULL, 0, 1, &decision);
    }
    wgl_pause(rate, 1000, key, 1);
    return NULL;
}

int main(void) {
    wgl_store *store;
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_concurrency_limiter_options two = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    pthread_t threads[THREADS];
    char keys[] = "aabb";
    options.max_executions = 10;
    options.window_ns = 3600000000000;
    two.max_concurrent_jobs = 2;
    MUST(wgl_store_open("memory:", NULL, &store));
    MUST(wgl_rate_limiter_new(store, "rate", &options, &rate));
    MUST(wgl_concurrency_limiter_new(&two, &jobs));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, works, &keys[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(admitted == 20, "%d admitted", admitted);
    wgl_limiter_free(jobs);
    wgl_limiter_free(rate);
    wgl_store_free(store);
    return summary("races");
}
