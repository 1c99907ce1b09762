// Makes the limiters that vectors name, each with the constructor of its kind.
#ifndef LIMITERS_H
#define LIMITERS_H

#include "check.h"

// No case has more starts or permits.
enum { MOST_STARTS = 64 };

static inline uint64_t us(const char *word) {
    return strtoull(word, NULL, 10) * 1000;
}

static inline uint64_t units(const char *word) {
    return strtoull(word, NULL, 10);
}

// The index of a word in a list.
static inline uint32_t choice(const char *word, const char *const *words, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    fprintf(stderr, "unknown word: %s\n", word);
    exit(1);
}

// A custom limiter: a number of units at the same time, per key.
struct at_once {
    uint64_t max;
    struct {
        char key[32];
        uint64_t units;
    } starts[MOST_STARTS];
    uint64_t count;
};

static inline int is_of(const struct at_once *own, uint64_t start, const char *key, size_t key_len) {
    return strlen(own->starts[start].key) == key_len && memcmp(own->starts[start].key, key, key_len) == 0;
}

static inline int at_once_peek(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns) {
    struct at_once *own = context;
    uint64_t running = 0;
    for (uint64_t i = 0; i < own->count; i++)
        running += is_of(own, i, key, key_len) ? own->starts[i].units : 0;
    *retry_after_ns = 10000000;
    return running + weight <= own->max ? WGL_OK : WGL_DENIED;
}

static inline int at_once_decide(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *start,
                                 uint64_t *retry_after_ns) {
    struct at_once *own = context;
    int status = at_once_peek(context, key, key_len, weight, retry_after_ns);
    if (status != WGL_OK)
        return status;
    if (own->count == MOST_STARTS || key_len >= sizeof own->starts[0].key)
        return WGL_STORE_FULL;
    *start = own->count++;
    memcpy(own->starts[*start].key, key, key_len);
    own->starts[*start].units = weight;
    return WGL_OK;
}

static inline int at_once_end(void *context, uint64_t start, uint32_t how, uint64_t actual) {
    struct at_once *own = context;
    (void)how, (void)actual;
    own->starts[start].units = 0;
    return WGL_OK;
}

static inline wgl_limiter *at_once(uint64_t max) {
    wgl_limiter *limiter;
    wgl_custom_limiter_table table = WGL_CUSTOM_LIMITER_TABLE_INIT;
    struct at_once *own = calloc(1, sizeof *own);
    own->max = max;
    table.context = own;
    table.name = "custom";
    table.decide = at_once_decide;
    table.peek = at_once_peek;
    table.end = at_once_end;
    table.free = free;
    MUST(wgl_custom_limiter_new(&table, &limiter));
    return limiter;
}

// "N US [N US ...] [backoff INITIAL_US THOUSANDTHS MAX_US JITTER]"
static inline wgl_limiter *rate_of(wgl_store *store, const char *name, char **words, int count) {
    static const char *const jitters[] = {"scaled", "full", "equal", "none"};
    wgl_limiter *limiter;
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_rate_window windows[4];
    for (int i = 0; i + 1 < count; i += 2) {
        if (strcmp(words[i], "backoff") == 0) {
            options.initial_backoff_delay_ns = us(words[i + 1]);
            options.backoff_multiplier = (double)units(words[i + 2]) / 1000;
            options.max_backoff_delay_ns = us(words[i + 3]);
            options.jitter = choice(words[i + 4], jitters, 4);
            break;
        }
        windows[options.window_count++] = (wgl_rate_window){units(words[i]), us(words[i + 1])};
    }
    if (options.window_count > 1) {
        options.windows = windows;
    } else {
        options.max_executions = windows[0].max_executions;
        options.window_ns = windows[0].window_ns;
        options.window_count = 0;
    }
    MUST(wgl_rate_limiter_new(store, name, &options, &limiter));
    return limiter;
}

// The limiter of a kind and of the rest of its line, which is split in place.
static inline wgl_limiter *limiter_of(wgl_store *store, const char *name, const char *kind, char *rest) {
    static const char *const spacings[] = {"adaptive", "strict"};
    wgl_limiter *limiter = NULL;
    char *words[16] = {"0", "0", "0"};
    int count = 0;
    if (strcmp(kind, "policy") == 0) {
        MUST(wgl_policy_limiter_new(store, name, rest, &limiter));
        return limiter;
    }
    for (char *word = strtok(rest, " \t"); word != NULL && count < 16; word = strtok(NULL, " \t"))
        words[count++] = word;
    if (strcmp(kind, "rate") == 0)
        return rate_of(store, name, words, count);
    if (strcmp(kind, "custom") == 0)
        return at_once(units(words[0]));
    if (strcmp(kind, "null") == 0) {
        MUST(wgl_null_limiter_new(&limiter));
    } else if (strcmp(kind, "concurrency") == 0) {
        wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
        options.max_concurrent_jobs = units(words[0]);
        options.lease_ns = us(words[1]);
        MUST(wgl_concurrency_limiter_shared(store, name, &options, &limiter));
    } else if (strcmp(kind, "delay") == 0) {
        wgl_delay_limiter_options options = WGL_DELAY_LIMITER_OPTIONS_INIT;
        options.delay_ns = us(words[0]);
        MUST(wgl_delay_limiter_shared(store, name, &options, &limiter));
    } else if (strcmp(kind, "evenly_spaced") == 0) {
        wgl_evenly_spaced_rate_limiter_options options = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
        options.max_executions = units(words[0]);
        options.window_ns = us(words[1]);
        options.spacing = choice(words[2], spacings, 2);
        MUST(wgl_evenly_spaced_rate_limiter_shared(store, name, &options, &limiter));
    } else if (strcmp(kind, "token_bucket") == 0) {
        wgl_token_bucket_limiter_options options = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
        options.rate = units(words[0]);
        options.period_ns = us(words[1]);
        options.burst = units(words[2]);
        MUST(wgl_token_bucket_limiter_new(store, name, &options, &limiter));
    } else if (strcmp(kind, "leaky_bucket") == 0) {
        wgl_leaky_bucket_limiter_options options = WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT;
        options.rate = units(words[0]);
        options.period_ns = us(words[1]);
        options.queue = units(words[2]);
        MUST(wgl_leaky_bucket_limiter_new(store, name, &options, &limiter));
    } else if (strcmp(kind, "fixed_window") == 0) {
        wgl_fixed_window_limiter_options options = WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT;
        options.max_executions = units(words[0]);
        options.window_ns = us(words[1]);
        MUST(wgl_fixed_window_limiter_new(store, name, &options, &limiter));
    } else if (strcmp(kind, "sliding_window_counter") == 0) {
        wgl_sliding_window_counter_limiter_options options = WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT;
        options.max_executions = units(words[0]);
        options.window_ns = us(words[1]);
        MUST(wgl_sliding_window_counter_limiter_new(store, name, &options, &limiter));
    } else {
        fprintf(stderr, "no limiter %s\n", kind);
        exit(1);
    }
    return limiter;
}

#endif
