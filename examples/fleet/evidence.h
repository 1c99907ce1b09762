/* Records the starts of a C member: see evidence.py. */

#ifndef EVIDENCE_H
#define EVIDENCE_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <workglow_limit.h>

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Ends the program unless the call succeeded. */
static inline void must(int status) {
    if (status != WGL_OK) {
        fprintf(stderr, "%s: %s\n", wgl_status_name(status), wgl_last_error());
        exit(1);
    }
}

/* Opens the log of this process. */
static inline int evidence_open(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/c-%ld.log", folder, (long)getpid());
    int log = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (log < 0) {
        perror(path);
        exit(1);
    }
    return log;
}

/* Call it directly after the call that admitted; `asked` is the time just before that call. Without a permit, the start
   has that time. */
static inline void evidence_start(int log, uint64_t asked, const wgl_limiter *limiter, const wgl_permit *permit) {
    uint64_t returned = now_ns(), a = asked;
    int waited = permit == NULL ? WGL_NONE : wgl_permit_ready_at_monotonic(limiter, permit, &a);
    if (waited != WGL_NONE)
        must(waited);
    char line[64];
    int length = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 "\n", a, returned);
    if (write(log, line, (size_t)length) != length) {
        perror("writing a start");
        exit(1);
    }
}

#endif
