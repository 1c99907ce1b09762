// The line of an event loop. By a manual clock, or with all slots held by the test: chance starts no waiter.
#include "check.h"
#include <poll.h>
#include <sys/wait.h>

#define MS UINT64_C(1000000)

enum { SLOTS = 5, WAITERS = 200 };

static wgl_limiter *limiter;
static wgl_line *line;
static wgl_permit held[SLOTS];

// A line whose slots are all taken.
static void begin(void) {
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    jobs.max_concurrent_jobs = SLOTS;
    MUST(wgl_concurrency_limiter_new(&jobs, &limiter));
    MUST(wgl_line_new(limiter, &line));
    for (int i = 0; i < SLOTS; i++)
        MUST(wgl_try_acquire(limiter, "k", 1, 1, &held[i], NULL));
}

static void end(void) {
    wgl_line_free(line);
    wgl_limiter_free(limiter);
}

static uint64_t join(int32_t priority) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    uint64_t number = 0;
    wgl_permit permit;
    options.priority = priority;
    IS(WGL_WAITING, wgl_line_join(line, "k", 1, &options, &number, &permit, NULL));
    return number;
}

static void completes(wgl_permit *permit) {
    MUST(wgl_complete(limiter, permit));
    MUST(wgl_line_wake(line, "k", 1));
}

// Waits for the descriptor until a wait is over. Returns its number.
static uint64_t next_start(wgl_permit *permit) {
    uint64_t number, nap_ns;
    int status;
    while ((status = wgl_line_advance(line, &number, permit, &nap_ns)) == WGL_WAITING) {
        struct pollfd one = {.fd = wgl_line_fd(line), .events = POLLIN};
        if (poll(&one, 1, 60000) != 1) {
            CHECK(0, "the descriptor was never readable");
            exit(1);
        }
    }
    IS(WGL_OK, status);
    return number;
}

// One slot becomes free at a time; those of lower priority numbers come first, then those who came first.
static void starts_in_order(void) {
    uint64_t numbers[WAITERS];
    begin();
    for (int i = 0; i < WAITERS; i++)
        numbers[i] = join(i % 2 ? -1 : 0);
    completes(&held[0]);
    for (int i = 0; i < WAITERS; i++) {
        wgl_permit permit;
        uint64_t number = next_start(&permit);
        int expected = i < WAITERS / 2 ? 2 * i + 1 : 2 * (i - WAITERS / 2);
        CHECK(number == numbers[expected], "%d. is %llu", i, (unsigned long long)number);
        completes(&permit);
    }
    uint64_t number, nap_ns = 0;
    wgl_permit permit;
    IS(WGL_WAITING, wgl_line_advance(line, &number, &permit, &nap_ns));
    CHECK(number == 0 && nap_ns == WGL_FOREVER, "somebody waits");
    struct pollfd one = {.fd = wgl_line_fd(line), .events = POLLIN};
    CHECK(poll(&one, 1, 0) == 0, "there is work");
    end();
}

// What leaves gives its turn to the next, also if it has started and nobody has asked yet.
static void leaves(void) {
    wgl_permit permit;
    begin();
    uint64_t first = join(0), second = join(0), third = join(0);
    IS(WGL_OK, wgl_line_leave(line, first));
    completes(&held[0]);
    CHECK(next_start(&permit) == second, "the second is not next");
    IS(WGL_OK, wgl_line_leave(line, second)); // over: a no-op
    IS(WGL_OK, wgl_line_leave(line, 12345));
    MUST(wgl_complete(limiter, &permit));
    MUST(wgl_line_wake(line, NULL, 0)); // of any key
    CHECK(next_start(&permit) == third, "the third is not next");
    (void)join(0);
    end(); // with one that waits

    begin();
    (void)join(0);
    completes(&held[0]);
    wgl_line_free(line); // it gives nothing that it does not have
    IS(WGL_OK, wgl_try_acquire(limiter, "k", 1, 1, &permit, NULL));
    wgl_limiter_free(limiter);
}

// By a manual clock: a rate of one a second.
static void times_out(void) {
    wgl_manual_clock *clock;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    wgl_waiter_options wait = WGL_WAITER_OPTIONS_INIT;
    wgl_store *store;
    wgl_permit permit;
    uint64_t number, first, late, after_ns = 0;
    MUST(wgl_manual_clock_new(&clock));
    options.clock = clock;
    MUST(wgl_store_open("memory:", &options, &store));
    MUST(wgl_policy_limiter_new(store, "api", "1/1s", &limiter));
    MUST(wgl_line_new(limiter, &line));
    IS(WGL_OK, wgl_line_join(line, NULL, 0, NULL, &number, &permit, NULL)); // free
    wait.timeout_ns = 999 * MS;
    IS(WGL_DENIED, wgl_line_join(line, NULL, 0, &wait, &number, &permit, &after_ns));
    CHECK(after_ns == 1000 * MS, "again after %llu ns", (unsigned long long)after_ns);
    wait.timeout_ns = 1500 * MS;
    IS(WGL_WAITING, wgl_line_join(line, NULL, 0, &wait, &first, &permit, NULL));
    IS(WGL_DENIED, wgl_line_join(line, NULL, 0, &wait, &late, &permit, &after_ns));
    IS(WGL_WAITING, wgl_line_advance(line, &number, &permit, NULL));
    MUST(wgl_manual_clock_advance(clock, 1000 * MS));
    CHECK(next_start(&permit) == first, "another one started");
    wgl_line_free(line);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    wgl_manual_clock_free(clock);

    // Slots that stay taken.
    begin();
    wait.timeout_ns = 1 * MS;
    int status = wgl_line_join(line, "k", 1, &wait, &first, &permit, &after_ns);
    if (status == WGL_DENIED) // This thread stood still for that millisecond.
        number = first = 0;
    else
        CHECK(status == WGL_WAITING, "%s", wgl_status_name(status));
    while (status == WGL_WAITING && (status = wgl_line_advance(line, &number, &permit, &after_ns)) == WGL_WAITING)
        poll(&(struct pollfd){.fd = wgl_line_fd(line), .events = POLLIN}, 1, 60000);
    CHECK(status == WGL_DENIED && number == first, "%s", wgl_status_name(status));
    end();
}

static void bad_lines(void) {
    wgl_waiter_options heavy = WGL_WAITER_OPTIONS_INIT, small = WGL_WAITER_OPTIONS_INIT;
    wgl_line *none = NULL;
    wgl_permit permit;
    uint64_t number = 7;
    begin();
    heavy.weight = SLOTS + 1;
    small.struct_size = 4;
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_line_new(NULL, &none));
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_line_new(limiter, NULL));
    CHECK(none == NULL && wgl_line_fd(NULL) == -1, "a line was made");
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_line_join(NULL, NULL, 0, NULL, &number, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "number is NULL", wgl_line_join(line, NULL, 0, NULL, NULL, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_line_join(line, NULL, 0, NULL, &number, NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_line_join(line, NULL, 1, NULL, &number, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "struct_size is 4", wgl_line_join(line, "k", 1, &small, &number, &permit, NULL));
    REFUSED(WGL_WEIGHT_EXCEEDS_CAPACITY, "at most 5", wgl_line_join(line, "k", 1, &heavy, &number, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "number is NULL", wgl_line_advance(line, NULL, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_line_advance(line, &number, NULL, NULL));
    CHECK(number == 0, "a waiter failed");
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_line_leave(NULL, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_line_wake(NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_line_wake(line, NULL, 1));
    wgl_line_free(NULL);
    end();
}

// A forked child refuses its parent's line, and takes nothing from it.
static void in_a_child(void) {
    wgl_permit permit;
    begin();
    uint64_t number = join(0);
    pid_t child = fork();
    if (child == 0) {
        failed = 0;
        REFUSED(WGL_INVALID_ARGUMENT, "the parent", wgl_line_advance(line, &number, &permit, NULL));
        REFUSED(WGL_INVALID_ARGUMENT, "the parent", wgl_line_leave(line, number));
        IS(WGL_OK, wgl_line_wake(line, "k", 1));
        wgl_line_free(line);
        _exit(failed != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %d", status);
    completes(&held[0]);
    CHECK(next_start(&permit) == number, "it has not started");
    end();
}

int main(void) {
    starts_in_order();
    leaves();
    times_out();
    bad_lines();
    in_a_child();
    return summary("line");
}
