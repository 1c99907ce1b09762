// Limits on a server: processes and forked children share them, and failures are reported.
#include "postgres.h"
#include "redis.h"
#include <poll.h>
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

static uint64_t next_start(wgl_line *line, wgl_permit *permit) {
    uint64_t number, nap_ns;
    int status;
    while ((status = wgl_line_advance(line, &number, permit, &nap_ns)) == WGL_WAITING) {
        struct pollfd one = {.fd = wgl_line_fd(line), .events = POLLIN};
        if (poll(&one, 1, 60000) != 1) {
            CHECK(0, "the descriptor was never readable");
            exit(1);
        }
    }
    IS(WGL_OK, status);
    return number;
}

// No call of an event loop waits for the server, which is stopped while they are made (0: it runs).
static void a_line_waits_for_a_server(const char *url, pid_t server) {
    wgl_store *store = store_at(url, 0, 600 * 1000000000ull);
    wgl_limiter *limiter;
    wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
    options.max_concurrent_jobs = 1;
    MUST(wgl_concurrency_limiter_shared(store, "line", &options, &limiter));
    wgl_permit permit;
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    wgl_line *line;
    MUST(wgl_line_new(limiter, &line));
    if (server != 0)
        kill(server, SIGSTOP);
    uint64_t numbers[4];
    wgl_permit none;
    for (int i = 0; i < 4; i++)
        IS(WGL_WAITING, wgl_line_join(line, NULL, 0, NULL, &numbers[i], &none, NULL));
    MUST(wgl_line_leave(line, numbers[0])); // it is asked for already
    MUST(wgl_line_leave(line, numbers[2])); // it is not
    if (server != 0)
        kill(server, SIGCONT);
    for (int i = 1; i < 4; i += 2) {
        MUST(wgl_complete(limiter, &permit));
        MUST(wgl_line_wake(line, NULL, 0));
        CHECK(next_start(line, &permit) == numbers[i], "another one started");
    }
    MUST(wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL)); // nobody holds it
    wgl_line_free(line);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
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
    a_line_waits_for_a_server(postgres.url, 0);
    postgres_end();
    the_doctor_names_dangerous_settings();
    processes_share_a_limit();
    a_lease_counts_for_other_processes();
    a_line_waits_for_a_server(redis.url, redis_pid());
    connection_errors_hide_the_password();
    decisions_without_a_server_follow_on_error();
    redis_end();
    return summary("server");
}
