// A Redis server of a test's own.
#ifndef REDIS_H
#define REDIS_H

#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct {
    // The shell ends the server when no process has this open.
    FILE *shell;
    char dir[64], url[128];
    struct sockaddr_un at;
} redis;

// A connection; -1 if no server listens.
static inline int redis_connect(void) {
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    if (to >= 0 && connect(to, (struct sockaddr *)&redis.at, sizeof redis.at) == 0)
        return to;
    close(to);
    return -1;
}

// Starts a server on a socket in a directory of its own.
static inline void redis_start(void) {
    char command[512];
    int to = -1;
    make_dir(redis.dir);
    redis.at.sun_family = AF_UNIX;
    snprintf(redis.at.sun_path, sizeof redis.at.sun_path, "%s/s", redis.dir);
    snprintf(redis.url, sizeof redis.url, "redis+unix://%s", redis.at.sun_path);
    snprintf(command, sizeof command,
             "redis-server --port 0 --save '' --appendonly no --dir %s --unixsocket %s >/dev/null & cat; kill -9 $! 2>/dev/null",
             redis.dir, redis.at.sun_path);
    redis.shell = popen(command, "w");
    for (int wait = 0; wait < 60000 && (to = redis_connect()) < 0; wait++)
        usleep(1000);
    if (to < 0) {
        fprintf(stderr, "redis-server does not listen: apt-get install redis-server\n");
        exit(1);
    }
    close(to);
}

// The beginning of the reply to a command.
static inline const char *redis_command(const char *command) {
    static char answer[4096];
    ssize_t length = 0;
    int to = redis_connect();
    if (to >= 0 && dprintf(to, "%s\r\n", command) > 0)
        length = read(to, answer, sizeof answer - 1);
    answer[length > 0 ? length : 0] = '\0';
    close(to);
    return answer;
}

// The server's process.
static inline pid_t redis_pid(void) {
    const char *found = strstr(redis_command("INFO server"), "process_id:");
    return found == NULL ? 0 : atoi(found + strlen("process_id:"));
}

static inline void redis_end(void) {
    if (redis.shell != NULL)
        pclose(redis.shell);
    redis.shell = NULL;
    remove_dir(redis.dir);
}

#endif
