// Helpers of the C tests: counting, and a temporary directory.
#ifndef CHECK_H
#define CHECK_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <workglow_limit.h>

static atomic_int passed, failed;

// Counts a check; a failed one prints its location, the text and its arguments.
#define CHECK(condition, ...)                                                                                        \
    do {                                                                                                             \
        if (condition) {                                                                                             \
            passed++;                                                                                                \
        } else {                                                                                                     \
            failed++;                                                                                                \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                          \
            fprintf(stderr, __VA_ARGS__);                                                                            \
            fputc('\n', stderr);                                                                                     \
        }                                                                                                            \
    } while (0)

// A call that must succeed for the rest of the test.
#define MUST(call)                                                                                                   \
    do {                                                                                                             \
        if ((call) != WGL_OK) {                                                                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, wgl_last_error());                         \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

// A call must return this status.
#define IS(status, call)                                                                                             \
    do {                                                                                                             \
        int got = (call);                                                                                            \
        CHECK(got == (status), "%s: %s, not %s %s", #call, wgl_status_name(got), wgl_status_name(status),            \
              got < 0 ? wgl_last_error() : "");                                                                      \
    } while (0)

// A call must fail with this status, and the message must contain the text.
#define REFUSED(status, text, call)                                                                                  \
    do {                                                                                                             \
        int got = (call);                                                                                            \
        CHECK(got == (status), "%s: %s, not %s", #call, wgl_status_name(got), wgl_status_name(status));              \
        CHECK(strstr(wgl_last_error(), text) != NULL, "%s: says \"%s\", not \"%s\"", #call, wgl_last_error(), text); \
    } while (0)

// The last line of every test, and its exit status.
static inline int summary(const char *name) {
    printf("%s: %d passed, %d failed\n", name, passed, failed);
    return failed != 0 || passed == 0;
}

// Makes a directory and writes its path to `path`, which holds 64 bytes.
static inline void make_dir(char *path) {
    strcpy(path, "/tmp/workglow-limit-XXXXXX");
    if (mkdtemp(path) == NULL) {
        perror(path);
        exit(1);
    }
}

// Calls `each` with the path of each entry of a directory, and returns their number.
static inline int in_dir(const char *dir, int (*each)(const char *path)) {
    DIR *open = opendir(dir);
    int count = 0;
    for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        count++;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (each != NULL)
            each(path);
    }
    if (open != NULL)
        closedir(open);
    return count;
}

// Removes a directory that has only files in it.
static inline void remove_dir(const char *dir) {
    in_dir(dir, unlink);
    rmdir(dir);
}

#endif
