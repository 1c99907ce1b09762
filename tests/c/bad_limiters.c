// Invalid arguments for limiters of every kind: each gives a status and a message, and declares and writes nothing.
#include "check.h"
#include <math.h>

static wgl_store *store;
static wgl_manual_clock *some_clock;
static wgl_limiter *made;

static void nothing_was_made(void) {
    wgl_limiter *limiter = NULL;
    CHECK(made == NULL, "an answer was written");
    REFUSED(WGL_UNKNOWN_LIMIT, "\"n\"", wgl_limiter_attach(store, "n", &limiter));
}

// Every kind that a store shares: X(KIND, kind, verb).
#define OF_A_STORE(X)                                                                                                \
    X(RATE, rate, new)                                                                                               \
    X(CONCURRENCY, concurrency, shared)                                                                              \
    X(DELAY, delay, shared)                                                                                          \
    X(EVENLY_SPACED_RATE, evenly_spaced_rate, shared)                                                                \
    X(TOKEN_BUCKET, token_bucket, new)                                                                               \
    X(LEAKY_BUCKET, leaky_bucket, new)                                                                               \
    X(FIXED_WINDOW, fixed_window, new)                                                                               \
    X(SLIDING_WINDOW_COUNTER, sliding_window_counter, new)                                                           \
    X(FLOW_CONTROL, flow_control, new)

// Structures of a size that no version has, and of a newer version whose settings are used.
#define SIZES(KIND, kind, verb)                                                                                      \
    static int kind##_of(const void *options, wgl_limiter **limiter) {                                               \
        return wgl_##kind##_limiter_##verb(store, "n", options, limiter);                                            \
    }                                                                                                                \
    static void kind##_limiters(void) {                                                                              \
        wgl_##kind##_limiter_options options = WGL_##KIND##_LIMITER_OPTIONS_INIT;                                    \
        struct {                                                                                                     \
            wgl_##kind##_limiter_options known;                                                                      \
            uint64_t later;                                                                                          \
        } newer = {WGL_##KIND##_LIMITER_OPTIONS_INIT, 1};                                                            \
        REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_##kind##_limiter_##verb(NULL, "n", &options, &made));     \
        REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_##kind##_limiter_##verb(store, NULL, &options, &made));    \
        REFUSED(WGL_INVALID_ARGUMENT, "name is not", wgl_##kind##_limiter_##verb(store, "\xff", &options, &made));   \
        REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_##kind##_limiter_##verb(store, "n", &options, NULL));   \
        REFUSED(WGL_INVALID_ARGUMENT, "options is NULL", kind##_of(NULL, &made));                                    \
        if (strcmp(#kind, "delay") != 0) /* whose only setting has a default */                                      \
            REFUSED(WGL_INVALID_ARGUMENT, " is ", kind##_of(with_nothing(&options, sizeof options), &made));         \
        for (uint32_t size = 0; size < 8; size += 4) {                                                               \
            options.struct_size = size;                                                                              \
            REFUSED(WGL_INVALID_ARGUMENT, "struct_size is ", kind##_of(&options, &made));                            \
            options.struct_size = UINT32_MAX - size;                                                                 \
            REFUSED(WGL_INVALID_ARGUMENT, "INIT", kind##_of(&options, &made));                                       \
        }                                                                                                            \
        newer.known.struct_size = sizeof newer;                                                                      \
        REFUSED(WGL_UNSUPPORTED, "newer version", kind##_of(&newer, &made));                                         \
        nothing_was_made();                                                                                          \
    }

// The same options with all settings 0.
static const void *with_nothing(const void *options, size_t size) {
    static _Alignas(8) char copy[256];
    memset(copy, 0, sizeof copy);
    memcpy(copy, options, sizeof(uint32_t));
    CHECK(size <= sizeof copy, "options of %d bytes", (int)size);
    return copy;
}

OF_A_STORE(SIZES)

#define REFUSE_NEW(text, kind, options) REFUSED(WGL_INVALID_ARGUMENT, text, wgl_##kind##_limiter_new(options, &made))
#define REFUSE(text, kind, options) REFUSED(WGL_INVALID_ARGUMENT, text, kind##_of(options, &made))

// Limiters of this process only.
static void private_limiters(void) {
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_delay_limiter_options delay = WGL_DELAY_LIMITER_OPTIONS_INIT;
    wgl_evenly_spaced_rate_limiter_options even = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
    REFUSE_NEW("options is NULL", concurrency, NULL);
    REFUSE_NEW("options is NULL", delay, NULL);
    REFUSE_NEW("options is NULL", evenly_spaced_rate, NULL);
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_concurrency_limiter_new(&jobs, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_delay_limiter_new(&delay, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_evenly_spaced_rate_limiter_new(&even, NULL));
    REFUSE_NEW("max_concurrent_jobs is 0", concurrency, &jobs);
    REFUSE_NEW("max_executions is 0", evenly_spaced_rate, &even);
    jobs.max_concurrent_jobs = 1;
    jobs.lease_ns = 5000;
    REFUSE_NEW("lease_ns is 5000: expected 0", concurrency, &jobs);

    // A shared limiter has its store's clock.
    jobs.clock = delay.clock = even.clock = some_clock;
    delay.delay_ns = even.window_ns = 1000;
    even.max_executions = 1;
    REFUSE("clock is given", concurrency, &jobs);
    REFUSE("clock is given", delay, &delay);
    REFUSE("clock is given", evenly_spaced_rate, &even);

    delay.struct_size = even.struct_size = jobs.struct_size = 4;
    REFUSE_NEW("struct_size is 4", concurrency, &jobs);
    REFUSE_NEW("struct_size is 4", delay, &delay);
    REFUSE_NEW("struct_size is 4", evenly_spaced_rate, &even);
    nothing_was_made();
}

static void numbers(void) {
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_delay_limiter_options delay = WGL_DELAY_LIMITER_OPTIONS_INIT;
    wgl_evenly_spaced_rate_limiter_options even = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
    wgl_token_bucket_limiter_options tokens = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
    wgl_leaky_bucket_limiter_options drips = WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT;
    wgl_fixed_window_limiter_options fixed = WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT;
    wgl_sliding_window_counter_limiter_options counter = WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT;
    wgl_flow_control_limiter_options flow = WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT;
    const uint64_t day = UINT64_C(86400000000000);
    jobs.max_concurrent_jobs = tokens.rate = drips.rate = fixed.max_executions = counter.max_executions = 1;
    even.max_executions = flow.rate = 1;
    even.window_ns = tokens.period_ns = drips.period_ns = fixed.window_ns = counter.window_ns = flow.period_ns = 1000;

    const uint64_t bad_spans[] = {366 * day + 1, UINT64_MAX};
    for (int i = 0; i < 2; i++) {
        uint64_t span = bad_spans[i];
        jobs.lease_ns = delay.delay_ns = even.window_ns = tokens.period_ns = drips.period_ns = fixed.window_ns =
            counter.window_ns = flow.period_ns = span;
        REFUSE("lease is ", concurrency, &jobs);
        REFUSE("delay is ", delay, &delay);
        REFUSE("window is ", evenly_spaced_rate, &even);
        REFUSE("period is ", token_bucket, &tokens);
        REFUSE("period is ", leaky_bucket, &drips);
        REFUSE("window is ", fixed_window, &fixed);
        REFUSE("window is ", sliding_window_counter, &counter);
        REFUSED(WGL_INVALID_ARGUMENT, " is ", flow_control_of(&flow, &made));
    }
    even.window_ns = tokens.period_ns = drips.period_ns = fixed.window_ns = counter.window_ns = flow.period_ns = 1000;
    const uint64_t bad_counts[] = {1000000001, UINT64_MAX};
    for (int i = 0; i < 2; i++) {
        even.max_executions = tokens.rate = drips.rate = fixed.max_executions = counter.max_executions = bad_counts[i];
        flow.rate = flow.parallelism = jobs.max_concurrent_jobs = bad_counts[i];
        REFUSE("max_concurrent_jobs is ", concurrency, &jobs);
        REFUSE("max_executions is ", evenly_spaced_rate, &even);
        REFUSE("rate is ", token_bucket, &tokens);
        REFUSE("rate is ", leaky_bucket, &drips);
        REFUSE("max_executions is ", fixed_window, &fixed);
        REFUSE("max_executions is ", sliding_window_counter, &counter);
        REFUSED(WGL_INVALID_ARGUMENT, " is ", flow_control_of(&flow, &made));
        tokens.rate = drips.rate = 1;
        tokens.burst = drips.queue = bad_counts[i];
        REFUSE("burst is ", token_bucket, &tokens);
        REFUSE("queue is ", leaky_bucket, &drips);
        tokens.burst = drips.queue = 0;
    }
    // More than drips in within 366 days.
    tokens.burst = drips.queue = 367;
    tokens.period_ns = drips.period_ns = day;
    REFUSE("at most 366", token_bucket, &tokens);
    REFUSE("at most 366", leaky_bucket, &drips);
    even.max_executions = 4097;
    REFUSE("max_executions is 4097", evenly_spaced_rate, &even);

    uint32_t bad_choices[] = {2, UINT32_MAX};
    for (int i = 0; i < 2; i++) {
        even.spacing = bad_choices[i];
        REFUSE("spacing is ", evenly_spaced_rate, &even);
        REFUSE_NEW("spacing is ", evenly_spaced_rate, &even);
    }
    jobs.reserved = delay.reserved = tokens.reserved = drips.reserved = fixed.reserved = counter.reserved =
        flow.reserved = 1;
    REFUSE("reserved is 1", concurrency, &jobs);
    REFUSE_NEW("reserved is 1", concurrency, &jobs);
    REFUSE("reserved is 1", delay, &delay);
    REFUSE_NEW("reserved is 1", delay, &delay);
    REFUSE("reserved is 1", token_bucket, &tokens);
    REFUSE("reserved is 1", leaky_bucket, &drips);
    REFUSE("reserved is 1", fixed_window, &fixed);
    REFUSE("reserved is 1", sliding_window_counter, &counter);
    REFUSE("reserved is 1", flow_control, &flow);
    nothing_was_made();
}

static void backoffs(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    rate.max_executions = 1;
    rate.window_ns = 1000;
    const double bad_multipliers[] = {NAN, INFINITY, -INFINITY, -2, 1, 1.0001, 1000.1, 5e-324};
    for (int i = 0; i < 8; i++) {
        rate.backoff_multiplier = bad_multipliers[i];
        REFUSE("backoff_multiplier is ", rate, &rate);
    }
    rate.backoff_multiplier = 0;
    rate.jitter = 4;
    REFUSE("jitter is 4", rate, &rate);
    rate.jitter = UINT32_MAX;
    REFUSE("jitter is ", rate, &rate);
    rate.jitter = WGL_JITTER_NONE;
    rate.max_backoff_delay_ns = 999998000;
    REFUSE("max_backoff_delay is ", rate, &rate);
    rate.initial_backoff_delay_ns = rate.max_backoff_delay_ns = UINT64_MAX;
    REFUSE("initial_backoff_delay is ", rate, &rate);
    nothing_was_made();
}

static void policies_and_files(void) {
    wgl_limiter *limiter = NULL;
    char dir[64], path[96];
    const char *bad[] = {"", "5", "5/", "0/1m", "5/1m +", "5/1m 5 concurrent", "+", "5 concurrently", "\xff"};
    for (int i = 0; i < 9; i++)
        REFUSED(WGL_INVALID_ARGUMENT, "expected", wgl_policy_limiter_new(store, "n", bad[i], &made));
    REFUSED(WGL_INVALID_ARGUMENT, "policy is NULL", wgl_policy_limiter_new(store, "n", NULL, &made));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_policy_limiter_new(store, NULL, "5/1m", &made));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_policy_limiter_new(NULL, "n", "5/1m", &made));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_policy_limiter_new(store, "n", "5/1m", NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_limiter_attach(NULL, "n", &limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_limiter_attach(store, NULL, &limiter));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_limiter_attach(store, "n", NULL));

    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_load(NULL, "limits.toml", NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "path is NULL", wgl_store_load(store, NULL, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "path is not UTF-8", wgl_store_load(store, "\xff", NULL));
    CHECK(wgl_store_load(store, "/nowhere/limits.toml", NULL) < 0, "a missing file was loaded");
    CHECK(strstr(wgl_last_error(), "/nowhere/limits.toml") != NULL, "%s", wgl_last_error());
    make_dir(dir);
    snprintf(path, sizeof path, "%s/limits.toml", dir);
    const char *bad_files[] = {"[n]\nallowed = 5\nperiod = \"1m\"\n[m]\nallowed = 0\nperiod = \"1m\"\n", "[n\n",
                               "[n]\nallowed = 5\nperiod = \"1m\"\nwhatever = 1\n"};
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen(path, "w");
        fputs(bad_files[i], file);
        fclose(file);
        CHECK(wgl_store_load(store, path, NULL) == WGL_INVALID_ARGUMENT, "file %d was loaded", i);
    }
    remove_dir(dir);
    nothing_was_made();
}

static int freed;

static void count_free(void *context) {
    (void)context;
    freed++;
}

static int nobody_decides(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *start,
                          uint64_t *retry_after_ns) {
    (void)context, (void)key, (void)key_len, (void)weight, (void)start, (void)retry_after_ns;
    return WGL_DENIED;
}

static int nobody_peeks(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns) {
    (void)context, (void)key, (void)key_len, (void)weight, (void)retry_after_ns;
    return WGL_DENIED;
}

static void tables(void) {
    static char longest[1026];
    const wgl_custom_limiter_table good = {sizeof good, 0, NULL, "n", nobody_decides, nobody_peeks, NULL,
                                           NULL,        NULL, NULL, NULL, count_free};
    struct {
        wgl_custom_limiter_table known;
        uint64_t later;
    } newer = {good, 1};
    wgl_custom_limiter_table table = good;
    memset(longest, 'n', sizeof longest - 1);
    REFUSED(WGL_INVALID_ARGUMENT, "table is NULL", wgl_custom_limiter_new(NULL, &made));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_custom_limiter_new(&table, NULL));
    table.name = NULL;
    REFUSE_NEW("name is NULL", custom, &table);
    table.name = "";
    REFUSE_NEW("name is empty", custom, &table);
    table.name = "\xff";
    REFUSE_NEW("name is not UTF-8", custom, &table);
    table.name = longest;
    REFUSE_NEW("name is 1025 bytes", custom, &table);
    table = good;
    table.decide = NULL;
    REFUSE_NEW("decide is NULL", custom, &table);
    table = good;
    table.peek = NULL;
    REFUSE_NEW("peek is NULL", custom, &table);
    table = good;
    table.reserved = 1;
    REFUSE_NEW("reserved is 1", custom, &table);
    table.struct_size--;
    REFUSE_NEW("struct_size is ", custom, &table);
    newer.known.struct_size = sizeof newer;
    REFUSED(WGL_UNSUPPORTED, "newer version", wgl_custom_limiter_new(&newer.known, &made));
    CHECK(made == NULL && freed == 0, "a context that was refused was freed %d times", freed);
}

static void leases_and_counts(void) {
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiter, *other;
    wgl_permit permit, nothing = {{0}};
    uint64_t fence = 7;
    struct {
        wgl_counts known;
        uint64_t later;
    } counts = {WGL_COUNTS_INIT, 7};
    rate.max_executions = 5;
    rate.window_ns = UINT64_C(3600000000000);
    MUST(wgl_rate_limiter_new(store, "limit", &rate, &limiter));
    MUST(wgl_null_limiter_new(&other));
    MUST(wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_renew(NULL, &permit));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_renew(limiter, NULL));
    REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_renew(other, &permit));
    REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_renew(limiter, &nothing));
    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_fence(NULL, &permit, &fence));
    REFUSED(WGL_INVALID_ARGUMENT, "permit is NULL", wgl_fence(limiter, NULL, &fence));
    REFUSED(WGL_INVALID_ARGUMENT, "fence is NULL", wgl_fence(limiter, &permit, NULL));
    CHECK(wgl_fence(limiter, &permit, &fence) == WGL_NONE, "a start of a rate limit has a fence");
    REFUSED(WGL_FOREIGN_PERMIT, "not issued by limiter", wgl_fence(other, &permit, &fence));
    CHECK(fence == 7, "a fence was written");
    CHECK(wgl_renew(limiter, &permit) == WGL_OK, "it needs none: %s", wgl_last_error());

    REFUSED(WGL_INVALID_ARGUMENT, "limiter is NULL", wgl_stats(NULL, NULL, 0, &counts.known));
    REFUSED(WGL_INVALID_ARGUMENT, "counts is NULL", wgl_stats(limiter, NULL, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_stats(limiter, NULL, 1, &counts.known));
    REFUSED(WGL_INVALID_ARGUMENT, "key is 1025 bytes", wgl_stats(limiter, "k", 1025, &counts.known));
    counts.known.struct_size = sizeof counts.known - 1;
    REFUSED(WGL_INVALID_ARGUMENT, "in counts", wgl_stats(limiter, NULL, 0, &counts.known));
    CHECK(counts.known.admitted == 0, "an answer was written");
    counts.known.struct_size = sizeof counts;
    CHECK(wgl_stats(limiter, NULL, 0, &counts.known) == WGL_OK, "%s", wgl_last_error());
    CHECK(counts.known.struct_size == sizeof counts && counts.later == 7, "a newer field was written");

    // Another kind under the same name.
    wgl_delay_limiter_options delay = WGL_DELAY_LIMITER_OPTIONS_INIT;
    REFUSED(WGL_KIND_MISMATCH, "rate", wgl_delay_limiter_shared(store, "limit", &delay, &made));
    CHECK(made == NULL, "an answer was written");
    wgl_limiter_free(other);
    wgl_limiter_free(limiter);
}

int main(void) {
    MUST(wgl_store_open("memory:", NULL, &store));
    MUST(wgl_manual_clock_new(&some_clock));
#define RUN(KIND, kind, verb) kind##_limiters();
    OF_A_STORE(RUN)
    private_limiters();
    numbers();
    backoffs();
    policies_and_files();
    tables();
    leases_and_counts();
    wgl_manual_clock_free(some_clock);
    wgl_store_free(store);
    return summary("bad_limiters");
}
