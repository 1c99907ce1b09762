/* A C member of the storm: storm_member STORE LIMIT WINDOW_SECONDS FOLDER [NAME WAIT]

   With NAME and WAIT it is a site of a fleet: see member.py. */

#include "../../../examples/fleet/evidence.h"

/* A random duration of up to `seconds`. */
static uint64_t some_ns(double seconds) { return (uint64_t)(seconds * 1e9 * drand48()); }

static void pause_ns(uint64_t ns) {
    const struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 7)
        return 2;
    const int is_site = argc == 7;
    const char *name = is_site ? argv[5] : "storm";
    const double window = atof(argv[3]), wait = is_site ? atof(argv[6]) : 0;
    srand48(getpid());

    wgl_store_options store_options = WGL_STORE_OPTIONS_INIT;
    if (is_site) {
        store_options.timeout_ns = 300000000;
        store_options.on_error = WGL_ON_ERROR_DENY;
    }
    wgl_store *store;
    int status;
    /* `on_error` does not apply to opening: a site that starts while the server is down tries again. */
    while ((status = wgl_store_open(argv[1], &store_options, &store)) != WGL_OK && is_site)
        pause_ns(1000000);
    must(status);
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = strtoull(argv[2], NULL, 10);
    options.window_ns = (uint64_t)(window * 1e9);
    wgl_limiter *limiter;
    while ((status = wgl_rate_limiter_new(store, name, &options, &limiter)) != WGL_OK && is_site)
        pause_ns(1000000);
    must(status);
    int starts = evidence_open(argv[4]);

    for (;;) {
        wgl_permit permit;
        uint64_t asked = now_ns();
        status = wait > 0 ? wgl_acquire(limiter, NULL, 0, 1, some_ns(wait), &permit, NULL)
                          : wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL);
        if (status == WGL_DENIED) {
            pause_ns(is_site ? 1000000 : 200000);
            continue;
        }
        must(status);
        evidence_start(starts, asked, limiter, is_site ? NULL : &permit);
        if (!is_site)
            pause_ns(2000000); /* the job */
        else if (drand48() < 0.025)
            pause_ns(some_ns(window / 40));
        must(wgl_complete(limiter, &permit));
    }
}
