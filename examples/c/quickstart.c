// Shares the limit "openai", 100 starts in any rolling minute, with all programs that use limits.db of this directory.
//
//     cc quickstart.c -o quickstart $(pkg-config --cflags --libs workglow_limit)
#include <stdio.h>
#include <workglow_limit.h>

static int failed(void) {
    fprintf(stderr, "%s\n", wgl_last_error());
    return 1;
}

int main(void) {
    wgl_store *store;
    wgl_limiter *openai;
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 100;
    options.window_ns = 60000000000; /* one minute */
    if (wgl_store_open("sqlite:limits.db", NULL, &store) != WGL_OK)
        return failed();
    if (wgl_rate_limiter_new(store, "openai", &options, &openai) != WGL_OK)
        return failed();

    wgl_permit permit;
    switch (wgl_acquire(openai, "", 0, 1, 30000000000, &permit, NULL)) { /* no key, weight 1, at most 30 s */
    case WGL_OK: {
        int status = 200; /* ... call the API ... */
        if (status == 429) /* one program gets the 429, and all wait, in every language */
            wgl_pause(openai, 20000000000, "", 0);
        wgl_complete(openai, &permit);
        break;
    }
    case WGL_DENIED:
        printf("no room within 30 s\n");
        break;
    default:
        return failed();
    }

    wgl_decision decision = WGL_DECISION_INIT;
    if (wgl_peek(openai, "", 0, 0, &decision) < 0)
        return failed();
    printf("%llu of 100 left\n", (unsigned long long)decision.remaining);

    wgl_limiter_free(openai);
    wgl_store_free(store);
}
