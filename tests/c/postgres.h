// A Postgres server of a test's own.
#ifndef POSTGRES_H
#define POSTGRES_H

#include "check.h"

static struct {
    // The server ends when no process has this open.
    FILE *server;
    char dir[64], url[128];
} postgres;

static inline void postgres_start(void) {
    char command[256], path[128];
    make_dir(postgres.dir);
    snprintf(path, sizeof path, "%s/url", postgres.dir);
    snprintf(command, sizeof command, "exec tests/fleet/postgres >%s", path);
    postgres.server = popen(command, "w");
    for (int wait = 0; wait < 60000 && strchr(postgres.url, '\n') == NULL; wait++) {
        usleep(1000);
        FILE *file = fopen(path, "r");
        if (file == NULL || fgets(postgres.url, sizeof postgres.url, file) == NULL)
            postgres.url[0] = '\0';
        if (file != NULL)
            fclose(file);
    }
    char *end = strchr(postgres.url, '\n');
    if (end == NULL) {
        fprintf(stderr, "Postgres does not answer: apt-get install postgresql\n");
        exit(1);
    }
    *end = '\0';
}

// Forgets all limits.
static inline void postgres_forget(void) {
    char command[256];
    snprintf(command, sizeof command, "psql -X -q -f tests/fleet/forget.sql '%s'", postgres.url);
    CHECK(system(command) == 0, "the server is not empty");
}

static inline void postgres_end(void) {
    if (postgres.server != NULL)
        pclose(postgres.server);
    postgres.server = NULL;
    remove_dir(postgres.dir);
}

#endif
