// Limiters made in C from options, texts and files: each through two handles of the same store, on memory: and on
// sqlite:, by a manual clock. The vectors test decisions to the microsecond.
#include "check.h"

#define MS UINT64_C(1000000)

static char dir[64];
static wgl_manual_clock *clock_of_test;
static wgl_store *store;

static void begin(const char *scheme) {
    static int number;
    char url[128];
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    snprintf(url, sizeof url, "%s", scheme);
    if (strcmp(scheme, "sqlite:") == 0)
        snprintf(url, sizeof url, "sqlite:%s/%d.db", dir, number++);
    MUST(wgl_manual_clock_new(&clock_of_test));
    options.clock = clock_of_test;
    MUST(wgl_store_open(url, &options, &store));
}

static void end(void) {
    wgl_store_free(store);
    wgl_manual_clock_free(clock_of_test);
}

static void advance(uint64_t by_ns) {
    MUST(wgl_manual_clock_advance(clock_of_test, by_ns));
}

// Each makes a limiter in the store, with a window or period of one second.

static int rate(const char *name, wgl_limiter **limiter) {
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 2;
    options.window_ns = 1000 * MS;
    return wgl_rate_limiter_new(store, name, &options, limiter);
}

static int concurrency(const char *name, wgl_limiter **limiter) {
    wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    options.max_concurrent_jobs = 2;
    return wgl_concurrency_limiter_shared(store, name, &options, limiter);
}

static int delay(const char *name, wgl_limiter **limiter) {
    wgl_delay_limiter_options options = WGL_DELAY_LIMITER_OPTIONS_INIT;
    return wgl_delay_limiter_shared(store, name, &options, limiter);
}

static int adaptive(const char *name, wgl_limiter **limiter) {
    wgl_evenly_spaced_rate_limiter_options options = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 4;
    options.window_ns = 1000 * MS;
    return wgl_evenly_spaced_rate_limiter_shared(store, name, &options, limiter);
}

static int strict(const char *name, wgl_limiter **limiter) {
    wgl_evenly_spaced_rate_limiter_options options = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 4;
    options.window_ns = 1000 * MS;
    options.spacing = WGL_SPACING_FIXED;
    return wgl_evenly_spaced_rate_limiter_shared(store, name, &options, limiter);
}

static int tokens(const char *name, wgl_limiter **limiter) {
    wgl_token_bucket_limiter_options options = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
    options.rate = 2;
    options.period_ns = 1000 * MS;
    return wgl_token_bucket_limiter_new(store, name, &options, limiter);
}

static int burst(const char *name, wgl_limiter **limiter) {
    wgl_token_bucket_limiter_options options = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
    options.rate = 2;
    options.period_ns = 1000 * MS;
    options.burst = 5;
    return wgl_token_bucket_limiter_new(store, name, &options, limiter);
}

static int drips(const char *name, wgl_limiter **limiter) {
    wgl_leaky_bucket_limiter_options options = WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT;
    options.rate = 2;
    options.period_ns = 1000 * MS;
    return wgl_leaky_bucket_limiter_new(store, name, &options, limiter);
}

static int fixed(const char *name, wgl_limiter **limiter) {
    wgl_fixed_window_limiter_options options = WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT;
    options.max_executions = 2;
    options.window_ns = 1000 * MS;
    return wgl_fixed_window_limiter_new(store, name, &options, limiter);
}

static int counter(const char *name, wgl_limiter **limiter) {
    wgl_sliding_window_counter_limiter_options options = WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT;
    options.max_executions = 2;
    options.window_ns = 1000 * MS;
    return wgl_sliding_window_counter_limiter_new(store, name, &options, limiter);
}

static int text(const char *name, wgl_limiter **limiter) {
    return wgl_policy_limiter_new(store, name, "2/1s", limiter);
}

static int texts(const char *name, wgl_limiter **limiter) {
    return wgl_policy_limiter_new(store, name, "100/1m + 3/1s + 2 concurrent", limiter);
}

static int flow(const char *name, wgl_limiter **limiter) {
    wgl_flow_control_limiter_options options = WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT;
    options.rate = 2;
    options.period_ns = 1000 * MS;
    options.parallelism = 3;
    return wgl_flow_control_limiter_new(store, name, &options, limiter);
}

static int parallel(const char *name, wgl_limiter **limiter) {
    wgl_flow_control_limiter_options options = WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT;
    options.parallelism = 2;
    return wgl_flow_control_limiter_new(store, name, &options, limiter);
}

static const struct kind {
    const char *name;
    int (*make)(const char *name, wgl_limiter **limiter);
    // The starts that are admitted at once, and the limit that denies.
    int starts;
    const char *denied_by;
} kinds[] = {
    {"rate", rate, 2, "rate"},         {"concurrency", concurrency, 2, "concurrency"},
    {"delay", delay, 1, "delay"},      {"adaptive", adaptive, 1, "adaptive"},
    {"strict", strict, 1, "strict"},   {"tokens", tokens, 2, "tokens"},
    {"burst", burst, 5, "burst"},      {"drips", drips, 1, "drips"},
    {"fixed", fixed, 2, "fixed"},      {"counter", counter, 2, "counter"},
    {"text", text, 2, "text"},         {"texts", texts, 2, "texts/concurrency"},
    {"flow", flow, 2, "flow/rate"},    {"parallel", parallel, 2, NULL},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void a_kind_is_shared(const struct kind *kind) {
    wgl_limiter *declared, *attached;
    wgl_permit permits[8];
    wgl_decision decision = WGL_DECISION_INIT;
    int starts = 0;
    IS(WGL_UNKNOWN_LIMIT, wgl_limiter_attach(store, kind->name, &attached));
    MUST(kind->make(kind->name, &declared));
    MUST(wgl_limiter_attach(store, kind->name, &attached));
    while (starts < 8 && wgl_try_acquire(starts % 2 == 0 ? declared : attached, "k", 1, 1, &permits[starts], NULL) == WGL_OK)
        starts++;
    CHECK(starts == kind->starts, "%s: %d starts, not %d", kind->name, starts, kind->starts);
    CHECK(wgl_decide(attached, "k", 1, 1, &decision) == WGL_DENIED, "%s: %s", kind->name, wgl_last_error());
    if (kind->denied_by != NULL && decision.denied_by != NULL)
        CHECK(strcmp(decision.denied_by, kind->denied_by) == 0, "%s: denied by %s", kind->name, decision.denied_by);
    CHECK(decision.retry_after_ns > 0 && decision.remaining == 0, "%s: retry after %d, remaining %d", kind->name,
          (int)decision.retry_after_ns, (int)decision.remaining);
    CHECK(wgl_can_proceed(attached, "other", 5) == WGL_OK, "%s: another key: %s", kind->name, wgl_last_error());
    // A cancelled start frees its units.
    IS(WGL_OK, wgl_cancel(starts % 2 == 0 ? attached : declared, &permits[starts - 1]));
    CHECK(wgl_try_acquire(attached, "k", 1, 1, &permits[starts - 1], NULL) == WGL_OK, "%s: after a cancel", kind->name);
    for (int i = 0; i < starts; i++)
        IS(WGL_OK, wgl_complete(i % 2 == 0 && i != starts - 1 ? declared : attached, &permits[i]));
    // A gate applies to all callers, and a clear opens it.
    advance(5000 * MS);
    IS(WGL_OK, wgl_can_proceed(declared, "k", 1));
    IS(WGL_OK, wgl_pause(declared, 1000 * MS, NULL, 0));
    CHECK(wgl_can_proceed(attached, "k", 1) == WGL_DENIED, "%s: through a gate", kind->name);
    IS(WGL_OK, wgl_clear(attached, NULL, 0));
    CHECK(wgl_can_proceed(declared, "k", 1) == WGL_OK, "%s: after a clear", kind->name);
    wgl_limiter_free(declared);
    wgl_limiter_free(attached);
}

static void a_name_has_one_kind(void) {
    wgl_limiter *limiter, *other = NULL;
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "kind-%d", i);
        MUST(kinds[i].make(name, &limiter));
        for (int j = 0; j < 10; j++) {
            // The same kind with other settings replaces it.
            int same = i == j || (i == 3 && j == 4) || (i == 4 && j == 3) || (i == 5 && j == 6) || (i == 6 && j == 5);
            if (same)
                continue;
            IS(WGL_KIND_MISMATCH, kinds[j].make(name, &other));
        }
        CHECK(other == NULL, "an answer was written");
        wgl_limiter_free(limiter);
    }
}

// Limiters of this process only.
static void limiters_without_a_store(void) {
    wgl_delay_limiter_options delay_options = WGL_DELAY_LIMITER_OPTIONS_INIT;
    wgl_evenly_spaced_rate_limiter_options even = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiter, *another;
    wgl_permit permit, second;
    uint64_t retry_ns = 7;
    MUST(wgl_manual_clock_new(&clock_of_test));
    delay_options.clock = even.clock = jobs.clock = clock_of_test;

    MUST(wgl_delay_limiter_new(&delay_options, &limiter));
    MUST(wgl_delay_limiter_new(&delay_options, &another));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &second, &retry_ns));
    CHECK(retry_ns == 50 * MS, "the default is 50 ms, not %llu ns", (unsigned long long)retry_ns);
    IS(WGL_WEIGHT_EXCEEDS_CAPACITY, wgl_try_acquire(limiter, NULL, 0, 2, &second, NULL));
    IS(WGL_OK, wgl_try_acquire(another, NULL, 0, 1, &second, NULL));
    advance(50 * MS - 1000);
    IS(WGL_DENIED, wgl_can_proceed(limiter, NULL, 0));
    advance(1000);
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
    IS(WGL_FOREIGN_PERMIT, wgl_complete(another, &permit));
    wgl_limiter_free(limiter);
    wgl_limiter_free(another);

    even.max_executions = 4;
    even.window_ns = 1000 * MS;
    for (uint32_t is_adaptive = 0; is_adaptive < 2; is_adaptive++) {
        even.spacing = is_adaptive ? WGL_SPACING_ADAPTIVE : WGL_SPACING_FIXED;
        MUST(wgl_evenly_spaced_rate_limiter_new(&even, &limiter));
        IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
        advance(100 * MS);
        // A permit ends once.
        IS(WGL_OK, wgl_complete(limiter, &permit));
        IS(WGL_OK, wgl_complete(limiter, &permit));
        IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &second, &retry_ns));
        CHECK(retry_ns == 150 * MS, "the first distance: %llu ns", (unsigned long long)retry_ns);
        advance(150 * MS);
        IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
        IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &second, &retry_ns));
        CHECK(retry_ns == (is_adaptive ? 150 : 250) * MS, "the next: %llu ns", (unsigned long long)retry_ns);
        wgl_limiter_free(limiter);
    }

    jobs.max_concurrent_jobs = 1;
    MUST(wgl_concurrency_limiter_new(&jobs, &limiter));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
    IS(WGL_OK, wgl_renew(limiter, &permit));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
    wgl_limiter_free(limiter);
    wgl_manual_clock_free(clock_of_test);
}

static void retries_back_off(void) {
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiter;
    wgl_decision decision = WGL_DECISION_INIT;
    options.max_executions = 1;
    options.window_ns = 100000 * MS;
    options.jitter = WGL_JITTER_NONE;
    MUST(wgl_rate_limiter_new(store, "backoff", &options, &limiter));
    IS(WGL_OK, wgl_decide(limiter, NULL, 0, 1, &decision));
    IS(WGL_DENIED, wgl_decide(limiter, NULL, 0, 1, &decision));
    CHECK(decision.suggested_after_ns == 100000 * MS, "never less than retry_after");
    wgl_limiter_free(limiter);

    // By default a second, doubled each time; then the options.
    options.window_ns = 1000;
    uint64_t wanted_ms[2][3] = {{1000, 2000, 4000}, {10, 15, 20}};
    for (int i = 0; i < 2; i++) {
        MUST(wgl_rate_limiter_new(store, i == 0 ? "defaults" : "said", &options, &limiter));
        for (int level = 0; level < 3; level++) {
            // Closed for longer than the test, so no call is admitted, and the backoff is the longer time.
            IS(WGL_OK, wgl_pause(limiter, 1000, NULL, 0));
            IS(WGL_DENIED, wgl_decide(limiter, NULL, 0, 1, &decision));
            CHECK(decision.suggested_after_ns == wanted_ms[i][level] * MS, "level %d: %llu ns", level,
                  (unsigned long long)decision.suggested_after_ns);
            advance(wanted_ms[i][level] * MS);
        }
        wgl_limiter_free(limiter);
        options.initial_backoff_delay_ns = 10 * MS;
        options.backoff_multiplier = 1.5;
        options.max_backoff_delay_ns = 20 * MS;
    }
}

// Limits that were declared together are a policy of the store, not a list that a program adds to.
static void only_composites_take_children(void) {
    wgl_limiter *declared, *attached;
    MUST(texts("texts", &declared));
    MUST(wgl_limiter_attach(store, "texts", &attached));
    REFUSED(WGL_UNSUPPORTED, "\"texts\" takes no children", wgl_composite_limiter_add(declared, attached));
    REFUSED(WGL_UNSUPPORTED, "wgl_composite_limiter_new", wgl_composite_limiter_add(attached, declared));
    wgl_limiter_free(declared);
    wgl_limiter_free(attached);
}

static void an_operator_overrides_a_policy(void) {
    wgl_limiter *limiter;
    wgl_permit permit;
    MUST(tokens("overridden", &limiter));
    IS(WGL_KIND_MISMATCH, wgl_store_override(store, "overridden", "3 concurrent", NULL, 0));
    IS(WGL_OK, wgl_store_override(store, "overridden", "10/1s burst 7", NULL, 0));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 7, &permit, NULL));
    IS(WGL_OK, wgl_store_lift(store, "overridden", NULL, 0));
    IS(WGL_WEIGHT_EXCEEDS_CAPACITY, wgl_try_acquire(limiter, NULL, 0, 7, &permit, NULL));
    wgl_limiter_free(limiter);
}

static void a_file_declares_limits(void) {
    char path[128];
    wgl_limiter *limiter;
    wgl_permit permit;
    wgl_decision decision = WGL_DECISION_INIT;
    snprintf(path, sizeof path, "%s/limits.toml", dir);
    FILE *file = fopen(path, "w");
    fputs("[stripe]\nallowed = 100\nperiod = \"1m\"\nburst = 20\n\n[mail]\nallowed = 3\nperiod = \"1s\"\n", file);
    fclose(file);
    wgl_strings *names;
    IS(WGL_OK, wgl_store_load(store, path, &names));
    CHECK(wgl_strings_count(names) == 2, "%zu names", wgl_strings_count(names));
    wgl_strings_free(names);
    IS(WGL_OK, wgl_limiter_attach(store, "stripe", &limiter));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 20, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    wgl_limiter_free(limiter);
    IS(WGL_OK, wgl_limiter_attach(store, "mail", &limiter));
    IS(WGL_OK, wgl_peek(limiter, NULL, 0, 3, &decision));
    CHECK(decision.limit == 3, "%d allowed", (int)decision.limit);
    wgl_limiter_free(limiter);
    unlink(path);
}

static void starts_and_denials_are_counted(void) {
    wgl_limiter *limiter;
    wgl_permit permit, place;
    wgl_counts counts = WGL_COUNTS_INIT;
    MUST(rate("counted", &limiter));
    IS(WGL_OK, wgl_stats(limiter, NULL, 0, &counts));
    CHECK(counts.admitted == 0 && counts.denied == 0 && counts.units_wanted == 0, "a fresh limit");
    IS(WGL_OK, wgl_try_acquire(limiter, "k", 1, 2, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, "k", 1, 2, &permit, NULL));
    IS(WGL_OK, wgl_cancel(limiter, &permit));
    IS(WGL_OK, wgl_try_acquire(limiter, "other", 5, 1, &permit, NULL));
    IS(WGL_OK, wgl_stats(limiter, "k", 1, &counts));
    CHECK(counts.admitted == 1 && counts.denied == 1 && counts.cancelled == 1, "%d admitted, %d denied, %d cancelled",
          (int)counts.admitted, (int)counts.denied, (int)counts.cancelled);
    CHECK(counts.units_wanted == 4 && counts.units_granted == 2, "%d of %d units", (int)counts.units_granted,
          (int)counts.units_wanted);
    IS(WGL_OK, wgl_stats(limiter, NULL, 0, &counts));
    CHECK(counts.admitted == 2 && counts.units_granted == 3, "%d admitted of all keys", (int)counts.admitted);

    // A wait of a second.
    IS(WGL_OK, wgl_try_acquire(limiter, "wait", 4, 2, &permit, NULL));
    IS(WGL_OK, wgl_reserve(limiter, "wait", 4, 1, WGL_FOREVER, WGL_DEFAULT_GRACE, &place, NULL));
    advance(1000 * MS);
    IS(WGL_OK, wgl_present(limiter, &place, NULL));
    IS(WGL_OK, wgl_stats(limiter, "wait", 4, &counts));
    CHECK(counts.admitted == 2 && counts.waited == 1 && counts.wait_time_ns == 1000 * MS, "%d waited, for %llu ns",
          (int)counts.waited, (unsigned long long)counts.wait_time_ns);
    CHECK(counts.store_errors == 0, "%d store errors", (int)counts.store_errors);
    wgl_limiter_free(limiter);
}

static void more_starts_are_forecast(void) {
    wgl_limiter *limiter;
    uint64_t after_ns = 7;
    MUST(wgl_policy_limiter_new(store, "forecast", "10/1s", &limiter));
    IS(WGL_OK, wgl_forecast(limiter, "k", 1, 10, &after_ns));
    CHECK(after_ns == 0, "in %llu ns", (unsigned long long)after_ns);
    IS(WGL_OK, wgl_forecast(limiter, "k", 1, 25, &after_ns));
    CHECK(after_ns == 2000 * MS, "in %llu ns", (unsigned long long)after_ns);
    wgl_limiter_free(limiter);
    MUST(wgl_policy_limiter_new(store, "forecast-slots", "2 concurrent", &limiter));
    IS(WGL_NONE, wgl_forecast(limiter, NULL, 0, 3, &after_ns));
    CHECK(after_ns == 2000 * MS, "nothing is written: %llu", (unsigned long long)after_ns);
    wgl_limiter_free(limiter);
}

int main(void) {
    const char *schemes[] = {"memory:", "sqlite:"};
    make_dir(dir);
    limiters_without_a_store();
    for (int i = 0; i < 2; i++) {
        begin(schemes[i]);
        for (int k = 0; k < KINDS; k++)
            a_kind_is_shared(&kinds[k]);
        a_name_has_one_kind();
        retries_back_off();
        only_composites_take_children();
        an_operator_overrides_a_policy();
        a_file_declares_limits();
        starts_and_denials_are_counted();
        more_starts_are_forecast();
        end();
    }
    remove_dir(dir);
    return summary("family");
}
