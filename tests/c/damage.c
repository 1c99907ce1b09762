// Files that were overwritten or linked from outside: each call returns a count or an error about it, without a crash.
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SECOND UINT64_C(1000000000)

enum { LIMIT = 100, ROUNDS = 10 };

static char dir[64], url[96], database[96], lane[112];

// Runs `use` in a process of its own, because a process does not open a damaged store again.
static int in_child(int (*use)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(use());
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static wgl_limiter *api(wgl_store **store) {
    wgl_store_options options = WGL_STORE_OPTIONS_INIT;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_limiter *limiter;
    options.timeout_ns = SECOND / 10;
    MUST(wgl_store_open(url, &options, store));
    rate.max_executions = LIMIT;
    rate.window_ns = 3600 * SECOND;
    MUST(wgl_rate_limiter_new(*store, "api", &rate, &limiter));
    return limiter;
}

static int is_of_damage(int status) {
    switch (status) {
    case WGL_DAMAGED: case WGL_STORE_FAILURE: case WGL_STORE_TIMEOUT: case WGL_STORE_FULL: case WGL_NOT_A_STORE:
    case WGL_UNSUPPORTED_VERSION: case WGL_UNKNOWN_LIMIT: case WGL_KIND_MISMATCH:
        return strlen(wgl_last_error()) > 0;
    default:
        return status == WGL_OK || status == WGL_DENIED;
    }
}

static int take_ten(void) {
    wgl_store *store;
    wgl_limiter *limiter = api(&store);
    for (int i = 0; i < 10; i++) {
        wgl_permit permit;
        MUST(wgl_try_acquire(limiter, "key", 3, 1, &permit, NULL));
    }
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    return 0;
}

// The exit status is 1 after a result that damage does not explain, 2 if every call was refused.
static int use_damaged(void) {
    wgl_store *store = NULL;
    wgl_limiter *limiter = NULL;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    rate.max_executions = LIMIT;
    rate.window_ns = 3600 * SECOND;
    int status = wgl_store_open(url, NULL, &store);
    if (status == WGL_OK)
        status = wgl_rate_limiter_new(store, "api", &rate, &limiter);
    if (status != WGL_OK)
        return is_of_damage(status) ? 2 : 1;
    int refused = 1;
    for (int i = 0; i < LIMIT; i++) {
        wgl_permit permit;
        char key[16];
        size_t length = (size_t)snprintf(key, sizeof key, "key%.0d", i % 5);
        status = wgl_try_acquire(limiter, key, length, 1, &permit, NULL);
        if (!is_of_damage(status)) {
            fprintf(stderr, "damage: %s %s\n", wgl_status_name(status), wgl_last_error());
            return 1;
        }
        refused &= status < 0;
    }
    wgl_limiter_free(limiter);
    wgl_store_free(store);
    return refused ? 2 : 0;
}

static void overwrite(off_t from, size_t length) {
    int file = open(lane, O_WRONLY);
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)rand();
        if (pwrite(file, &byte, 1, from + (off_t)i) != 1)
            exit(1);
    }
    close(file);
}

static void overwritten_words(void) {
    for (int round = 0; round < ROUNDS; round++) {
        off_t at = rand() % (round % 2 ? 2048 : 16384);
        CHECK(in_child(take_ten) == 0, "round %d: the store before its damage", round);
        overwrite(at, 8);
        int status = in_child(use_damaged);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 1, "round %d: byte %ld: status %x", round, (long)at, status);
        unlink(lane);
        unlink(database);
    }
}

static void a_lane_of_noise(void) {
    struct stat whole;
    CHECK(in_child(take_ten) == 0 && stat(lane, &whole) == 0, "the store before its damage");
    overwrite(0, 65536 < whole.st_size ? 65536 : (size_t)whole.st_size);
    int status = in_child(use_damaged);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2, "noise is no store: status %x", status);

    const char *expected[] = {"the lane: ", "repaired: the lane: "};
    for (int repair = 0; repair < 2; repair++) {
        wgl_strings *problems;
        MUST(wgl_store_verify(url, NULL, repair, &problems));
        CHECK(wgl_strings_count(problems) == 1, "%zu problems", wgl_strings_count(problems));
        const char *problem = wgl_strings_get(problems, 0);
        CHECK(problem != NULL && strstr(problem, expected[repair]) == problem, "%s", problem);
        wgl_strings_free(problems);
    }
    wgl_strings *none;
    MUST(wgl_store_verify(url, NULL, 1, &none));
    CHECK(wgl_strings_count(none) == 0, "%zu problems after the repair", wgl_strings_count(none));
    wgl_strings_free(none);
    status = in_child(use_damaged);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "after its repair: status %x", status);
    unlink(lane);
    unlink(database);
}

// Two names of one database would be two lanes, and twice the limit.
static void a_linked_database(void) {
    char alias[112], alias_url[128];
    wgl_store *store, *other = NULL;
    wgl_limiter *limiter = api(&store);
    wgl_permit permit;
    MUST(wgl_try_acquire(limiter, "key", 3, 1, &permit, NULL));
    snprintf(alias, sizeof alias, "%s/alias.db", dir);
    snprintf(alias_url, sizeof alias_url, "sqlite:%s", alias);
    CHECK(link(database, alias) == 0, "link");
    REFUSED(WGL_STORE_FAILURE, "under another name", wgl_store_open(alias_url, NULL, &other));
    IS(WGL_OK, wgl_try_acquire(limiter, "key", 3, 1, &permit, NULL));
    wgl_limiter_free(limiter);
    wgl_store_free(store);
}

int main(void) {
    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    snprintf(database, sizeof database, "%s/limits.db", dir);
    snprintf(lane, sizeof lane, "%s-lane", database);
    CHECK(strcmp(wgl_status_name(WGL_DAMAGED), "damaged") == 0, "%s", wgl_status_name(WGL_DAMAGED));
    srand((unsigned)getpid());
    overwritten_words();
    a_lane_of_noise();
    a_linked_database();
    remove_dir(dir);
    return summary("damage");
}
