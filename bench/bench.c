/* What a decision costs in C. Prints "case<TAB>ns per decision" lines; bench/run.py runs all languages in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <workglow_limit.h>

enum { BATCH = 200, BATCHES = 2000 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s\n", wgl_last_error());
        exit(1);
    }
}

/* The median over batches: others use this machine too. */
static void measure(const char *name, wgl_limiter *limiter) {
    static double batches[BATCHES];
    wgl_permit permit;
    for (int i = 0; i < BATCHES; i++) {
        const double start = now_ns();
        for (int j = 0; j < BATCH; j++) wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL);
        batches[i] = (now_ns() - start) / BATCH;
    }
    qsort(batches, BATCHES, sizeof *batches, by_value);
    printf("%s\t%.1f\n", name, batches[BATCHES / 2]);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]), 2;
    char url[4096], name[64];
    for (int i = 0; i < 2; i++) {
        const char *const kind = i ? "sqlite" : "memory";
        if (i) snprintf(url, sizeof url, "sqlite:%s/c.db", argv[1]);
        else snprintf(url, sizeof url, "memory:");
        wgl_store *store;
        check(wgl_store_open(url, NULL, &store));
        wgl_limiter *open, *shut;
        wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
        options.max_executions = 100, options.window_ns = 1000; /* always room */
        check(wgl_rate_limiter_new(store, "open", &options, &open));
        options.max_executions = 1, options.window_ns = 3600000000000; /* never room, after the first */
        check(wgl_rate_limiter_new(store, "shut", &options, &shut));
        wgl_permit permit;
        check(wgl_try_acquire(shut, NULL, 0, 1, &permit, NULL));
        snprintf(name, sizeof name, "c %s admit", kind);
        measure(name, open);
        snprintf(name, sizeof name, "c %s deny", kind);
        measure(name, shut);
        wgl_limiter_free(open);
        wgl_limiter_free(shut);
        wgl_store_free(store);
    }
    return 0;
}
