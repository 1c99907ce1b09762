// Tenants of a shared limit: one budget, in which the key names whose start it is.
#include "check.h"
#include <poll.h>
#include <stddef.h>

static wgl_store *store;
static wgl_limiter *limiter;
static wgl_line *line;
static wgl_permit held;

static void begin(const char *url) {
    MUST(wgl_store_open(url, NULL, &store));
    MUST(wgl_policy_limiter_new(store, "jobs", "1 concurrent shared", &limiter));
    MUST(wgl_line_new(limiter, &line));
    MUST(wgl_try_acquire(limiter, "holder", 6, 1, &held, NULL));
}

static void end(void) {
    wgl_line_free(line);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

static uint64_t join(const char *tenant, uint32_t share) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    uint64_t number = 0;
    wgl_permit permit;
    options.share = share;
    IS(WGL_WAITING, wgl_line_join(line, tenant, strlen(tenant), &options, &number, &permit, NULL));
    return number;
}

// Ends a start, and waits for the next one. Returns the number of its waiter.
static uint64_t next_start(wgl_permit *permit, const char *tenant) {
    uint64_t number, nap_ns;
    int status;
    MUST(wgl_complete(limiter, permit));
    MUST(wgl_line_wake(line, tenant, strlen(tenant)));
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

static void a_tenant_with_one_job_does_not_wait_for_another_with_many(const char *url) {
    enum { WHALE = 50 };
    begin(url);
    for (int i = 0; i < WHALE; i++)
        (void)join("whale", 0);
    uint64_t small = join("small", 0);
    int at = -1;
    const char *ended = "holder";
    for (int i = 0; i <= WHALE; i++) {
        uint64_t number = next_start(&held, ended);
        ended = number == small ? "small" : "whale";
        if (number == small)
            at = i;
    }
    CHECK(at == 0 || at == 1, "it was %d.", at);
    MUST(wgl_complete(limiter, &held));
    end();
}

static void starts_are_divided_by_shares(const char *url) {
    enum { EACH = 20 };
    uint64_t last_of_a = 0;
    int a = 0, b = 0;
    begin(url);
    IS(WGL_OK, wgl_store_share(store, "jobs", "b", 1, 2));
    for (int i = 0; i < EACH; i++)
        last_of_a = join("a", 0);
    for (int i = 0; i < EACH; i++)
        (void)join("b", i % 2 ? 2 : 0);
    const char *ended = "holder";
    while (b < EACH) {
        int is_a = next_start(&held, ended) <= last_of_a;
        ended = is_a ? "a" : "b";
        a += is_a;
        b += !is_a;
        // One start each, per share.
        CHECK(2 * (2 * a - b) <= 6 && 2 * (b - 2 * a) <= 6, "a has %d, b %d", a, b);
    }
    MUST(wgl_complete(limiter, &held));
    end();
}

static void bad_shares(void) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    wgl_permit permit;
    wgl_limiter *alone;
    begin("memory:");
    MUST(wgl_complete(limiter, &held));
    REFUSED(WGL_INVALID_ARGUMENT, "share is 0: expected a whole number from 1 to 1000", wgl_store_share(store, "jobs", "a", 1, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "share is 1001", wgl_store_share(store, "jobs", "a", 1, 1001));
    REFUSED(WGL_INVALID_ARGUMENT, "key is ", wgl_store_share(store, "jobs", NULL, 0, 3));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_share(NULL, "jobs", "a", 1, 3));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_store_share(store, NULL, "a", 1, 3));
    REFUSED(WGL_UNKNOWN_LIMIT, "nothing", wgl_store_share(store, "nothing", "a", 1, 3));
    options.share = 1001;
    REFUSED(WGL_INVALID_ARGUMENT, "share is 1001", wgl_acquire_with(limiter, "a", 1, &options, &permit, NULL));
    options.share = 1000;
    IS(WGL_OK, wgl_acquire_with(limiter, "a", 1, &options, &permit, NULL));
    MUST(wgl_complete(limiter, &permit));
    options.reserved = 1;
    REFUSED(WGL_INVALID_ARGUMENT, "reserved is 1", wgl_acquire_with(limiter, "a", 1, &options, &permit, NULL));

    // A program that was compiled before there were shares.
    options.struct_size = offsetof(wgl_waiter_options, share);
    IS(WGL_OK, wgl_acquire_with(limiter, "a", 1, &options, &permit, NULL));
    MUST(wgl_complete(limiter, &permit));

    // Other limits ignore a call's share, and keep none.
    options = (wgl_waiter_options)WGL_WAITER_OPTIONS_INIT;
    options.share = 3;
    MUST(wgl_policy_limiter_new(store, "alone", "1 concurrent", &alone));
    IS(WGL_OK, wgl_acquire_with(alone, "a", 1, &options, &permit, NULL));
    MUST(wgl_complete(alone, &permit));
    CHECK(wgl_store_share(store, "alone", "a", 1, 3) < 0 && strstr(wgl_last_error(), "shared"), "%s", wgl_last_error());
    wgl_limiter_free(alone);
    end();
}

int main(void) {
    char dir[64], url[128];
    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    a_tenant_with_one_job_does_not_wait_for_another_with_many("memory:");
    a_tenant_with_one_job_does_not_wait_for_another_with_many(url);
    starts_are_divided_by_shares("memory:");
    starts_are_divided_by_shares(url);
    bad_shares();
    remove_dir(dir);
    return summary("tenants");
}
