// Who has the units of a limit, who waits for them, and whose turn is next: of two processes, and of tenants.
#include "check.h"
#include <signal.h>
#include <sys/wait.h>

static wgl_store *store;
static wgl_limiter *limiter;
static wgl_line *line;

static void begin(const char *url, const char *policy) {
    MUST(wgl_store_open(url, NULL, &store));
    MUST(wgl_policy_limiter_new(store, "api", policy, &limiter));
    MUST(wgl_line_new(limiter, &line));
}

static void end(void) {
    wgl_line_free(line);
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

static void join(wgl_line *its, const char *key, uint64_t weight, int32_t priority) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    uint64_t number;
    wgl_permit permit;
    options.weight = weight;
    options.priority = priority;
    IS(WGL_WAITING, wgl_line_join(its, key, strlen(key), &options, &number, &permit, NULL));
}

static wgl_line_snapshot *look(const char *key) {
    wgl_line_snapshot *seen;
    MUST(wgl_store_line(store, "api", key, strlen(key), &seen));
    return seen;
}

// Returns the head at an index, which must be there.
static wgl_head_snapshot head_at(const wgl_line_snapshot *seen, size_t index) {
    wgl_head_snapshot head = WGL_HEAD_SNAPSHOT_INIT;
    MUST(wgl_line_snapshot_head(seen, index, &head));
    return head;
}

static wgl_waiting_snapshot waiting_at(const wgl_line_snapshot *seen, size_t index) {
    wgl_waiting_snapshot waiting = WGL_WAITING_SNAPSHOT_INIT;
    MUST(wgl_line_snapshot_waiting(seen, index, &waiting));
    return waiting;
}

// Checks how many there are of each.
static void has(const wgl_line_snapshot *seen, size_t holders, size_t heads, size_t waiting) {
    wgl_holder_snapshot holder = WGL_HOLDER_SNAPSHOT_INIT;
    wgl_head_snapshot head = WGL_HEAD_SNAPSHOT_INIT;
    wgl_waiting_snapshot waits = WGL_WAITING_SNAPSHOT_INIT;
    size_t counts[3] = {0};
    while (wgl_line_snapshot_holder(seen, counts[0], &holder) == WGL_OK)
        counts[0]++;
    while (wgl_line_snapshot_head(seen, counts[1], &head) == WGL_OK)
        counts[1]++;
    while (wgl_line_snapshot_waiting(seen, counts[2], &waits) == WGL_OK)
        counts[2]++;
    CHECK(counts[0] == holders && counts[1] == heads && counts[2] == waiting, "%zu holders, %zu heads, %zu waiting",
          counts[0], counts[1], counts[2]);
    IS(WGL_NONE, wgl_line_snapshot_holder(seen, holders, &holder));
    IS(WGL_NONE, wgl_line_snapshot_head(seen, heads, &head));
    IS(WGL_NONE, wgl_line_snapshot_waiting(seen, (size_t)-1, &waits));
}

static void of_two_processes(const char *url) {
    wgl_permit held;
    wgl_line_snapshot *seen;
    wgl_holder_snapshot holder = WGL_HOLDER_SNAPSHOT_INIT;
    int joined[2];
    char byte;
    begin(url, "3 concurrent");
    MUST(wgl_try_acquire(limiter, NULL, 0, 3, &held, NULL));
    join(line, "", 2, 0);
    CHECK(pipe(joined) == 0, "no pipe");
    pid_t own = getpid(), child = fork();
    if (child == 0) {
        wgl_line *its;
        failed = 0;
        MUST(wgl_line_new(limiter, &its));
        join(its, "", 1, -4);
        join(its, "", 1, 9);
        if (failed != 0 || write(joined[1], "j", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(joined[1]);
    CHECK(read(joined[0], &byte, 1) == 1, "the child has not joined");

    seen = look("");
    has(seen, 1, 2, 2);
    MUST(wgl_line_snapshot_holder(seen, 0, &holder));
    CHECK(holder.struct_size == sizeof holder && holder.pid == (uint32_t)own && holder.units == 3 && holder.starts == 1
              && !holder.cools_down,
          "%u has %llu units of %llu starts", holder.pid, (unsigned long long)holder.units,
          (unsigned long long)holder.starts);
    CHECK(strstr(holder.program, "whose_turn") != NULL, "its program is %s", holder.program);
    wgl_head_snapshot next = head_at(seen, 0), then = head_at(seen, 1);
    CHECK(next.pid == (uint32_t)child && next.units == 1 && next.priority == -4, "%u is next", next.pid);
    CHECK(then.pid == (uint32_t)own && then.units == 2 && then.priority == 0, "%u is then", then.pid);
    CHECK(next.tenant == NULL && !next.is_passed && !then.is_passed, "both run, and there are no tenants");
    wgl_waiting_snapshot most = waiting_at(seen, 0), least = waiting_at(seen, 1);
    CHECK(most.pid == (uint32_t)child && most.callers == 2 && least.pid == (uint32_t)own && least.callers == 1,
          "%llu and %llu callers", (unsigned long long)most.callers, (unsigned long long)least.callers);
    // Callers are counted for all keys.
    wgl_line_snapshot *unused = look("unused");
    has(unused, 0, 0, 2);
    wgl_line_snapshot_free(unused);

    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child, "no child");
    wgl_line_snapshot *after = look("");
    has(after, 1, 1, 1);
    MUST(wgl_complete(limiter, &held));
    end();
    wgl_line_snapshot_free(after);
    // It outlives its store.
    CHECK(head_at(seen, 0).pid == (uint32_t)child, "it has changed");
    wgl_line_snapshot_free(seen);
    close(joined[0]);
}

static void of_tenants(const char *url) {
    wgl_permit held;
    begin(url, "1 concurrent shared");
    MUST(wgl_try_acquire(limiter, "holder", 6, 1, &held, NULL));
    for (int i = 0; i < 3; i++)
        join(line, i < 2 ? "a" : "b", 1, 0);
    wgl_line_snapshot *all = look(""), *one = look("b");
    has(all, 1, 2, 1);
    CHECK(waiting_at(all, 0).callers == 3, "%llu callers", (unsigned long long)waiting_at(all, 0).callers);
    const char *first = head_at(all, 0).tenant, *second = head_at(all, 1).tenant, *its = head_at(one, 0).tenant;
    CHECK(first[0] == '#' && strlen(first) == 17 && strcmp(first, second) != 0, "%s and %s", first, second);
    CHECK(strcmp(its, first) == 0 || strcmp(its, second) == 0, "%s is not one of them", its);
    has(one, 1, 1, 1);
    wgl_line_snapshot_free(all);
    wgl_line_snapshot_free(one);
    MUST(wgl_complete(limiter, &held));
    end();
}

// A memory: store has no list of processes, and no process waits for another.
static void in_memory(void) {
    wgl_permit held;
    wgl_holder_snapshot holder = WGL_HOLDER_SNAPSHOT_INIT;
    begin("memory:", "2 concurrent");
    MUST(wgl_try_acquire(limiter, "k", 1, 2, &held, NULL));
    join(line, "k", 1, 0);
    wgl_line_snapshot *seen = look("k");
    has(seen, 1, 0, 1);
    MUST(wgl_line_snapshot_holder(seen, 0, &holder));
    CHECK(holder.pid == 0 && holder.program == NULL && holder.units == 2, "%u has %llu units", holder.pid,
          (unsigned long long)holder.units);
    CHECK(waiting_at(seen, 0).pid == 0 && waiting_at(seen, 0).callers == 1, "one caller");
    wgl_line_snapshot_free(seen);
    MUST(wgl_complete(limiter, &held));
    end();
}

static void bad_input(void) {
    wgl_line_snapshot *seen = NULL;
    struct {
        wgl_head_snapshot known;
        uint64_t later;
    } head = {WGL_HEAD_SNAPSHOT_INIT, 7};
    wgl_holder_snapshot holder = WGL_HOLDER_SNAPSHOT_INIT;
    begin("memory:", "1 concurrent shared");
    REFUSED(WGL_INVALID_ARGUMENT, "store is NULL", wgl_store_line(NULL, "api", NULL, 0, &seen));
    REFUSED(WGL_INVALID_ARGUMENT, "name is NULL", wgl_store_line(store, NULL, NULL, 0, &seen));
    REFUSED(WGL_INVALID_ARGUMENT, "key is NULL", wgl_store_line(store, "api", NULL, 1, &seen));
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_store_line(store, "api", NULL, 0, NULL));
    REFUSED(WGL_UNKNOWN_LIMIT, "nothing", wgl_store_line(store, "nothing", NULL, 0, &seen));
    CHECK(seen == NULL, "a snapshot was made");

    wgl_permit held;
    MUST(wgl_try_acquire(limiter, "holder", 6, 1, &held, NULL));
    join(line, "a", 1, 0);
    seen = look("");
    REFUSED(WGL_INVALID_ARGUMENT, "line is NULL", wgl_line_snapshot_head(NULL, 0, &head.known));
    REFUSED(WGL_INVALID_ARGUMENT, "head is NULL", wgl_line_snapshot_head(seen, 0, NULL));
    REFUSED(WGL_INVALID_ARGUMENT, "waiting is NULL", wgl_line_snapshot_waiting(seen, 0, NULL));
    holder.struct_size = 4;
    REFUSED(WGL_INVALID_ARGUMENT, "struct_size is 4", wgl_line_snapshot_holder(seen, 0, &holder));
    // A program that is newer than the library: its fields stay as they are.
    head.known.struct_size = sizeof head;
    IS(WGL_OK, wgl_line_snapshot_head(seen, 0, &head.known));
    CHECK(head.known.struct_size == sizeof head && head.known.units == 1 && head.later == 7, "a later field was written");
    wgl_line_snapshot_free(seen);
    wgl_line_snapshot_free(NULL);
    MUST(wgl_complete(limiter, &held));
    MUST(wgl_store_close(store));
    REFUSED(WGL_STORE_CLOSED, "make another store", wgl_store_line(store, "api", NULL, 0, &seen));
    end();
}

int main(void) {
    char dir[64], url[128];
    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    of_two_processes(url);
    in_memory();
    of_tenants("memory:");
    snprintf(url, sizeof url, "sqlite:%s/tenants.db", dir);
    of_tenants(url);
    bad_input();
    remove_dir(dir);
    return summary("whose_turn");
}
