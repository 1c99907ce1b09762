/* A C member: member STORE NAME FOLDER TIMEOUT_SECONDS ON_ERROR DURABILITY. Asked as in conftest.py. */

#include "../../examples/fleet/evidence.h"
#include <errno.h>
#include <stdbool.h>
#include <string.h>

static wgl_store *store;
static wgl_limiter *limiter;
static int starts;
/* What came of a call that did not wait. */

static uint64_t ns(const char *word, uint64_t none) {
    return strcmp(word, "-") == 0 ? none : (uint64_t)(atof(word) * 1e9);
}

static void sleep_ns(uint64_t ns) {
    struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* Enough for a composite's place. */
enum { TEXT_MAX = 1024 };

static void text_of(const wgl_permit *permit, char *text) {
    int status = wgl_permit_to_text(limiter, permit, text, TEXT_MAX, NULL);
    if (status == WGL_UNSUPPORTED)
        strcpy(text, "-"); /* the start of a composite belongs to one process */
    else
        must(status);
}

static void say_error(int status) {
    printf("error %s\n", wgl_status_name(status));
}

static void say_place(const wgl_permit *place, uint64_t after_ns) {
    char text[TEXT_MAX];
    text_of(place, text);
    printf("place %s %.9f\n", text, (double)after_ns / 1e9);
}

/* Of a call that asked for a start. */
static void say_start(int status, uint64_t asked, const wgl_permit *permit) {
    if (status == WGL_OK) {
        evidence_start(starts, asked, limiter, permit);
        char text[TEXT_MAX];
        text_of(permit, text);
        printf("started %s\n", text);
    } else if (status == WGL_DENIED) {
        printf("denied\n");
    } else {
        say_error(status);
    }
}

/* Waits while it is too early. What came of it: a start, or another place. */
static void present(wgl_permit *place) {
    char before[TEXT_MAX], after[TEXT_MAX];
    text_of(place, before);
    for (;;) {
        uint64_t after_ns, asked = now_ns();
        int status = wgl_present(limiter, place, &after_ns);
        if (status < 0) {
            say_error(status);
            return;
        }
        if (status == WGL_OK)
            evidence_start(starts, asked, limiter, NULL);
        text_of(place, after);
        if (status == WGL_OK) {
            printf("started %s\n", after);
            return;
        }
        if (strcmp(before, after) != 0) {
            say_place(place, after_ns);
            return;
        }
        sleep_ns(after_ns);
    }
}

/* Takes a place, says so, and starts with it when its time has come. */
static void queue(uint64_t grace_ns) {
    wgl_permit place;
    uint64_t after_ns;
    int decisions = 1, sleeps = 0, status;
    must(wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, grace_ns, &place, &after_ns));
    say_place(&place, after_ns);
    fflush(stdout);
    do {
        if (after_ns > 0) {
            sleep_ns(after_ns);
            sleeps++;
        }
        status = wgl_present(limiter, &place, &after_ns);
        decisions++;
    } while (status == WGL_DENIED);
    must(status);
    evidence_start(starts, 0, limiter, &place);
    char text[TEXT_MAX];
    text_of(&place, text);
    printf("started %s %d %d\n", text, decisions, sleeps);
}

/* What is asked about a place or start that comes as a text. */
static void with_text(const char *verb, const char *text) {
    wgl_permit permit;
    uint64_t asked = now_ns();
    int status = wgl_permit_from_text(limiter, text, strlen(text), &permit);
    if (status < 0) {
        say_error(status);
    } else if (strcmp(verb, "present") == 0) {
        present(&permit);
    } else if (strcmp(verb, "acquire-place") == 0) {
        status = wgl_acquire_place(limiter, &permit, WGL_FOREVER, NULL);
        say_start(status, asked, &permit);
    } else {
        bool is_complete = strcmp(verb, "complete") == 0;
        status = is_complete ? wgl_complete(limiter, &permit) : wgl_cancel(limiter, &permit);
        if (status < 0)
            say_error(status);
        else
            printf("done\n");
    }
}

/* Waits for a start, with a grace of the caller's choice. */
static void acquire(uint64_t timeout_ns, uint64_t grace_ns) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    options.grace_ns = grace_ns;
    wgl_permit permit;
    uint64_t asked = now_ns();
    say_start(wgl_acquire_with(limiter, NULL, 0, &options, &permit, NULL), asked, &permit);
}

static void answer(const char *verb, const char *word, const char *grace) {
    wgl_permit permit;
    uint64_t count, asked = now_ns();
    if (strcmp(verb, "try") == 0) {
        say_start(wgl_try_acquire(limiter, NULL, 0, 1, &permit, NULL), asked, &permit);
    } else if (strcmp(verb, "acquire") == 0) {
        acquire(ns(word, WGL_FOREVER), ns(grace, WGL_DEFAULT_GRACE));
    } else if (strcmp(verb, "reserve") == 0) {
        must(wgl_reserve(limiter, NULL, 0, 1, WGL_FOREVER, ns(word, WGL_DEFAULT_GRACE), &permit, &count));
        say_place(&permit, count);
    } else if (strcmp(verb, "queue") == 0) {
        queue(ns(word, WGL_DEFAULT_GRACE));
    } else if (strcmp(verb, "failures") == 0) {
        must(wgl_store_failures(store, &count));
        printf("failures %" PRIu64 "\n", count);
    } else {
        with_text(verb, word);
    }
}

int main(int argc, char **argv) {
    if (argc != 7)
        return 2;
    const char *on_error = argv[5], *durability = argv[6];
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    options.timeout_ns = ns(argv[4], 0);
    options.on_error = strcmp(on_error, "deny") == 0    ? WGL_ON_ERROR_DENY
                       : strcmp(on_error, "admit") == 0 ? WGL_ON_ERROR_ADMIT
                                                        : WGL_ON_ERROR_RAISE;
    options.durability = strcmp(durability, "commit") == 0 ? WGL_DURABILITY_COMMIT : WGL_DURABILITY_BUDGET;
    must(wgl_store_open(argv[1], &options, &store));
    must(wgl_limiter_attach(store, argv[2], &limiter));
    starts = evidence_open(argv[3]);
    wgl_decision decision = WGL_DECISION_INIT;
    if (wgl_peek(limiter, NULL, 0, 0, &decision) < 0)
        must(WGL_INTERNAL);

    printf("ready\n");
    fflush(stdout);
    char line[2 * TEXT_MAX], verb[32], word[TEXT_MAX], grace[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "%31s %1023s %31s", verb, word, grace) < 1)
            return 2;
        answer(verb, word, grace);
        fflush(stdout);
    }
}
