/* The cost of a decision in C, next to a handwritten limiter: a mutex and a ring of the last starts.
   bench DIRECTORY [CASE-FILTER] [--most]: prints a JSON object per line, as bench/run.py documents. `--most` counts nothing
   here: the ring is exact, and the other programs count this library's starts. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <workglow_limit.h>

enum { BATCH = 200, SLICES = 6, LIMIT = 100, MOST_BATCHES = 20000, BUCKETS = 20000, SINGLES_IN_A_ROW = 64 };
/* The duration of a slice, and the part of it that times decisions one by one. Threads need some time to get a core each. */
static const uint64_t SLICE = 12000000, SLICE_OF_THREADS = 30000000, WARM_UP = 1000000;

static uint64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static void check(int32_t status) {
    if (status < 0) {
        fprintf(stderr, "%s\n", wgl_last_error());
        exit(1);
    }
}

/* ---- what is measured ---- */

/* The handwritten log of the last starts. */
struct ring {
    pthread_mutex_t lock;
    uint64_t window, starts[LIMIT];
    size_t limit, first, count;
};

static bool ring_try(struct ring *ring) {
    pthread_mutex_lock(&ring->lock);
    const uint64_t time = read_clock(CLOCK_BOOTTIME);
    while (ring->count > 0 && time - ring->starts[ring->first] >= ring->window) {
        ring->first = ring->first + 1 == ring->limit ? 0 : ring->first + 1;
        ring->count--;
    }
    const bool admitted = ring->count < ring->limit;
    if (admitted) {
        size_t last = ring->first + ring->count++;
        ring->starts[last >= ring->limit ? last - ring->limit : last] = time;
    }
    pthread_mutex_unlock(&ring->lock);
    return admitted;
}

struct subject {
    const char *peer, *name;
    wgl_limiter *limiter; /* or, if there is none, */
    struct ring *ring;
    const char *key;
    bool admits; /* the result that every decision must have */
    int threads;
    /* the results */
    double *batches;
    uint32_t *singles; /* the number of decisions per duration in nanoseconds; the last one counts all longer ones */
    size_t batch_count, decisions, single_count;
    double elapsed, cpu;
};

static size_t decide(const struct subject *subject, int times) {
    size_t admitted = 0;
    if (subject->limiter) {
        const size_t length = strlen(subject->key);
        for (int i = 0; i < times; i++) {
            wgl_permit permit;
            admitted += wgl_try_acquire(subject->limiter, subject->key, length, 1, &permit, NULL) == WGL_OK;
        }
    } else
        for (int i = 0; i < times; i++) admitted += ring_try(subject->ring);
    if (admitted != (subject->admits ? (size_t)times : 0)) {
        fprintf(stderr, "%s: %zu of %d were admitted\n", subject->name, admitted, times);
        exit(1);
    }
    return admitted;
}

/* ---- how ---- */

static pthread_mutex_t gathering = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t begin;

static void *hammer(void *of) {
    struct subject *subject = of;
    static _Thread_local double batches[MOST_BATCHES];
    static _Thread_local uint32_t singles[BUCKETS];
    memset(singles, 0, sizeof singles);
    const uint64_t slice = subject->threads > 1 ? SLICE_OF_THREADS : SLICE;
    if (subject->threads > 1) pthread_barrier_wait(&begin);
    const uint64_t warming = now();
    while (now() - warming < WARM_UP) decide(subject, BATCH);

    size_t count = 0, single_count = 0;
    const uint64_t began = now(), cpu_before = read_clock(CLOCK_THREAD_CPUTIME_ID);
    uint64_t before = began;
    while ((before - began < slice * 2 / 3 || count < 10) && count < MOST_BATCHES) {
        decide(subject, BATCH);
        const uint64_t after = now();
        batches[count++] = (double)(after - before) / BATCH;
        before = after;
    }
    const double elapsed = (double)(before - began);
    const double cpu = (double)(read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu_before);
    /* One read of the clock ends a decision and begins the next, so each includes one. */
    for (const uint64_t second = before; before - second < slice / 3;)
        for (int i = 0; i < SINGLES_IN_A_ROW; i++) {
            decide(subject, 1);
            const uint64_t after = now();
            singles[after - before < BUCKETS ? after - before : BUCKETS - 1]++;
            single_count++;
            before = after;
        }

    pthread_mutex_lock(&gathering);
    subject->batches = realloc(subject->batches, (subject->batch_count + count) * sizeof *batches);
    if (!subject->batches) abort();
    memcpy(subject->batches + subject->batch_count, batches, count * sizeof *batches);
    subject->batch_count += count, subject->decisions += count * BATCH;
    subject->elapsed += elapsed, subject->cpu += cpu;
    for (size_t i = 0; i < BUCKETS; i++) subject->singles[i] += singles[i];
    subject->single_count += single_count;
    pthread_mutex_unlock(&gathering);
    return NULL;
}

static void slice(struct subject *subject) {
    if (subject->threads == 1) {
        hammer(subject);
        return;
    }
    pthread_t threads[2];
    pthread_barrier_init(&begin, NULL, 2);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, hammer, subject);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&begin);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static size_t quantile(const struct subject *subject, double of) {
    size_t seen = 0, ns = 0;
    while (ns < BUCKETS - 1 && (double)(seen += subject->singles[ns]) < of * (double)subject->single_count) ns++;
    return ns;
}

/* One thread's time is the median over batches, that of several is the mean: as in the Rust programs. */
static void show(struct subject *subject) {
    qsort(subject->batches, subject->batch_count, sizeof *subject->batches, by_value);
    const double decisions = (double)subject->decisions;
    const double ns = subject->threads == 1 ? subject->batches[subject->batch_count / 2] : subject->elapsed / decisions;
    printf("{\"case\": \"%s%s\", \"group\": \"c\", \"peer\": \"%s\", \"threads\": %d, \"ns\": %.1f, \"p99\": %zu, "
           "\"p999\": %zu, \"cpu_ns\": %.1f}\n",
           subject->name, subject->threads > 1 ? ", 2 threads" : "", subject->peer, subject->threads, ns,
           quantile(subject, 0.99), quantile(subject, 0.999), subject->cpu / decisions);
}

/* ---- the cases ---- */

static struct subject subjects[32];
static size_t subject_count;

static void add(const char *filter, struct subject subject) {
    for (subject.threads = 1; subject.threads <= 2; subject.threads++) {
        if (!strstr(subject.name, filter)) continue;
        subject.singles = calloc(BUCKETS, sizeof *subject.singles);
        if (!subject.singles) abort();
        subjects[subject_count++] = subject;
    }
}

static wgl_limiter *limiter_of(wgl_store *store, const char *name, uint64_t limit, uint64_t window_ns) {
    wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
    options.max_executions = limit, options.window_ns = window_ns;
    wgl_limiter *limiter;
    check(wgl_rate_limiter_new(store, name, &options, &limiter));
    wgl_permit permit;
    check(wgl_try_acquire(limiter, "", 0, 1, &permit, NULL));
    return limiter;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s DIRECTORY [CASE-FILTER] [--most]\n", argv[0]), 2;
    if (strcmp(argv[argc - 1], "--most") == 0) return 0;
    const char *const filter = argc > 2 ? argv[2] : "";
    const uint64_t always = 1000, hour = 3600000000000; /* 100 in a microsecond: never full. 1 in an hour: always. */

    static const char *const names[2][3] = {{"c memory admit", "c memory deny", "c memory admit, with a key"},
                                            {"c sqlite admit", "c sqlite deny", "c sqlite admit, with a key"}};
    char url[4096];
    snprintf(url, sizeof url, "sqlite:%s/c.db", argv[1]);
    for (int i = 0; i < 2; i++) {
        wgl_store *store;
        check(wgl_store_open(i ? url : "memory:", NULL, &store));
        wgl_limiter *open = limiter_of(store, "open", LIMIT, always), *shut = limiter_of(store, "shut", 1, hour);
        struct subject ours = {.peer = "workglow-limit", .name = names[i][0], .limiter = open, .key = "", .admits = true};
        add(filter, ours);
        ours.name = names[i][2], ours.key = "tenant-7";
        add(filter, ours);
        ours.name = names[i][1], ours.key = "", ours.limiter = shut, ours.admits = false;
        add(filter, ours);
    }
    static struct ring open = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = LIMIT};
    static struct ring shut = {.lock = PTHREAD_MUTEX_INITIALIZER, .limit = 1};
    open.window = always, shut.window = hour;
    ring_try(&shut);
    add(filter, (struct subject){.peer = "handwritten", .name = "mutex and ring admit", .ring = &open, .admits = true});
    add(filter, (struct subject){.peer = "handwritten", .name = "mutex and ring deny", .ring = &shut});

    for (int i = 0; i < SLICES; i++)
        for (size_t j = 0; j < subject_count; j++) slice(&subjects[j]);
    for (size_t j = 0; j < subject_count; j++) show(&subjects[j]);
    return 0;
}
