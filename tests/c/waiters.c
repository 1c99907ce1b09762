// Waits in steps, priorities, and suggested delays. By a manual clock, except the last test; one start a second.
#include "check.h"
#include <pthread.h>
#include <stddef.h>

#define MS UINT64_C(1000000)

static wgl_manual_clock *clock_of_test;
static wgl_store *store;
static wgl_limiter *limiter;

static void begin(uint64_t max_executions) {
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_permit permit;
    MUST(wgl_manual_clock_new(&clock_of_test));
    options.clock = clock_of_test;
    rate.max_executions = max_executions;
    rate.window_ns = 1000 * MS;
    MUST(wgl_store_open("memory:", &options, &store));
    MUST(wgl_rate_limiter_new(store, "api", &rate, &limiter));
    for (uint64_t i = 0; i < max_executions; i++)
        MUST(wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
}

static void end(void) {
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    wgl_manual_clock_free(clock_of_test);
}

static void advance(uint64_t by_ns) {
    MUST(wgl_manual_clock_advance(clock_of_test, by_ns));
}

static wgl_waiter *waits(int32_t priority, uint64_t timeout_ns) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    wgl_waiter *waiter = NULL;
    options.priority = priority;
    options.timeout_ns = timeout_ns == 0 ? WGL_NO_WAIT : timeout_ns;
    MUST(wgl_waiter_new(limiter, NULL, 0, &options, &waiter));
    return waiter;
}

// Every waiter takes a step when its nap is over; they start in the order of priority, then of arrival.
static void steps_in_order(void) {
    enum { WAITERS = 20 };
    wgl_waiter *waiters[WAITERS];
    int order[WAITERS], started = 0, looks = 0;
    // One at a time: of two that may start at the same instant either may learn it first.
    begin(1);
    for (int i = 0; i < WAITERS; i++) {
        wgl_permit permit;
        uint64_t nap_ns = 0;
        waiters[i] = waits(i % 2 ? -1 : 0, WGL_FOREVER);
        IS(WGL_WAITING, wgl_waiter_step(waiters[i], &permit, &nap_ns));
        CHECK(nap_ns > 0, "it is not to sleep");
    }
    uint64_t due[WAITERS] = {0};
    for (uint64_t now = 0; now < 60 * 1000 * MS && started < WAITERS; now += MS) {
        // Those of higher priority first, which is the order at one moment.
        for (int pass = 1; pass >= 0; pass--) {
            for (int i = 0; i < WAITERS; i++) {
                wgl_permit permit;
                uint64_t nap_ns = 0;
                if (waiters[i] == NULL || i % 2 != pass || due[i] > now)
                    continue;
                int status = wgl_waiter_step(waiters[i], &permit, &nap_ns);
                looks++;
                due[i] = now + nap_ns;
                if (status == WGL_OK) {
                    order[started++] = i;
                    IS(WGL_OK, wgl_complete(limiter, &permit));
                    wgl_waiter_free(waiters[i]);
                    waiters[i] = NULL;
                } else {
                    CHECK(status == WGL_WAITING, "%s %s", wgl_status_name(status), wgl_last_error());
                }
            }
        }
        advance(MS);
    }
    CHECK(started == WAITERS, "%d started", started);
    for (int i = 0; i < started; i++)
        CHECK(order[i] == (i < WAITERS / 2 ? 2 * i + 1 : 2 * (i - WAITERS / 2)), "%d. is %d", i, order[i]);
    CHECK(looks < 40 * WAITERS, "%d steps", looks);
    end();
}

static void a_wait_ends(void) {
    wgl_permit permit = {{0}};
    uint64_t nap_ns = 0, after_ns = 0;
    begin(1);

    // The denial is known at once.
    wgl_waiter *waiter = waits(0, 999 * MS);
    IS(WGL_DENIED, wgl_waiter_step(waiter, &permit, &nap_ns));
    CHECK(nap_ns == 1000 * MS, "again after %llu ns", (unsigned long long)nap_ns);
    REFUSED(WGL_INVALID_ARGUMENT, "waiter is one whose wait is over", wgl_waiter_step(waiter, &permit, &nap_ns));
    wgl_waiter_free(waiter);
    IS(WGL_DENIED, wgl_acquire(limiter, NULL, 0, 1, 999 * MS, &permit, &after_ns));
    CHECK(after_ns == 1000 * MS, "again after %llu ns", (unsigned long long)after_ns);

    // A waiter that is freed leaves its place to the next one.
    waiter = waits(0, WGL_FOREVER);
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, &nap_ns));
    wgl_waiter *next = waits(0, WGL_FOREVER);
    IS(WGL_WAITING, wgl_waiter_step(next, &permit, NULL));
    wgl_waiter_free(waiter);
    advance(1000 * MS);
    IS(WGL_OK, wgl_waiter_step(next, &permit, &nap_ns));
    CHECK(nap_ns == 0, "a nap after the start");
    REFUSED(WGL_INVALID_ARGUMENT, "over", wgl_waiter_step(next, &permit, &nap_ns));
    wgl_waiter_free(next);

    // A waiter without a step is in no line.
    wgl_waiter_free(waits(0, WGL_FOREVER));
    wgl_waiter_free(NULL);
    end();
}

static void a_place_in_steps(void) {
    wgl_permit permit = {{0}}, place = {{0}};
    wgl_waiter *waiter = NULL;
    uint64_t nap_ns = 0, after_ns = 0;
    begin(1);
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, &place, NULL));
    IS(WGL_OK, wgl_waiter_new_for_place(limiter, &place, WGL_FOREVER, &waiter));
    IS(WGL_OK, wgl_cancel(limiter, &place)); // it is the waiter's: a no-op
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, &nap_ns));
    CHECK(nap_ns == 1000 * MS, "a nap of %llu ns", (unsigned long long)nap_ns);
    advance(nap_ns);
    IS(WGL_OK, wgl_waiter_step(waiter, &permit, &nap_ns));
    wgl_waiter_free(waiter);

    // When the waiter is freed, its place is returned.
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, &place, NULL));
    IS(WGL_OK, wgl_waiter_new_for_place(limiter, &place, WGL_FOREVER, &waiter));
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, NULL));
    wgl_waiter_free(waiter);
    advance(1025 * MS);
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));

    // The place is not ready within the timeout.
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, &place, NULL));
    IS(WGL_DENIED, wgl_acquire_place(limiter, &place, 10 * MS, &after_ns));
    CHECK(after_ns == 1000 * MS, "again after %llu ns", (unsigned long long)after_ns);
    end();
}

// Another caller is behind it, so a waiter that loses its place waits again.
static int starts_late(const wgl_waiter_options *options) {
    wgl_permit permit = {{0}}, behind = {{0}};
    wgl_waiter *waiter = NULL;
    int64_t ready_ns = 0;
    begin(1);
    MUST(wgl_waiter_new(limiter, NULL, 0, options, &waiter));
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, NULL));
    MUST(wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, &behind, NULL));
    advance(1300 * MS);
    int status;
    uint64_t nap_ns = 0;
    while ((status = wgl_waiter_step(waiter, &permit, &nap_ns)) == WGL_WAITING && nap_ns == 0)
        continue;
    if (status == WGL_OK)
        IS(WGL_OK, wgl_permit_ready_at(limiter, &permit, &ready_ns));
    wgl_waiter_free(waiter);
    end();
    return status;
}

static void a_grace(void) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    IS(WGL_WAITING, starts_late(NULL));
    IS(WGL_WAITING, starts_late(&options));
    options.grace_ns = 500 * MS;
    IS(WGL_OK, starts_late(&options));
}

static void bad_waiters(void) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT, small = WGL_WAITER_OPTIONS_INIT;
    wgl_waiter *waiter = NULL;
    wgl_permit permit = {{0}}, foreign = {{0}};
    begin(1);
    small.struct_size = 4;
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_waiter_new(NULL, NULL, 0, &options, &waiter));
    REFUSED(WGL_INVALID_ARGUMENT, "waiter is NULL", wgl_waiter_new(limiter, NULL, 0, &options, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_waiter_new(limiter, NULL, 1, &options, &waiter));
    REFUSED(WGL_INVALID_ARGUMENT, "struct_size is 4", wgl_waiter_new(limiter, NULL, 0, &small, &waiter));
    REFUSED(WGL_INVALID_ARGUMENT, "struct_size is 4", wgl_acquire_with(limiter, NULL, 0, &small, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_acquire_with(limiter, NULL, 0, NULL, NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "waiter is NULL", wgl_waiter_step(NULL, &permit, NULL));
    REFUSED(WGL_FOREIGN_PERMIT, "not issued", wgl_waiter_new_for_place(limiter, &foreign, 0, &waiter));
    CHECK(waiter == NULL, "a waiter was made");
    MUST(wgl_waiter_new(limiter, NULL, 0, &options, &waiter));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_waiter_step(waiter, NULL, NULL));
    wgl_waiter_free(waiter);
    options.weight = 2;
    REFUSED(WGL_WEIGHT_EXCEEDS_CAPACITY, "at most 1", wgl_acquire_with(limiter, NULL, 0, &options, &permit, NULL));
    options.weight = 1;
    options.grace_ns = WGL_NO_GRACE;
    REFUSED(WGL_INVALID_ARGUMENT, "at most 366 days", wgl_acquire_with(limiter, NULL, 0, &options, &permit, NULL));
    end();
}

// Zeros are the defaults: weight 1, and a wait as long as it takes.
static void zeroed_options_are_the_defaults(void) {
    wgl_waiter_options options = {.struct_size = sizeof options};
    wgl_waiter *waiter = NULL;
    wgl_permit permit;
    begin(1);
    advance(1000 * MS);
    IS(WGL_OK, wgl_acquire_with(limiter, NULL, 0, &options, &permit, NULL));
    MUST(wgl_waiter_new(limiter, NULL, 0, &options, &waiter));
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, NULL));
    wgl_waiter_free(waiter);
    options.timeout_ns = WGL_NO_WAIT;
    IS(WGL_DENIED, wgl_acquire_with(limiter, NULL, 0, &options, &permit, NULL));
    IS(WGL_DENIED, wgl_acquire(limiter, NULL, 0, 1, WGL_NO_WAIT, &permit, NULL));
    end();
}

static void *completes(void *permit) {
    usleep(20000);
    MUST(wgl_complete(limiter, permit));
    return NULL;
}

// On the system's clock: a thread waits in the same line as one that takes steps, and comes after it.
static void threads_and_steps(void) {
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_permit running, permit;
    wgl_waiter *waiter = NULL;
    pthread_t thread;
    jobs.max_concurrent_jobs = 1;
    MUST(wgl_concurrency_limiter_new(&jobs, &limiter));
    MUST(wgl_try_acquire(limiter, NULL, 0, 1, &running, NULL));
    MUST(wgl_waiter_new(limiter, NULL, 0, NULL, &waiter));
    IS(WGL_WAITING, wgl_waiter_step(waiter, &permit, NULL));
    IS(WGL_DENIED, wgl_acquire(limiter, NULL, 0, 1, 5 * MS, &permit, NULL));
    pthread_create(&thread, NULL, completes, &running);
    int status;
    uint64_t nap_ns;
    while ((status = wgl_waiter_step(waiter, &permit, &nap_ns)) == WGL_WAITING)
        usleep((useconds_t)(nap_ns / 1000));
    CHECK(status == WGL_OK, "%s", wgl_status_name(status));
    pthread_join(thread, NULL);
    wgl_waiter_free(waiter);
    MUST(wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL));
    wgl_limiter_free(limiter);
}

int main(void) {
    steps_in_order();
    a_wait_ends();
    a_place_in_steps();
    a_grace();
    zeroed_options_are_the_defaults();
    bad_waiters();
    threads_and_steps();
    return summary("waiters");
}
