// Starts in the future, and the three ways in which a start ends. Every case on memory: and on sqlite:, by a manual
// clock; a rate limit's window is one second, and its grace 25 ms.
#include "check.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sys/stat.h>
#include <time.h>

#define MS UINT64_C(1000000)

static char dir[64];
static char url[128];
static wgl_manual_clock *clock_of_test;
static wgl_store *store;
static wgl_limiter *limiter;

// Reports the URL, too.
#undef IS
#define IS(status, call)                                                                                             \
    do {                                                                                                             \
        int got = (call);                                                                                            \
        CHECK(got == (status), "%s on %s: %s, not %s %s", #call, url, wgl_status_name(got),                          \
              wgl_status_name(status), got < 0 ? wgl_last_error() : "");                                             \
    } while (0)

static void begin(const char *scheme, uint64_t max_executions) {
    static int number;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    snprintf(url, sizeof url, "%s", scheme);
    if (strcmp(scheme, "sqlite:") == 0)
        snprintf(url, sizeof url, "sqlite:%s/%d.db", dir, number++);
    MUST(wgl_manual_clock_new(&clock_of_test));
    options.clock = clock_of_test;
    rate.max_executions = max_executions;
    rate.window_ns = 1000 * MS;
    MUST(wgl_store_open(url, &options, &store));
    MUST(wgl_rate_limiter_new(store, "api", &rate, &limiter));
}

static void end(void) {
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    wgl_manual_clock_free(clock_of_test);
}

static void advance(uint64_t by_ns) {
    MUST(wgl_manual_clock_advance(clock_of_test, by_ns));
}

static uint64_t remaining(void) {
    wgl_decision decision = WGL_DECISION_INIT;
    if (wgl_peek(limiter, NULL, 0, 0, &decision) < 0)
        CHECK(0, "on %s: %s", url, wgl_last_error());
    return decision.remaining;
}

static void starts(uint64_t weight, wgl_permit *permit) {
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, weight, permit, NULL));
}

static int reserves(wgl_permit *place, uint64_t *after_ns) {
    return wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, place, after_ns);
}

// The time until a place is ready is measured on the wall clock, which advances during the test: never early.
static void comes_after(uint64_t after_ns, uint64_t wanted_ns) {
    CHECK(after_ns >= wanted_ns && after_ns < wanted_ns + 2000 * MS, "on %s: after %llu ns, not %llu", url,
          (unsigned long long)after_ns, (unsigned long long)wanted_ns);
}

// A place goes to another handle as a text, is early, starts once, and its start is ended.
static void a_place_travels(const char *scheme) {
    wgl_limiter *another;
    wgl_permit permit, place = {{0}}, moved = {{0}}, used = {{0}};
    uint64_t after_ns = 7;
    int64_t ready_at;
    char text[WGL_PERMIT_TEXT_MAX] = "", again[WGL_PERMIT_TEXT_MAX] = "";
    size_t length = 0;
    begin(scheme, 1);
    starts(1, &permit);

    IS(WGL_DENIED, wgl_reserve(limiter, NULL, 0, 1, 1000 * MS - 1000, WGL_DEFAULT_GRACE, &place, &after_ns));
    CHECK(after_ns == 1000 * MS, "on %s: after %llu ns", url, (unsigned long long)after_ns);
    CHECK(place.opaque[0] == 0, "on %s: a place was written", url);
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, 1000 * MS, WGL_DEFAULT_GRACE, &place, &after_ns));
    comes_after(after_ns, 1000 * MS);
    IS(WGL_OK, wgl_permit_ready_at(limiter, &place, &ready_at));
    IS(WGL_OK, wgl_permit_to_text(limiter, &place, text, sizeof text, &length));
    CHECK(length == strlen(text), "on %s: length %d of %s", url, (int)length, text);

    IS(WGL_OK, wgl_limiter_attach(store, "api", &another));
    IS(WGL_OK, wgl_permit_from_text(another, text, length, &moved));
    IS(WGL_DENIED, wgl_present(another, &moved, &after_ns));
    CHECK(after_ns == 1000 * MS, "on %s: early by %llu ns", url, (unsigned long long)after_ns);
    IS(WGL_OK, wgl_permit_to_text(another, &moved, again, sizeof again, NULL));
    CHECK(strcmp(text, again) == 0, "on %s: an early caller keeps the place: %s, not %s", url, again, text);

    advance(1000 * MS);
    IS(WGL_OK, wgl_permit_from_text(another, text, length, &used));
    IS(WGL_OK, wgl_present(another, &moved, &after_ns));
    CHECK(after_ns == 0, "on %s: after %llu ns", url, (unsigned long long)after_ns);
    IS(WGL_DENIED, wgl_present(another, &used, &after_ns));
    CHECK(after_ns == 1000 * MS, "on %s: used before, but after %llu ns", url, (unsigned long long)after_ns);
    IS(WGL_OK, wgl_cancel(another, &used));
    IS(WGL_OK, wgl_complete(another, &moved));
    IS(WGL_OK, wgl_complete(another, &moved));
    IS(WGL_OK, wgl_permit_ready_at(another, &moved, &ready_at));
    wgl_limiter_free(another);
    end();
}

// A late or overtaken place becomes another place, never a start.
static void a_place_expires(const char *scheme) {
    wgl_permit permit = {{0}}, place = {{0}};
    uint64_t after_ns = 7;
    begin(scheme, 1);
    starts(1, &permit);
    IS(WGL_OK, reserves(&place, NULL));
    advance(1025 * MS + 1000);
    IS(WGL_DENIED, wgl_present(limiter, &place, &after_ns));
    advance(after_ns);
    IS(WGL_OK, wgl_present(limiter, &place, NULL));
    end();

    begin(scheme, 1);
    starts(1, &permit);
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_pause(limiter, 5000 * MS, NULL, 0));
    advance(1000 * MS);
    IS(WGL_DENIED, wgl_present(limiter, &place, &after_ns));
    CHECK(after_ns == 4000 * MS, "on %s: the gate opens after %llu ns", url, (unsigned long long)after_ns);
    advance(4000 * MS);
    IS(WGL_OK, wgl_present(limiter, &place, NULL));
    end();

    // With a grace of its own.
    begin(scheme, 1);
    starts(1, &permit);
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, 400 * MS, &place, NULL));
    advance(1400 * MS);
    IS(WGL_OK, wgl_present(limiter, &place, NULL));
    end();
}

static void a_place_is_waited_for(const char *scheme) {
    wgl_permit permit, place = {{0}}, mine = {{0}};
    begin(scheme, 1);
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_acquire_place(limiter, &place, 0, NULL));
    IS(WGL_OK, wgl_complete(limiter, &place));

    advance(1000 * MS + 25 * MS);
    starts(1, &permit);
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_DENIED, wgl_acquire_place(limiter, &place, 1000 * MS - 1000, NULL));
    IS(WGL_OK, wgl_cancel(limiter, &place));
    // It was returned: the next caller gets it.
    IS(WGL_OK, wgl_reserve(limiter, NULL, 0, 1, 1000 * MS, WGL_DEFAULT_GRACE, &mine, NULL));
    advance(1000 * MS);
    IS(WGL_OK, wgl_acquire_place(limiter, &mine, WGL_FOREVER, NULL));
    end();
}

// A real sleep on the system's clock does not end before the place is ready.
static void a_place_is_slept_for(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_permit permit = {{0}}, place = {{0}};
    uint64_t ready_ns;
    struct timespec now;
    snprintf(url, sizeof url, "memory:");
    rate.max_executions = 1;
    rate.window_ns = 50 * MS;
    MUST(wgl_store_open(url, NULL, &store));
    MUST(wgl_rate_limiter_new(store, "api", &rate, &limiter));
    starts(1, &permit);
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_acquire_place(limiter, &place, WGL_FOREVER, NULL));
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (wgl_permit_ready_at_monotonic(limiter, &place, &ready_ns) == WGL_OK)
        CHECK(ready_ns <= (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec, "it started early");
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

// Cancelled units are free again at once; only the first end of a permit counts.
static void a_start_is_cancelled(const char *scheme) {
    wgl_permit a = {{0}}, b = {{0}}, place = {{0}};
    begin(scheme, 2);
    starts(1, &a);
    starts(1, &b);
    CHECK(remaining() == 0, "on %s: %d left", url, (int)remaining());
    IS(WGL_OK, wgl_cancel(limiter, &a));
    CHECK(remaining() == 1, "on %s: %d left, the start was cancelled once", url, (int)remaining());
    IS(WGL_OK, wgl_cancel(limiter, &a));
    IS(WGL_OK, wgl_settle(limiter, &a, 2));
    IS(WGL_OK, wgl_complete(limiter, &b));
    IS(WGL_OK, wgl_cancel(limiter, &b));
    IS(WGL_OK, wgl_settle(limiter, &b, 0));
    CHECK(remaining() == 1, "on %s: %d left, each permit ends once", url, (int)remaining());
    starts(1, &a);

    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_cancel(limiter, &place));
    advance(1000 * MS);
    CHECK(remaining() == 2, "on %s: %d left, the place was given back", url, (int)remaining());
    end();
}

static void a_start_is_settled(const char *scheme) {
    wgl_permit permit = {{0}};
    begin(scheme, 10);
    starts(6, &permit);
    IS(WGL_OK, wgl_settle(limiter, &permit, 2));
    CHECK(remaining() == 8, "on %s: %d left, the rest came back", url, (int)remaining());
    IS(WGL_OK, wgl_settle(limiter, &permit, 0));
    IS(WGL_OK, wgl_cancel(limiter, &permit));
    CHECK(remaining() == 8, "on %s: %d left, it was settled before", url, (int)remaining());
    starts(3, &permit);
    IS(WGL_OK, wgl_settle(limiter, &permit, 5));
    CHECK(remaining() == 3, "on %s: %d left of 10 after 2 and 5", url, (int)remaining());
    starts(3, &permit);
    IS(WGL_OK, wgl_settle(limiter, &permit, 6));
    CHECK(remaining() == 0, "on %s: %d left, but three are owed", url, (int)remaining());
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    advance(3000 * MS);
    CHECK(remaining() == 10, "on %s: %d left, the debt is paid", url, (int)remaining());
    end();
}

static void a_place_of_another_limit(const char *scheme) {
    wgl_limiter *other;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_permit place = {{0}}, same, none = {{0}};
    char text[WGL_PERMIT_TEXT_MAX] = "";
    size_t length = 0;
    uint64_t after_ns = 7;
    rate.max_executions = 1;
    rate.window_ns = 1000 * MS;
    begin(scheme, 1);
    MUST(wgl_rate_limiter_new(store, "other", &rate, &other));
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_permit_to_text(limiter, &place, text, sizeof text, &length));
    same = place;
    IS(WGL_FOREIGN_PERMIT, wgl_present(other, &place, &after_ns));
    IS(WGL_FOREIGN_PERMIT, wgl_acquire_place(other, &place, 0, NULL));
    IS(WGL_FOREIGN_PERMIT, wgl_cancel(other, &place));
    IS(WGL_FOREIGN_PERMIT, wgl_settle(other, &place, 1));
    IS(WGL_FOREIGN_PERMIT, wgl_permit_to_text(other, &place, text, sizeof text, NULL));
    IS(WGL_FOREIGN_PERMIT, wgl_permit_from_text(other, text, length, &none));
    IS(WGL_INVALID_ARGUMENT, wgl_permit_from_text(limiter, text, length / 2, &none));
    IS(WGL_INVALID_ARGUMENT, wgl_permit_from_text(limiter, "wgl-null", 8, &none));
    IS(WGL_INVALID_ARGUMENT, wgl_reserve(limiter, NULL, 0, 0, 0, 0, &none, &after_ns));
    IS(WGL_WEIGHT_EXCEEDS_CAPACITY, wgl_reserve(limiter, NULL, 0, 2, WGL_FOREVER, 0, &none, &after_ns));
    CHECK(memcmp(&place, &same, sizeof place) == 0 && none.opaque[0] == 0 && after_ns == 7,
          "on %s: an answer was written", url);
    wgl_limiter_free(other);
    end();
}

static void a_place_that_started_elsewhere(const char *scheme) {
    wgl_permit place = {{0}}, start = {{0}};
    char text[WGL_PERMIT_TEXT_MAX] = "";
    size_t length = 0;
    uint64_t after_ns = 7;
    begin(scheme, 1);
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_permit_to_text(limiter, &place, text, sizeof text, &length));
    IS(WGL_OK, wgl_permit_from_text(limiter, text, length, &start));
    IS(WGL_OK, wgl_present(limiter, &start, &after_ns));
    IS(WGL_OK, wgl_cancel_place(limiter, &place));
    IS(WGL_OK, wgl_cancel_place(limiter, &place));
    CHECK(remaining() == 0, "on %s: %d left, it has started", url, (int)remaining());
    IS(WGL_OK, wgl_cancel(limiter, &start));
    CHECK(remaining() == 1, "on %s: %d left, the start was cancelled", url, (int)remaining());
    IS(WGL_OK, reserves(&place, NULL));
    IS(WGL_OK, wgl_cancel_place(limiter, &place));
    CHECK(remaining() == 1, "on %s: %d left, nothing started", url, (int)remaining());
    IS(WGL_INVALID_ARGUMENT, wgl_cancel_place(limiter, NULL));
    IS(WGL_INVALID_ARGUMENT, wgl_cancel_place(NULL, &place));
    end();
}

static void several_windows(const char *scheme) {
    wgl_limiter *both;
    wgl_rate_window windows[] = {{3, 1000 * MS}, {2, 100 * MS}};
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_permit permit;
    uint64_t retry_ns = 7;
    begin(scheme, 1);
    rate.windows = windows;
    rate.window_count = 2;
    MUST(wgl_rate_limiter_new(store, "both", &rate, &both));
    for (int i = 0; i < 2; i++)
        IS(WGL_OK, wgl_try_acquire(both, NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(both, NULL, 0, 1, &permit, &retry_ns));
    CHECK(retry_ns == 100 * MS, "on %s: the short window frees after %llu ns", url, (unsigned long long)retry_ns);
    advance(100 * MS);
    IS(WGL_OK, wgl_try_acquire(both, NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(both, NULL, 0, 1, &permit, &retry_ns));
    CHECK(retry_ns == 900 * MS, "on %s: the long window frees after %llu ns", url, (unsigned long long)retry_ns);
    wgl_limiter_free(both);
    end();
}

// A policy of one unused key, and not of the longer key that begins with it.
static void a_tenant_has_a_plan(void) {
    wgl_decision decision = WGL_DECISION_INIT;
    IS(WGL_UNKNOWN_LIMIT, wgl_store_override(store, "nothing", "7/1s", "tenant", 6));
    IS(WGL_KIND_MISMATCH, wgl_store_override(store, "api", "7 concurrent", "tenant", 6));
    IS(WGL_OK, wgl_store_override(store, "api", "7/1s", "tenant-2", 6));
    IS(WGL_OK, wgl_peek(limiter, "tenant", 6, 1, &decision));
    CHECK(decision.limit == 7, "on %s: the tenant's limit is %d", url, (int)decision.limit);
    IS(WGL_OK, wgl_peek(limiter, "tenant-2", 8, 1, &decision));
    CHECK(decision.limit == 1, "on %s: another tenant's limit is %d", url, (int)decision.limit);
    IS(WGL_OK, wgl_store_lift(store, "api", "nobody", 6));
    IS(WGL_OK, wgl_store_lift(store, "api", "tenant", 6));
    IS(WGL_OK, wgl_peek(limiter, "tenant", 6, 1, &decision));
    CHECK(decision.limit == 1, "on %s: lifted, it is %d", url, (int)decision.limit);
}

static void an_operator_overrides(const char *scheme) {
    wgl_limiter *restarted;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    begin(scheme, 1);
    rate.max_executions = 1;
    rate.window_ns = 1000 * MS;
    IS(WGL_UNKNOWN_LIMIT, wgl_store_override(store, "nothing", "3/1s", NULL, 0));
    IS(WGL_UNKNOWN_LIMIT, wgl_store_lift(store, "nothing", NULL, 0));
    IS(WGL_KIND_MISMATCH, wgl_store_override(store, "api", "3 concurrent", NULL, 0));
    IS(WGL_OK, wgl_store_lift(store, "api", NULL, 0));
    IS(WGL_OK, wgl_store_override(store, "api", "3/1s", NULL, 0));
    CHECK(remaining() == 3, "on %s: %d left", url, (int)remaining());
    MUST(wgl_rate_limiter_new(store, "api", &rate, &restarted));
    CHECK(remaining() == 3, "on %s: %d left, a declaration does not undo the override", url, (int)remaining());
    IS(WGL_OK, wgl_store_lift(store, "api", NULL, 0));
    CHECK(remaining() == 1, "on %s: %d left", url, (int)remaining());
    a_tenant_has_a_plan();
    IS(WGL_OK, wgl_store_flush(store));
    wgl_limiter_free(restarted);
    end();
}

// The result of a decision after its store's files were removed.
static void a_store_fails(void) {
    int answers[] = {WGL_STORE_FAILURE, WGL_DENIED, WGL_OK};
    uint32_t choices[] = {WGL_ON_ERROR_RAISE, WGL_ON_ERROR_DENY, WGL_ON_ERROR_ADMIT};
    for (int i = 0; i < 3; i++) {
        wgl_store_options options = WGL_STORE_OPTIONS_INIT;
        wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
        wgl_permit permit;
        uint64_t failures = 7;
        char lane[160];
        snprintf(url, sizeof url, "sqlite:%s/fails-%d.db", dir, i);
        MUST(wgl_manual_clock_new(&clock_of_test));
        options.clock = clock_of_test;
        options.on_error = choices[i];
        options.durability = WGL_DURABILITY_COMMIT;
        rate.max_executions = 10;
        rate.window_ns = 1000 * MS;
        MUST(wgl_store_open(url, &options, &store));
        MUST(wgl_rate_limiter_new(store, "api", &rate, &limiter));
        starts(1, &permit);
        IS(WGL_OK, wgl_store_failures(store, &failures));
        CHECK(failures == 0, "%d failures", (int)failures);
        snprintf(lane, sizeof lane, "%s-lane", url + strlen("sqlite:"));
        // A directory in the lane's path: no lane can be opened there.
        CHECK(unlink(lane) == 0 && mkdir(lane, 0700) == 0, "%s", lane);
        advance(2000 * MS);
        IS(answers[i], wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
        if (answers[i] == WGL_OK)
            IS(WGL_OK, wgl_complete(limiter, &permit));
        IS(WGL_OK, wgl_store_failures(store, &failures));
        CHECK(failures == 1, "%d failures with on_error %d", (int)failures, i);
        // It heals automatically. Every start was committed, so nothing else counts.
        CHECK(rmdir(lane) == 0, "%s", lane);
        advance(2000 * MS);
        IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
        end();
    }
}

// With the null limiter, code runs as it does with a limit.
static void no_limit(void) {
    wgl_permit place = {{0}}, copy = {{0}};
    uint64_t after_ns = 7;
    char text[WGL_PERMIT_TEXT_MAX] = "";
    size_t length = 0;
    snprintf(url, sizeof url, "no limit");
    MUST(wgl_null_limiter_new(&limiter));
    IS(WGL_OK, wgl_reserve(limiter, "key", 3, 1000, 0, 0, &place, &after_ns));
    CHECK(after_ns == 0, "ready after %llu ns", (unsigned long long)after_ns);
    IS(WGL_INVALID_ARGUMENT, wgl_reserve(limiter, NULL, 0, 0, 0, 0, &copy, NULL));
    IS(WGL_OK, wgl_permit_to_text(limiter, &place, text, sizeof text, &length));
    IS(WGL_OK, wgl_permit_from_text(limiter, text, length, &copy));
    after_ns = 7;
    IS(WGL_OK, wgl_present(limiter, &copy, &after_ns));
    CHECK(after_ns == 0, "ready after %llu ns", (unsigned long long)after_ns);
    IS(WGL_OK, wgl_settle(limiter, &copy, 5));
    IS(WGL_OK, wgl_cancel(limiter, &copy));
    IS(WGL_OK, wgl_acquire_place(limiter, &place, 0, NULL));
    IS(WGL_OK, wgl_complete(limiter, &place));
    wgl_limiter_free(limiter);
}

// Bytes that are allocated; of another C library, which does not count them, the memory that its process uses.
static size_t memory(void) {
#ifdef __GLIBC__
    return mallinfo2().uordblks;
#else
    FILE *file = fopen("/proc/self/statm", "r");
    size_t pages = 0;
    CHECK(file && fscanf(file, "%*u %zu", &pages) == 1, "/proc/self/statm");
    if (file)
        fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
#endif
}

// Permits that need no end do not leak memory when a program drops them.
static void a_composite_forgets_ended_permits(void) {
    wgl_limiter *composite;
    wgl_permit permit;
    begin("memory:", 1000);
    MUST(wgl_composite_limiter_new(&composite));
    MUST(wgl_composite_limiter_add(composite, limiter));
    size_t before = 0;
    for (int i = 0; i < 60; i++) {
        // The first 20,000 fill its memory.
        if (i == 20)
            before = memory();
        for (int j = 0; j < 1000; j++)
            IS(WGL_OK, j % 2 ? wgl_try_acquire(composite, NULL, 0, 1, &permit, NULL)
                             : wgl_reserve(composite, NULL, 0, 1, WGL_FOREVER, WGL_NO_GRACE, &permit, NULL));
        advance(1000 * MS);
    }
    size_t after = memory();
    CHECK(after < before + (1 << 20), "%zu bytes, then %zu", before, after);
    wgl_limiter_free(composite);
    end();
}

static void composites_are_not_too_deep(void) {
    wgl_limiter *outer, *inner;
    int status = WGL_OK, depth = 1;
    MUST(wgl_composite_limiter_new(&inner));
    for (; status == WGL_OK; depth++) {
        MUST(wgl_composite_limiter_new(&outer));
        status = wgl_composite_limiter_add(outer, inner);
        wgl_limiter_free(inner);
        inner = outer;
    }
    CHECK(status == WGL_INVALID_ARGUMENT && depth == 33, "%d deep: %s", depth, wgl_status_name(status));
    CHECK(strstr(wgl_last_error(), "at most 32 deep") != NULL, "%s", wgl_last_error());
    wgl_limiter_free(inner);
}

int main(void) {
    const char *schemes[] = {"memory:", "sqlite:"};
    make_dir(dir);
    no_limit();
    for (int i = 0; i < 2; i++) {
        a_place_travels(schemes[i]);
        a_place_expires(schemes[i]);
        a_place_is_waited_for(schemes[i]);
        a_start_is_cancelled(schemes[i]);
        a_start_is_settled(schemes[i]);
        a_place_that_started_elsewhere(schemes[i]);
        a_place_of_another_limit(schemes[i]);
        several_windows(schemes[i]);
        an_operator_overrides(schemes[i]);
    }
    a_place_is_slept_for();
    a_store_fails();
    a_composite_forgets_ended_permits();
    composites_are_not_too_deep();
    remove_dir(dir);
    return summary("places");
}
