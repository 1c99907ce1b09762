// A program that loads and unloads the library again and again, as hosts of plugins do. It is not linked with the library.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

#define FIND(name) (__extension__(__typeof__(&name))dlsym(library, #name))

// Uses it in a thread, which ends before the library is closed. For a server it starts threads of its own, whose runtime takes keys for
// thread-local values; a process has 1,024. So the library stays loaded when it is closed.
static void *use(void *library) {
    wgl_store *store, *unreachable;
    wgl_limiter *limiter;
    wgl_permit permit;
    if (FIND(wgl_store_open)("redis://127.0.0.1:1", NULL, &unreachable) == WGL_OK)
        return "a server at port 1";
    if (FIND(wgl_store_open)("memory:", NULL, &store) != WGL_OK
        || FIND(wgl_policy_limiter_new)(store, "api", "1/1h", &limiter) != WGL_OK)
        return "no limiter";
    int first = FIND(wgl_try_acquire)(limiter, NULL, 0, 1, &permit, NULL);
    int second = FIND(wgl_try_acquire)(limiter, NULL, 0, 1, &permit, NULL);
    FIND(wgl_limiter_free)(limiter);
    FIND(wgl_store_free)(store);
    return first == WGL_OK && second == WGL_DENIED ? NULL : "another decision";
}

int main(void) {
    for (int i = 0; i < 1000; i++) {
        void *library = dlopen("libworkglow_limit.so.0", RTLD_NOW | RTLD_LOCAL), *wrong;
        pthread_t thread;
        if (library == NULL || pthread_create(&thread, NULL, use, library) != 0) {
            fprintf(stderr, "%d: %s\n", i, library == NULL ? dlerror() : "no thread");
            return 1;
        }
        pthread_join(thread, &wrong);
        CHECK(wrong == NULL, "%d: %s", i, (char *)wrong);
        dlclose(library);
    }
    return summary("reload");
}
