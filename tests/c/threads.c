// Eight threads on one limiter: together they get exactly the limit, and error messages stay with their thread.
#include "check.h"
#include <pthread.h>

enum { THREADS = 8 };

static pthread_barrier_t together;
static wgl_limiter *limiter;
static atomic_int admitted, running, most_running, waited;

static void in_threads(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, body, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void *take_all(void *number) {
    (void)number;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 1000; i++) {
        wgl_permit permit;
        int status = wgl_try_acquire(limiter, "key", 3, 1, &permit, NULL);
        if (status == WGL_OK)
            admitted++;
        else if (status != WGL_DENIED)
            CHECK(0, "%s", wgl_last_error());
    }
    return NULL;
}

static void *take_turns(void *number) {
    (void)number;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 20; i++) {
        wgl_permit permit;
        int status = wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL);
        CHECK(status == WGL_OK, "%s", wgl_last_error());
        int now = ++running, most = most_running;
        while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now)) {
        }
        usleep(50);
        running--;
        CHECK(wgl_complete(limiter, &permit) == WGL_OK, "%s", wgl_last_error());
    }
    return NULL;
}

static void *wait_for_a_place(void *number) {
    wgl_permit permit;
    uint64_t ready_ns;
    int64_t ready_unix_ns;
    (void)number;
    pthread_barrier_wait(&together);
    CHECK(wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL) == WGL_OK, "%s", wgl_last_error());
    if (wgl_permit_ready_at_monotonic(limiter, &permit, &ready_ns) == WGL_OK) {
        waited++;
        CHECK(wgl_permit_ready_at(limiter, &permit, &ready_unix_ns) == WGL_OK, "%s", wgl_last_error());
    }
    return NULL;
}

static void *fail_in_its_own_way(void *number) {
    char key[2048], expected[32];
    size_t length = 1100 + (size_t)number;
    memset(key, 'k', sizeof key);
    snprintf(expected, sizeof expected, "%zu bytes long", length);
    pthread_barrier_wait(&together);
    int wrong = 0;
    for (int i = 0; i < 200; i++) {
        wrong += wgl_can_proceed(limiter, key, length) != WGL_INVALID_ARGUMENT;
        wrong += strstr(wgl_last_error(), expected) == NULL;
    }
    CHECK(wrong == 0, "%d messages of another thread, such as %s", wrong, wgl_last_error());
    return NULL;
}

static void *ask_a_growing_composite(void *number) {
    wgl_decision decision = WGL_DECISION_INIT;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 20; i++) {
        if (number == 0) {
            wgl_limiter *child;
            MUST(wgl_null_limiter_new(&child));
            CHECK(wgl_composite_limiter_add(limiter, child) == WGL_OK, "%s", wgl_last_error());
            wgl_limiter_free(child);
        } else if (wgl_decide(limiter, NULL, 0, 1, &decision) == WGL_OK) {
            admitted++;
            CHECK(wgl_complete(limiter, &decision.permit) == WGL_OK, "%s", wgl_last_error());
        } else {
            CHECK(strcmp(decision.denied_by, "window") == 0, "denied by %s", decision.denied_by);
        }
    }
    return NULL;
}

static void on_store(const char *url) {
    wgl_store *store;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    MUST(wgl_store_open(url, NULL, &store));

    rate.max_executions = 777;
    rate.window_ns = UINT64_C(86400000000000);
    MUST(wgl_rate_limiter_new(store, "all", &rate, &limiter));
    admitted = 0;
    in_threads(take_all);
    CHECK(admitted == 777, "%s: %d of 777 admitted", url, admitted);
    in_threads(fail_in_its_own_way);
    wgl_limiter_free(limiter);

    // Two at once, six in places of their own.
    rate.max_executions = 2;
    rate.window_ns = 100000000;
    MUST(wgl_rate_limiter_new(store, "places", &rate, &limiter));
    waited = 0;
    // On a slow machine they may come one after the other, and none waits.
    for (int round = 0; round < 600 && waited == 0; round++)
        in_threads(wait_for_a_place);
    CHECK(waited >= 1 && waited <= 6, "%s: %d waited", url, waited);
    wgl_limiter_free(limiter);

    wgl_limiter *window;
    rate.max_executions = 50;
    rate.window_ns = UINT64_C(86400000000000);
    MUST(wgl_rate_limiter_new(store, "window", &rate, &window));
    MUST(wgl_composite_limiter_new(&limiter));
    MUST(wgl_composite_limiter_add(limiter, window));
    wgl_limiter_free(window);
    admitted = 0;
    in_threads(ask_a_growing_composite);
    CHECK(admitted == 50, "%s: a composite admitted %d of 50", url, admitted);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

int main(void) {
    char dir[64], url[128];
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    pthread_barrier_init(&together, NULL, THREADS);

    jobs.max_concurrent_jobs = 3;
    MUST(wgl_concurrency_limiter_new(&jobs, &limiter));
    in_threads(take_turns);
    CHECK(1 <= most_running && most_running <= 3, "%d ran at once, of 3", most_running);
    wgl_decision decision = WGL_DECISION_INIT;
    CHECK(wgl_peek(limiter, NULL, 0, 3, &decision) == WGL_OK && decision.remaining == 3, "all have ended");
    wgl_limiter_free(limiter);

    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    on_store("memory:");
    on_store(url);
    remove_dir(dir);
    pthread_barrier_destroy(&together);
    return summary("threads");
}
