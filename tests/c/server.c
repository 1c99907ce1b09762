// Limits on a server: processes and forked children share them, and failures are reported.
#include "postgres.h"
#include "redis.h"
#include <signal.h>

enum { LIMIT = 50, TRIES = 40 };

static const uint64_t hour_ns = 3600 * 1000000000ull;

static wgl_store *store_at(const char *url, uint32_t on_error, uint64_t timeout_ns) {
    wgl_store *store;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    options.on_error = on_error;
    MUST(wgl_store_open(url, &options, &store));
    return store;
}

static wgl_limiter *rate(wgl_store *store, const char *name, uint64_t max) {
    wgl_limiter *limiter;
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = max;
    options.window_ns = hour_ns;
    MUST(wgl_rate_limiter_new(store, name, &options, &limiter));
    return limiter;
}

// The number of starts among some attempts.
static int starts(wgl_limiter *limiter, int attempts) {
    int count = 0;
    for (int i = 0; i < attempts; i++) {
        wgl_permit permit;
        int status = wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL);
        CHECK(status >= 0, "%s", wgl_last_error());
        count += status == WGL_OK;
    }
    return count;
}

// Runs in a process of its own, whose exit status is that number.
static pid_t starts_in_child(wgl_limiter *inherited) {
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        int count = starts(inherited != NULL ? inherited : rate(store_at(redis.url, 0, 0), "api", LIMIT), TRIES);
        _exit(failed == 0 ? count : 255);
    }
    return child;
}

static int exit_status(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void processes_share_a_limit(void) {
    wgl_store *store = store_at(redis.url, 0, 0);
    wgl_limiter *limiter = rate(store, "api", LIMIT);
    CHECK(starts(limiter, 1) == 1, "the first");
    // One child uses the connected limiter that it inherits; the other opens its own.
    pid_t children[] = {starts_in_child(limiter), starts_in_child(NULL)};
    int count = 1 + starts(limiter, TRIES);
    for (int i = 0; i < 2; i++)
        count += exit_status(children[i]);
    CHECK(count == LIMIT, "%d admitted", count);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

static void a_lease_counts_for_other_processes(void) {
    wgl_store *store = store_at(redis.url, 0, 0);
    wgl_limiter *limiter;
    wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    options.max_concurrent_jobs = 1;
    MUST(wgl_concurrency_limiter_shared(store, "jobs", &options, &limiter));
    wgl_permit permit;
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    pid_t child = fork();
    if (child == 0) {
        wgl_permit own;
        alarm(60);
        IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &own, NULL));
        // The permit belongs to the parent.
        IS(WGL_OK, wgl_complete(limiter, &permit));
        IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &own, NULL));
        _exit(failed != 0);
    }
    CHECK(exit_status(child) == 0, "the child");
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

static void connection_errors_hide_the_password(void) {
    wgl_store *store;
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    REFUSED(WGL_INVALID_URL, "redis://", wgl_store_open("redis://", &options, &store));
    REFUSED(WGL_INVALID_URL, "redis://host:…", wgl_store_open("redis://host:port", &options, &store));

    const char *nowhere = "redis://user:secret@127.0.0.1:1/0";
    REFUSED(WGL_STORE_FAILURE, "127.0.0.1:1", wgl_store_open(nowhere, &options, &store));
    CHECK(strstr(wgl_last_error(), "secret") == NULL, "says \"%s\"", wgl_last_error());

    char url[256];
    snprintf(url, sizeof url, "%s?pass=secret", redis.url);
    redis_command("CONFIG SET requirepass right");
    REFUSED(WGL_STORE_FAILURE, redis.url, wgl_store_open(url, &options, &store));
    CHECK(strstr(wgl_last_error(), "secret") == NULL, "says \"%s\"", wgl_last_error());
    redis_command("AUTH right\r\nCONFIG SET requirepass \"\"");
}

// Neither a stopped server nor a killed one answers.
static void decisions_without_a_server_follow_on_error(void) {
    static const int answers[] = {WGL_STORE_TIMEOUT, WGL_DENIED, WGL_OK};
    wgl_limiter *limiters[3];
    wgl_store *stores[3];
    wgl_permit permit;
    for (uint32_t i = 0; i < 3; i++) {
        stores[i] = store_at(redis.url, i, 200 * 1000000ull);
        limiters[i] = rate(stores[i], "late", 100);
        IS(WGL_OK, wgl_try_acquire(limiters[i], NULL, 0, 1, &permit, NULL));
    }
    pid_t server = redis_pid();
    kill(server, SIGSTOP);
    for (int i = 0; i < 3; i++)
        IS(answers[i], wgl_try_acquire(limiters[i], NULL, 0, 1, &permit, NULL));
    kill(server, SIGCONT);
    for (int i = 0; i < 3; i++)
        while (wgl_try_acquire(limiters[i], NULL, 0, 1, &permit, NULL) != WGL_OK)
            usleep(1000); // It may be busy with the requests it missed.
    kill(server, SIGKILL);
    REFUSED(WGL_STORE_FAILURE, redis.url, wgl_try_acquire(limiters[0], NULL, 0, 1, &permit, NULL));
    IS(WGL_DENIED, wgl_try_acquire(limiters[1], NULL, 0, 1, &permit, NULL));
    IS(WGL_OK, wgl_try_acquire(limiters[2], NULL, 0, 1, &permit, NULL));
    for (int i = 0; i < 3; i++) {
        wgl_limiter_free(limiters[i]);
        wgl_store_free(stores[i]);
    }
}

static void the_doctor_names_dangerous_settings(void) {
    wgl_strings *findings;
    MUST(wgl_doctor("memory:", &findings));
    CHECK(wgl_strings_count(findings) == 0, "%s", wgl_strings_get(findings, 0));
    wgl_strings_free(findings);
    MUST(wgl_doctor(redis.url, &findings));
    CHECK(wgl_strings_count(findings) > 0, "no findings");
    const char *worst = wgl_strings_get(findings, 0);
    CHECK(strstr(worst, "danger: appendonly = no: ") == worst && strstr(worst, "instead: yes") != NULL, "%s", worst);
    wgl_strings_free(findings);
    REFUSED(WGL_STORE_FAILURE, "127.0.0.1:1", wgl_doctor("redis://127.0.0.1:1", &findings));
}

static void postgres_holds_a_limit(void) {
    wgl_strings *findings;
    MUST(wgl_doctor(postgres.url, &findings));
    CHECK(wgl_strings_count(findings) > 0, "no findings");
    const char *worst = wgl_strings_get(findings, 0);
    CHECK(strstr(worst, "danger: fsync = off: ") == worst, "%s", worst);
    wgl_strings_free(findings);
    CHECK(strstr(wgl_postgres_schema(), "CREATE SCHEMA workglow_limit;") != NULL, "%s", wgl_postgres_schema());
    wgl_store *store = store_at(postgres.url, 0, 0);
    wgl_limiter *limiter = rate(store, "api", 2);
    wgl_permit permit;
    for (int i = 0; i < 3; i++)
        IS(i < 2 ? WGL_OK : WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

int main(void) {
    redis_start();
    postgres_start();
    postgres_holds_a_limit();
    postgres_end();
    the_doctor_names_dangerous_settings();
    processes_share_a_limit();
    a_lease_counts_for_other_processes();
    connection_errors_hide_the_password();
    decisions_without_a_server_follow_on_error();
    redis_end();
    return summary("server");
}
