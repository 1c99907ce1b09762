/* A C member of the storm: storm_member STORE LIMIT WINDOW_SECONDS FOLDER */

#include "../../../examples/fleet/evidence.h"

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    wgl_store *store;
    must(wgl_store_open(argv[1], NULL, &store));
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = strtoull(argv[2], NULL, 10);
    options.window_ns = (uint64_t)(atof(argv[3]) * 1e9);
    wgl_limiter *limiter;
    must(wgl_rate_limiter_new(store, "storm", &options, &limiter));
    int starts = evidence_open(argv[4]);

    const struct timespec moment = {0, 200000}, job = {0, 2000000};
    for (;;) {
        wgl_permit permit;
        uint64_t asked = now_ns();
        int status = wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL);
        if (status == WGL_DENIED) {
            nanosleep(&moment, NULL);
            continue;
        }
        must(status);
        evidence_start(starts, asked, limiter, &permit);
        nanosleep(&job, NULL);
        must(wgl_complete(limiter, &permit));
    }
}
