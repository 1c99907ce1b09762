// Concurrency limits across processes: holders that were killed or exited, leases that expire and are renewed, and the
// fencing numbers that order them.
#include "check.h"
#include <signal.h>
#include <sys/wait.h>

#define SECOND UINT64_C(1000000000)

static char dir[64];

static void open_store(const char *scheme, const wgl_manual_clock *clock, wgl_store **store) {
    static int number;
    char url[128];
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    options.clock = clock;
    snprintf(url, sizeof url, "%s", scheme);
    if (strcmp(scheme, "sqlite:") == 0)
        snprintf(url, sizeof url, "sqlite:%s/%d.db", dir, number++);
    MUST(wgl_store_open(url, &options, store));
}

static wgl_limiter *limit(wgl_store *store, uint64_t most, uint64_t lease_ns) {
    wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiter;
    options.max_concurrent_jobs = most;
    options.lease_ns = lease_ns;
    MUST(wgl_concurrency_limiter_shared(store, "gpu", &options, &limiter));
    return limiter;
}

// A child takes all units, reports that, and then is killed, or exits without ending its start, or ends it first.
enum way { KILLED, GOES_AWAY, COMPLETES };

static void a_dead_holder_returns_its_slot(enum way way) {
    wgl_store *store;
    wgl_permit permit;
    int ready[2], go[2];
    char byte = 0;
    open_store("sqlite:", NULL, &store);
    wgl_limiter *limiter = limit(store, 2, 0);
    CHECK(pipe(ready) == 0 && pipe(go) == 0, "pipes");
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        wgl_permit mine, other;
        int ok = wgl_try_acquire(limiter, "k", 1, 1, &mine, NULL) == WGL_OK;
        ok = ok && wgl_try_acquire(limiter, "k", 1, 1, &other, NULL) == WGL_OK;
        ok = ok && write(ready[1], ok ? "+" : "-", 1) == 1 && read(go[0], &byte, 1) == 1;
        if (way == COMPLETES)
            ok = ok && wgl_complete(limiter, &mine) == WGL_OK && wgl_complete(limiter, &other) == WGL_OK;
        _exit(ok ? 0 : 1);
    }
    CHECK(read(ready[0], &byte, 1) == 1 && byte == '+', "the child was not admitted");
    IS(WGL_DENIED, wgl_try_acquire(limiter, "k", 1, 1, &permit, NULL));
    IS(WGL_OK, wgl_try_acquire(limiter, "other", 5, 2, &permit, NULL));
    if (way == KILLED)
        kill(child, SIGKILL);
    else
        CHECK(write(go[1], "!", 1) == 1, "the child was not notified");
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(way == KILLED ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
    IS(WGL_OK, wgl_try_acquire(limiter, "k", 1, 2, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiter, "k", 1, 1, &permit, NULL));
    close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

// Two processes never hold more than the limit, and each fencing number that they get is new.
static void numbers_of_two_processes(void) {
    enum { STARTS = 200 };
    wgl_store *store;
    int pipes[2][2];
    uint64_t last[2] = {0, 0};
    open_store("sqlite:", NULL, &store);
    wgl_limiter *limiter = limit(store, 1, 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pipe(pipes[i]) == 0, "a pipe");
        children[i] = fork();
        if (children[i] == 0) {
            alarm(30);
            for (int start = 0; start < STARTS; start++) {
                wgl_permit permit;
                uint64_t fence;
                if (wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL) != WGL_OK
                    || wgl_fence(limiter, &permit, &fence) != WGL_OK
                    || write(pipes[i][1], &fence, sizeof fence) != sizeof fence
                    || wgl_complete(limiter, &permit) != WGL_OK)
                    _exit(1);
            }
            _exit(0);
        }
    }
    static uint64_t all[2 * STARTS];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        close(pipes[i][1]);
        for (uint64_t fence; read(pipes[i][0], &fence, sizeof fence) == sizeof fence;) {
            CHECK(fence > last[i], "%llu after %llu", (unsigned long long)fence, (unsigned long long)last[i]);
            last[i] = fence;
            for (int j = 0; j < count; j++)
                if (all[j] == fence)
                    CHECK(0, "%llu twice", (unsigned long long)fence);
            all[count++] = fence;
        }
        close(pipes[i][0]);
        int status = -1;
        waitpid(children[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %#x", i, status);
    }
    CHECK(count == 2 * STARTS, "%d starts", count);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

static void a_lease_ends(const char *scheme) {
    wgl_store *store;
    wgl_manual_clock *clock;
    wgl_permit first, second, third;
    uint64_t fence_1 = 0, fence_2 = 0, fence_3 = 0;
    MUST(wgl_manual_clock_new(&clock));
    open_store(scheme, clock, &store);
    wgl_limiter *limiter = limit(store, 1, SECOND), *another = limit(store, 1, SECOND);
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &first, NULL));
    IS(WGL_OK, wgl_fence(limiter, &first, &fence_1));
    // A renewal restarts it.
    MUST(wgl_manual_clock_advance(clock, SECOND * 6 / 10));
    IS(WGL_OK, wgl_renew(limiter, &first));
    MUST(wgl_manual_clock_advance(clock, SECOND * 6 / 10));
    IS(WGL_DENIED, wgl_try_acquire(another, NULL, 0, 1, &second, NULL));
    MUST(wgl_manual_clock_advance(clock, SECOND * 4 / 10));
    IS(WGL_OK, wgl_try_acquire(another, NULL, 0, 1, &second, NULL));
    IS(WGL_OK, wgl_fence(another, &second, &fence_2));
    CHECK(fence_2 > fence_1, "%llu after %llu", (unsigned long long)fence_2, (unsigned long long)fence_1);
    // The first has lost its lease; its later calls do not affect the second.
    REFUSED(WGL_LEASE_LOST, "gpu", wgl_renew(limiter, &first));
    IS(WGL_OK, wgl_complete(limiter, &first));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &third, NULL));
    IS(WGL_OK, wgl_renew(another, &second));
    IS(WGL_FOREIGN_PERMIT, wgl_renew(limiter, &second));
    IS(WGL_OK, wgl_complete(another, &second));
    REFUSED(WGL_LEASE_LOST, "gpu", wgl_renew(another, &second));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &third, NULL));
    IS(WGL_OK, wgl_fence(limiter, &third, &fence_3));
    CHECK(fence_3 > fence_2, "%llu after %llu", (unsigned long long)fence_3, (unsigned long long)fence_2);
    IS(WGL_OK, wgl_cancel(limiter, &third));
    wgl_limiter_free(another);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    wgl_manual_clock_free(clock);
}

// Without a lease, a start holds its units until its process ends.
static void without_a_lease(const char *scheme) {
    wgl_store *store;
    wgl_manual_clock *clock;
    wgl_permit permit, second;
    MUST(wgl_manual_clock_new(&clock));
    open_store(scheme, clock, &store);
    wgl_limiter *limiter = limit(store, 1, 0);
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    MUST(wgl_manual_clock_advance(clock, 400 * 86400 * SECOND));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
    IS(WGL_OK, wgl_renew(limiter, &permit));
    IS(WGL_UNSUPPORTED, wgl_settle(limiter, &permit, 1));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &second, NULL));
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    wgl_manual_clock_free(clock);
}

int main(void) {
    make_dir(dir);
    a_dead_holder_returns_its_slot(COMPLETES);
    a_dead_holder_returns_its_slot(GOES_AWAY);
    a_dead_holder_returns_its_slot(KILLED);
    numbers_of_two_processes();
    a_lease_ends("memory:");
    a_lease_ends("sqlite:");
    without_a_lease("memory:");
    without_a_lease("sqlite:");
    remove_dir(dir);
    return summary("leases");
}
