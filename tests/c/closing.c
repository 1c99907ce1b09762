// wgl_store_close: what it refuses, which waits it ends, and that permits still end.
#include "check.h"
#include <poll.h>
#include <pthread.h>

static wgl_limiter *limiter;

static void *waits(void *status) {
    wgl_permit permit;
    *(int *)status = wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL);
    return NULL;
}

static void closes(const char *url) {
    wgl_store *store, *other;
    wgl_line *line;
    wgl_waiter *waiter;
    wgl_strings *names;
    wgl_permit permit, none;
    pthread_t threads[3];
    int statuses[3] = {0};
    uint64_t number, nap_ns;
    MUST(wgl_store_open(url, NULL, &store));
    MUST(wgl_store_open(url, NULL, &other));
    MUST(wgl_policy_limiter_new(store, "jobs", "1 concurrent", &limiter));
    MUST(wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    MUST(wgl_line_new(limiter, &line));
    MUST(wgl_waiter_new(limiter, NULL, 0, NULL, &waiter));
    IS(WGL_WAITING, wgl_waiter_step(waiter, &none, &nap_ns));
    IS(WGL_WAITING, wgl_line_join(line, NULL, 0, NULL, &number, &none, NULL));
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, waits, &statuses[i]);
    IS(WGL_OK, wgl_store_close(store));
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK(statuses[i] == WGL_STORE_CLOSED, "%s", wgl_status_name(statuses[i]));
    }
    IS(WGL_STORE_CLOSED, wgl_waiter_step(waiter, &none, &nap_ns));
    struct pollfd one = {.fd = wgl_line_fd(line), .events = POLLIN};
    CHECK(poll(&one, 1, 60000) == 1, "the descriptor was never readable");
    IS(WGL_STORE_CLOSED, wgl_line_advance(line, &number, &none, &nap_ns));
    REFUSED(WGL_STORE_CLOSED, "make another store", wgl_try_acquire(limiter, NULL, 0, 1, &none, NULL));
    IS(WGL_STORE_CLOSED, wgl_store_names(store, &names));
    IS(WGL_OK, wgl_store_close(store));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    // The other one, at the same address, goes on.
    IS(WGL_OK, wgl_store_names(other, &names));
    wgl_strings_free(names);
    wgl_line_free(line);
    wgl_waiter_free(waiter);
    wgl_store_free(store);
    IS(WGL_STORE_CLOSED, wgl_try_acquire(limiter, NULL, 0, 1, &none, NULL));
    wgl_limiter_free(limiter);
    wgl_store_free(other);
}

int main(void) {
    char dir[64], url[96];
    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    closes("memory:");
    closes(url);
    CHECK(strcmp(wgl_status_name(WGL_STORE_CLOSED), "store_closed") == 0, "%s", wgl_status_name(WGL_STORE_CLOSED));
    remove_dir(dir);
    return summary("closing");
}
