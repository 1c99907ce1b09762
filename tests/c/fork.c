// One limiter, made before the forks, used by four children and the parent at once, while threads of the parent
// decide all the time: fifty forks, or as many as the argument says; each unit is counted once, and no process hangs.
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { LIMIT = 100, CHILDREN = 4, MOST_FORKS = 50, MOST_ROUNDS = MOST_FORKS / CHILDREN + 1, THREADS = 2 };

// State shared by the parent and its children.
struct shared {
    // Admissions, by round.
    atomic_int admitted[MOST_ROUNDS];
    atomic_int round, stop, errors;
};

static struct shared *shared;
static wgl_limiter *limiter, *memory_limiter, *composite, *concurrency;
static uint64_t generation;

static size_t key_of(char *key, size_t size, const char *kind, int number) {
    return (size_t)snprintf(key, size, "%s-%d", kind, number);
}

// Takes the rest of a round's budget, with new keys in between, because they take locks.
static void drain(int round, int process) {
    char key[32], own[32];
    size_t length = key_of(key, sizeof key, "round", round);
    int status;
    do {
        wgl_permit permit;
        status = wgl_try_acquire(limiter, key, length, 1, &permit, NULL);
        if (status == WGL_OK) {
            shared->admitted[round]++;
            if (wgl_complete(limiter, &permit) != WGL_OK)
                shared->errors++;
            static int number;
            size_t own_length = key_of(own, sizeof own, "own", process * 100000 + number++ % 40);
            if (wgl_try_acquire(limiter, own, own_length, 1, &permit, NULL) < 0)
                shared->errors++;
        }
    } while (status == WGL_OK);
    if (status != WGL_DENIED) {
        fprintf(stderr, "fork: %s\n", wgl_last_error());
        shared->errors++;
    }
}

// Decides on the round's budget and on all other limiters, until it is stopped.
static void *decide_all_the_while(void *number) {
    wgl_limiter *all[] = {limiter, memory_limiter, composite};
    for (int i = 0; !shared->stop; i++) {
        char key[32];
        size_t length = key_of(key, sizeof key, "thread", (int)(size_t)number * 1000 + i % 50);
        wgl_permit permit;
        for (int l = 0; l < 3; l++) {
            int status = wgl_try_acquire(all[l], key, length, 1, &permit, NULL);
            if (status < 0 || (status == WGL_OK && wgl_complete(all[l], &permit) != WGL_OK))
                shared->errors++;
        }
        int round = shared->round;
        length = key_of(key, sizeof key, "round", round);
        if (wgl_try_acquire(limiter, key, length, 1, &permit, NULL) == WGL_OK)
            shared->admitted[round]++;
    }
    return NULL;
}

// Runs in a child; the exit status is 0 if all calls succeeded.
static int child(int round, int number) {
    wgl_permit permit;
    if (wgl_fork_generation() == generation)
        return 1;
    drain(round, 1 + number);
    // The child's own count of running jobs is empty, regardless of jobs in the parent.
    int mine = wgl_try_acquire(concurrency, NULL, 0, 1, &permit, NULL);
    if (mine != WGL_OK || wgl_complete(concurrency, &permit) != WGL_OK)
        return 2;
    // The other limiters work here too, regardless of what the parent's threads did with them at the fork.
    if (wgl_try_acquire(memory_limiter, "child", 5, 1, &permit, NULL) < 0)
        return 3;
    int status = wgl_try_acquire(composite, "child", 5, 1, &permit, NULL);
    if (status < 0 || (status == WGL_OK && wgl_complete(composite, &permit) != WGL_OK))
        return 4;
    return 0;
}

int main(int count, char **arguments) {
    const int wanted = count > 1 ? atoi(arguments[1]) : MOST_FORKS;
    char dir[64], url[128];
    wgl_store *store, *memory;
    wgl_permit held;
    wgl_rate_limiter_options rate = WGL_RATE_LIMITER_OPTIONS_INIT;
    wgl_concurrency_limiter_options jobs = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;

    make_dir(dir);
    snprintf(url, sizeof url, "sqlite:%s/limits.db", dir);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rate.max_executions = LIMIT;
    rate.window_ns = UINT64_C(86400000000000);
    jobs.max_concurrent_jobs = 1;
    // Under valgrind, on a busy machine, commits queue for longer than usual.
    wgl_store_options patient = WGL_STORE_OPTIONS_INIT;
    patient.timeout_ns = 25000000000;
    MUST(wgl_store_open(url, &patient, &store));
    MUST(wgl_store_open("memory:", NULL, &memory));
    MUST(wgl_rate_limiter_new(store, "fork", &rate, &limiter));
    MUST(wgl_rate_limiter_new(memory, "memory", &rate, &memory_limiter));
    MUST(wgl_concurrency_limiter_new(&jobs, &concurrency));
    MUST(wgl_composite_limiter_new(&composite));
    MUST(wgl_composite_limiter_add(composite, memory_limiter));
    MUST(wgl_composite_limiter_add(composite, limiter));
    MUST(wgl_try_acquire(concurrency, NULL, 0, 1, &held, NULL));

    generation = wgl_fork_generation();
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, decide_all_the_while, (void *)(i + 1));
    int forks = 0, rounds = 0;
    for (; forks < wanted; rounds++) {
        pid_t children[CHILDREN];
        const int round = rounds, siblings = wanted - forks < CHILDREN ? wanted - forks : CHILDREN;
        shared->round = round;
        for (int i = 0; i < siblings; i++, forks++) {
            children[i] = fork();
            if (children[i] == 0) {
                // A process that hangs is killed and counted.
                alarm(30);
                _exit(child(round, i));
            }
        }
        drain(round, 0);
        for (int i = 0; i < siblings; i++) {
            int status = -1;
            while (waitpid(children[i], &status, 0) < 0 && errno == EINTR) {
            }
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "round %d, child %d: status %#x", round, i, status);
        }
        // The thread that took the last unit may still be waiting for the ledger.
        for (int wait = 0; wait < 10000 && shared->admitted[round] < LIMIT; wait++)
            usleep(1000);
        CHECK(shared->admitted[round] == LIMIT, "round %d: %d admitted", round, shared->admitted[round]);
    }
    shared->stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(forks == wanted, "%d forks", forks);
    CHECK(wgl_fork_generation() == generation, "the parent's generation is unchanged");
    CHECK(shared->errors == 0, "%d errors", shared->errors);
    // No process took a unit after a round was over.
    for (int round = 0; round < rounds; round++)
        CHECK(shared->admitted[round] == LIMIT, "round %d: %d admitted in the end", round, shared->admitted[round]);
    // The permit that was held across all the forks still belongs to the parent.
    wgl_permit second;
    CHECK(wgl_try_acquire(concurrency, NULL, 0, 1, &second, NULL) == WGL_DENIED, "the parent's job still runs");
    CHECK(wgl_complete(concurrency, &held) == WGL_OK, "%s", wgl_last_error());
    CHECK(wgl_try_acquire(concurrency, NULL, 0, 1, &second, NULL) == WGL_OK, "the parent's job has ended");

    wgl_limiter_free(composite);
    wgl_limiter_free(concurrency);
    wgl_limiter_free(memory_limiter);
    wgl_limiter_free(limiter);
    wgl_store_free(memory);
    wgl_store_free(store);
    munmap(shared, sizeof *shared);
    remove_dir(dir);
    return summary("fork");
}
