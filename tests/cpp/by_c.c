// by_c URL STARTS: takes starts of the limit "shared" that a C++ program declared. The exit status is the number admitted.
#include <stdio.h>
#include <stdlib.h>
#include <workglow_limit.h>

int main(int count, char **arguments) {
    wgl_store *store;
    wgl_limiter *limiter;
    wgl_permit permit;
    int got = 0, status = WGL_OK;
    if (count != 3 || wgl_store_open(arguments[1], NULL, &store) != WGL_OK
        || wgl_limiter_attach(store, "shared", &limiter) != WGL_OK)
        return fprintf(stderr, "%s\n", wgl_last_error()), 99;
    for (int asked = atoi(arguments[2]); asked > 0 && status == WGL_OK; asked--) {
        status = wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL);
        got += status == WGL_OK;
    }
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    return status < 0 ? 99 : got;
}
