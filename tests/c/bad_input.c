// Invalid arguments of every call: each gives a status and a message, and creates and writes nothing.
#include "check.h"
#include <limits.h>
#include <sys/stat.h>

static wgl_store *store;
static wgl_limiter *limiter;

static void null_pointers(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_concurrency_limiter_options concurrency = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_decision decision = WGL_DECISION_INIT;
    wgl_permit permit = {{0}};
    wgl_store *new_store = NULL;
    wgl_limiter *new_limiter = NULL;
    int64_t unix_ns = 7;
    uint64_t monotonic_ns = 7;
    char text[WGL_PERMIT_TEXT_MAX] = "";
    wgl_strings *strings = NULL;
    size_t length = 7;
    rate.max_executions = 1;
    rate.window_ns = 1000;
    concurrency.max_concurrent_jobs = 1;

    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_open("memory:", NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "url is NULL", wgl_store_open(NULL, NULL, &new_store));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_rate_limiter_new(NULL, "n", &rate, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_rate_limiter_new(store, NULL, &rate, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "options is NULL", wgl_rate_limiter_new(store, "n", NULL, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_rate_limiter_new(store, "n", &rate, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "options is NULL", wgl_concurrency_limiter_new(NULL, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_concurrency_limiter_new(&concurrency, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_null_limiter_new(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_composite_limiter_new(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "composite is NULL", wgl_composite_limiter_add(NULL, limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "child is NULL", wgl_composite_limiter_add(limiter, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_first_of_limiter_new(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "first_of is NULL", wgl_first_of_limiter_add(NULL, limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "alternative is NULL", wgl_first_of_limiter_add(limiter, NULL));
    REFUSED(WGL_UNSUPPORTED, "wgl_first_of_limiter_new makes", wgl_first_of_limiter_add(limiter, limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "clock is NULL", wgl_manual_clock_new(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "clock is NULL", wgl_manual_clock_advance(NULL, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_try_acquire(NULL, NULL, 0, 1, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_try_acquire(limiter, NULL, 0, 1, NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_decide(NULL, NULL, 0, 1, &decision));
    REFUSED(WGL_INVALID_ARGUMENT, "decision is NULL", wgl_decide(limiter, NULL, 0, 1, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_peek(NULL, NULL, 0, 1, &decision));
    REFUSED(WGL_INVALID_ARGUMENT, "decision is NULL", wgl_peek(limiter, NULL, 0, 1, NULL));
    uint64_t after_ns;
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_forecast(NULL, NULL, 0, 1, &after_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "after_ns is NULL", wgl_forecast(limiter, NULL, 0, 1, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "starts is 0", wgl_forecast(limiter, NULL, 0, 0, &after_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "from 1 to 1000000000", wgl_forecast(limiter, NULL, 0, 1000000001, &after_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_acquire(NULL, NULL, 0, 1, 0, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_acquire(limiter, NULL, 0, 1, 0, NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_complete(NULL, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_complete(limiter, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_cancel(NULL, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_cancel(limiter, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_settle(NULL, &permit, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_settle(limiter, NULL, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_reserve(NULL, NULL, 0, 1, 0, 0, &permit, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "place is NULL", wgl_reserve(limiter, NULL, 0, 1, 0, 0, NULL, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_reserve(limiter, NULL, 1, 1, 0, 0, &permit, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_present(NULL, &permit, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "place is NULL", wgl_present(limiter, NULL, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_acquire_place(NULL, &permit, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "place is NULL", wgl_acquire_place(limiter, NULL, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_permit_to_text(NULL, &permit, text, sizeof text, &length));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_permit_to_text(limiter, NULL, text, sizeof text, &length));
    REFUSED(WGL_INVALID_ARGUMENT, "buffer is NULL", wgl_permit_to_text(limiter, &permit, NULL, 128, &length));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_permit_from_text(NULL, "x", 1, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "text is NULL", wgl_permit_from_text(limiter, NULL, 0, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "text is NULL", wgl_permit_from_text(limiter, NULL, 8, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_permit_from_text(limiter, "x", 1, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_override(NULL, "limit", "5/1m", NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_store_override(store, NULL, "5/1m", NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "policy is NULL", wgl_store_override(store, "limit", NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_lift(NULL, "limit", NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_store_lift(store, NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_store_override(store, "limit", "5/1m", NULL, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "key is empty", wgl_store_override(store, "limit", "5/1m", "", 0));
    REFUSED(WGL_INVALID_ARGUMENT, "key is not UTF-8", wgl_store_override(store, "limit", "5/1m", "\xff", 1));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_store_lift(store, "limit", NULL, 1));
    REFUSED(WGL_INVALID_ARGUMENT, "key is empty", wgl_store_lift(store, "limit", "", 0));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_flush(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_close(NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "url is NULL", wgl_store_verify(NULL, NULL, 0, &strings));
    REFUSED(WGL_INVALID_URL, "nonsense", wgl_store_verify("nonsense:", NULL, 0, &strings));
    REFUSED(WGL_INVALID_ARGUMENT, "problems is NULL", wgl_store_verify("memory:", NULL, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "url is NULL", wgl_doctor(NULL, &strings));
    REFUSED(WGL_INVALID_URL, "nonsense", wgl_doctor("nonsense:", &strings));
    REFUSED(WGL_INVALID_ARGUMENT, "findings is NULL", wgl_doctor("memory:", NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_names(NULL, &strings));
    REFUSED(WGL_INVALID_ARGUMENT, "names is NULL", wgl_store_names(store, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_forget(NULL, "limit"));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_store_forget(store, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_window(NULL, NULL, 0, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "window_ns is NULL", wgl_window(limiter, NULL, 0, NULL));
    CHECK(wgl_store_url(NULL) == NULL && wgl_limiter_name(NULL) == NULL, "NULL has a name");
    CHECK(wgl_strings_count(NULL) == 0 && wgl_strings_get(NULL, 0) == NULL, "NULL has texts");
    wgl_strings_free(NULL);
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_failures(NULL, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "count is NULL", wgl_store_failures(store, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_permit_ready_at(NULL, &permit, &unix_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_permit_ready_at(limiter, NULL, &unix_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "unix_ns is NULL", wgl_permit_ready_at(limiter, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_permit_ready_at_monotonic(NULL, &permit, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_permit_ready_at_monotonic(limiter, NULL, &monotonic_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "monotonic_ns is NULL", wgl_permit_ready_at_monotonic(limiter, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_can_proceed(NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_record_job_start(NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_record_job_completion(NULL, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_get_next_available_time(NULL, NULL, 0, &unix_ns));
    REFUSED(WGL_INVALID_ARGUMENT, "unix_ns is NULL", wgl_get_next_available_time(limiter, NULL, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_set_next_available_time(NULL, 0, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_pause(NULL, 0, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_clear(NULL, NULL, 0));
    wgl_store_free(NULL);
    wgl_limiter_free(NULL);
    wgl_manual_clock_free(NULL);
    CHECK(new_store == NULL && new_limiter == NULL && unix_ns == 7 && monotonic_ns == 7, "an answer was written");
    CHECK(text[0] == '\0' && length == 7 && strings == NULL && permit.opaque[0] == 0, "an answer was written");
    CHECK(wgl_peek(limiter, NULL, 0, 1, &decision) == WGL_OK && decision.remaining == 5, "a refused call took units");
}

static void keys_and_names(void) {
    static char longest[2048];
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_limiter *new_limiter = NULL;
    wgl_permit permit;
    rate.max_executions = 1;
    rate.window_ns = 1000;
    memset(longest, 'k', sizeof longest - 1);

    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_can_proceed(limiter, NULL, 3));
    REFUSED(WGL_INVALID_ARGUMENT, "2047 bytes long", wgl_try_acquire(limiter, longest, 2047, 1, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "1025 bytes long", wgl_can_proceed(limiter, longest, 1025));
    REFUSED(WGL_INVALID_ARGUMENT, "at most 1024 bytes", wgl_can_proceed(limiter, "k", SIZE_MAX));
    CHECK(wgl_can_proceed(limiter, longest, 1024) == WGL_OK, "%s", wgl_last_error());
    REFUSED(WGL_INVALID_ARGUMENT, "not UTF-8 from byte 2 on", wgl_can_proceed(limiter, "ab\xff", 3));
    REFUSED(WGL_INVALID_ARGUMENT, "not UTF-8", wgl_can_proceed(limiter, "\xc3", 1));
    CHECK(wgl_can_proceed(limiter, "a\0b", 3) == WGL_OK, "a NUL is a character of a key: %s", wgl_last_error());
    CHECK(wgl_can_proceed(limiter, "k", 0) == WGL_OK, "length 0 is no key: %s", wgl_last_error());

    REFUSED(WGL_INVALID_ARGUMENT, "name is empty", wgl_rate_limiter_new(store, "", &rate, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "2047 bytes long", wgl_rate_limiter_new(store, longest, &rate, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "not UTF-8", wgl_rate_limiter_new(store, "\xff", &rate, &new_limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "not UTF-8", wgl_limiter_attach(store, "\xff", &new_limiter));
    REFUSED(WGL_UNKNOWN_LIMIT, "this store knows limit", wgl_limiter_attach(store, "nothing", &new_limiter));
    CHECK(new_limiter == NULL, "an answer was written");
}

static void numbers(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_concurrency_limiter_options concurrency = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_limiter *new_limiter = NULL;
    wgl_permit permit;
    wgl_decision decision = WGL_DECISION_INIT;
    int64_t unix_ns;

    uint64_t bad_executions[] = {0, 1000000001, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        rate.max_executions = bad_executions[i];
        rate.window_ns = 1000;
        REFUSED(WGL_INVALID_ARGUMENT, "max_executions is ", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    }
    uint64_t bad_windows[] = {0, 366 * 86400 * UINT64_C(1000000000) + 1, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        rate.max_executions = 1;
        rate.window_ns = bad_windows[i];
        REFUSED(WGL_INVALID_ARGUMENT, "window is ", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    }
    uint64_t bad_jobs[] = {0, 65536, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        concurrency.max_concurrent_jobs = bad_jobs[i];
        REFUSED(WGL_INVALID_ARGUMENT, "max_concurrent_jobs is ", wgl_concurrency_limiter_new(&concurrency, &new_limiter));
    }
    REFUSED(WGL_UNKNOWN_LIMIT, "n", wgl_limiter_attach(store, "n", &new_limiter));
    CHECK(new_limiter == NULL, "an answer was written");

    REFUSED(WGL_INVALID_ARGUMENT, "weight is 0", wgl_try_acquire(limiter, NULL, 0, 0, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "weight is 0", wgl_decide(limiter, NULL, 0, 0, &decision));
    REFUSED(WGL_INVALID_ARGUMENT, "weight is 0", wgl_acquire(limiter, NULL, 0, 0, WGL_FOREVER, &permit, NULL));
    REFUSED(WGL_WEIGHT_EXCEEDS_CAPACITY, "at most 5", wgl_try_acquire(limiter, NULL, 0, 6, &permit, NULL));
    REFUSED(WGL_WEIGHT_EXCEEDS_CAPACITY, "at most 5", wgl_peek(limiter, NULL, 0, UINT64_MAX, &decision));
    REFUSED(WGL_WEIGHT_EXCEEDS_CAPACITY, "at most 5", wgl_acquire(limiter, NULL, 0, UINT64_MAX, WGL_FOREVER, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "366 days", wgl_pause(limiter, UINT64_MAX, NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "366 days", wgl_set_next_available_time(limiter, INT64_MAX, NULL, 0));
    CHECK(wgl_set_next_available_time(limiter, INT64_MIN, NULL, 0) == WGL_OK, "the past is no gate: %s", wgl_last_error());
    CHECK(wgl_get_next_available_time(limiter, NULL, 0, &unix_ns) == WGL_OK && unix_ns > 0, "%s", wgl_last_error());
    CHECK(wgl_peek(limiter, NULL, 0, 0, &decision) == WGL_OK && decision.remaining == 5, "a refused call took units");

    CHECK(strcmp(wgl_status_name(12345), "unknown") == 0, "12345 is %s", wgl_status_name(12345));
    CHECK(strcmp(wgl_status_name(INT_MIN), "unknown") == 0, "INT_MIN is %s", wgl_status_name(INT_MIN));
    CHECK(strcmp(wgl_status_name(WGL_DENIED), "denied") == 0, "1 is %s", wgl_status_name(WGL_DENIED));
    CHECK(wgl_abi_version() == WGL_ABI_VERSION, "%d", wgl_abi_version());
    CHECK(strlen(wgl_version()) >= 5, "%s", wgl_version());
}

static void windows(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_rate_window all[] = {{4, 1000}, {2, 500}, {3, 800}, {3, 900}, {3, 950}};
    wgl_limiter *new_limiter = NULL;

    rate.window_count = 2;
    REFUSED(WGL_INVALID_ARGUMENT, "windows is NULL, of 2", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    rate.windows = all;
    size_t bad_counts[] = {0, 5, SIZE_MAX};
    for (int i = 0; i < 3; i++) {
        rate.window_count = bad_counts[i];
        REFUSED(WGL_INVALID_ARGUMENT, "window_count is ", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    }
    rate.window_count = 4;
    rate.max_executions = 1;
    REFUSED(WGL_INVALID_ARGUMENT, "together with max_executions", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    rate.max_executions = 0;
    rate.window_ns = 1000;
    REFUSED(WGL_INVALID_ARGUMENT, "together with max_executions", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    rate.window_ns = 0;
    all[3].max_executions = 4097;
    REFUSED(WGL_INVALID_ARGUMENT, "max_executions is 4097", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    all[3].max_executions = 3;
    all[2].window_ns = 0;
    REFUSED(WGL_INVALID_ARGUMENT, "window is 0s", wgl_rate_limiter_new(store, "n", &rate, &new_limiter));
    REFUSED(WGL_UNKNOWN_LIMIT, "n", wgl_limiter_attach(store, "n", &new_limiter));
    CHECK(new_limiter == NULL, "an answer was written");
}

static void policies(void) {
    const char *bad[] = {"", "5", "5/", "/1m", "5/1y", "-5/1m", "0/1m", "5/1m +", "5 concurrently", "\xff"};
    for (int i = 0; i < 10; i++)
        REFUSED(WGL_INVALID_ARGUMENT, "expected", wgl_store_override(store, "limit", bad[i], NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "name is not UTF-8", wgl_store_override(store, "\xff", "5/1m", NULL, 0));
    REFUSED(WGL_INVALID_ARGUMENT, "name is not UTF-8", wgl_store_lift(store, "\xff", NULL, 0));
    uint32_t bad_choices[] = {3, UINT32_MAX};
    for (int i = 0; i < 2; i++) {
        wgl_store *new_store = NULL;
        wgl_store_options options = WGL_STORE_OPTIONS_INIT;
        options.on_error = bad_choices[i];
        REFUSED(WGL_INVALID_ARGUMENT, "on_error is ", wgl_store_open("memory:", &options, &new_store));
        options.on_error = WGL_ON_ERROR_ADMIT;
        options.durability = bad_choices[i] - 1;
        REFUSED(WGL_INVALID_ARGUMENT, "durability is ", wgl_store_open("memory:", &options, &new_store));
        CHECK(new_store == NULL, "an answer was written");
    }
    uint64_t bad_sizes[] = {1, (1 << 20) - 1, (4ull << 30) + 1, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        wgl_store *new_store = NULL;
        wgl_store_options options = WGL_STORE_OPTIONS_INIT;
        options.max_size = bad_sizes[i];
        REFUSED(WGL_INVALID_ARGUMENT, "max_size is ", wgl_store_open("memory:", &options, &new_store));
        CHECK(new_store == NULL, "an answer was written");
    }
}

static void sizes(void) {
    struct {
        wgl_rate_limiter_options known;
        uint64_t later;
    } newer = {WGL_RATE_LIMITER_OPTIONS_INIT, 0};
    struct {
        wgl_decision known;
        uint64_t later;
    } newer_decision = {WGL_DECISION_INIT, 7};
    wgl_store_options store_options = WGL_STORE_OPTIONS_INIT;
    wgl_concurrency_limiter_options concurrency = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_decision decision = WGL_DECISION_INIT;
    wgl_limiter *new_limiter = NULL;
    wgl_store *new_store = NULL;

    uint32_t bad_sizes[] = {0, 1, sizeof(uint32_t), 4097, UINT32_MAX};
    for (int i = 0; i < 5; i++) {
        store_options.struct_size = concurrency.struct_size = decision.struct_size = newer.known.struct_size =
            bad_sizes[i];
        REFUSED(WGL_INVALID_ARGUMENT, "in store options", wgl_store_open("memory:", &store_options, &new_store));
        REFUSED(WGL_INVALID_ARGUMENT, "struct_size is ", wgl_concurrency_limiter_new(&concurrency, &new_limiter));
        REFUSED(WGL_INVALID_ARGUMENT, "INIT", wgl_rate_limiter_new(store, "n", &newer.known, &new_limiter));
        REFUSED(WGL_INVALID_ARGUMENT, "in decision", wgl_decide(limiter, NULL, 0, 1, &decision));
    }
    decision.struct_size = sizeof decision - 1;
    REFUSED(WGL_INVALID_ARGUMENT, "in decision", wgl_peek(limiter, NULL, 0, 1, &decision));
    CHECK(new_store == NULL && new_limiter == NULL && decision.limit == 0, "an answer was written");

    // From a newer header: fine as long as what this library does not know is not used.
    newer.known.struct_size = sizeof newer;
    newer.known.max_executions = 1;
    newer.known.window_ns = 1000;
    newer.later = 1;
    REFUSED(WGL_UNSUPPORTED, "newer version", wgl_rate_limiter_new(store, "n", &newer.known, &new_limiter));
    newer.later = 0;
    CHECK(wgl_rate_limiter_new(store, "newer", &newer.known, &new_limiter) == WGL_OK, "%s", wgl_last_error());
    wgl_limiter_free(new_limiter);
    newer_decision.known.struct_size = sizeof newer_decision;
    CHECK(wgl_peek(limiter, NULL, 0, 1, &newer_decision.known) == WGL_OK, "%s", wgl_last_error());
    CHECK(newer_decision.known.limit == 5 && newer_decision.known.struct_size == sizeof newer_decision, "its fields");
    CHECK(newer_decision.later == 7, "a field that this library does not know was written");
}

static void permits(void) {
    wgl_concurrency_limiter_options concurrency = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiters[4];
    wgl_permit nothing = {{0}}, foreign, own;
    int64_t unix_ns = 7;
    uint64_t monotonic_ns = 7;
    char text[WGL_PERMIT_TEXT_MAX];
    concurrency.max_concurrent_jobs = 3;
    limiters[0] = limiter;
    MUST(wgl_concurrency_limiter_new(&concurrency, &limiters[1]));
    MUST(wgl_null_limiter_new(&limiters[2]));
    MUST(wgl_composite_limiter_new(&limiters[3]));
    MUST(wgl_composite_limiter_add(limiters[3], limiters[1]));
    for (int i = 0; i < 4; i++) {
        // The forged permits may have taken units.
        MUST(wgl_clear(limiters[0], NULL, 0));
        MUST(wgl_try_acquire(limiters[(i + 1) % 4], NULL, 0, 1, &foreign, NULL));
        MUST(wgl_try_acquire(limiters[i], NULL, 0, 1, &own, NULL));
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_complete(limiters[i], &nothing));
        wgl_permit same = foreign;
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_complete(limiters[i], &foreign));
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_cancel(limiters[i], &foreign));
        CHECK(wgl_settle(limiters[i], &foreign, 1) < 0, "settled a foreign permit");
        CHECK(wgl_present(limiters[i], &foreign, &monotonic_ns) < 0, "started with a foreign permit");
        CHECK(wgl_permit_to_text(limiters[i], &foreign, text, sizeof text, NULL) < 0, "wrote a foreign permit");
        CHECK(memcmp(&same, &foreign, sizeof same) == 0 && monotonic_ns == 7, "a refused call changed the permit");
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_permit_ready_at(limiters[i], &foreign, &unix_ns));
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_fence(limiters[i], &foreign, &monotonic_ns));
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter",
                wgl_permit_ready_at_monotonic(limiters[i], &foreign, &monotonic_ns));
        CHECK(unix_ns == 7 && monotonic_ns == 7, "something was written");
        CHECK(wgl_permit_ready_at(limiters[i], &own, &unix_ns) == WGL_NONE && unix_ns == 7, "it did not wait");
        // Permits with arbitrary content: any status is accepted, a crash is not.
        uint64_t anything[] = {1, 2, 16, 4096, UINT64_MAX / 2, UINT64_MAX - 15, UINT64_MAX};
        for (int word = 1; word < 8; word++) {
            for (int value = 0; value < 7; value++) {
                wgl_permit forged = own;
                forged.opaque[word] = anything[value];
                int status = wgl_complete(limiters[i], &forged);
                CHECK(status == WGL_OK || status == WGL_FOREIGN_PERMIT, "word %d: %s", word, wgl_last_error());
                int64_t ready_ns;
                uint64_t any_ns;
                status = wgl_permit_ready_at(limiters[i], &forged, &ready_ns);
                CHECK(status == WGL_OK || status == WGL_NONE, "word %d: %s", word, wgl_last_error());
                status = wgl_permit_ready_at_monotonic(limiters[i], &forged, &any_ns);
                CHECK(status == WGL_OK || status == WGL_NONE, "word %d: %s", word, wgl_last_error());
                // Each on a copy of its own: the first end is the only one.
                wgl_permit copies[] = {own, own, own, own};
                for (int copy = 0; copy < 4; copy++)
                    copies[copy].opaque[word] = anything[value];
                CHECK(wgl_cancel(limiters[i], &copies[0]) != WGL_INTERNAL, "word %d: %s", word, wgl_last_error());
                CHECK(wgl_settle(limiters[i], &copies[1], 1) != WGL_INTERNAL, "word %d: %s", word, wgl_last_error());
                status = wgl_permit_to_text(limiters[i], &copies[2], text, sizeof text, NULL);
                CHECK(status != WGL_INTERNAL, "word %d: %s", word, wgl_last_error());
                CHECK(wgl_present(limiters[i], &copies[3], NULL) != WGL_INTERNAL, "word %d: %s", word, wgl_last_error());
            }
        }
        CHECK(wgl_complete(limiters[i], &own) == WGL_OK, "%s", wgl_last_error());
        CHECK(wgl_complete(limiters[i], &own) == WGL_OK, "ending it again: %s", wgl_last_error());
        CHECK(wgl_cancel(limiters[i], &own) == WGL_OK, "ending it again: %s", wgl_last_error());
        CHECK(wgl_settle(limiters[i], &own, 1) == WGL_OK, "ending it again: %s", wgl_last_error());
        REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_cancel(limiters[(i + 1) % 4], &own));
        CHECK(wgl_complete(limiters[(i + 1) % 4], &foreign) == WGL_OK, "%s", wgl_last_error());
    }
    // A limiter whose capacity does not depend on time has no places, and its permits stay in the process.
    wgl_permit place = {{0}};
    for (int i = 1; i < 4; i += 2) {
        MUST(wgl_try_acquire(limiters[i], NULL, 0, 1, &own, NULL));
        REFUSED(WGL_UNSUPPORTED, "reserve", wgl_reserve(limiters[i], NULL, 0, 1, 0, 0, &place, &monotonic_ns));
        CHECK(wgl_present(limiters[i], &own, &monotonic_ns) < 0, "a start was presented as a place");
        REFUSED(WGL_UNSUPPORTED, "to_text", wgl_permit_to_text(limiters[i], &own, text, sizeof text, NULL));
        REFUSED(WGL_UNSUPPORTED, "from_text", wgl_permit_from_text(limiters[i], "x", 1, &place));
        CHECK(place.opaque[0] == 0 && monotonic_ns == 7, "an answer was written");
        MUST(wgl_cancel(limiters[i], &own));
    }
    MUST(wgl_try_acquire(limiters[1], NULL, 0, 1, &own, NULL));
    REFUSED(WGL_UNSUPPORTED, "settle", wgl_settle(limiters[1], &own, 1));
    CHECK(wgl_complete(limiters[1], &own) == WGL_OK, "a refused end is none: %s", wgl_last_error());
    wgl_decision decision = WGL_DECISION_INIT;
    CHECK(wgl_peek(limiters[1], NULL, 0, 3, &decision) == WGL_OK, "%d left", (int)decision.remaining);
    for (int i = 1; i < 4; i++)
        wgl_limiter_free(limiters[i]);
    MUST(wgl_clear(limiter, NULL, 0));
}

static void texts(void) {
    wgl_limiter *null_limiter;
    wgl_permit permit, back = {{0}};
    char text[WGL_PERMIT_TEXT_MAX], longest[256];
    size_t length = 7;
    MUST(wgl_null_limiter_new(&null_limiter));
    MUST(wgl_try_acquire(null_limiter, NULL, 0, 1, &permit, NULL));
    MUST(wgl_permit_to_text(null_limiter, &permit, text, sizeof text, &length));
    CHECK(length > 0 && length == strlen(text), "length %d of %s", (int)length, text);

    char small[WGL_PERMIT_TEXT_MAX] = "as it was";
    for (size_t capacity = 0; capacity <= length; capacity++) {
        size_t needed = 7;
        IS(WGL_TOO_SMALL, wgl_permit_to_text(null_limiter, &permit, capacity ? small : NULL, capacity, &needed));
        CHECK(needed == length, "%d bytes, not %d", (int)needed, (int)length);
    }
    CHECK(strcmp(small, "as it was") == 0, "a text was written");
    CHECK(wgl_permit_to_text(null_limiter, &permit, small, length + 1, NULL) == WGL_OK, "%s", wgl_last_error());
    CHECK(strcmp(small, text) == 0, "%s and %s", small, text);

    memset(longest, 'x', sizeof longest);
    REFUSED(WGL_INVALID_ARGUMENT, "\"\"", wgl_permit_from_text(null_limiter, "", 0, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "permit or place", wgl_permit_from_text(null_limiter, "x", 1, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "permit or place", wgl_permit_from_text(null_limiter, text, length - 1, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "permit or place", wgl_permit_from_text(null_limiter, text, length + 1, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "permit or place", wgl_permit_from_text(null_limiter, longest, sizeof longest, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "65537 bytes long", wgl_permit_from_text(null_limiter, longest, 65537, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "at most 65536 bytes", wgl_permit_from_text(null_limiter, "x", SIZE_MAX, &back));
    REFUSED(WGL_INVALID_ARGUMENT, "text is not UTF-8", wgl_permit_from_text(null_limiter, "a\xff", 2, &back));
    CHECK(back.opaque[0] == 0, "an answer was written");
    CHECK(wgl_permit_from_text(null_limiter, text, length, &back) == WGL_OK, "%s", wgl_last_error());
    wgl_limiter_free(null_limiter);
}

static void composites(void) {
    wgl_limiter *inner, *outer;
    wgl_decision decision = WGL_DECISION_INIT;
    MUST(wgl_composite_limiter_new(&inner));
    MUST(wgl_composite_limiter_new(&outer));
    REFUSED(WGL_UNSUPPORTED, "takes no children", wgl_composite_limiter_add(limiter, inner));
    wgl_limiter *either;
    wgl_permit permit;
    size_t index = 7;
    MUST(wgl_first_of_limiter_new(&either));
    REFUSED(WGL_INVALID_ARGUMENT, "at least one limiter", wgl_try_acquire(either, NULL, 0, 1, &permit, NULL));
    REFUSED(WGL_UNSUPPORTED, "wgl_composite_limiter_new makes", wgl_composite_limiter_add(either, limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "contains this one", wgl_first_of_limiter_add(either, either));
    MUST(wgl_first_of_limiter_add(either, limiter));
    MUST(wgl_try_acquire(either, "either", 6, 1, &permit, NULL));
    REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_chosen(limiter, &permit, &index, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "index is NULL", wgl_chosen(either, &permit, NULL, NULL));
    CHECK(index == 7, "an index was written");
    MUST(wgl_chosen(either, &permit, &index, NULL));
    CHECK(index == 0, "chosen: %zu", index);
    MUST(wgl_cancel(either, &permit));
    MUST(wgl_try_acquire(limiter, "either", 6, 1, &permit, NULL));
    CHECK(wgl_chosen(limiter, &permit, &index, NULL) == WGL_NONE, "a limit has no alternatives");
    MUST(wgl_cancel(limiter, &permit));
    wgl_limiter_free(either);
    REFUSED(WGL_INVALID_ARGUMENT, "contains this one", wgl_composite_limiter_add(outer, outer));
    MUST(wgl_composite_limiter_add(outer, inner));
    REFUSED(WGL_INVALID_ARGUMENT, "contains this one", wgl_composite_limiter_add(inner, outer));
    MUST(wgl_composite_limiter_add(inner, limiter));
    // The children stay alive inside.
    wgl_limiter_free(inner);
    MUST(wgl_pause(outer, 1000000000, NULL, 0));
    CHECK(wgl_decide(outer, NULL, 0, 1, &decision) == WGL_DENIED, "the gate goes to the innermost child");
    CHECK(strcmp(decision.denied_by, "limit") == 0, "denied by %s", decision.denied_by);
    CHECK(decision.permit.opaque[0] == 0, "a denial has no permit");
    MUST(wgl_clear(outer, NULL, 0));
    wgl_limiter_free(outer);
}

static void urls_and_files(const char *dir) {
    wgl_store *new_store = NULL;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    char path[128], url[160], content[32] = "";

    const char *bad[] = {"", "limits.db", "mysql://x", "sqlite:", "sqlite://", "sqlite://host/x", "sqlite:x/", "memory:x"};
    for (int i = 0; i < 8; i++)
        REFUSED(WGL_INVALID_URL, bad[i], wgl_store_open(bad[i], NULL, &new_store));
    REFUSED(WGL_INVALID_URL, "redis://HOST", wgl_store_open("mysql://x", NULL, &new_store));
    REFUSED(WGL_INVALID_ARGUMENT, "not UTF-8", wgl_store_open("sqlite:\xff", NULL, &new_store));

    snprintf(url, sizeof url, "sqlite:%s/mode.db", dir);
    uint32_t bad_modes[] = {01, 0400, 01600, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        options.mode = bad_modes[i];
        REFUSED(WGL_INVALID_ARGUMENT, "mode is 0o", wgl_store_open(url, &options, &new_store));
    }
    CHECK(in_dir(dir, NULL) == 0, "something was created");

    // Directories that cannot be written to, also by root: one that does not exist, and one that is a file.
    snprintf(url, sizeof url, "sqlite:%s/nowhere/limits.db", dir);
    REFUSED(WGL_STORE_FAILURE, "nowhere", wgl_store_open(url, NULL, &new_store));
    REFUSED(WGL_STORE_FAILURE, "/proc", wgl_store_open("sqlite:/proc/limits.db", NULL, &new_store));
    CHECK(in_dir(dir, NULL) == 0, "something was created");
    snprintf(path, sizeof path, "%s/file", dir);
    FILE *file = fopen(path, "w");
    fputs("this is no database", file);
    fclose(file);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", path);
    REFUSED(WGL_STORE_FAILURE, "file", wgl_store_open(url, NULL, &new_store));

    // A file of another format is left unchanged.
    snprintf(url, sizeof url, "sqlite:%s", path);
    REFUSED(WGL_NOT_A_STORE, "is not a workglow-limit store", wgl_store_open(url, NULL, &new_store));
    file = fopen(path, "r");
    CHECK(fgets(content, sizeof content, file) != NULL && strcmp(content, "this is no database") == 0, "%s", content);
    fclose(file);
    CHECK(in_dir(dir, NULL) == 1, "something was created");
    snprintf(url, sizeof url, "sqlite:%s", dir);
    REFUSED(WGL_NOT_A_STORE, dir, wgl_store_open(url, NULL, &new_store));
    CHECK(new_store == NULL, "an answer was written");

    // The mode is the requested one, regardless of the umask.
    struct stat made;
    options.mode = 0660;
    umask(0077);
    snprintf(url, sizeof url, "sqlite:%s/mode.db", dir);
    MUST(wgl_store_open(url, &options, &new_store));
    CHECK(stat(url + 7, &made) == 0 && (made.st_mode & 0777) == 0660, "mode %o", made.st_mode & 0777);
    wgl_store_free(new_store);
}

int main(void) {
    char dir[64];
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    rate.max_executions = 5;
    rate.window_ns = UINT64_C(3600000000000);
    CHECK(wgl_last_error()[0] == '\0', "before anything failed: %s", wgl_last_error());
    MUST(wgl_store_open("memory:", NULL, &store));
    MUST(wgl_rate_limiter_new(store, "limit", &rate, &limiter));
    null_pointers();
    keys_and_names();
    numbers();
    windows();
    policies();
    sizes();
    // The limiter keeps the store alive.
    wgl_store_free(store);
    permits();
    texts();
    composites();
    wgl_limiter_free(limiter);

    make_dir(dir);
    urls_and_files(dir);
    remove_dir(dir);
    return summary("bad_input");
}
