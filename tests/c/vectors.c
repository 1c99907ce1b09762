// Runs vectors: vectors [SCHEME] PLACE ..., each place a file or a directory of *.vec; on every store, or only on that of
// the scheme. The format is in tests/vectors/README.md.
#include "check.h"
#include "limiters.h"
#include "postgres.h"
#include "redis.h"
#include <sys/stat.h>
#include <time.h>

// One case, running.
static struct {
    char name[256];
    const char *scheme;
    char dir[64];
    wgl_manual_clock *clock;
    wgl_store *store;
    wgl_limiter *children[MOST_STARTS];
    int limiters;
    int is_first_of;
    char kind[32];
    wgl_limiter *limiter;
    unsigned long long at_us;
    struct {
        char name[32];
        wgl_permit permit;
    } permits[MOST_STARTS];
    int permit_count;
    wgl_permit last; // Of this step: which alternative has it is one of its answers.
} now;

static void begin(const char *scheme, const char *name) {
    memset(&now, 0, sizeof now);
    snprintf(now.name, sizeof now.name, "%s", name);
    now.scheme = scheme;
    make_dir(now.dir);
    MUST(wgl_manual_clock_new(&now.clock));
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    options.clock = now.clock;
    char url[128];
    snprintf(url, sizeof url, "%s", scheme);
    if (strcmp(scheme, "sqlite:") == 0)
        snprintf(url, sizeof url, "sqlite:%s/limits.db", now.dir);
    if (strcmp(scheme, "redis:") == 0) {
        snprintf(url, sizeof url, "%s", redis.url);
        CHECK(strcmp(redis_command("FLUSHALL"), "+OK\r\n") == 0, "the server is not empty");
    }
    if (strcmp(scheme, "postgres:") == 0) {
        snprintf(url, sizeof url, "%s", postgres.url);
        postgres_forget();
    }
    MUST(wgl_store_open(url, &options, &now.store));
}

static const char *const schemes[] = {"memory:", "sqlite:", "redis:", "postgres:"};
enum { SCHEMES = sizeof schemes / sizeof *schemes };

// The number of cases that ran, by kind of limiter.
static struct {
    char kind[32];
    int ran[SCHEMES];
} cells[16];

static void count_case(void) {
    int i = 0;
    while (cells[i].kind[0] != '\0' && strcmp(cells[i].kind, now.kind) != 0)
        i++;
    strcpy(cells[i].kind, now.kind);
    cells[i].ran[choice(now.scheme, schemes, SCHEMES)]++;
}

// Records the coverage of kinds: lines of "KIND STORE CASES" in DIR/c, if WGL_CELLS is DIR.
static void write_cells(void) {
    const char *dir = getenv("WGL_CELLS");
    char path[512];
    if (dir == NULL)
        return;
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/c", dir);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL, "%s cannot be written", path);
    if (file == NULL)
        return;
    for (int i = 0; cells[i].kind[0] != '\0'; i++)
        for (int s = 0; s < SCHEMES; s++)
            fprintf(file, "%s %.*s %d\n", cells[i].kind, (int)strcspn(schemes[s], ":"), schemes[s], cells[i].ran[s]);
    fclose(file);
}

static void end(void) {
    if (now.store == NULL)
        return;
    count_case();
    wgl_limiter_free(now.limiter);
    for (int i = 0; i < now.limiters; i++)
        if (now.children[i] != now.limiter)
            wgl_limiter_free(now.children[i]);
    wgl_store_free(now.store);
    wgl_manual_clock_free(now.clock);
    remove_dir(now.dir);
    now.store = NULL;
}

// "KIND NUMBER ...", or "policy TEXT".
static void add_limiter(char *line) {
    wgl_limiter **place = &now.children[now.limiters++];
    size_t length = strcspn(line, " ");
    char name[32], *rest = line + length + (line[length] != '\0');
    line[length] = '\0';
    snprintf(name, sizeof name, "limit-%d", now.limiters);
    snprintf(now.kind, sizeof now.kind, "%s", now.is_first_of ? "first_of" : now.limiters > 1 ? "composite" : line);
    *place = limiter_of(now.store, name, line, rest);
}

static void finish_limiter(void) {
    if (now.limiter != NULL)
        return;
    now.limiter = now.children[0];
    if (now.is_first_of) {
        MUST(wgl_first_of_limiter_new(&now.limiter));
        for (int i = 0; i < now.limiters; i++)
            MUST(wgl_first_of_limiter_add(now.limiter, now.children[i]));
        return;
    }
    if (now.limiters == 1)
        return;
    MUST(wgl_composite_limiter_new(&now.limiter));
    for (int i = 0; i < now.limiters; i++)
        MUST(wgl_composite_limiter_add(now.limiter, now.children[i]));
}

// The value of `name=value` among `words`, or NULL.
static const char *argument(char **words, int count, const char *name) {
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], name, length) == 0 && words[i][length] == '=')
            return words[i] + length + 1;
    return NULL;
}

static void keep(const char *name, const wgl_permit *permit) {
    now.last = *permit;
    if (name == NULL)
        return;
    int i = 0;
    while (i < now.permit_count && strcmp(now.permits[i].name, name) != 0)
        i++;
    if (i == now.permit_count && now.permit_count++ == MOST_STARTS) {
        fprintf(stderr, "%s: more than %d permits\n", now.name, MOST_STARTS);
        exit(1);
    }
    snprintf(now.permits[i].name, sizeof now.permits[i].name, "%s", name);
    now.permits[i].permit = *permit;
}

static wgl_permit *kept(const char *name) {
    for (int i = 0; name != NULL && i < now.permit_count; i++)
        if (strcmp(now.permits[i].name, name) == 0)
            return &now.permits[i].permit;
    fprintf(stderr, "%s: no permit %s\n", now.name, name == NULL ? "given" : name);
    exit(1);
}

static void number(char *text, size_t size, uint64_t value) {
    if (value == UINT64_MAX)
        snprintf(text, size, "inf");
    else
        snprintf(text, size, "%llu", (unsigned long long)value);
}

// Checks one word after the "=>".
static void compare(const char *where, char *wanted, const char *word, const wgl_decision *decision,
                    const wgl_counts *counts, int64_t next_us, const uint64_t *after_ns) {
    char got[1100] = "nothing";
    char *value = strchr(wanted, '=');
    if (value == NULL) {
        CHECK(strcmp(wanted, word) == 0, "%s: %s, not %s", where, word, wanted);
        return;
    }
    *value++ = '\0';
    if (strcmp(word, "place") == 0 && strcmp(wanted, "after") == 0) {
        // Measured on the wall clock, which advances during the test: never early.
        int64_t late = (int64_t)(*after_ns / 1000) - atoll(value);
        CHECK(0 <= late && late < 2000000, "%s: ready %lld us after %s", where, (long long)late, value);
        return;
    }
    if (strcmp(wanted, "retry") == 0 && decision == NULL) {
        // The wall clock moves on between the call and the comparison.
        int64_t off = next_us - atoll(value);
        CHECK(-2000000 < off && off < 2000000, "%s: available after %lld us, not %s", where, (long long)next_us, value);
        return;
    }
    if (strcmp(wanted, "chosen") == 0) {
        size_t index = 0;
        const char *name = NULL;
        if (wgl_chosen(now.limiter, &now.last, &index, &name) == WGL_OK)
            number(got, sizeof got, index);
        CHECK(name != NULL && strcmp(name, wgl_limiter_name(now.children[index])) == 0, "%s: chosen %s", where, got);
    }
    if (strcmp(wanted, "after") == 0 && after_ns != NULL)
        number(got, sizeof got, *after_ns / 1000);
    if (counts != NULL) {
        const char *fields[] = {"admitted", "denied", "wanted", "granted", "waited", "cancelled"};
        uint64_t values[] = {counts->admitted,      counts->denied, counts->units_wanted,
                             counts->units_granted, counts->waited, counts->cancelled};
        for (int i = 0; i < 6; i++)
            if (strcmp(wanted, fields[i]) == 0)
                number(got, sizeof got, values[i]);
    }
    if (decision != NULL) {
        if (strcmp(wanted, "retry") == 0)
            number(got, sizeof got, decision->retry_after_ns / 1000);
        if (strcmp(wanted, "suggested") == 0)
            number(got, sizeof got, decision->suggested_after_ns / 1000);
        if (strcmp(wanted, "reset") == 0)
            number(got, sizeof got, decision->reset_after_ns / 1000);
        if (strcmp(wanted, "remaining") == 0)
            number(got, sizeof got, decision->remaining);
        if (strcmp(wanted, "limit") == 0)
            number(got, sizeof got, decision->limit);
        if (strcmp(wanted, "by") == 0 && decision->denied_by != NULL)
            snprintf(got, sizeof got, "%s", decision->denied_by);
        for (char *c = got; *c != '\0'; c++)
            if (*c == ' ')
                *c = '_';
    }
    CHECK(strcmp(got, value) == 0, "%s: %s is %s, not %s", where, wanted, got, value);
}

// Splits "A:B:C,A:B:C,..." at commas: returns the next item, as a text of its own, and moves `list` on; NULL at the end.
static char *next_item(const char **list, char *item, size_t size) {
    size_t length = strcspn(*list, ",");
    if (length == 0)
        return NULL;
    CHECK(length < size, "%s is too long", *list);
    snprintf(item, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ',');
    return item;
}

// Makes the key of a joint start from "PART:WEIGHT:KEY,...", with "-" for what is the start's.
static int join(const char *text, const char *key, size_t length, wgl_joint_key **joint) {
    wgl_charge charges[8];
    char items[8][64];
    size_t count = 0;
    while (count < 8 && next_item(&text, items[count], sizeof items[count]) != NULL) {
        char *weight = strchr(items[count], ':'), *own = strrchr(items[count], ':');
        *weight++ = '\0';
        *own++ = '\0';
        wgl_charge charge = {items[count], strcmp(own, "-") == 0 ? NULL : own, strcmp(own, "-") == 0 ? 0 : strlen(own),
                             strcmp(weight, "-") == 0 ? 0 : strtoull(weight, NULL, 10)};
        charges[count++] = charge;
    }
    return wgl_joint_key_new(now.limiter, key, length, charges, count, joint);
}

// Settles "PART:UNITS,...".
static int settle_parts(const char *text, wgl_permit *permit) {
    wgl_usage parts[8];
    char items[8][64];
    size_t count = 0;
    while (count < 8 && next_item(&text, items[count], sizeof items[count]) != NULL) {
        char *units = strchr(items[count], ':');
        *units++ = '\0';
        wgl_usage part = {items[count], strtoull(units, NULL, 10)};
        parts[count++] = part;
    }
    return wgl_settle_parts(now.limiter, permit, parts, count);
}

// "AT CALL [argument=value ...] [=> answer [field=value ...]]"
static void step(const char *file, int line, char *text) {
    char where[400];
    char *words[32];
    int count = 0, arguments = 0;
    finish_limiter();
    for (char *word = strtok(text, " \t"); word != NULL && count < 32; word = strtok(NULL, " \t"))
        words[count++] = word;
    while (arguments < count && strcmp(words[arguments], "=>") != 0)
        arguments++;
    unsigned long long at_us = strtoull(words[0], NULL, 10);
    MUST(wgl_manual_clock_advance(now.clock, (at_us - now.at_us) * 1000));
    now.at_us = at_us;

    const char *call = words[1], *key = argument(words, arguments, "key"), *as = argument(words, arguments, "as");
    const char *weight_text = argument(words, arguments, "weight"), *span_text = argument(words, arguments, "for");
    size_t length = key == NULL ? 0 : strlen(key);
    uint64_t weight = weight_text == NULL ? 1 : strtoull(weight_text, NULL, 10);
    uint64_t span_ns = span_text == NULL ? 0 : strtoull(span_text, NULL, 10) * 1000;
    const char *grace_text = argument(words, arguments, "grace"), *actual = argument(words, arguments, "actual");
    const char *permit_name = argument(words, arguments, "permit");
    snprintf(where, sizeof where, "%s line %d, on %s (%s): %s", file, line, now.scheme, now.name, call);

    const char *joint_text = argument(words, arguments, "charges");
    wgl_joint_key *joint = NULL;
    int refused = joint_text == NULL ? WGL_OK : join(joint_text, key, length, &joint);
    if (joint != NULL) {
        key = wgl_joint_key_text(joint);
        length = wgl_joint_key_length(joint);
    }

    const char *word = "";
    wgl_decision decision = WGL_DECISION_INIT;
    const wgl_decision *decided = NULL;
    wgl_counts counts = WGL_COUNTS_INIT;
    const wgl_counts *counted = NULL;
    wgl_permit permit;
    int64_t next_us = 0;
    uint64_t after_ns = 0;
    int has_after = 0;
    int status;
    if (refused != WGL_OK) {
        status = refused;
    } else if (strcmp(call, "decide") == 0 || strcmp(call, "peek") == 0) {
        int deciding = call[0] == 'd';
        status = deciding ? wgl_decide(now.limiter, key, length, weight, &decision)
                          : wgl_peek(now.limiter, key, length, weight, &decision);
        if (status >= 0) {
            decided = &decision;
            CHECK(decision.admitted == (status == WGL_OK), "%s: status %d", where, status);
            CHECK((decision.permit.opaque[0] != 0) == (deciding && status == WGL_OK), "%s: its permit", where);
        }
        if (status == WGL_OK && deciding)
            keep(as, &decision.permit);
        word = status == WGL_OK ? "admitted" : "denied";
    } else if (strcmp(call, "try_acquire") == 0) {
        status = wgl_try_acquire(now.limiter, key, length, weight, &permit, NULL);
        if (status == WGL_OK)
            keep(as, &permit);
        word = status == WGL_OK ? "admitted" : "denied";
    } else if (strcmp(call, "acquire") == 0) {
        wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
        options.weight = weight;
        options.timeout_ns = span_ns == 0 ? WGL_NO_WAIT : span_ns;
        options.grace_ns = grace_text == NULL ? WGL_DEFAULT_GRACE : strtoull(grace_text, NULL, 10) * 1000;
        // A weight of 0 is the default of options, and an error of wgl_acquire.
        if (weight == 0)
            status = wgl_acquire(now.limiter, key, length, weight, span_ns, &permit, NULL);
        else
            status = wgl_acquire_with(now.limiter, key, length, &options, &permit, NULL);
        if (status == WGL_OK)
            keep(as, &permit);
        word = status == WGL_OK ? "admitted" : "expired";
    } else if (strcmp(call, "can_proceed") == 0) {
        status = wgl_can_proceed(now.limiter, key, length);
        word = status == WGL_OK ? "yes" : "no";
    } else if (strcmp(call, "next_available") == 0) {
        int64_t at_ns = 0;
        struct timespec wall;
        status = wgl_get_next_available_time(now.limiter, key, length, &at_ns);
        clock_gettime(CLOCK_REALTIME, &wall);
        next_us = (at_ns - (wall.tv_sec * 1000000000 + wall.tv_nsec)) / 1000;
    } else if (strcmp(call, "complete") == 0) {
        status = wgl_complete(now.limiter, kept(permit_name));
    } else if (strcmp(call, "cancel") == 0) {
        status = wgl_cancel(now.limiter, kept(permit_name));
    } else if (strcmp(call, "arrived") == 0) {
        status = wgl_arrived(now.limiter, kept(permit_name));
    } else if (strcmp(call, "renew") == 0) {
        status = wgl_renew(now.limiter, kept(permit_name));
    } else if (strcmp(call, "stats") == 0) {
        status = wgl_stats(now.limiter, key, length, &counts);
        counted = &counts;
    } else if (strcmp(call, "settle") == 0 && argument(words, arguments, "parts") != NULL) {
        status = settle_parts(argument(words, arguments, "parts"), kept(permit_name));
    } else if (strcmp(call, "settle") == 0) {
        status = wgl_settle(now.limiter, kept(permit_name), actual == NULL ? 0 : strtoull(actual, NULL, 10));
    } else if (strcmp(call, "reserve") == 0) {
        uint64_t most_ns = span_text == NULL ? WGL_FOREVER : span_ns;
        uint64_t grace_ns = grace_text == NULL ? WGL_DEFAULT_GRACE : strtoull(grace_text, NULL, 10) * 1000;
        if (grace_text != NULL && grace_ns == 0)
            grace_ns = WGL_NO_GRACE;
        status = wgl_reserve(now.limiter, key, length, weight, most_ns, grace_ns, &permit, &after_ns);
        if (status == WGL_OK)
            keep(as, &permit);
        word = status == WGL_OK ? "place" : "denied";
        has_after = 1;
    } else if (strcmp(call, "present") == 0) {
        status = wgl_present(now.limiter, kept(permit_name), &after_ns);
        now.last = *kept(permit_name);
        word = status == WGL_OK ? "started" : "wait";
        has_after = 1;
    } else if (strcmp(call, "record_job_start") == 0) {
        status = wgl_record_job_start(now.limiter, key, length);
    } else if (strcmp(call, "record_job_completion") == 0) {
        status = wgl_record_job_completion(now.limiter, key, length);
    } else if (strcmp(call, "clear") == 0) {
        status = wgl_clear(now.limiter, key, length);
    } else if (strcmp(call, "override") == 0 || strcmp(call, "lift") == 0) {
        const char *of = argument(words, arguments, "of"), *given = argument(words, arguments, "policy");
        char policy[128];
        snprintf(policy, sizeof policy, "%s", given == NULL ? "" : given);
        for (char *c = policy; *c != '\0'; c++)
            if (*c == '_')
                *c = ' ';
        of = of == NULL ? "limit-1" : of;
        status = call[0] == 'o' ? wgl_store_override(now.store, of, policy, key, length)
                                : wgl_store_lift(now.store, of, key, length);
    } else if (strcmp(call, "pause") == 0) {
        const char *of = argument(words, arguments, "of");
        status = wgl_pause(of == NULL ? now.limiter : now.children[atoi(of + strlen("limit-")) - 1], span_ns, key, length);
    } else {
        CHECK(0, "%s: there is no such call", where);
        return;
    }
    wgl_joint_key_free(joint);
    const char *error = argument(words + arguments, count - arguments, "error");
    if (error != NULL || status < 0) {
        const char *name = status < 0 ? wgl_status_name(status) : "none";
        CHECK(error != NULL && strcmp(error, name) == 0, "%s: error %s: %s", where, name, wgl_last_error());
        return;
    }
    CHECK(1, " ");
    for (int i = arguments + 1; i < count; i++)
        compare(where, words[i], word, decided, counted, next_us, has_after ? &after_ns : NULL);
}

static int cases;

static void run(const char *scheme, const char *path) {
    FILE *file = fopen(path, "r");
    char line[1024];
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        line[strcspn(line, "#\r\n")] = '\0';
        for (size_t last = strlen(line); last > 0 && strchr(" \t", line[last - 1]) != NULL; last--)
            line[last - 1] = '\0';
        char *text = line + strspn(line, " \t");
        if (strncmp(text, "case ", 5) == 0) {
            end();
            begin(scheme, text + 5);
            cases++;
        } else if (strcmp(text, "first_of") == 0) {
            now.is_first_of = 1;
        } else if (strncmp(text, "limiter ", 8) == 0) {
            add_limiter(text + 8);
        } else if (*text != '\0') {
            step(path, number, text);
        }
    }
    end();
    fclose(file);
}

static const char *only; // The one store that is tested, or NULL.

static int run_everywhere(const char *path) {
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".vec") == 0) {
        for (int s = 0; s < SCHEMES; s++) {
            if (only == NULL || strcmp(only, schemes[s]) == 0)
                run(schemes[s], path);
        }
    }
    return 0;
}

int main(int count, char **arguments) {
    int first = 1;
    if (count > 1 && strchr(arguments[1], ':') != NULL)
        only = arguments[first++];
    if (count <= first) {
        fprintf(stderr, "usage: vectors [SCHEME] PLACE ...\n");
        return 2;
    }
    int has_redis = only == NULL || strncmp(only, "redis", 5) == 0;
    int has_postgres = only == NULL || strncmp(only, "postgres", 8) == 0;
    if (has_redis)
        redis_start();
    if (has_postgres)
        postgres_start();
    for (int place = first; place < count; place++) {
        run_everywhere(arguments[place]);
        in_dir(arguments[place], run_everywhere);
    }
    if (has_postgres)
        postgres_end();
    if (has_redis)
        redis_end();
    CHECK(cases > 0, "no vectors in %s", arguments[first]);
    if (only != NULL) {
        printf("vectors: %d cases on %s\n", cases, only);
        return summary("vectors");
    }
    write_cells();
    printf("vectors: %d cases on memory:, on sqlite:, on Redis and on Postgres\n", cases / SCHEMES);
    return summary("vectors");
}
