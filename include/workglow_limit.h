// workglow-limit: one rate limit, shared by every process and language on the machine, and never exceeded.
//
//     wgl_store *store;
//     wgl_limiter *limiter;
//     wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
//     options.max_executions = 100;
//     options.window_ns = 60000000000;
//     if (wgl_store_open("sqlite:limits.db", NULL, &store) != WGL_OK
//         || wgl_rate_limiter_new(store, "openai", &options, &limiter) != WGL_OK) {
//         fprintf(stderr, "%s\n", wgl_last_error());
//         exit(1);
//     }
//
//     wgl_permit permit;
//     uint64_t retry_after_ns;
//     switch (wgl_try_acquire(limiter, "tenant-7", 8, 1, &permit, &retry_after_ns)) {
//     case WGL_OK:
//         // ... call the API ...
//         wgl_complete(limiter, &permit);
//         break;
//     case WGL_DENIED:
//         // ... come back after retry_after_ns ...
//         break;
//     default:
//         fprintf(stderr, "%s\n", wgl_last_error());
//     }
//
// Answers. A function returns a status: WGL_OK (0); a positive number for another normal outcome (WGL_DENIED,
// WGL_NONE, WGL_WAITING); a negative one for an error, about which wgl_last_error() then tells more. A denial is not an
// error.
// Answers are written through the last parameters, and only where a function says so: not on failure. The numbers
// never change their meaning, and more may be added.
//
// What is passed. Handles, texts and places for answers are valid pointers; NULL is an error with a message, except
// where it has a meaning. Texts are UTF-8 and end with a NUL. A key has a length instead: any `key_len` bytes of UTF-8,
// at most 1,024; length 0 is no key. One policy, a separate budget per key. Weights are units, at least 1. Durations are
// nanoseconds, instants nanoseconds since 1970 (UTC); limits count in whole microseconds, rounded so that they are
// never exceeded. Structures that begin with `struct_size` are initialised with their INIT macro. Later versions add
// fields at their end, where 0 means what held before: a program may be older than the library, and newer as long as it
// leaves what the library does not know at 0.
//
// Ownership. What a _new, _shared, _attach or _open function hands out belongs to the caller, who gives it to the _free
// function of that type, once; _free(NULL) is a no-op. Handles that refer to one another are reference counted inside,
// and may be freed in any order. Texts and structures that are passed in are read during the call only. Texts that are
// returned are not to be freed.
//
// Threads. Every function may be called from any thread at any time, on the same handles too; only _free needs its
// handle to itself. The library starts no threads, installs no signal handlers, and prints nothing unless it finds a
// fault of its own (WGL_INTERNAL). It is not to be called from signal handlers.
//
// Fork. Handles made before a fork work in the child, whatever the parent's threads were doing. A limit in a sqlite:
// store is then shared with the parent and the other children; one in a memory: store, or one that was made without a
// store, is the child's own copy from there on. Permits stay with the process that got them, unless they leave it as
// texts (wgl_permit_to_text). A child that only calls exec, or ends with _exit, has nothing to clean up.


#ifndef WORKGLOW_LIMIT_H
#define WORKGLOW_LIMIT_H

#include <stddef.h>
#include <stdint.h>

// The initial values of the structures below.
#define WGL_STORE_OPTIONS_INIT { sizeof(wgl_store_options), 0, 0, NULL, 0, 0 }
#define WGL_RATE_LIMITER_OPTIONS_INIT { sizeof(wgl_rate_limiter_options), 0, 0, 0, NULL, 0, 0, 0, 0 }
#define WGL_CONCURRENCY_LIMITER_OPTIONS_INIT { sizeof(wgl_concurrency_limiter_options), 0, 0, NULL, 0 }
#define WGL_DELAY_LIMITER_OPTIONS_INIT { sizeof(wgl_delay_limiter_options), 0, 50000000, NULL }
#define WGL_EVENLY_SPACED_LIMITER_OPTIONS_INIT { sizeof(wgl_evenly_spaced_limiter_options), 1, 0, 0, NULL }
#define WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT { sizeof(wgl_token_bucket_limiter_options), 0, 0, 0, 0 }
#define WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT { sizeof(wgl_leaky_bucket_limiter_options), 0, 0, 0, 0 }
#define WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT { sizeof(wgl_fixed_window_limiter_options), 0, 0, 0 }
#define WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT \
    { sizeof(wgl_sliding_window_counter_limiter_options), 0, 0, 0 }
#define WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT { sizeof(wgl_flow_control_limiter_options), 0, 0, 0, 0 }
#define WGL_CUSTOM_LIMITER_TABLE_INIT \
    { sizeof(wgl_custom_limiter_table), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#define WGL_DECISION_INIT { sizeof(wgl_decision), 0, 0, 0, 0, 0, 0, NULL, { { 0, 0, 0, 0, 0, 0, 0, 0 } } }
#define WGL_WAITER_OPTIONS_INIT { sizeof(wgl_waiter_options), 0, 1, WGL_FOREVER, 0 }
#define WGL_COUNTS_INIT { sizeof(wgl_counts), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }


// Done; where a start was asked for, it is admitted.
#define WGL_OK 0

// Not now. A normal outcome, not an error.
#define WGL_DENIED 1

// There is nothing to tell. A normal outcome, not an error.
#define WGL_NONE 2

// Not yet: the wait goes on. A normal outcome, not an error.
#define WGL_WAITING 3

// A parameter is outside its range, NULL, or not UTF-8. Nothing was created or changed.
#define WGL_INVALID_ARGUMENT -1

// More units were asked for at once than the limit could ever grant.
#define WGL_WEIGHT_EXCEEDS_CAPACITY -2

// The store's address cannot be understood.
#define WGL_INVALID_URL -3

// No policy is declared under this name in this store.
#define WGL_UNKNOWN_LIMIT -4

// The name is declared already, as another kind of limiter.
#define WGL_KIND_MISMATCH -5

// The file at the store's path is something else. It was not touched.
#define WGL_NOT_A_STORE -6

// The store was written by a version of this library that this one cannot read. It was not touched.
#define WGL_UNSUPPORTED_VERSION -7

// The store must be on a local file system, and this one is not.
#define WGL_UNSUPPORTED_FILE_SYSTEM -8

// The store could not be reached, read or written.
#define WGL_STORE_FAILURE -9

// The store was busy for longer than its timeout.
#define WGL_STORE_TIMEOUT -10

// The store has no room for another key or limit.
#define WGL_STORE_FULL -11

// The permit was not given by this limiter.
#define WGL_FOREIGN_PERMIT -12

// What was asked makes no sense for this limiter, or for this store.
#define WGL_UNSUPPORTED -13

// The lease has ended: its units may be another start's by now.
#define WGL_LEASE_LOST -14

// A limiter of the program's own failed.
#define WGL_CUSTOM_FAILURE -15

// What is in the store makes no sense: somebody else wrote to its files, or the disk did.
#define WGL_DAMAGED -16

// A fault of this library. Its state is sound; please report the message.
#define WGL_INTERNAL -100

// The number of the binary interface: the one in the library's file name, libworkglow_limit.so.0. It changes when
// programs must be compiled anew.
#define WGL_ABI_VERSION 0

// When the store fails a decision: the error. The default.
#define WGL_ON_ERROR_RAISE 0

// When the store fails a decision: a denial.
#define WGL_ON_ERROR_DENY 1

// When the store fails a decision: an admission that nothing counts, because what is called is worth more than the
// limit.
#define WGL_ON_ERROR_ADMIT 2

// Of what was admitted, a power cut makes the machine forget at most 5 % of a limit, and at least one unit; what is
// forgotten counts as spent. The default.
#define WGL_DURABILITY_BUDGET 0

// Every start is in the database before the call that admits it returns.
#define WGL_DURABILITY_COMMIT 1

// How retries spread: the backoff, and up to as much again. The default.
#define WGL_JITTER_SCALED 0

// How retries spread: anything up to the backoff.
#define WGL_JITTER_FULL 1

// How retries spread: half of the backoff, and up to as much again.
#define WGL_JITTER_EQUAL 2

// How retries spread: not at all; the backoff.
#define WGL_JITTER_NONE 3

// How a start ended: the job ran.
#define WGL_END_COMPLETED 0

// How a start ended: it never ran, as if it had never been admitted.
#define WGL_END_CANCELLED 1

// How a start ended: the job ran, and was worth `actual` units.
#define WGL_END_SETTLED 2

// Where a call takes the longest time to wait: as long as it takes.
#define WGL_FOREVER 18446744073709551615ull

// The grace of a place where the caller has no wish: a fortieth of the window, at most 50 ms.
#define WGL_DEFAULT_GRACE 0

// No grace: the place is good at its moment only.
#define WGL_NO_GRACE 18446744073709551614ull

// The most bytes that a permit's text needs, with its NUL; a composite's place may need more.
#define WGL_PERMIT_TEXT_MAX 128

// Answers "may this job start now, and if not, when?".
//
// The caller owns it and frees it with wgl_limiter_free, when no thread is in a call on it any more. It keeps its store
// and its children alive by itself. Any number of threads may use it at once, and forked children inherit it: see the
// introduction.
typedef struct wgl_limiter wgl_limiter;

// A clock for tests: it stands still until it is advanced, and everything that was given it lives by it. Whoever waits
// in wgl_acquire sleeps until somebody advances it.
//
// The caller owns it and frees it with wgl_manual_clock_free, at any time: stores and limiters keep what they need.
// Any thread may use it. A forked child has a copy, which no longer follows its parent's.
typedef struct wgl_manual_clock wgl_manual_clock;

// Where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or "redis://HOST", "rediss://HOST", "redis+unix://PATH" and
// "redis+sentinel://HOST,HOST/NAME" and "postgres://HOST/DATABASE" (a server or cluster that machines share).
//
// The caller owns it and frees it with wgl_store_free; limiters made from it go on working after that. Any thread may
// use it. It is inherited by forked children: those of a sqlite: store share its limits with their parent, those of a
// memory: store go on with a copy of their own.
typedef struct wgl_store wgl_store;

// One that waits in steps: in an event loop, or where something else may end the wait.
//
// The caller owns it and frees it with wgl_waiter_free, at any time; if the wait is not over then, what it holds goes to
// the next waiter, or back. It keeps its limiter alive by itself. One thread at a time may use it. A forked child that
// goes on with it waits anew, on its own behalf.
typedef struct wgl_waiter wgl_waiter;

// How a store behaves. Begin with WGL_STORE_OPTIONS_INIT; what is 0 or NULL has its default. The caller owns it; it
// is read during the call only.
typedef struct {
    // sizeof(wgl_store_options), as the INIT macro sets it.
    uint32_t struct_size;
    // The mode of the files that are made, whatever the umask: 0600 to 0777. Default 0600; 0660 for services of
    // several users.
    uint32_t mode;
    // How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 5 s.
    uint64_t timeout_ns;
    // A clock for tests in place of the system's. Default NULL: the system's.
    const wgl_manual_clock *clock;
    // What a decision answers when the store fails: WGL_ON_ERROR_RAISE, WGL_ON_ERROR_DENY or WGL_ON_ERROR_ADMIT.
    // Whichever it is, wgl_store_failures counts it. Default WGL_ON_ERROR_RAISE.
    uint32_t on_error;
    // What a power cut may cost: WGL_DURABILITY_BUDGET or WGL_DURABILITY_COMMIT. Default WGL_DURABILITY_BUDGET.
    uint32_t durability;
} wgl_store_options;

// One window of a rate limit with several.
typedef struct {
    // So many units in any rolling window: 1 to 1,000,000,000, or with several windows 4,096.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_window;

// What a rate limit allows: `max_executions` and `window_ns`, or `windows`; and its backoff, what a denial adds to
// `suggested_after_ns` for callers that requeue. The first denial adds `initial_backoff_delay_ns`, each later one
// `backoff_multiplier` times as much up to `max_backoff_delay_ns`, and an admission begins anew; a level lasts as long
// as its backoff, however often and in however many processes somebody asks.
//
// Begin with WGL_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read during the call only.
typedef struct {
    // sizeof(wgl_rate_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // How retries spread: WGL_JITTER_SCALED, _FULL, _EQUAL or _NONE. Default WGL_JITTER_SCALED.
    uint32_t jitter;
    // So many units in any rolling window: 1 to 1,000,000,000, or with several windows 4,096.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
    // Several windows instead: a start needs room in all of them. NULL: there is only the one above.
    const wgl_window *windows;
    // How many there are: 1 to 4; 0 without `windows`.
    size_t window_count;
    // What the first denial adds: 1,000 ns to 366 days. Default 1 s.
    uint64_t initial_backoff_delay_ns;
    // What the backoff grows by: more than 1 and at most 1,000; thousandths count. Default 2.
    double backoff_multiplier;
    // What it grows to: the initial delay to 366 days. Default 10 min.
    uint64_t max_backoff_delay_ns;
} wgl_rate_limiter_options;

// What a concurrency limit allows. Begin with WGL_CONCURRENCY_LIMITER_OPTIONS_INIT. The caller owns it; it is read
// during the call only.
typedef struct {
    // sizeof(wgl_concurrency_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units at the same time: 1 to 65,535.
    uint64_t max_concurrent_jobs;
    // With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    const wgl_manual_clock *clock;
    // With _shared: so long a start holds its units unless it is renewed, 1,000 ns (1 µs) to 366 days. Default 0: as
    // long as its process lives. With _new: 0.
    uint64_t lease_ns;
} wgl_concurrency_limiter_options;

// What a limit on the time between starts allows. Begin with WGL_DELAY_LIMITER_OPTIONS_INIT. The
// caller owns it; it is read during the call only.
typedef struct {
    // sizeof(wgl_delay_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So long from one start to the next: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds. The INIT macro
    // says 50 ms.
    uint64_t delay_ns;
    // With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    const wgl_manual_clock *clock;
} wgl_delay_limiter_options;

// What an evenly spaced limit allows. Begin with WGL_EVENLY_SPACED_LIMITER_OPTIONS_INIT. The
// caller owns it; it is read during the call only.
typedef struct {
    // sizeof(wgl_evenly_spaced_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 1: the distance is so much shorter as the last jobs took on average. 0: it is always the same. The INIT macro says
    // 1.
    uint32_t adaptive;
    // So many starts in a window: 1 to 1,000,000,000, or if it is adaptive 4,096.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
    // With _new: a clock for tests in place of the system's; default NULL. With _shared: NULL, because the store has one.
    const wgl_manual_clock *clock;
} wgl_evenly_spaced_limiter_options;

// What a token bucket allows. Begin with WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read during
// the call only.
typedef struct {
    // sizeof(wgl_token_bucket_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units drip in per period: 1 to 1,000,000,000.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // So many the bucket holds: 1 to 1,000,000,000, and no more than drip in within 366 days. Default 0: `rate`.
    uint64_t burst;
} wgl_token_bucket_limiter_options;

// What a leaky bucket allows. Begin with WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read during
// the call only.
typedef struct {
    // sizeof(wgl_leaky_bucket_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units start, one after the other, per period: 1 to 1,000,000,000.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // So many may wait for their turn: 1 to 1,000,000,000, and no more than start within 366 days. Default 0: `rate`.
    uint64_t queue;
} wgl_leaky_bucket_limiter_options;

// What a limit on fixed windows allows. Begin with WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT. The caller owns it; it is
// read during the call only.
typedef struct {
    // sizeof(wgl_fixed_window_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units in a window: 1 to 1,000,000,000.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_fixed_window_limiter_options;

// What a sliding window counter allows. Begin with WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT. The caller owns it; it is
// read during the call only.
typedef struct {
    // sizeof(wgl_sliding_window_counter_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units in a window: 1 to 1,000,000,000.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_sliding_window_counter_limiter_options;

// What flow control allows. Begin with WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT. The caller owns it; it is read during
// the call only.
typedef struct {
    // sizeof(wgl_flow_control_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // So many units in any rolling period: 1 to 1,000,000,000. Default 0, as `period_ns` is then: no such limit.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // So many units at the same time: 1 to 65,535. Default 0: no such limit.
    uint64_t parallelism;
} wgl_flow_control_limiter_options;

// A limiter of the program's own, as functions. Begin with WGL_CUSTOM_LIMITER_TABLE_INIT and give it a name, `decide`
// and `peek`; the others may be NULL. It is read during the call of wgl_custom_limiter_new only.
//
// Each function gets `context` first. Any thread may call it, and several may at once. It returns WGL_OK, or where a
// denial is possible WGL_DENIED; anything else is a failure: whoever asked gets WGL_CUSTOM_FAILURE, and nothing is
// charged anywhere. It may call this library, but not for a limiter that contains this one. It must return: no
// longjmp, no C++ exception. Keys are not NULL, have no NUL behind them, and are good during the call only; length 0 is
// no key. A forked child calls the same functions with its copy of the context.
typedef struct {
    // sizeof(wgl_custom_limiter_table), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // What the functions get. It has to be good until `free` is called.
    void *context;
    // What `denied_by` says: 1 to 1,024 bytes. Copied.
    const char *name;
    // Decides and records in one act; `weight` is at least 1. WGL_OK: start, and `start` is what `end` will get, 0
    // unless it is written. WGL_DENIED: not now, but perhaps after `retry_after_ns`, 10 ms unless it is written; nothing
    // has changed.
    int (*decide)(void *context,
                  const char *key,
                  size_t key_len,
                  uint64_t weight,
                  uint64_t *start,
                  uint64_t *retry_after_ns);
    // What `decide` would answer. Records nothing.
    int (*peek)(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns);
    // A start has ended, for which `decide` wrote that number: WGL_END_COMPLETED, _CANCELLED or _SETTLED; `actual` is 0
    // but for the last. Called once for each permit that is ended, and for starts that a composite takes back.
    int (*end)(void *context, uint64_t start, uint32_t how, uint64_t actual);
    // Nobody starts for so long: a gate. Without a key it binds all keys.
    int (*pause)(void *context, const char *key, size_t key_len, uint64_t pause_ns);
    // Back to the initial state; without a key, of all keys.
    int (*clear)(void *context, const char *key, size_t key_len);
    // A job has started without asking.
    int (*record_job_start)(void *context, const char *key, size_t key_len);
    // A job that started without asking has ended.
    int (*record_job_completion)(void *context, const char *key, size_t key_len);
    // Nobody will call any of them again: called once, when the limiter and all composites that contain it are freed.
    void (*free)(void *context);
} wgl_custom_limiter_table;

// What an admitted start holds, until wgl_complete, wgl_cancel or wgl_settle; or a place, a start in the future. A
// value: there is nothing to free, and what is inside is the library's. It belongs to the limiter that gave it, and to
// the process that got it, unless it leaves as a text.
//
// A composite remembers what its permits stand for until they end, or until their end would change nothing any more. One
// that holds a slot or a start of a limiter of the program's own is to be ended.
//
// It may be moved and copied, but one copy is to be ended: that one is marked as ended, and ending it again, in
// whichever way, is a no-op. Where starts are only counted (fixed windows, sliding window counters, limits above 4,096,
// limiters of the program's own), another copy that is cancelled would take its units back again. One thread at a time
// may use it.
typedef struct {
    // The library's.
    uint64_t opaque[8];
} wgl_permit;

// The whole answer to "may this start now, and if not, when?". Begin with WGL_DECISION_INIT. The caller owns it.
typedef struct {
    // sizeof(wgl_decision), as the INIT macro sets it.
    uint32_t struct_size;
    // 1 or 0, as the status says too.
    uint32_t admitted;
    // 0 if admitted. Else after this long a retry succeeds, if nobody else took the room; one microsecond earlier it
    // fails. For a concurrency limit, which frees when somebody completes, a suggestion of when to look again.
    uint64_t retry_after_ns;
    // `retry_after_ns` for callers that requeue: never less.
    uint64_t suggested_after_ns;
    // The heaviest start that would be admitted after this decision. UINT64_MAX: no limit.
    uint64_t remaining;
    // What the limit allows. UINT64_MAX: no limit.
    uint64_t limit;
    // After this long with no further start the limiter is as new. For a concurrency limit, which does not know, 0.
    uint64_t reset_after_ns;
    // The name of the limit that said no, NULL if admitted. It lives as long as the limiter that was asked.
    const char *denied_by;
    // What the start holds. All zero in a denial, and always in a wgl_peek.
    wgl_permit permit;
} wgl_decision;

// How to wait. Begin with WGL_WAITER_OPTIONS_INIT. The caller owns it; it is read during the call only.
typedef struct {
    // sizeof(wgl_waiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // Of the waiters in this process that wait for the same limiter and key, those with lower numbers start first. INIT: 0.
    int32_t priority;
    // The units that the start takes: at least 1. INIT: 1.
    uint64_t weight;
    // The longest wait. WGL_FOREVER: as long as it takes. INIT: WGL_FOREVER.
    uint64_t timeout_ns;
    // How late it may come for its place without losing it, at least: at most 366 days. While its place is kept for it nobody
    // else has that start, so ask for no more than is needed. WGL_DEFAULT_GRACE: as is usual. INIT: WGL_DEFAULT_GRACE.
    uint64_t grace_ns;
} wgl_waiter_options;

// Counts of a limit, or of one key. Begin with WGL_COUNTS_INIT. The caller owns it.
typedef struct {
    // sizeof(wgl_counts), as the INIT macro sets it.
    uint32_t struct_size;
    // Of no meaning.
    uint32_t reserved;
    // Starts that were admitted, at once or after a wait.
    uint64_t admitted;
    // Attempts that were denied.
    uint64_t denied;
    // The units that were asked for.
    uint64_t units_wanted;
    // Those that were granted.
    uint64_t units_granted;
    // Starts that had to wait for a place.
    uint64_t waited;
    // How long they waited, together.
    uint64_t wait_time_ns;
    // Permits and places that were cancelled.
    uint64_t cancelled;
    // Decisions that the store failed, whatever was answered instead.
    uint64_t store_errors;
    // How often another policy came to hold.
    uint64_t policy_changes;
} wgl_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last call that failed on this thread has to say, for people: which parameter, which value, what was
// expected. Empty if none has failed. Good until the next call that fails on this thread, or the thread's end.
const char *wgl_last_error(void);

// The stable name of a status, the same in every language: "ok", "denied", "invalid_argument", …; "unknown" for a
// number that is none. Never NULL, and never to be freed.
const char *wgl_status_name(int status);

// The version of the library that is loaded, as "0.1.0". Never to be freed.
const char *wgl_version(void);

// The binary interface of the library that is loaded: WGL_ABI_VERSION, if the header belongs to it.
int wgl_abi_version(void);

// Makes a clock that reads zero.
int wgl_manual_clock_new(wgl_manual_clock **clock);

// Moves a clock forward.
int wgl_manual_clock_advance(const wgl_manual_clock *clock, uint64_t by_ns);

// Frees a clock. NULL is a no-op.
void wgl_manual_clock_free(wgl_manual_clock *clock);

// Opens a store, and makes its files if there are none. `options` may be NULL.
//
// Fails with WGL_INVALID_URL, WGL_INVALID_ARGUMENT for options out of range, or whatever is wrong with the place
// (WGL_STORE_FAILURE, WGL_NOT_A_STORE, WGL_UNSUPPORTED_FILE_SYSTEM, …).
int wgl_store_open(const char *url,
                   const wgl_store_options *options,
                   wgl_store **store);

// Says what is wrong with the files of a store that need not open: `problems` is how much, and `report` one line for each, with
// a NUL at the end, cut if `capacity` bytes are too few (with 0 it may be NULL). With `repair` other than 0 it also
// repairs what it can, and such lines begin with "repaired: ". What nobody can read goes out of the database; a lane
// that makes no sense is made anew. It reads all of the database, which holds up starts that wait for a commit.
//
// Fails as wgl_store_open does, but not for damage.
int wgl_store_verify(const char *url,
                     const wgl_store_options *options,
                     int repair,
                     char *report,
                     size_t capacity,
                     size_t *problems);

// Says what of a server's settings endangers limits there: the worst first, nothing if all is well. Always nothing for memory: and
// sqlite:PATH, whose files wgl_store_verify looks at. On Redis it writes a key of its own for a moment, to see whether it may.
//
// `findings` receives how many there are, and `report`, of `capacity` bytes, a line for each: how much it matters ("danger: ",
// "warning: " or "note: "), the setting and its value, what that endangers, and what to set instead. What does not fit is cut off, and
// a NUL ends it. `report` may be NULL if `capacity` is 0.
//
// Fails with WGL_INVALID_URL, or with a store error if the server does not answer.
int wgl_doctor(const char *url,
               char *report,
               size_t capacity,
               size_t *findings);

// The SQL that makes what limits on Postgres need there, for migrations of your own: the schema workglow_limit. Where a program's role
// may create schemas this is not needed, because the first call makes it. To run it again changes nothing. The text is static.
const char *wgl_postgres_schema(void);

// Frees a store. NULL is a no-op.
void wgl_store_free(wgl_store *store);

// Declares the limits of a TOML file, all or none, for all who share the store; wgl_limiter_attach takes them by their
// names.
//
// Fails with WGL_INVALID_ARGUMENT, saying where the file is wrong, WGL_KIND_MISMATCH if a name is declared as another
// kind of limiter, or with a store error.
int wgl_store_load(const wgl_store *store,
                   const char *path);

// Puts an operator's policy above what programs declare under this name, at once, for all who share the store, until
// wgl_store_lift. `policy` is a text such as "200/1m", "100/1m + 5/1s" or "5 concurrent". With `key` (`key_len` bytes),
// only for that key, such as a tenant's plan: it stands above the limit's policy, also if nobody has used the key yet. With
// NULL, 0, for all keys that have none of their own.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_KIND_MISMATCH for a policy of another kind,
// WGL_INVALID_ARGUMENT for a text that is no policy or a key that is empty or too long, or with a store error.
int wgl_store_override(const wgl_store *store,
                       const char *name,
                       const char *policy,
                       const char *key,
                       size_t key_len);

// Takes the operator's policy away: what was declared last holds again. With `key`, that key's own: it lives by the limit's
// policy again; with NULL, 0 the limit's, and keys keep theirs. A no-op where there is none.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_INVALID_ARGUMENT for a key that is empty or too long, or
// with a store error.
int wgl_store_lift(const wgl_store *store,
                   const char *name,
                   const char *key,
                   size_t key_len);

// Writes to the database now what it does not have yet of what was admitted: before a planned power-off, say. A no-op
// for memory:.
//
// Fails with a store error.
int wgl_store_flush(const wgl_store *store);

// How often the store failed a decision in this process since the handle was made, whatever was answered instead.
int wgl_store_failures(const wgl_store *store,
                       uint64_t *count);

// Takes the limit that is declared under a name, of whatever kind; or the limits that wgl_policy_limiter_new or
// wgl_flow_control_limiter_new declared together under it.
//
// Fails with WGL_UNKNOWN_LIMIT if there is none, or with a store error.
int wgl_limiter_attach(const wgl_store *store,
                       const char *name,
                       wgl_limiter **limiter);

// Takes the rate limit that is declared under a name.
//
// Fails as wgl_limiter_attach does, and with WGL_KIND_MISMATCH if the name is declared as another kind of limiter.
int wgl_rate_limiter_attach(const wgl_store *store,
                            const char *name,
                            wgl_limiter **limiter);

// Makes a limiter that admits everything: for where none is wanted.
int wgl_null_limiter_new(wgl_limiter **limiter);

// Makes a limiter that admits what every one of its children admits: everything, as long as it has none. All children
// get the same key and weight, gates go to all of them, and a child that denies keeps the others from being charged.
int wgl_composite_limiter_new(wgl_limiter **limiter);

// Adds a child, at any time. The composite shares it: the caller may go on using it, and frees it whenever it likes.
// Permits that are out complete against the children they were taken from.
//
// Fails with WGL_UNSUPPORTED if wgl_composite_limiter_new did not make `composite` (limits that were declared together
// are a policy, which the store holds), and with WGL_INVALID_ARGUMENT if `child` is the same, or contains it, or if
// composites would be nested more than 32 deep.
int wgl_composite_limiter_add(const wgl_limiter *composite,
                              const wgl_limiter *child);

// Frees a limiter. NULL is a no-op. What it has admitted stays admitted.
void wgl_limiter_free(wgl_limiter *limiter);

// Declares a limit under a name, in place of the policy that the name had, for all who share the store: at most
// `max_executions` units in any rolling window. A start at s counts until exactly s + window. A policy that an operator
// has put above it goes on until it is lifted.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range and for a name that is not 1 to 1,024 bytes,
// WGL_KIND_MISMATCH if the name is declared as another kind of limiter, or with a store error. So do the other
// functions that declare a limit.
int wgl_rate_limiter_new(const wgl_store *store,
                         const char *name,
                         const wgl_rate_limiter_options *options,
                         wgl_limiter **limiter);

// Makes a limit on how many run at the same time, per key, in this process; a forked child counts its own. Every start
// has to be ended with wgl_complete.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_concurrency_limiter_new(const wgl_concurrency_limiter_options *options,
                                wgl_limiter **limiter);

// Declares a limit on how many run at the same time, per key, under a name, for all who share the store. A start holds
// its units until it is ended with wgl_complete, but no longer than its process lives, nor than its lease: see
// wgl_renew.
int wgl_concurrency_limiter_shared(const wgl_store *store,
                                   const char *name,
                                   const wgl_concurrency_limiter_options *options,
                                   wgl_limiter **limiter);

// Makes a limit on the time from one start to the next, per key, in this process; a forked child goes its own way. Every
// start weighs 1.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_delay_limiter_new(const wgl_delay_limiter_options *options,
                          wgl_limiter **limiter);

// Declares such a limit under a name, for all who share the store.
int wgl_delay_limiter_shared(const wgl_store *store,
                             const char *name,
                             const wgl_delay_limiter_options *options,
                             wgl_limiter **limiter);

// Makes a limit of `max_executions` starts in a window at even distances, per key, in this process; a forked child goes
// its own way. Every start weighs 1.
//
// An adaptive one shortens the distance, the window over `max_executions`, by what the last `max_executions` jobs took
// on average: from their start to wgl_complete or wgl_settle. Never more than `max_executions` start in any rolling
// window.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_evenly_spaced_limiter_new(const wgl_evenly_spaced_limiter_options *options,
                                  wgl_limiter **limiter);

// Declares such a limit under a name, for all who share the store.
int wgl_evenly_spaced_limiter_shared(const wgl_store *store,
                                     const char *name,
                                     const wgl_evenly_spaced_limiter_options *options,
                                     wgl_limiter **limiter);

// Declares a bucket of `burst` tokens under a name, for all who share the store: `rate` tokens drip in evenly per
// period, and a start takes as many as it weighs. In any period at most `burst` + `rate` units start.
int wgl_token_bucket_limiter_new(const wgl_store *store,
                                 const char *name,
                                 const wgl_token_bucket_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a leaky bucket under a name, for all who share the store: one start per period / `rate`, and one of weight w
// takes the time of w. In wgl_acquire and wgl_reserve up to `queue` units wait for their turn; beyond that they are
// denied.
int wgl_leaky_bucket_limiter_new(const wgl_store *store,
                                 const char *name,
                                 const wgl_leaky_bucket_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a limit under a name, for all who share the store: at most `max_executions` units in each window, the windows
// aligned to 1970 (UTC). Across a boundary up to twice as many start in the length of one window.
int wgl_fixed_window_limiter_new(const wgl_store *store,
                                 const char *name,
                                 const wgl_fixed_window_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a limit under a name, for all who share the store: an estimate of `max_executions` units in any rolling
// window, from the counts of this window, aligned to 1970 (UTC), and of so much of the last one as still lies in the
// rolling one. For very large limits; fewer than twice as many start in the length of one window.
int wgl_sliding_window_counter_limiter_new(const wgl_store *store,
                                           const char *name,
                                           const wgl_sliding_window_counter_limiter_options *options,
                                           wgl_limiter **limiter);

// Declares the limits of a text under a name, for all who share the store: "100/1m", "10/1s burst 20", "5 concurrent",
// or several, all of which have to admit, such as "100/1m + 5/1s + 5 concurrent".
//
// Fails with WGL_INVALID_ARGUMENT, saying where the text is wrong.
int wgl_policy_limiter_new(const wgl_store *store,
                           const char *name,
                           const char *policy,
                           wgl_limiter **limiter);

// Declares flow control under a name, for all who share the store: so many per period, so many at the same time, or
// both.
//
// Fails with WGL_INVALID_ARGUMENT if there is neither.
int wgl_flow_control_limiter_new(const wgl_store *store,
                                 const char *name,
                                 const wgl_flow_control_limiter_options *options,
                                 wgl_limiter **limiter);

// Makes a limiter of the program's own. Composites take it as a child, and by itself it answers every call but those for
// places and texts.
//
// Fails with WGL_INVALID_ARGUMENT if the name, `decide` or `peek` is missing or wrong; `free` is not called then.
int wgl_custom_limiter_new(const wgl_custom_limiter_table *table,
                           wgl_limiter **limiter);

// Starts if there is room now: decides and records in one act. WGL_OK: admitted, and `permit` is written. WGL_DENIED:
// not now; nothing has changed, and after `retry_after_ns` (which may be NULL) a retry succeeds, if nobody else took
// the room.
//
// Fails with WGL_WEIGHT_EXCEEDS_CAPACITY if it could never start, WGL_INVALID_ARGUMENT for weight 0 or a key that is
// none, or with a store error.
int wgl_try_acquire(const wgl_limiter *limiter,
                    const char *key,
                    size_t key_len,
                    uint64_t weight,
                    wgl_permit *permit,
                    uint64_t *retry_after_ns);

// As wgl_try_acquire, answering with the whole decision, which is written for WGL_OK and for WGL_DENIED.
int wgl_decide(const wgl_limiter *limiter,
               const char *key,
               size_t key_len,
               uint64_t weight,
               wgl_decision *decision);

// The decision that wgl_decide would give, without a permit. Records nothing. `weight` may be 0.
int wgl_peek(const wgl_limiter *limiter,
             const char *key,
             size_t key_len,
             uint64_t weight,
             wgl_decision *decision);

// Would a start of weight 1 be admitted now? WGL_OK: yes. WGL_DENIED: no. Changes nothing.
//
// This and wgl_record_job_start are for schedulers that are driven that way, and let others in between;
// wgl_try_acquire decides and records in one act.
int wgl_can_proceed(const wgl_limiter *limiter, const char *key, size_t key_len);

// A job has started: recorded even when the limit is full, because the caller has already decided.
int wgl_record_job_start(const wgl_limiter *limiter, const char *key, size_t key_len);

// A job has ended: the oldest start without a permit that this process recorded on that key.
int wgl_record_job_completion(const wgl_limiter *limiter, const char *key, size_t key_len);

// The earliest instant at which a start of weight 1 would be admitted, gate included; now, if now.
int wgl_get_next_available_time(const wgl_limiter *limiter,
                                const char *key,
                                size_t key_len,
                                int64_t *unix_ns);

// Closes a gate: nobody starts before that instant, for all who share the limit. Gates only move later, except by
// wgl_clear. Without a key it binds all keys. An instant in the past is no gate.
//
// Fails with WGL_INVALID_ARGUMENT if the instant is more than 366 days away.
int wgl_set_next_available_time(const wgl_limiter *limiter,
                                const char *key,
                                size_t key_len,
                                int64_t unix_ns);

// The same, relative to now: what a Retry-After asks for.
int wgl_pause(const wgl_limiter *limiter, const char *key, size_t key_len, uint64_t pause_ns);

// Back to the initial state, gate included. Without a key: of all keys.
int wgl_clear(const wgl_limiter *limiter, const char *key, size_t key_len);

// Ends a permit: the job ran. Ending it again is a no-op.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave it.
int wgl_complete(const wgl_limiter *limiter, wgl_permit *permit);

// Ends a permit, or gives a place back: the job never ran, and its units are free again at once. Ending it again is a
// no-op.
//
// Fails as wgl_complete does, or with a store error; the permit is not ended then.
int wgl_cancel(const wgl_limiter *limiter,
               wgl_permit *permit);

// Gives a place back, unless somebody has started with it meanwhile, perhaps elsewhere with its text. Ending it again is
// a no-op.
//
// Fails as wgl_cancel does.
int wgl_cancel_place(const wgl_limiter *limiter,
                     wgl_permit *place);

// Ends a permit: the job ran, and was worth `actual` units instead of the weight that it started with. What it did not
// use is free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts. Ending it
// again is a no-op.
//
// Fails as wgl_cancel does, and with WGL_UNSUPPORTED for a concurrency limit, whose units come back when the job ends.
int wgl_settle(const wgl_limiter *limiter,
               wgl_permit *permit,
               uint64_t actual);

// Lets a lease begin anew: the start holds its units for the whole lease of its limit from now on. A no-op for permits
// that need none.
//
// Fails with WGL_LEASE_LOST if the lease has ended meanwhile, and perhaps another start holds its units; else as
// wgl_complete does, or with a store error.
int wgl_renew(const wgl_limiter *limiter,
              const wgl_permit *permit);

// The number of a lease, which is larger for every later lease of the same key: what the lease protects remembers the
// largest that it saw, and refuses whoever comes with a smaller one. WGL_NONE, and nothing is written, for permits that
// are no leases.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
int wgl_fence(const wgl_limiter *limiter,
              const wgl_permit *permit,
              uint64_t *fence);

// How often the process has forked since the library was loaded, counted along the way from the first parent: another
// number in a child than when its parent got a permit. For layers above this one that end permits by themselves, which
// have to leave those of a parent alone.
uint64_t wgl_fork_generation(void);

// When the place came that a waiting start had, or comes that was reserved, as Unix time. WGL_NONE, and nothing is
// written, if it had none: it did not have to wait, or its limit keeps no places.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
int wgl_permit_ready_at(const wgl_limiter *limiter,
                        const wgl_permit *permit,
                        int64_t *unix_ns);

// The same on the system's monotonic clock (CLOCK_MONOTONIC), never later than it was (on a server: by no more than its answers are late): for measuring.
//
// Fails as wgl_permit_ready_at does.
int wgl_permit_ready_at_monotonic(const wgl_limiter *limiter,
                                  const wgl_permit *permit,
                                  uint64_t *monotonic_ns);

// Takes a place: a start in the future, or now. WGL_OK: it counts from now on, `place` is written, and so is
// `after_ns` (which may be NULL): after so long it is ready, and is to be presented, or waited for, or given back with
// wgl_cancel. WGL_DENIED: it would be further away than `max_wait_ns` (WGL_FOREVER: however far), and nothing was
// taken; after `after_ns` there would be one.
//
// It is good for one start, until `grace_ns` (WGL_DEFAULT_GRACE, WGL_NO_GRACE) after it is ready, and counts in the window from the
// end of that grace.
//
// Fails as wgl_try_acquire does, and with WGL_UNSUPPORTED for a limiter whose room is not a matter of time.
int wgl_reserve(const wgl_limiter *limiter,
                const char *key,
                size_t key_len,
                uint64_t weight,
                uint64_t max_wait_ns,
                uint64_t grace_ns,
                wgl_permit *place,
                uint64_t *after_ns);

// Starts with a place, if its time has come. WGL_OK: start; `place` is used up, and is the start's permit now.
// WGL_DENIED: not yet; `place` is the place to present after `after_ns` (which may be NULL): the same one if it was
// early, a fresh one if it came too late, was used before, or was overtaken by a gate or another policy.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, with WGL_UNSUPPORTED as wgl_reserve does, or with a store
// error; `place` is untouched then.
int wgl_present(const wgl_limiter *limiter,
                wgl_permit *place,
                uint64_t *after_ns);

// Writes a permit or place as a text, with a NUL behind it, into a buffer of `capacity` bytes; WGL_PERMIT_TEXT_MAX are
// enough, but for a composite's place: 64 more, twice the key's length, and as much again for each child. `length`
// (which may be NULL) is how long it is without the NUL. With it another process that has the same limit goes on,
// through wgl_permit_from_text; from then on the permit is that one's to present and to end.
//
// Fails with WGL_INVALID_ARGUMENT, saying how much is needed, if the buffer is too small, WGL_FOREIGN_PERMIT if another
// limiter gave the permit, and WGL_UNSUPPORTED where permits belong to one process.
int wgl_permit_to_text(const wgl_limiter *limiter,
                       const wgl_permit *permit,
                       char *buffer,
                       size_t capacity,
                       size_t *length);

// The permit or place of such a text, of `text_len` bytes without a NUL.
//
// Fails with WGL_INVALID_ARGUMENT if it is none, WGL_FOREIGN_PERMIT if it is of another limit, and WGL_UNSUPPORTED
// where permits belong to one process.
int wgl_permit_from_text(const wgl_limiter *limiter,
                         const char *text,
                         size_t text_len,
                         wgl_permit *permit);

// Waits for room, at most for `timeout_ns`; WGL_FOREVER: as long as it takes. The threads of this process that wait for
// the same limiter and key start in the order in which they asked. WGL_OK: admitted, and `permit` is written.
// WGL_DENIED: there is no room before that, which is said at once if it can be known at once; nothing is held, and there
// may be room after `retry_after_ns` (which may be NULL): who asks again should stay away for so long. A signal handler
// may run meanwhile, but does not end the wait.
//
// Fails as wgl_try_acquire does.
int wgl_acquire(const wgl_limiter *limiter,
                const char *key,
                size_t key_len,
                uint64_t weight,
                uint64_t timeout_ns,
                wgl_permit *permit,
                uint64_t *retry_after_ns);

// As wgl_acquire, with a priority and a grace; `options` may be NULL.
//
// Fails as wgl_try_acquire does.
int wgl_acquire_with(const wgl_limiter *limiter,
                     const char *key,
                     size_t key_len,
                     const wgl_waiter_options *options,
                     wgl_permit *permit,
                     uint64_t *retry_after_ns);

// Waits for a place's time, at most for `timeout_ns` (WGL_FOREVER: as long as it takes), and starts with it; a place
// that has gone bad meanwhile is exchanged, as wgl_present does. WGL_OK: start; `place` is the start's permit now.
// WGL_DENIED: its time does not come before that, which is said at once; the place was given back, and there may be room
// after `retry_after_ns` (which may be NULL).
//
// Fails as wgl_present does.
int wgl_acquire_place(const wgl_limiter *limiter,
                      wgl_permit *place,
                      uint64_t timeout_ns,
                      uint64_t *retry_after_ns);

// Makes a waiter, which asks at its first step, and whose time begins then. `options` may be NULL. It is in one line with
// all that wait in this process for the same limiter and key, in whichever way.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range or a key that is none.
int wgl_waiter_new(const wgl_limiter *limiter,
                   const char *key,
                   size_t key_len,
                   const wgl_waiter_options *options,
                   wgl_waiter **waiter);

// Makes a waiter for the time of a place, as wgl_acquire_place waits. It takes the place over: `place` is used up.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the place.
int wgl_waiter_new_for_place(const wgl_limiter *limiter,
                             wgl_permit *place,
                             uint64_t timeout_ns,
                             wgl_waiter **waiter);

// Takes a step. It does not sleep. WGL_OK: start, and `permit` is written. WGL_WAITING: not yet; take another step after
// `nap_ns`, or earlier. WGL_DENIED: there is no room before the time is up, but perhaps after `nap_ns` (which may be
// NULL). After WGL_OK, WGL_DENIED or an error the wait is over.
//
// Who comes late for a step may start late, and holds up nobody else.
//
// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT if the wait is over.
int wgl_waiter_step(wgl_waiter *waiter,
                    wgl_permit *permit,
                    uint64_t *nap_ns);

// Frees a waiter, and gives the wait up if it is not over. NULL is a no-op.
void wgl_waiter_free(wgl_waiter *waiter);

// What was counted, of a key or without a key of all: by all processes that share the limit, but for what the others
// counted in the last second.
//
// Fails with WGL_INVALID_ARGUMENT for a key that is none, or with a store error.
int wgl_stats(const wgl_limiter *limiter,
              const char *key,
              size_t key_len,
              wgl_counts *counts);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WORKGLOW_LIMIT_H */
