// Names, versions and defaults: the properties of stores, limiters and the library that a program can read.
#include "check.h"

#if WGL_VERSION_NUMBER < 100 || WGL_VERSION_NUMBER != WGL_VERSION_MAJOR * 10000 + WGL_VERSION_MINOR * 100 + WGL_VERSION_PATCH
#error "WGL_VERSION_NUMBER is wrong"
#endif

static void versions(void) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", WGL_VERSION_MAJOR, WGL_VERSION_MINOR, WGL_VERSION_PATCH);
    CHECK(wgl_version_number() == WGL_VERSION_NUMBER, "%d, not %d", wgl_version_number(), WGL_VERSION_NUMBER);
    CHECK(strncmp(wgl_version(), text, strlen(text)) == 0, "%s, not %s", wgl_version(), text);
    CHECK(wgl_abi_version() == WGL_ABI_VERSION, "%d", wgl_abi_version());
}

// Checks that a list has exactly these texts, in order.
static void are(const wgl_strings *strings, const char *const *expected, size_t count) {
    CHECK(wgl_strings_count(strings) == count, "%zu texts, not %zu", wgl_strings_count(strings), count);
    for (size_t i = 0; i < count; i++) {
        const char *text = wgl_strings_get(strings, i);
        CHECK(text != NULL && strcmp(text, expected[i]) == 0, "%s, not %s", text, expected[i]);
    }
    CHECK(wgl_strings_get(strings, count) == NULL, "a text beyond the end");
}

static void names_and_windows(wgl_store *store) {
    wgl_limiter *both, *jobs;
    wgl_strings *names;
    uint64_t window_ns = 7;
    CHECK(strcmp(wgl_store_url(store), "memory:") == 0, "%s", wgl_store_url(store));
    MUST(wgl_store_names(store, &names));
    are(names, NULL, 0);
    wgl_strings_free(names);
    MUST(wgl_policy_limiter_new(store, "mail", "10/1m", &both));
    MUST(wgl_policy_limiter_new(store, "jobs", "5 concurrent", &jobs));
    MUST(wgl_store_names(store, &names));
    are(names, (const char *const[]){"jobs", "mail"}, 2);
    // Calls by name need no decision before.
    MUST(wgl_store_override(store, "mail", "20/1m", NULL, 0));
    MUST(wgl_store_lift(store, "mail", NULL, 0));
    CHECK(strcmp(wgl_limiter_name(both), "mail") == 0 && wgl_limiter_name(both) == wgl_limiter_name(both), "%s",
          wgl_limiter_name(both));
    IS(WGL_OK, wgl_window(both, "a", 1, &window_ns));
    CHECK(window_ns == 60000000000, "%llu ns", (unsigned long long)window_ns);
    window_ns = 7;
    IS(WGL_NONE, wgl_window(jobs, NULL, 0, &window_ns));
    CHECK(window_ns == 7, "a window was written");

    // A forgotten name is free for another kind; limiters of the old one fail.
    wgl_permit permit;
    IS(WGL_OK, wgl_store_forget(store, "jobs"));
    IS(WGL_UNKNOWN_LIMIT, wgl_store_forget(store, "jobs"));
    wgl_limiter *rate;
    MUST(wgl_policy_limiter_new(store, "jobs", "1/1m", &rate));
    IS(WGL_OK, wgl_try_acquire(rate, NULL, 0, 1, &permit, NULL));
    IS(WGL_KIND_MISMATCH, wgl_try_acquire(jobs, NULL, 0, 1, &permit, NULL));
    wgl_limiter_free(rate);
    wgl_limiter_free(jobs);
    wgl_limiter_free(both);
    // A list outlives its store.
    wgl_store_free(store);
    are(names, (const char *const[]){"jobs", "mail"}, 2);
    wgl_strings_free(names);
}

// An all-zero structure with its size means the same as its INIT.
#define SAME(type, init)                                                                                              \
    do {                                                                                                             \
        type initial = init, zeroed = {.struct_size = sizeof zeroed};                                                \
        CHECK(memcmp(&initial, &zeroed, sizeof initial) == 0, "%s is not zeros", #init);                             \
    } while (0)

static void zeros_are_the_defaults(void) {
    SAME(wgl_store_options, WGL_STORE_OPTIONS_INIT);
    SAME(wgl_rate_limiter_options, WGL_RATE_LIMITER_OPTIONS_INIT);
    SAME(wgl_concurrency_limiter_options, WGL_CONCURRENCY_LIMITER_OPTIONS_INIT);
    SAME(wgl_delay_limiter_options, WGL_DELAY_LIMITER_OPTIONS_INIT);
    SAME(wgl_evenly_spaced_rate_limiter_options, WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT);
    SAME(wgl_token_bucket_limiter_options, WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT);
    SAME(wgl_leaky_bucket_limiter_options, WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT);
    SAME(wgl_fixed_window_limiter_options, WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT);
    SAME(wgl_sliding_window_counter_limiter_options, WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT);
    SAME(wgl_flow_control_limiter_options, WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT);
    SAME(wgl_custom_limiter_table, WGL_CUSTOM_LIMITER_TABLE_INIT);
    SAME(wgl_waiter_options, WGL_WAITER_OPTIONS_INIT);
    SAME(wgl_decision, WGL_DECISION_INIT);
    SAME(wgl_counts, WGL_COUNTS_INIT);
    SAME(wgl_holder_snapshot, WGL_HOLDER_SNAPSHOT_INIT);
    SAME(wgl_head_snapshot, WGL_HEAD_SNAPSHOT_INIT);
    SAME(wgl_waiting_snapshot, WGL_WAITING_SNAPSHOT_INIT);

    // 50 ms between starts.
    wgl_delay_limiter_options delay = {.struct_size = sizeof delay};
    wgl_limiter *limiter;
    wgl_permit permit;
    uint64_t retry_ns = 0;
    MUST(wgl_manual_clock_new((wgl_manual_clock **)&delay.clock));
    MUST(wgl_delay_limiter_new(&delay, &limiter));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &permit, &retry_ns));
    CHECK(retry_ns == 50000000, "%llu ns", (unsigned long long)retry_ns);
    wgl_limiter_free(limiter);
    wgl_manual_clock_free((wgl_manual_clock *)delay.clock);
}

int main(void) {
    wgl_store *store;
    versions();
    MUST(wgl_store_open("memory:", NULL, &store));
    names_and_windows(store);
    zeros_are_the_defaults();
    return summary("names");
}
