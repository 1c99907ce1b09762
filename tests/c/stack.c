// How much of a thread's stack the calls take, on each store: threads of musl have 128 KiB, and those of some programs less.
//
//     stack KIB    fails if a thread needs more. An unoptimised library needs more than a released one.
#include "postgres.h"
#include "redis.h"
#include <pthread.h>
#include <sys/mman.h>

// Plenty, and written full, so that what a thread has used shows.
enum { STACK = 1 << 20, UNUSED = 0xa5, KEYS = 600 };

static const uint64_t hour_ns = 3600 * 1000000000ull;

// Opens a store, declares a limit and uses it: new keys, denials, a wait, an operator's calls, what observers ask.
static void *use(void *url) {
    wgl_store *store;
    wgl_limiter *limiter;
    wgl_permit permit;
    wgl_decision decision = WGL_DECISION_INIT;
    char key[16];
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 5;
    options.window_ns = hour_ns;
    MUST(wgl_store_open(url, NULL, &store));
    MUST(wgl_rate_limiter_new(store, "jobs", &options, &limiter));
    for (int i = 0; i < KEYS; i++) {
        int len = snprintf(key, sizeof key, "key-%d", i);
        IS(WGL_OK, wgl_try_acquire(limiter, key, len, 1, &permit, NULL));
    }
    IS(WGL_OK, wgl_try_acquire(limiter, key, strlen(key), 4, &permit, NULL));
    IS(WGL_DENIED, wgl_acquire(limiter, key, strlen(key), 1, 1000000, &permit, NULL));
    IS(WGL_DENIED, wgl_peek(limiter, key, strlen(key), 1, &decision));
    IS(WGL_OK, wgl_store_override(store, "jobs", "7/1h + 3/1m", NULL, 0));
    IS(WGL_OK, wgl_clear(limiter, key, strlen(key)));
    IS(WGL_OK, wgl_store_flush(store));
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    return NULL;
}

static void needs_at_most(size_t kib, const char *kind, const char *url) {
    pthread_attr_t attributes;
    pthread_t thread;
    size_t unused = 0;
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, UNUSED, STACK);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    if (pthread_create(&thread, &attributes, use, (void *)url) != 0) {
        CHECK(0, "%s: no thread", kind);
        return;
    }
    pthread_join(thread, NULL);
    // Stacks grow downwards.
    while (unused < STACK && stack[unused] == UNUSED)
        unused++;
    size_t used = (STACK - unused + 1023) / 1024;
    printf("stack: %s: %zu KiB\n", kind, used);
    CHECK(used <= kib, "a thread that uses %s needs %zu KiB of stack, more than %zu", kind, used, kib);
    munmap(stack, STACK);
}

int main(int argc, char **argv) {
    size_t kib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    char dir[64], url[128];
    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    redis_start();
    postgres_start();
    needs_at_most(kib, "memory:", "memory:");
    needs_at_most(kib, "sqlite:", url);
    needs_at_most(kib, "redis:", redis.url);
    needs_at_most(kib, "postgres:", postgres.url);
    redis_end();
    postgres_end();
    remove_dir(dir);
    return summary("stack");
}
