// Custom limiters: the arguments of their functions, the use of the results, the calls, and when the context is freed.
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

// A limiter with scripted results, which records its arguments.
struct script {
    int status;
    uint64_t retry_after_ns, start;
    int denies_only_decide;
    // The last call.
    char call[32], key[32];
    size_t key_len;
    uint64_t weight, number, actual;
    uint32_t how;
    int ends, freed;
};

static void note(struct script *script, const char *call, const char *key, size_t key_len) {
    snprintf(script->call, sizeof script->call, "%s", call);
    script->key_len = key_len;
    memcpy(script->key, key, key_len);
}

static int scripted_decide(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *start,
                           uint64_t *retry_after_ns) {
    struct script *script = context;
    note(script, "decide", key, key_len);
    script->weight = weight;
    *start = script->start;
    if (script->retry_after_ns != 0)
        *retry_after_ns = script->retry_after_ns;
    return script->status;
}

static int scripted_peek(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns) {
    struct script *script = context;
    note(script, "peek", key, key_len);
    script->weight = weight;
    if (script->retry_after_ns != 0)
        *retry_after_ns = script->retry_after_ns;
    return script->denies_only_decide ? WGL_OK : script->status;
}

static int scripted_end(void *context, uint64_t start, uint32_t how, uint64_t actual) {
    struct script *script = context;
    note(script, "end", "", 0);
    script->number = start;
    script->how = how;
    script->actual = actual;
    script->ends++;
    return script->status;
}

static int scripted_pause(void *context, uint64_t duration_ns, const char *key, size_t key_len) {
    struct script *script = context;
    note(script, "pause", key, key_len);
    script->number = duration_ns;
    return script->status;
}

static int scripted_clear(void *context, const char *key, size_t key_len) {
    note(context, "clear", key, key_len);
    return ((struct script *)context)->status;
}

static int scripted_start(void *context, const char *key, size_t key_len) {
    note(context, "record_job_start", key, key_len);
    return ((struct script *)context)->status;
}

static int scripted_completion(void *context, const char *key, size_t key_len) {
    note(context, "record_job_completion", key, key_len);
    return ((struct script *)context)->status;
}

static void scripted_free(void *context) {
    ((struct script *)context)->freed++;
}

static wgl_custom_limiter_table table_of(struct script *script) {
    wgl_custom_limiter_table table = WGL_CUSTOM_LIMITER_TABLE_INIT;
    table.context = script;
    table.name = "scripted";
    table.decide = scripted_decide;
    table.peek = scripted_peek;
    table.end = scripted_end;
    table.pause = scripted_pause;
    table.clear = scripted_clear;
    table.record_job_start = scripted_start;
    table.record_job_completion = scripted_completion;
    table.free = scripted_free;
    return table;
}

static void was_called(const struct script *script, const char *call, const char *key, size_t key_len) {
    CHECK(strcmp(script->call, call) == 0, "%s was called, not %s", script->call, call);
    CHECK(script->key_len == key_len && memcmp(script->key, key, key_len) == 0, "%s: key of %d bytes", call,
          (int)script->key_len);
}

static void every_call_arrives(void) {
    struct script script = {.status = WGL_OK, .start = UINT64_MAX};
    wgl_limiter *limiter;
    wgl_permit permit, place = {{0}};
    wgl_decision decision = WGL_DECISION_INIT;
    wgl_counts counts = WGL_COUNTS_INIT;
    uint64_t fence = 7;
    char name[] = "scripted", text[WGL_PERMIT_TEXT_MAX];
    wgl_custom_limiter_table table = table_of(&script);
    table.name = name;
    MUST(wgl_custom_limiter_new(&table, &limiter));
    // The table was copied, and is not read again.
    memset(&table, 0xff, sizeof table);
    memset(name, 'x', sizeof name - 1);

    IS(WGL_OK, wgl_try_acquire(limiter, "a\0b", 3, UINT64_MAX, &permit, NULL));
    was_called(&script, "decide", "a\0b", 3);
    CHECK(script.weight == UINT64_MAX, "weight %llu", (unsigned long long)script.weight);
    IS(WGL_OK, wgl_settle(limiter, &permit, 17));
    CHECK(script.number == UINT64_MAX && script.how == WGL_END_SETTLED && script.actual == 17, "end %u", script.how);
    // A permit is ended once; later calls have no effect.
    IS(WGL_OK, wgl_cancel(limiter, &permit));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_settle(limiter, &permit, 1));
    CHECK(script.ends == 1, "%d ends of one permit", script.ends);

    script.start = 5;
    IS(WGL_OK, wgl_decide(limiter, NULL, 0, 2, &decision));
    was_called(&script, "decide", "", 0);
    CHECK(decision.admitted == 1 && decision.denied_by == NULL && decision.retry_after_ns == 0, "the decision");
    IS(WGL_OK, wgl_complete(limiter, &decision.permit));
    CHECK(script.number == 5 && script.how == WGL_END_COMPLETED && script.actual == 0, "end %u", script.how);
    IS(WGL_OK, wgl_acquire(limiter, "k", 1, 1, WGL_FOREVER, &permit, NULL));
    IS(WGL_OK, wgl_renew(limiter, &permit));
    IS(WGL_NONE, wgl_fence(limiter, &permit, &fence));
    IS(WGL_OK, wgl_cancel(limiter, &permit));
    CHECK(script.number == 5 && script.how == WGL_END_CANCELLED && script.actual == 0, "end %u", script.how);

    IS(WGL_OK, wgl_can_proceed(limiter, "k", 1));
    was_called(&script, "peek", "k", 1);
    IS(WGL_OK, wgl_pause(limiter, 7000, "k", 1));
    was_called(&script, "pause", "k", 1);
    CHECK(script.number == 7000, "paused for %llu", (unsigned long long)script.number);
    IS(WGL_OK, wgl_set_next_available_time(limiter, 0, NULL, 0));
    was_called(&script, "pause", "", 0);
    CHECK(script.number == 0, "the past is no gate, but %llu", (unsigned long long)script.number);
    IS(WGL_OK, wgl_clear(limiter, "k", 1));
    was_called(&script, "clear", "k", 1);
    IS(WGL_OK, wgl_record_job_start(limiter, "k", 1));
    was_called(&script, "record_job_start", "k", 1);
    IS(WGL_OK, wgl_record_job_completion(limiter, "k", 1));
    was_called(&script, "record_job_completion", "k", 1);
    IS(WGL_OK, wgl_stats(limiter, NULL, 0, &counts));

    // Bad input does not reach the custom functions.
    script.call[0] = '\0';
    IS(WGL_INVALID_ARGUMENT, wgl_try_acquire(limiter, NULL, 0, 0, &permit, NULL));
    IS(WGL_INVALID_ARGUMENT, wgl_clear(limiter, "\xff", 1));
    IS(WGL_OK, wgl_peek(limiter, NULL, 0, 0, &decision));
    IS(WGL_UNSUPPORTED, wgl_reserve(limiter, NULL, 0, 1, 0, 0, &place, NULL));
    IS(WGL_UNSUPPORTED, wgl_permit_to_text(limiter, &permit, text, sizeof text, NULL));
    CHECK(script.call[0] == '\0', "%s was called", script.call);
    CHECK(script.freed == 0, "freed too early");
    wgl_limiter_free(limiter);
    CHECK(script.freed == 1, "freed %d times", script.freed);
}

static void denials_and_failures(void) {
    struct script script = {.status = WGL_DENIED};
    wgl_limiter *limiter;
    wgl_permit permit = {{0}};
    wgl_decision decision = WGL_DECISION_INIT;
    uint64_t after_ns = 7;
    wgl_custom_limiter_table table = table_of(&script);
    MUST(wgl_custom_limiter_new(&table, &limiter));
    IS(WGL_DENIED, wgl_try_acquire(limiter, NULL, 0, 1, &permit, &after_ns));
    CHECK(after_ns == 10000000, "the default is 10 ms, not %llu ns", (unsigned long long)after_ns);
    script.retry_after_ns = UINT64_MAX;
    IS(WGL_DENIED, wgl_decide(limiter, NULL, 0, 1, &decision));
    CHECK(decision.retry_after_ns == UINT64_MAX, "%llu ns", (unsigned long long)decision.retry_after_ns);
    CHECK(strcmp(decision.denied_by, "scripted") == 0, "denied by %s", decision.denied_by);
    IS(WGL_DENIED, wgl_peek(limiter, NULL, 0, 1, &decision));
    IS(WGL_DENIED, wgl_can_proceed(limiter, NULL, 0));
    IS(WGL_DENIED, wgl_acquire(limiter, NULL, 0, 1, 1000, &permit, NULL));
    CHECK(permit.opaque[0] == 0 && script.ends == 0, "a denial has a permit");

    // Any other status of `decide` is an error.
    int wrong[] = {WGL_NONE, 42, WGL_STORE_FAILURE, WGL_INTERNAL, -12345};
    for (int i = 0; i < 5; i++) {
        script.status = wrong[i];
        decision.admitted = 7;
        REFUSED(WGL_CUSTOM_FAILURE, "\"scripted\"", wgl_try_acquire(limiter, NULL, 0, 1, &permit, &after_ns));
        REFUSED(WGL_CUSTOM_FAILURE, wgl_status_name(wrong[i]), wgl_decide(limiter, NULL, 0, 1, &decision));
        REFUSED(WGL_CUSTOM_FAILURE, "peek", wgl_peek(limiter, NULL, 0, 1, &decision));
        REFUSED(WGL_CUSTOM_FAILURE, "decide", wgl_acquire(limiter, NULL, 0, 1, 1000, &permit, NULL));
        CHECK(decision.admitted == 7 && permit.opaque[0] == 0, "an answer was written");
    }
    script.status = WGL_DENIED;
    REFUSED(WGL_CUSTOM_FAILURE, "pause", wgl_pause(limiter, 1, NULL, 0));
    REFUSED(WGL_CUSTOM_FAILURE, "clear", wgl_clear(limiter, NULL, 0));
    REFUSED(WGL_CUSTOM_FAILURE, "record_job_start", wgl_record_job_start(limiter, NULL, 0));
    REFUSED(WGL_CUSTOM_FAILURE, "record_job_completion", wgl_record_job_completion(limiter, NULL, 0));

    // A permit whose end failed is ended at the next attempt.
    script.status = WGL_OK;
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    script.status = WGL_STORE_TIMEOUT;
    REFUSED(WGL_CUSTOM_FAILURE, "store_timeout", wgl_complete(limiter, &permit));
    script.status = WGL_OK;
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    CHECK(script.ends == 2, "end was called %d times", script.ends);
    wgl_limiter_free(limiter);
}

// A table with only the required entries.
static void a_table_needs_three_entries(void) {
    struct script script = {.status = WGL_OK};
    wgl_limiter *limiter;
    wgl_permit permit;
    wgl_custom_limiter_table all = table_of(&script), table = WGL_CUSTOM_LIMITER_TABLE_INIT;
    table.context = &script;
    table.name = all.name;
    table.decide = all.decide;
    table.peek = all.peek;
    MUST(wgl_custom_limiter_new(&table, &limiter));
    IS(WGL_OK, wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL));
    IS(WGL_OK, wgl_complete(limiter, &permit));
    IS(WGL_OK, wgl_pause(limiter, 1, NULL, 0));
    IS(WGL_OK, wgl_clear(limiter, NULL, 0));
    IS(WGL_OK, wgl_record_job_start(limiter, NULL, 0));
    IS(WGL_OK, wgl_record_job_completion(limiter, NULL, 0));
    was_called(&script, "decide", "", 0);
    wgl_limiter_free(limiter);
    CHECK(script.freed == 0, "freed without a function for it");
}

static void as_a_child(void) {
    struct script script = {.status = WGL_OK, .start = 3};
    wgl_store *store;
    wgl_limiter *own, *rate, *composite;
    wgl_permit permit;
    wgl_decision decision = WGL_DECISION_INIT;
    wgl_custom_limiter_table table = table_of(&script);
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = 2;
    options.window_ns = UINT64_C(3600000000000);
    MUST(wgl_store_open("memory:", NULL, &store));
    MUST(wgl_rate_limiter_new(store, "rate", &options, &rate));
    MUST(wgl_custom_limiter_new(&table, &own));
    MUST(wgl_composite_limiter_new(&composite));
    MUST(wgl_composite_limiter_add(composite, rate));
    MUST(wgl_composite_limiter_add(composite, own));
    REFUSED(WGL_UNSUPPORTED, "takes no children", wgl_composite_limiter_add(own, rate));

    IS(WGL_OK, wgl_try_acquire(composite, "key", 3, 1, &permit, NULL));
    was_called(&script, "decide", "key", 3);
    IS(WGL_OK, wgl_cancel(composite, &permit));
    CHECK(script.how == WGL_END_CANCELLED && script.number == 3 && script.ends == 1, "end %u", script.how);
    // If a child denies or fails, even the last one, the others are not charged.
    script.denies_only_decide = 1;
    int answers[] = {WGL_DENIED, WGL_STORE_FAILURE};
    for (int i = 0; i < 2; i++) {
        script.status = answers[i];
        IS(i == 0 ? WGL_DENIED : WGL_CUSTOM_FAILURE, wgl_decide(composite, "key", 3, 1, &decision));
        IS(WGL_OK, wgl_peek(rate, "key", 3, 2, &decision));
    }
    IS(WGL_DENIED, (script.status = WGL_DENIED, wgl_decide(composite, "key", 3, 1, &decision)));
    CHECK(strcmp(decision.denied_by, "scripted") == 0, "denied by %s", decision.denied_by);
    // The denials of the others charge it nothing either.
    script.denies_only_decide = 0;
    script.status = WGL_OK;
    IS(WGL_OK, wgl_try_acquire(rate, NULL, 0, 2, &permit, NULL));
    script.ends = 0;
    IS(WGL_DENIED, wgl_try_acquire(composite, NULL, 0, 1, &permit, NULL));
    was_called(&script, "peek", "", 0);
    IS(WGL_OK, wgl_pause(composite, 5000, "key", 3));
    was_called(&script, "pause", "key", 3);

    // Freed with its last user, in any order.
    wgl_limiter_free(own);
    CHECK(script.freed == 0, "freed while a composite has it");
    wgl_limiter_free(composite);
    CHECK(script.freed == 1, "freed %d times", script.freed);
    wgl_limiter_free(rate);
    wgl_store_free(store);
}

// A concurrency limit with an atomic counter, as a program would write it.
struct at_once {
    atomic_int running;
};

enum { AT_ONCE = 2, THREADS = 4, ROUNDS = 2000 };

static int count_up(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *start,
                    uint64_t *retry_after_ns) {
    struct at_once *at_once = context;
    (void)key, (void)key_len, (void)start;
    int running = at_once->running;
    *retry_after_ns = 1000;
    do {
        if (running + (int)weight > AT_ONCE)
            return WGL_DENIED;
    } while (!atomic_compare_exchange_weak(&at_once->running, &running, running + (int)weight));
    return WGL_OK;
}

static int look(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns) {
    (void)key, (void)key_len;
    *retry_after_ns = 1000;
    return ((struct at_once *)context)->running + (int)weight > AT_ONCE ? WGL_DENIED : WGL_OK;
}

static int count_down(void *context, uint64_t start, uint32_t how, uint64_t actual) {
    (void)start, (void)how, (void)actual;
    ((struct at_once *)context)->running--;
    return WGL_OK;
}

static wgl_custom_limiter_table at_once_table(struct at_once *at_once) {
    wgl_custom_limiter_table table = WGL_CUSTOM_LIMITER_TABLE_INIT;
    table.context = at_once;
    table.name = "at once";
    table.decide = count_up;
    table.peek = look;
    table.end = count_down;
    return table;
}

static atomic_int working, most_working;

static void *work(void *limiter) {
    for (int i = 0; i < ROUNDS; i++) {
        wgl_permit permit;
        if (wgl_acquire(limiter, NULL, 0, 1, WGL_FOREVER, &permit, NULL) != WGL_OK)
            continue;
        int now = ++working, most = most_working;
        while (now > most && !atomic_compare_exchange_weak(&most_working, &most, now)) {
        }
        working--;
        wgl_complete(limiter, &permit);
    }
    return NULL;
}

static void from_many_threads(void) {
    struct at_once at_once = {0};
    wgl_custom_limiter_table table = at_once_table(&at_once);
    wgl_limiter *own, *composite;
    pthread_t threads[THREADS];
    MUST(wgl_custom_limiter_new(&table, &own));
    MUST(wgl_composite_limiter_new(&composite));
    MUST(wgl_composite_limiter_add(composite, own));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, i % 2 == 0 ? own : composite);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(most_working > 0 && most_working <= AT_ONCE, "%d at once", most_working);
    CHECK(at_once.running == 0, "%d are still counted", at_once.running);
    wgl_limiter_free(composite);
    wgl_limiter_free(own);
}

// A child has a copy of the context, and counts its own jobs.
static void in_a_child(void) {
    struct at_once at_once = {0};
    wgl_custom_limiter_table table = at_once_table(&at_once);
    wgl_limiter *own;
    wgl_permit permit;
    MUST(wgl_custom_limiter_new(&table, &own));
    MUST(wgl_try_acquire(own, NULL, 0, 2, &permit, NULL));
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        wgl_permit mine;
        int ok = wgl_try_acquire(own, NULL, 0, 1, &mine, NULL) == WGL_DENIED;
        at_once.running = 0;
        ok = ok && wgl_try_acquire(own, NULL, 0, 1, &mine, NULL) == WGL_OK;
        ok = ok && wgl_complete(own, &mine) == WGL_OK;
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: status %#x", status);
    CHECK(at_once.running == 2, "%d run in the parent", at_once.running);
    IS(WGL_OK, wgl_complete(own, &permit));
    wgl_limiter_free(own);
}

int main(void) {
    every_call_arrives();
    denials_and_failures();
    a_table_needs_three_entries();
    as_a_child();
    from_many_threads();
    in_a_child();
    return summary("custom");
}
