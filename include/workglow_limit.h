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
// Results. A function that can fail returns a status: WGL_OK (0); a positive number for another normal outcome
// (WGL_DENIED, WGL_NONE, WGL_WAITING, WGL_TOO_SMALL); a negative number for an error, whose message is wgl_last_error().
// A denial is not an error. Outputs are the last parameters. They are written only where a function says so, and not
// after an error. The numbers never change their meaning; later versions may add some.
//
// Errors. Each function lists its own. Every function that returns a status also fails with WGL_INVALID_ARGUMENT for NULL
// without a meaning, for text that is not UTF-8 and for a structure that was not initialised; with WGL_UNSUPPORTED for a
// structure with settings of a newer version; and with WGL_INTERNAL for a bug in the library. A "store error" is
// WGL_STORE_FAILURE, WGL_STORE_TIMEOUT, WGL_STORE_FULL or WGL_DAMAGED; on a limit that was forgotten or declared as
// another kind, WGL_UNKNOWN_LIMIT or WGL_KIND_MISMATCH; on a custom limiter, or a composite that contains one,
// WGL_CUSTOM_FAILURE; after wgl_store_close, WGL_STORE_CLOSED.
//
// Parameters. The order is the same everywhere: the object; what a call sets and for which key, or the key, weight and
// times of a start; then outputs. Handles, texts and outputs are valid pointers; NULL is an error, except where it has
// a meaning. A `const` handle or permit is only read: the call changes neither it nor what it stands for. Texts are
// UTF-8 and end with a NUL. A key has a length instead: any `key_len` bytes of UTF-8, at most 1,024; length 0 is no
// key. A limit has one policy and a separate budget for each key. Weights are units, at least 1. Durations are
// nanoseconds, instants nanoseconds since 1970 (UTC). Limits count in whole microseconds, rounded so that they are
// never exceeded.
//
// Structures. One that begins with `struct_size` is initialised with its INIT macro, or zeroed with `struct_size` set to
// its sizeof: both mean the same, because 0 is the default of every option. Later versions add fields only at its end,
// and 0 in them keeps the old behaviour. So a program may be older than the library. It may also be newer, as long as
// fields that the library does not know are 0.
//
// Versions. WGL_VERSION_NUMBER is the version of this header, wgl_version_number() that of the library that is loaded.
// Exported symbols have the version WGL_0.
//
// Ownership. The caller owns the handle that a function writes to an output, and passes it once to the _free function of
// its type; _free(NULL) is a no-op. Handles that refer to one another are reference counted inside, and may be freed in
// any order. Texts and structures that are passed in are read only during the call. Returned texts must not be freed.
//
// Threads. Any thread may call any function at any time, on the same handles too, except that _free needs its handle to
// itself, and that one thread at a time uses a permit, a waiter or a line. The library installs no signal handlers,
// starts threads only for limits on a server, and prints nothing except after a bug of its own (WGL_INTERNAL). Signal
// handlers must not call it.
//
// Fork. Handles that were made before a fork work in the child, whatever the parent's threads were doing. A limit in a
// sqlite: store is then shared with the parent and the other children. A limit in a memory: store, or without a store,
// is the child's own copy from then on. Permits stay with the process that got them, unless they leave it as texts
// (wgl_permit_to_text). A child that only calls exec, or ends with _exit, has nothing to clean up.


#ifndef WORKGLOW_LIMIT_H
#define WORKGLOW_LIMIT_H

#include <stddef.h>
#include <stdint.h>

// The version of this header, for #if: major * 10000 + minor * 100 + patch.
#define WGL_VERSION_MAJOR 0
#define WGL_VERSION_MINOR 1
#define WGL_VERSION_PATCH 0
#define WGL_VERSION_NUMBER (WGL_VERSION_MAJOR * 10000 + WGL_VERSION_MINOR * 100 + WGL_VERSION_PATCH)

// The initial values of the structures below.
#define WGL_STORE_OPTIONS_INIT { sizeof(wgl_store_options), 0, 0, 0, 0, NULL, 0 }
#define WGL_RATE_LIMITER_OPTIONS_INIT { sizeof(wgl_rate_limiter_options), 0, 0, 0, NULL, 0, 0, 0, 0 }
#define WGL_CONCURRENCY_LIMITER_OPTIONS_INIT { sizeof(wgl_concurrency_limiter_options), 0, 0, NULL, 0, 0 }
#define WGL_DELAY_LIMITER_OPTIONS_INIT { sizeof(wgl_delay_limiter_options), 0, 0, NULL }
#define WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT { sizeof(wgl_evenly_spaced_rate_limiter_options), 0, 0, 0, NULL }
#define WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT { sizeof(wgl_token_bucket_limiter_options), 0, 0, 0, 0 }
#define WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT { sizeof(wgl_leaky_bucket_limiter_options), 0, 0, 0, 0 }
#define WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT { sizeof(wgl_fixed_window_limiter_options), 0, 0, 0 }
#define WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT \
    { sizeof(wgl_sliding_window_counter_limiter_options), 0, 0, 0 }
#define WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT { sizeof(wgl_flow_control_limiter_options), 0, 0, 0, 0 }
#define WGL_CUSTOM_LIMITER_TABLE_INIT \
    { sizeof(wgl_custom_limiter_table), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#define WGL_DECISION_INIT \
    { sizeof(wgl_decision), 0, 0, 0, 0, 0, 0, NULL, { { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } } }
#define WGL_WAITER_OPTIONS_INIT { sizeof(wgl_waiter_options), 0, 0, 0, 0, 0, 0 }
#define WGL_COUNTS_INIT { sizeof(wgl_counts), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define WGL_HOLDER_SNAPSHOT_INIT { sizeof(wgl_holder_snapshot), 0, NULL, 0, 0, 0, 0, 0 }
#define WGL_HEAD_SNAPSHOT_INIT { sizeof(wgl_head_snapshot), 0, NULL, 0, 0, 0, NULL, 0, 0 }
#define WGL_WAITING_SNAPSHOT_INIT { sizeof(wgl_waiting_snapshot), 0, NULL, 0, 0 }


// Success; a start that was asked for is admitted.
#define WGL_OK 0

// Not now. A normal outcome, not an error.
#define WGL_DENIED 1

// There is no value. A normal outcome, not an error.
#define WGL_NONE 2

// Not yet: the wait continues. A normal outcome, not an error.
#define WGL_WAITING 3

// The buffer is too small; the length that is needed is written. A normal outcome, not an error.
#define WGL_TOO_SMALL 4

// A parameter is out of range, NULL or not UTF-8. Nothing was created or changed.
#define WGL_INVALID_ARGUMENT -1

// The weight is more than the limit can ever admit.
#define WGL_WEIGHT_EXCEEDS_CAPACITY -2

// The store's address is not valid.
#define WGL_INVALID_URL -3

// The store has no limit of this name.
#define WGL_UNKNOWN_LIMIT -4

// The name is declared as another kind of limiter.
#define WGL_KIND_MISMATCH -5

// The file at the store's path is not a store. It was not touched.
#define WGL_NOT_A_STORE -6

// The store has a format that this version of the library cannot read. It was not touched.
#define WGL_UNSUPPORTED_VERSION -7

// The store is not on a local file system.
#define WGL_UNSUPPORTED_FILE_SYSTEM -8

// The store could not be reached, read or written.
#define WGL_STORE_FAILURE -9

// The store was busy for longer than its timeout, or its server did not answer in time.
#define WGL_STORE_TIMEOUT -10

// The store has no capacity for another key or limit.
#define WGL_STORE_FULL -11

// The permit belongs to another limiter.
#define WGL_FOREIGN_PERMIT -12

// This limiter or store does not support the call.
#define WGL_UNSUPPORTED -13

// The lease has expired; another start may hold its units.
#define WGL_LEASE_LOST -14

// A custom limiter failed.
#define WGL_CUSTOM_FAILURE -15

// The store's contents are damaged: another program or the disk changed its files.
#define WGL_DAMAGED -16

// The store was closed in this process by wgl_store_close.
#define WGL_STORE_CLOSED -21

// A bug in this library. Its state is sound; please report the message.
#define WGL_INTERNAL -100

// The version of the binary interface, as in the name of the shared library, libworkglow_limit.so.0. It changes when
// programs must be recompiled.
#define WGL_ABI_VERSION 0

// A decision that the store fails returns the error. The default.
#define WGL_ON_ERROR_RAISE 0

// A decision that the store fails is a denial.
#define WGL_ON_ERROR_DENY 1

// A decision that the store fails is an admission that is not counted: for calls that matter more than the limit.
#define WGL_ON_ERROR_ADMIT 2

// A power cut loses the record of at most 5 % of a limit, and at least one unit; lost units count as spent. The default.
#define WGL_DURABILITY_BUDGET 0

// Every start is in the database before the call that admits it returns.
#define WGL_DURABILITY_COMMIT 1

// How retries spread: from the backoff to twice the backoff. The default.
#define WGL_JITTER_SCALED 0

// How retries spread: from 0 to the backoff.
#define WGL_JITTER_FULL 1

// How retries spread: from half of the backoff to the backoff.
#define WGL_JITTER_EQUAL 2

// How retries spread: not at all. The backoff itself.
#define WGL_JITTER_NONE 3

// The distance between evenly spaced starts: the window over `max_executions`, less the average time that the last jobs
// took. The default.
#define WGL_SPACING_ADAPTIVE 0

// The distance between evenly spaced starts: the window over `max_executions`.
#define WGL_SPACING_FIXED 1

// How a start ended: the job ran.
#define WGL_END_COMPLETED 0

// How a start ended: the job never ran.
#define WGL_END_CANCELLED 1

// How a start ended: the job ran, and was worth `actual` units.
#define WGL_END_SETTLED 2

// A timeout that never expires: the call waits as long as it takes.
#define WGL_FOREVER 18446744073709551615ull

// A timeout of 0, for options, where 0 is the default.
#define WGL_NO_WAIT 18446744073709551614ull

// The default grace of a place: a fortieth of the window, at most 50 ms.
#define WGL_DEFAULT_GRACE 0

// No grace: the place is valid only at its instant.
#define WGL_NO_GRACE 18446744073709551614ull

// The bytes that hold the text of any permit, with its NUL, except a place of a composite, which may need more.
#define WGL_PERMIT_TEXT_MAX 128

// The key of a joint start, with what each part is charged. The caller owns it and frees it with wgl_joint_key_free. Any
// number of calls of the limiter that it was made for may use it, at once too. It belongs to its process and forked
// children.
typedef struct wgl_joint_key wgl_joint_key;

// Decides whether a job may start now, and if not, when.
//
// The caller owns it and frees it with wgl_limiter_free, when no thread is in a call on it. It keeps its store and its
// children alive. Any number of threads may use it at once. Forked children inherit it: see "Fork" above.
typedef struct wgl_limiter wgl_limiter;

// The waiters of an event loop for one limiter, of any number of keys. The loop watches one descriptor and calls
// wgl_line_advance when it is readable.
//
// The caller owns it and frees it with wgl_line_free, at any time; what its waiters hold is given back then. It keeps its
// limiter alive. One thread at a time may use it, but any thread may call wgl_line_wake. A forked child makes lines of its
// own: in its parent's it can only free, which changes nothing for the parent.
typedef struct wgl_line wgl_line;

// Who had the units of a limit, or of a key of it, and who waited for them, at the moment of wgl_store_line.
//
// The caller owns it and frees it with wgl_line_snapshot_free, at any time: it depends on no other handle. It never
// changes, so any number of threads may read it. A forked child has a copy.
typedef struct wgl_line_snapshot wgl_line_snapshot;

// A clock for tests. It stands still until it is advanced; stores and limiters that were made with it follow it. A thread
// that waits in wgl_acquire sleeps until another thread advances it.
//
// The caller owns it and frees it with wgl_manual_clock_free, at any time: stores and limiters keep what they need.
// Any thread may use it. A forked child has a copy, which does not follow the parent's.
typedef struct wgl_manual_clock wgl_manual_clock;

// A place where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or a server or cluster that machines
// share: "redis://HOST", "rediss://HOST", "redis+unix://PATH", "redis+sentinel://HOST,HOST/NAME" and
// "postgres://HOST/DATABASE".
//
// The caller owns it and frees it with wgl_store_free; limiters made from it work after that, until wgl_store_close. Any
// thread may use it. Forked children inherit it: in a sqlite: store they share the limits with their parent, in a memory:
// store they have a copy.
typedef struct wgl_store wgl_store;

// A list of texts, such as the names of a store's limits.
//
// The caller owns it and frees it with wgl_strings_free, at any time: it depends on no other handle. It never changes, so
// any number of threads may read it. A forked child has a copy.
typedef struct wgl_strings wgl_strings;

// A wait in steps: for an event loop, or where something else may end the wait.
//
// The caller owns it and frees it with wgl_waiter_free, at any time. If the wait is not over then, its place goes to the
// next waiter, or back. It keeps its limiter alive. One thread at a time may use it. A forked child that continues with it
// starts a wait of its own.
typedef struct wgl_waiter wgl_waiter;

// How a store behaves. Begin with WGL_STORE_OPTIONS_INIT; a field that is 0 or NULL has its default. The caller owns it;
// it is read only during the call.
typedef struct wgl_store_options {
    // sizeof(wgl_store_options), as the INIT macro sets it.
    uint32_t struct_size;
    // The mode of new files, whatever the umask: 0600 to 0777. Default 0: 0600. 0660 is for services of several users.
    uint32_t mode;
    // How long a call may wait for something rare (opening, a new limit, growing) before it fails. Default 0: 5 s.
    uint64_t timeout_ns;
    // What a decision does if the store fails: WGL_ON_ERROR_RAISE, WGL_ON_ERROR_DENY or WGL_ON_ERROR_ADMIT.
    // wgl_store_failures counts it in any case. Default WGL_ON_ERROR_RAISE.
    uint32_t on_error;
    // What a power cut may lose: WGL_DURABILITY_BUDGET or WGL_DURABILITY_COMMIT. Default WGL_DURABILITY_BUDGET.
    uint32_t durability;
    // A clock for tests instead of the system's. Default NULL: the system's.
    const wgl_manual_clock *clock;
    // The size in bytes up to which this process lets the store's memory, or its lane, grow: 1 MiB to 4 GiB. Default 0: a
    // quarter of the memory of the machine, or of the container if that has less.
    uint64_t max_size;
} wgl_store_options;

// One window of a rate limit with several.
typedef struct wgl_rate_window {
    // The units in any rolling window: 1 to 1,000,000,000, or 1 to 4,096 if there are several windows.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_rate_window;

// What a rate limit allows: `max_executions` and `window_ns`, or `windows`. The backoff is what a denial adds to
// `suggested_after_ns` for callers that requeue. The first denial adds `initial_backoff_delay_ns`, each later one
// `backoff_multiplier` times as much, up to `max_backoff_delay_ns`; an admission resets it. Each level lasts as long as its
// backoff, however often and in however many processes callers ask.
//
// Begin with WGL_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_rate_limiter_options {
    // sizeof(wgl_rate_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // How retries spread: WGL_JITTER_SCALED, _FULL, _EQUAL or _NONE. Default WGL_JITTER_SCALED.
    uint32_t jitter;
    // The units in any rolling window: 1 to 1,000,000,000, or 1 to 4,096 if there are several windows.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
    // Several windows instead: a start needs capacity in all of them. NULL: only the window above.
    const wgl_rate_window *windows;
    // The number of `windows`: 1 to 4, or 0 if it is NULL.
    size_t window_count;
    // The backoff of the first denial: 1,000 ns to 366 days. Default 0: 1 s.
    uint64_t initial_backoff_delay_ns;
    // The factor by which the backoff grows: more than 1 and at most 1,000, in thousandths. Default 0: 2.
    double backoff_multiplier;
    // The longest backoff: the initial one to 366 days. Default 0: 10 min.
    uint64_t max_backoff_delay_ns;
} wgl_rate_limiter_options;

// What a concurrency limit allows. Begin with WGL_CONCURRENCY_LIMITER_OPTIONS_INIT. The caller owns it; it is read only
// during the call.
typedef struct wgl_concurrency_limiter_options {
    // sizeof(wgl_concurrency_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The units that may run at the same time: 1 to 65,535.
    uint64_t max_concurrent_jobs;
    // With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    // one.
    const wgl_manual_clock *clock;
    // With _shared: how long a start holds its units unless wgl_renew extends that, 1,000 ns (1 µs) to 366 days. Default
    // 0: as long as its process lives. With _new: 0.
    uint64_t lease_ns;
    // For how long units stay taken after their start has ended, 1,000 ns (1 µs) to 366 days. So at most max_concurrent_jobs
    // units are counted in any rolling window of that length, also as the server counts that the jobs call: see
    // wgl_arrived. Default 0: they are free at once.
    uint64_t cooldown_ns;
} wgl_concurrency_limiter_options;

// What a limit on the time between starts allows. Begin with WGL_DELAY_LIMITER_OPTIONS_INIT. The caller owns it; it is
// read only during the call.
typedef struct wgl_delay_limiter_options {
    // sizeof(wgl_delay_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The time from one start to the next: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds. Default 0:
    // 50 ms.
    uint64_t delay_ns;
    // With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    // one.
    const wgl_manual_clock *clock;
} wgl_delay_limiter_options;

// What an evenly spaced limit allows. Begin with WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT. The caller owns it; it is read
// only during the call.
typedef struct wgl_evenly_spaced_rate_limiter_options {
    // sizeof(wgl_evenly_spaced_rate_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // The distance between starts: WGL_SPACING_ADAPTIVE or WGL_SPACING_FIXED. Default WGL_SPACING_ADAPTIVE.
    uint32_t spacing;
    // The starts in a window: 1 to 1,000,000,000, or 1 to 4,096 if the distance is adaptive.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
    // With _new: a clock for tests instead of the system's; NULL is the system's. With _shared: NULL, because the store has
    // one.
    const wgl_manual_clock *clock;
} wgl_evenly_spaced_rate_limiter_options;

// What a token bucket allows. Begin with
// WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_token_bucket_limiter_options {
    // sizeof(wgl_token_bucket_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The tokens that are added per period: 1 to 1,000,000,000.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // The tokens that the bucket holds: 1 to 1,000,000,000, and at most those of 366 days. Default 0: `rate`.
    uint64_t burst;
} wgl_token_bucket_limiter_options;

// What a leaky bucket allows. Begin with
// WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_leaky_bucket_limiter_options {
    // sizeof(wgl_leaky_bucket_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The units that start per period, one after the other: 1 to 1,000,000,000.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // The units that may wait for their turn: 1 to 1,000,000,000, and at most those of 366 days. Default 0: `rate`.
    uint64_t queue;
} wgl_leaky_bucket_limiter_options;

// What a limit on fixed windows allows. Begin with
// WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_fixed_window_limiter_options {
    // sizeof(wgl_fixed_window_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The units in a window: 1 to 1,000,000,000.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_fixed_window_limiter_options;

// What a sliding window counter allows. Begin with
// WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_sliding_window_counter_limiter_options {
    // sizeof(wgl_sliding_window_counter_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The units in a window: 1 to 1,000,000,000.
    uint64_t max_executions;
    // The window's length: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t window_ns;
} wgl_sliding_window_counter_limiter_options;

// What flow control allows. Begin with
// WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT. The caller owns it; it is read only during the call.
typedef struct wgl_flow_control_limiter_options {
    // sizeof(wgl_flow_control_limiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The units in any rolling period: 1 to 1,000,000,000. Default 0, as `period_ns` is then: no such limit.
    uint64_t rate;
    // The period: 1,000 ns (1 µs) to 366 days, rounded up to whole microseconds.
    uint64_t period_ns;
    // The units that may run at the same time: 1 to 65,535. Default 0: no such limit.
    uint64_t parallelism;
} wgl_flow_control_limiter_options;

// A custom limiter, as functions of the program. Begin with WGL_CUSTOM_LIMITER_TABLE_INIT and set `name`, `decide` and
// `peek`; the others may be NULL. It is read only during the call of wgl_custom_limiter_new.
//
// Each function gets `context` first. Any threads may call it, several at once. It returns WGL_OK or, where a denial is
// possible, WGL_DENIED; any other value is a failure: the caller gets WGL_CUSTOM_FAILURE, and nothing is charged. It may call
// this library, but not on a limiter that contains this one. It must return: no longjmp, no C++ exception. Keys are not
// NULL, have no NUL at their end, and are valid only during the call; length 0 is no key. A forked child calls the same
// functions with its copy of the context.
typedef struct wgl_custom_limiter_table {
    // sizeof(wgl_custom_limiter_table), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The first argument of each function. It must be valid until `free` is called.
    void *context;
    // The name, for `denied_by`: 1 to 1,024 bytes. Copied.
    const char *name;
    // Decides and records in one act; `weight` is at least 1. WGL_OK: admitted; `end` will get the value of `start`, 0
    // unless it is written. WGL_DENIED: not now, and nothing has changed; the caller may retry after `retry_after_ns`,
    // 10 ms unless it is written.
    int (*decide)(void *context,
                  const char *key,
                  size_t key_len,
                  uint64_t weight,
                  uint64_t *start,
                  uint64_t *retry_after_ns);
    // Returns what `decide` would return. Records nothing.
    int (*peek)(void *context, const char *key, size_t key_len, uint64_t weight, uint64_t *retry_after_ns);
    // Ends the start for which `decide` wrote that number: `how` is WGL_END_COMPLETED, _CANCELLED or _SETTLED, and `actual`
    // is 0 except for the last. Called once for each permit that is ended, and for starts that a composite takes back.
    int (*end)(void *context, uint64_t start, uint32_t how, uint64_t actual);
    // Sets a gate: no start for `duration_ns`. Without a key it applies to all keys.
    int (*pause)(void *context, uint64_t duration_ns, const char *key, size_t key_len);
    // Resets a key; without a key, all keys.
    int (*clear)(void *context, const char *key, size_t key_len);
    // Records that a job has started without a decision.
    int (*record_job_start)(void *context, const char *key, size_t key_len);
    // Records that a job which started without a decision has ended.
    int (*record_job_completion)(void *context, const char *key, size_t key_len);
    // Called once, when the limiter and all composites that contain it are freed. No function is called after it.
    void (*free)(void *context);
} wgl_custom_limiter_table;

// Proof of an admitted start, until wgl_complete, wgl_cancel or wgl_settle ends it; or a place, a start in the future. It is
// a value: there is nothing to free, and its contents are private to the library. It belongs to the limiter that gave it
// and to the process that got it, unless it leaves as a text.
//
// A composite remembers the parts of its permits until they end, or until their end would have no effect. A permit that
// holds a slot, or a start of a custom limiter, must be ended.
//
// It may be moved and copied, but only one copy is to be ended. That copy is then marked as ended, and ending it again, in
// any way, is a no-op. Where starts are only counted (fixed windows, sliding window counters, limits above 4,096, custom
// limiters), cancelling another copy would return its units again. One thread at a time may use it.
typedef struct wgl_permit {
    // Private. The last words are for later versions.
    uint64_t opaque[12];
} wgl_permit;

// The whole answer to "may this start now, and if not, when?". Begin with WGL_DECISION_INIT. The caller owns it.
typedef struct wgl_decision {
    // sizeof(wgl_decision), as the INIT macro sets it.
    uint32_t struct_size;
    // 1 with WGL_OK, 0 with WGL_DENIED.
    uint32_t admitted;
    // 0 if admitted. Otherwise the time after which a retry succeeds, unless another caller took the capacity; one
    // microsecond earlier it fails. For a concurrency limit, whose units come back when a job ends, a suggestion.
    uint64_t retry_after_ns;
    // At least `retry_after_ns`: the same for callers that requeue, with the backoff.
    uint64_t suggested_after_ns;
    // The heaviest start that would be admitted after this decision. UINT64_MAX: no limit.
    uint64_t remaining;
    // The units that the limit allows. UINT64_MAX: no limit.
    uint64_t limit;
    // The time after which the limiter is reset if nothing else starts. 0 for a concurrency limit, which cannot know it.
    uint64_t reset_after_ns;
    // The name of the limit that denied, NULL if admitted. It lives as long as the limiter that was called.
    const char *denied_by;
    // The permit of the start. All zero in a denial, and always after wgl_peek.
    wgl_permit permit;
} wgl_decision;

// What one part of a composite is charged for a start. Zeroed but for its part, it changes nothing.
typedef struct wgl_charge {
    // The part's name; a part of a composite that is itself a part is "OUTER/INNER".
    const char *part;
    // The key. NULL: that of the start.
    const char *key;
    // Its length.
    size_t key_len;
    // The weight. 0: that of the start.
    uint64_t weight;
} wgl_charge;

// The units that one part of a composite used.
typedef struct wgl_usage {
    // The part's name, as in wgl_charge.
    const char *part;
    // The units that its job used.
    uint64_t units;
} wgl_usage;

// How to wait. Begin with WGL_WAITER_OPTIONS_INIT; a field that is 0 has its default. The caller owns it; it is read only
// during the call.
typedef struct wgl_waiter_options {
    // sizeof(wgl_waiter_options), as the INIT macro sets it.
    uint32_t struct_size;
    // Of the waiters in this process for the same limiter and key, lower priorities start first. Default 0.
    int32_t priority;
    // The units that the start takes. Default 0: 1.
    uint64_t weight;
    // The longest wait. Default 0: as long as it takes, like WGL_FOREVER. WGL_NO_WAIT: none.
    uint64_t timeout_ns;
    // How late the waiter may be for its place without losing it, at most 366 days. No other caller can have that start
    // during the grace, so pass no more than is needed. Default WGL_DEFAULT_GRACE; a shorter grace has no effect.
    uint64_t grace_ns;
    // Of a shared limit, the share of the tenant that the key names, 1 to 1,000: with 3 it gets three starts where one with 1
    // gets one, while both wait. Default 0: the share that wgl_store_share has set, or else 1.
    uint32_t share;
    // 0.
    uint32_t reserved;
} wgl_waiter_options;

// Counts of a limit, or of one key. Begin with WGL_COUNTS_INIT. The caller owns it.
typedef struct wgl_counts {
    // sizeof(wgl_counts), as the INIT macro sets it.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Starts that were admitted, at once or after a wait.
    uint64_t admitted;
    // Attempts that were denied.
    uint64_t denied;
    // The units that were requested.
    uint64_t units_wanted;
    // The units that were granted.
    uint64_t units_granted;
    // Starts that had to wait for a place.
    uint64_t waited;
    // How long these starts waited, in total.
    uint64_t wait_time_ns;
    // Permits and places that were cancelled.
    uint64_t cancelled;
    // Decisions that the store failed, whatever `on_error` made of them.
    uint64_t store_errors;
    // How often another policy came into force.
    uint64_t policy_changes;
} wgl_counts;

// A process that has units of a limit. Begin with WGL_HOLDER_SNAPSHOT_INIT. The caller owns it; its texts live as long as
// the snapshot.
typedef struct wgl_holder_snapshot {
    // sizeof(wgl_holder_snapshot), as the INIT macro sets it.
    uint32_t struct_size;
    // The process, by its own view of its pid: in a container the container's. 0: it is not in the list of processes, or the
    // store is memory:.
    uint32_t pid;
    // The name of its program; NULL if it is not known.
    const char *program;
    // How long it has used the store.
    uint64_t since_ns;
    // The number of its starts that have not ended.
    uint64_t starts;
    // Their units.
    uint64_t units;
    // 1 if the starts have ended, and their units are free after the limit's cooldown; else 0.
    uint32_t cools_down;
    // 0.
    uint32_t reserved;
} wgl_holder_snapshot;

// The first waiter of a line. Begin with WGL_HEAD_SNAPSHOT_INIT. The caller owns it; its texts live as long as the snapshot.
typedef struct wgl_head_snapshot {
    // sizeof(wgl_head_snapshot), as the INIT macro sets it.
    uint32_t struct_size;
    // Its process: see wgl_holder_snapshot.
    uint32_t pid;
    // The name of its program; NULL if it is not known.
    const char *program;
    // How long its process has used the store.
    uint64_t since_ns;
    // How long it has waited.
    uint64_t waits_ns;
    // What it wants to start.
    uint64_t units;
    // Of a shared limit, its tenant: '#' and an id of the key. Else NULL.
    const char *tenant;
    // Its priority: less is sooner.
    int32_t priority;
    // 1 if it is passed, because its process does not run; else 0.
    uint32_t is_passed;
} wgl_head_snapshot;

// How many callers of a process wait. Begin with WGL_WAITING_SNAPSHOT_INIT. The caller owns it; its texts live as long as
// the snapshot.
typedef struct wgl_waiting_snapshot {
    // sizeof(wgl_waiting_snapshot), as the INIT macro sets it.
    uint32_t struct_size;
    // The process: see wgl_holder_snapshot.
    uint32_t pid;
    // The name of its program; NULL if it is not known.
    const char *program;
    // How long it has used the store.
    uint64_t since_ns;
    // The number of its callers, for all keys of the limit together.
    uint64_t callers;
} wgl_waiting_snapshot;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the last call that failed on this thread, for people: the parameter, its value and what was
// expected. Empty if none has failed. Valid until the next call that fails on this thread, or the thread ends.
//
// Never fails, and never returns NULL.
const char *wgl_last_error(void);

// Returns the stable name of a status, the same in every language: "ok", "denied", "invalid_argument", …; "unknown" for
// any other number. The text is static.
//
// Never fails, and never returns NULL.
const char *wgl_status_name(int status);

// Returns the version of the library that is loaded, such as "0.1.0". The text is static.
//
// Never fails, and never returns NULL.
const char *wgl_version(void);

// Returns the version of the library that is loaded as a number: major * 10000 + minor * 100 + patch. It is
// WGL_VERSION_NUMBER if the header has the same version, and larger if the library is newer.
//
// Never fails.
int wgl_version_number(void);

// Returns the version of the binary interface of the library that is loaded: WGL_ABI_VERSION, if the header matches.
//
// Never fails.
int wgl_abi_version(void);

// Returns the number of texts. 0 for NULL.
//
// Never fails.
size_t wgl_strings_count(const wgl_strings *strings);

// Returns the text at an index, from 0 on. It lives as long as the list.
//
// Never fails: NULL if there is no such text.
const char *wgl_strings_get(const wgl_strings *strings, size_t index);

// Frees a list. NULL is a no-op.
//
// Never fails.
void wgl_strings_free(wgl_strings *strings);

// Makes a clock that reads 0.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL.
int wgl_manual_clock_new(wgl_manual_clock **clock);

// Advances a clock.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL.
int wgl_manual_clock_advance(wgl_manual_clock *clock, uint64_t by_ns);

// Frees a clock. NULL is a no-op.
//
// Never fails.
void wgl_manual_clock_free(wgl_manual_clock *clock);

// Opens a store, and makes its files if there are none. `options` may be NULL.
//
// Fails with WGL_INVALID_URL, WGL_INVALID_ARGUMENT for options out of range, WGL_NOT_A_STORE, WGL_UNSUPPORTED_VERSION,
// WGL_UNSUPPORTED_FILE_SYSTEM, WGL_UNSUPPORTED for a server that cannot hold limits, or with a store error.
int wgl_store_open(const char *url,
                   const wgl_store_options *options,
                   wgl_store **store);

// Checks the files of a store, which need not open. `problems` receives a line for each problem, none if all is well.
// With `repair` other than 0 it also repairs what it can, and the lines of those begin with "repaired: ". Unreadable
// rows are deleted from the database; a damaged lane is rebuilt. It reads the whole database, which delays starts that
// wait for a commit.
//
// Fails as wgl_store_open does, but not for damage.
int wgl_store_verify(const char *url,
                     const wgl_store_options *options,
                     int repair,
                     wgl_strings **problems);

// Checks the settings of a server for what endangers limits there. `findings` receives a line for each, the worst
// first, none if all is well: its severity ("danger: ", "warning: " or "note: "), the setting and its value, what that
// endangers, and what to set instead. There is none for memory: and sqlite:PATH; wgl_store_verify checks the files. On
// Redis it writes a key of its own for a moment, to see whether it may.
//
// Fails with WGL_INVALID_URL, or with a store error if the server does not answer.
int wgl_doctor(const char *url,
               wgl_strings **findings);

// Returns the SQL that makes the schema workglow_limit, which limits on Postgres need: for migrations of your own. Where
// the program's role may create schemas, the first call makes it. Running it again has no effect. The text is static.
//
// Never fails, and never returns NULL.
const char *wgl_postgres_schema(void);

// Returns the address of a store, as it was given but without a password. It lives as long as the store.
//
// Never fails: NULL for NULL.
const char *wgl_store_url(const wgl_store *store);

// Returns the names of the limits that are declared in a store, in order.
//
// Fails with a store error.
int wgl_store_names(const wgl_store *store, wgl_strings **names);

// Declares the limits of a TOML file, all or none, for all that share the store; wgl_limiter_attach makes limiters of
// them. `names` (which may be NULL) receives their names.
//
// Fails with WGL_INVALID_ARGUMENT if the file cannot be read or is wrong, and says where; with WGL_KIND_MISMATCH if a
// name is declared as another kind of limiter, or with a store error.
int wgl_store_load(wgl_store *store,
                   const char *path,
                   wgl_strings **names);

// Puts an operator's policy above what programs declare under this name, at once, for all that share the store, until
// wgl_store_lift. `policy` is a text such as "200/1m", "100/1m + 5/1s" or "5 concurrent". With `key` (`key_len` bytes) it
// applies to that key only, such as a tenant's plan, above the limit's policy, even before the key is used. With NULL,
// 0 it applies to all keys that have none of their own.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_KIND_MISMATCH for a policy of another kind,
// WGL_INVALID_ARGUMENT for a text that is no policy or a key that is not 1 to 1,024 bytes, or with a store error.
int wgl_store_override(wgl_store *store,
                       const char *name,
                       const char *policy,
                       const char *key,
                       size_t key_len);

// Removes an operator's policy: the last declared one applies again. With `key`, that key's own policy, so the limit's
// applies to it again; with NULL, 0 the limit's, and keys keep theirs. A no-op where there is none.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_INVALID_ARGUMENT for a key that is not 1 to 1,024
// bytes, or with a store error.
int wgl_store_lift(wgl_store *store,
                   const char *name,
                   const char *key,
                   size_t key_len);

// Sets the share of a tenant of a shared limit ("500/1m shared"), for all that share the store: 1 to 1,000. While tenants
// wait, one with 3 gets three starts where one with 1 gets one. It survives restarts; 1 is the default, and the `share`
// of a call (see wgl_waiter_options) has precedence. `key` (`key_len` bytes) names the tenant, which need not have been
// used.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a limit that is not shared,
// WGL_INVALID_ARGUMENT for a share out of range or a key that is not 1 to 1,024 bytes, or with a store error.
int wgl_store_share(wgl_store *store,
                    const char *name,
                    const char *key,
                    size_t key_len,
                    uint32_t share);

// Removes the limit that is declared under a name, with its overrides, so that another kind of limiter can be declared.
// Calls on limiters of it then fail with WGL_UNKNOWN_LIMIT or WGL_KIND_MISMATCH. If the same kind is declared again, its
// counts continue.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a part of limits that were declared
// together, or with a store error.
int wgl_store_forget(wgl_store *store,
                     const char *name);

// Writes admitted starts that the database lacks to it now, for example before a planned power-off. A no-op for memory:.
//
// Fails with a store error.
int wgl_store_flush(wgl_store *store);

// Ends the use of a store in this process: of every limiter that was made from it, and of every wait. Calls that would
// start, wait, read or change something fail with WGL_STORE_CLOSED from then on, whatever `on_error` says. Waits in other
// threads return that at once; so do the next wgl_waiter_step and wgl_line_advance, and the descriptors of lines become
// readable. Permits can still be completed, cancelled, settled and renewed. Other stores are not affected, even at the same
// address.
//
// Writes the starts that the database lacks, and closes the connections to a server. It frees nothing: wgl_store_free and the
// functions that free limiters, waiters and lines do, before or after it. (Without it, freeing a store ends nothing as long
// as limiters of it are there.) It waits for no other call, so any thread may call it at any time, also from a hook or a
// custom limiter's function. Closing a store twice is a no-op. In a forked child it closes the child's store only.
//
// Fails with a store error if the starts cannot be written within the store's timeout. The store is closed nevertheless.
int wgl_store_close(wgl_store *store);

// Returns how often the store failed a decision in this process since it was opened, whatever `on_error` made of that.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL.
int wgl_store_failures(const wgl_store *store,
                       uint64_t *count);

// Frees a store. NULL is a no-op.
//
// Never fails.
void wgl_store_free(wgl_store *store);

// Makes a limiter of the limit that is declared under a name, of whatever kind; or of the limits that
// wgl_policy_limiter_new or wgl_flow_control_limiter_new declared together under it.
//
// Fails with WGL_UNKNOWN_LIMIT if there is none, WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes, or with a
// store error.
int wgl_limiter_attach(wgl_store *store,
                       const char *name,
                       wgl_limiter **limiter);

// Makes a limiter that admits everything: for where no limit is wanted.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL.
int wgl_null_limiter_new(wgl_limiter **limiter);

// Makes a limiter that admits what all of its children admit; without children it admits everything. All children get the
// same key and weight, except in a joint start (wgl_joint_key_new), and gates apply to all of them. If a child denies, the
// others are not charged.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL.
int wgl_composite_limiter_new(wgl_limiter **limiter);

// Adds a child, at any time, which as a part has the name of its limit. The composite shares it: the caller may keep using
// it, and frees it at any time. Permits that are not ended yet end against the children that they came from.
//
// Fails with WGL_UNSUPPORTED if wgl_composite_limiter_new did not make `composite` (limits that were declared together are
// a policy, which the store holds), and with WGL_INVALID_ARGUMENT if `child` is `composite` or contains it, if a limit would
// be a child twice, or if composites would be nested more than 32 deep.
int wgl_composite_limiter_add(wgl_limiter *composite,
                              wgl_limiter *child);

// Adds a child as a part with a name of its own, by which joint starts charge it. Otherwise as wgl_composite_limiter_add.
//
// Fails as wgl_composite_limiter_add does, and with WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes or that
// another part has.
int wgl_composite_limiter_add_named(wgl_limiter *composite,
                                    const char *name,
                                    wgl_limiter *child);

// Makes a limiter that admits what one of its alternatives admits: the first of them that can start now, in the order in
// which they are added. Exactly one is charged: wgl_chosen says which. A waiter starts wherever it can start first. If none
// can start, the decision is that of the one that can start first. All get the same key and weight, and those that are too
// small for a weight are left out. A pause applies to all of them: after a refusal, pause the one that was chosen.
//
// Fails only with WGL_INVALID_ARGUMENT, for NULL. Without an alternative, its calls fail with that.
int wgl_first_of_limiter_new(wgl_limiter **limiter);

// Adds an alternative, as the last one. The limiter shares it: the caller may keep using it, and frees it at any time.
//
// Fails with WGL_UNSUPPORTED if wgl_first_of_limiter_new did not make `first_of`, and with WGL_INVALID_ARGUMENT if
// `alternative` is `first_of` or contains it, or if composites and alternatives would be nested more than 32 deep.
int wgl_first_of_limiter_add(wgl_limiter *first_of,
                             wgl_limiter *alternative);

// Returns the name of the limit, as `denied_by` has it; of a limiter without a store, its kind. It lives as long as the
// limiter.
//
// Never fails: NULL for NULL.
const char *wgl_limiter_name(const wgl_limiter *limiter);

// Frees a limiter. NULL is a no-op. Starts that it admitted stay admitted.
//
// Never fails.
void wgl_limiter_free(wgl_limiter *limiter);

// Declares a rate limit under a name, for all that share the store, and replaces the policy that the name had: at most
// `max_executions` units in any rolling window. A start at s counts until exactly s + window. An operator's override stays
// in force until it is lifted.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range and for a name that is not 1 to 1,024 bytes, WGL_KIND_MISMATCH
// if the name is declared as another kind of limiter, or with a store error.
int wgl_rate_limiter_new(wgl_store *store,
                         const char *name,
                         const wgl_rate_limiter_options *options,
                         wgl_limiter **limiter);

// Makes a limit on the units that run at the same time, per key, in this process; a forked child counts its own. Every
// start must be ended with wgl_complete.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_concurrency_limiter_new(const wgl_concurrency_limiter_options *options,
                                wgl_limiter **limiter);

// Declares a limit on the units that run at the same time, per key, under a name, for all that share the store. A start
// holds its units until wgl_complete ends it, at most until its process or its lease ends: see wgl_renew.
//
// Fails as wgl_rate_limiter_new does.
int wgl_concurrency_limiter_shared(wgl_store *store,
                                   const char *name,
                                   const wgl_concurrency_limiter_options *options,
                                   wgl_limiter **limiter);

// Makes a limit on the time from one start to the next, per key, in this process; a forked child has its own. Every start
// has weight 1.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_delay_limiter_new(const wgl_delay_limiter_options *options,
                          wgl_limiter **limiter);

// Declares a limit on the time from one start to the next under a name, for all that share the store.
//
// Fails as wgl_rate_limiter_new does.
int wgl_delay_limiter_shared(wgl_store *store,
                             const char *name,
                             const wgl_delay_limiter_options *options,
                             wgl_limiter **limiter);

// Makes a limit of `max_executions` starts in a window at even distances, per key, in this process; a forked child has its
// own. Every start has weight 1. At most `max_executions` start in any rolling window.
//
// WGL_SPACING_ADAPTIVE shortens the distance by the average time that the last `max_executions` jobs took, from their start
// to wgl_complete or wgl_settle.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range.
int wgl_evenly_spaced_rate_limiter_new(const wgl_evenly_spaced_rate_limiter_options *options,
                                       wgl_limiter **limiter);

// Declares a limit of `max_executions` starts in a window at even distances under a name, for all that share the store.
//
// Fails as wgl_rate_limiter_new does.
int wgl_evenly_spaced_rate_limiter_shared(wgl_store *store,
                                          const char *name,
                                          const wgl_evenly_spaced_rate_limiter_options *options,
                                          wgl_limiter **limiter);

// Declares a bucket of `burst` tokens under a name, for all that share the store. `rate` tokens are added evenly per period,
// and a start takes its weight in tokens. In any period at most `burst` + `rate` units start.
//
// Fails as wgl_rate_limiter_new does.
int wgl_token_bucket_limiter_new(wgl_store *store,
                                 const char *name,
                                 const wgl_token_bucket_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a leaky bucket under a name, for all that share the store: one unit starts per period / `rate`, and a start of
// weight w takes the time of w units. In wgl_acquire and wgl_reserve up to `queue` units wait for their turn; more are
// denied.
//
// Fails as wgl_rate_limiter_new does.
int wgl_leaky_bucket_limiter_new(wgl_store *store,
                                 const char *name,
                                 const wgl_leaky_bucket_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a limit under a name, for all that share the store: at most `max_executions` units in each window. Windows are
// aligned to 1970 (UTC). Across a boundary up to twice as many start in the length of one window.
//
// Fails as wgl_rate_limiter_new does.
int wgl_fixed_window_limiter_new(wgl_store *store,
                                 const char *name,
                                 const wgl_fixed_window_limiter_options *options,
                                 wgl_limiter **limiter);

// Declares a limit under a name, for all that share the store: about `max_executions` units in any rolling window. The
// estimate adds to the count of this window, aligned to 1970 (UTC), the part of the last window's count that the rolling
// window still covers. For very large limits; fewer than twice as many start in the length of one window.
//
// Fails as wgl_rate_limiter_new does.
int wgl_sliding_window_counter_limiter_new(wgl_store *store,
                                           const char *name,
                                           const wgl_sliding_window_counter_limiter_options *options,
                                           wgl_limiter **limiter);

// Declares the limits of a policy text under a name, for all that share the store: "100/1m", "10/1s burst 20",
// "5 concurrent", or several, such as "100/1m + 5/1s + 5 concurrent", which all have to admit a start.
//
// Fails as wgl_rate_limiter_new does; the message of WGL_INVALID_ARGUMENT says where the text is wrong.
int wgl_policy_limiter_new(wgl_store *store,
                           const char *name,
                           const char *policy,
                           wgl_limiter **limiter);

// Declares flow control under a name, for all that share the store: `rate` units per period, `parallelism` units at the
// same time, or both.
//
// Fails as wgl_rate_limiter_new does, and with WGL_INVALID_ARGUMENT if both are 0.
int wgl_flow_control_limiter_new(wgl_store *store,
                                 const char *name,
                                 const wgl_flow_control_limiter_options *options,
                                 wgl_limiter **limiter);

// Makes a custom limiter. Composites take it as a child, and alone it supports every call except those for places and
// texts.
//
// Fails with WGL_INVALID_ARGUMENT if the name, `decide` or `peek` is missing or wrong; `free` is not called then.
int wgl_custom_limiter_new(const wgl_custom_limiter_table *table,
                           wgl_limiter **limiter);

// Starts if there is capacity now: decides and records in one act. WGL_OK: admitted, and `permit` is written. WGL_DENIED:
// not now, and nothing has changed; after `retry_after_ns` (which may be NULL) a retry succeeds, unless another caller took
// the capacity.
//
// Fails with WGL_WEIGHT_EXCEEDS_CAPACITY if it can never start, WGL_INVALID_ARGUMENT for weight 0 or a key of more than
// 1,024 bytes, WGL_UNSUPPORTED for a weight above 1 where every start has weight 1, or with a store error.
int wgl_try_acquire(wgl_limiter *limiter,
                    const char *key,
                    size_t key_len,
                    uint64_t weight,
                    wgl_permit *permit,
                    uint64_t *retry_after_ns);

// Does the same as wgl_try_acquire and returns the whole decision, which is written for WGL_OK and for WGL_DENIED.
//
// Fails as wgl_try_acquire does.
int wgl_decide(wgl_limiter *limiter,
               const char *key,
               size_t key_len,
               uint64_t weight,
               wgl_decision *decision);

// Returns the decision that wgl_decide would make, without a permit. Records nothing. `weight` may be 0.
//
// Fails as wgl_try_acquire does.
int wgl_peek(const wgl_limiter *limiter,
             const char *key,
             size_t key_len,
             uint64_t weight,
             wgl_decision *decision);

// Writes in what time `starts` more starts will have begun, each of one unit, after the starts that are counted and the first
// waiters that come before. WGL_NONE, and nothing is written, if nobody knows, because a start has to end before. Records
// nothing. The time is exact for a rate with one window, a delay and a bucket where nobody waits, and otherwise a lower bound.
//
// Fails as wgl_try_acquire does.
int wgl_forecast(const wgl_limiter *limiter,
                 const char *key,
                 size_t key_len,
                 uint64_t starts,
                 uint64_t *after_ns);

// Returns whether a start of weight 1 would be admitted now: WGL_OK or WGL_DENIED. Changes nothing.
//
// This call and wgl_record_job_start are for schedulers that check first and record later. Another caller may start in
// between; wgl_try_acquire decides and records in one act.
//
// Fails as wgl_try_acquire does.
int wgl_can_proceed(const wgl_limiter *limiter,
                    const char *key,
                    size_t key_len);

// Records that a job has started, even if the limit is full, because the caller has already decided.
//
// Fails as wgl_try_acquire does.
int wgl_record_job_start(wgl_limiter *limiter, const char *key, size_t key_len);

// Records that a job has ended: the oldest start without a permit that this process recorded on that key.
//
// Fails as wgl_try_acquire does.
int wgl_record_job_completion(wgl_limiter *limiter, const char *key, size_t key_len);

// Returns the earliest instant at which a start of weight 1 would be admitted, gate included; now, if that is now.
//
// Fails as wgl_try_acquire does.
int wgl_get_next_available_time(const wgl_limiter *limiter,
                                const char *key,
                                size_t key_len,
                                int64_t *unix_ns);

// Sets a gate: no start before that instant, for all that share the limit. Without a key it applies to all keys. A gate
// only moves later, except by wgl_clear. An instant in the past sets no gate.
//
// Fails with WGL_INVALID_ARGUMENT if the instant is more than 366 days away or the key has more than 1,024 bytes, or with a
// store error.
int wgl_set_next_available_time(wgl_limiter *limiter,
                                int64_t unix_ns,
                                const char *key,
                                size_t key_len);

// Sets a gate: no start for `duration_ns` from now on, as a Retry-After asks for. Otherwise as wgl_set_next_available_time.
//
// Fails as wgl_set_next_available_time does.
int wgl_pause(wgl_limiter *limiter,
              uint64_t duration_ns,
              const char *key,
              size_t key_len);

// Resets a key, gate included; without a key, all keys.
//
// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
int wgl_clear(wgl_limiter *limiter, const char *key, size_t key_len);

// Ends a permit: the job ran. Ending it again is a no-op.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, or with WGL_CUSTOM_FAILURE.
int wgl_complete(wgl_limiter *limiter, wgl_permit *permit);

// Ends a permit, or returns a place: the job never ran, and its units are free again at once. Ending it again is a no-op.
//
// Fails as wgl_complete does, or with a store error; the permit is not ended then.
int wgl_cancel(wgl_limiter *limiter,
               wgl_permit *permit);

// Returns a place, unless it was used to start, perhaps in another process with its text. Ending it again is a no-op.
//
// Fails as wgl_cancel does.
int wgl_cancel_place(wgl_limiter *limiter,
                     wgl_permit *place);

// Ends a permit: the job ran and used `actual` units instead of its weight. Units that it did not use are free again at
// once; units beyond its weight are owed, up to one whole capacity, and delay later starts. Ending it again is a no-op.
//
// Fails as wgl_cancel does, and with WGL_UNSUPPORTED for a concurrency limit without a cooldown, whose units come back when
// the job ends, or WGL_INVALID_ARGUMENT for parts that were charged weights of their own: see wgl_settle_parts.
int wgl_settle(wgl_limiter *limiter,
               wgl_permit *permit,
               uint64_t actual);

// Says that the job has reached the server that counts it, as when the head of its response is here. A limit with a
// cooldown counts it from now on instead of from its end. The permit remains, for wgl_complete and the others. A no-op for
// other limits.
//
// Fails as wgl_cancel does.
int wgl_arrived(wgl_limiter *limiter,
                const wgl_permit *permit);

// Restarts a lease: the start holds its units for the whole lease of its limit from now on. A no-op for permits without a
// lease.
//
// Fails with WGL_LEASE_LOST if the lease has expired, so another start may hold its units; otherwise as wgl_complete does,
// or with a store error.
int wgl_renew(wgl_limiter *limiter,
              const wgl_permit *permit);

// Returns the number of a lease, which is larger for every later lease of the same key. A resource that the lease protects
// remembers the largest number that it saw, and refuses smaller ones. WGL_NONE, and nothing is written, for permits
// without a lease.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
int wgl_fence(const wgl_limiter *limiter,
              const wgl_permit *permit,
              uint64_t *fence);

// Returns which alternative of a limiter that wgl_first_of_limiter_new made has a start or place: its index, in the order in
// which they were added, and, unless `name` is NULL, its name, which lives as long as `limiter`. With alternatives of an
// alternative, the index is that in the outer limiter, and the name the innermost one's. Of a composite: what its first
// part with alternatives has chosen. WGL_NONE, and nothing is written, for others.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
int wgl_chosen(const wgl_limiter *limiter,
               const wgl_permit *permit,
               size_t *index,
               const char **name);

// Returns how often the process has forked since the library was loaded, counted from the first parent on. A child has
// another number than its parent had when it got a permit. Layers that end permits automatically use it to leave those of
// a parent alone.
//
// Never fails.
uint64_t wgl_fork_generation(void);

// Returns when the place of a start or place is or was ready, as Unix time. WGL_NONE, and nothing is written, if it had no
// place: it did not have to wait, or its limit keeps no places.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit.
int wgl_permit_ready_at(const wgl_limiter *limiter,
                        const wgl_permit *permit,
                        int64_t *unix_ns);

// Returns the same on the system's monotonic clock (CLOCK_MONOTONIC), for measurements. It is never later than the place
// was ready; on a server by no more than the delay of its replies.
//
// Fails as wgl_permit_ready_at does.
int wgl_permit_ready_at_monotonic(const wgl_limiter *limiter,
                                  const wgl_permit *permit,
                                  uint64_t *monotonic_ns);

// Takes a place: a start in the future, or now. WGL_OK: it counts from now on, and `place` and `after_ns` (which may be
// NULL) are written. It is ready after `after_ns`: then present it, wait for it, or return it with wgl_cancel. WGL_DENIED:
// it would be further away than `max_wait_ns` (WGL_FOREVER: no bound), and nothing was taken; `after_ns` is how far.
//
// A place is valid for one start, until `grace_ns` (WGL_DEFAULT_GRACE, WGL_NO_GRACE) after it is ready, and counts in the
// window from the end of that grace.
//
// Fails as wgl_try_acquire does, and with WGL_UNSUPPORTED for a limiter whose capacity does not depend on time.
int wgl_reserve(wgl_limiter *limiter,
                const char *key,
                size_t key_len,
                uint64_t weight,
                uint64_t max_wait_ns,
                uint64_t grace_ns,
                wgl_permit *place,
                uint64_t *after_ns);

// Starts with a place, if it is ready. WGL_OK: start; `place` is now the permit of the start. WGL_DENIED: not yet; `place`
// is the place to present after `after_ns` (which may be NULL). It is the same place if this call was early, or a new one if
// the call was too late, the place was used before, or a gate or another policy overtook it.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave it, with WGL_UNSUPPORTED as wgl_reserve does, or with a store
// error; `place` is unchanged then.
int wgl_present(wgl_limiter *limiter,
                wgl_permit *place,
                uint64_t *after_ns);

// Writes a permit or place as a text, with a NUL, into a buffer of `capacity` bytes. WGL_OK: the text is written.
// WGL_TOO_SMALL: the text and its NUL do not fit, and the buffer is unchanged. In both cases `length` (which may be NULL) is
// the length of the text without the NUL. To ask for the length, pass NULL and 0; WGL_PERMIT_TEXT_MAX bytes hold any text
// except that of a composite's place.
//
// Another process that has the same limit passes the text to wgl_permit_from_text. From then on that process presents or
// ends the permit.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the permit, and with WGL_UNSUPPORTED where permits belong to one
// process.
int wgl_permit_to_text(const wgl_limiter *limiter,
                       const wgl_permit *permit,
                       char *buffer,
                       size_t capacity,
                       size_t *length);

// Returns the permit or place of a text of `text_len` bytes, without a NUL.
//
// Fails with WGL_INVALID_ARGUMENT if it is no permit's text, WGL_FOREIGN_PERMIT if it belongs to another limit, and
// WGL_UNSUPPORTED where permits belong to one process.
int wgl_permit_from_text(wgl_limiter *limiter,
                         const char *text,
                         size_t text_len,
                         wgl_permit *permit);

// Returns the shortest time over which the limit counts the starts of a key. The grace of a place costs the limit a part
// of it: places with a grace of a twentieth leave a limit that callers always wait for about 95 % of its capacity.
// WGL_NONE, and nothing is written, for a limit that counts over no time.
//
// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
int wgl_window(const wgl_limiter *limiter,
               const char *key,
               size_t key_len,
               uint64_t *window_ns);

// Makes the key of a joint start, which charges some parts of a composite with keys or weights of their own. Parts that are
// not named are charged with `key`, and with the weight that the call gets. Pass its text and length as the key of any call
// of the same limiter:
//
//     wgl_charge charges[] = {{"tokens", NULL, 0, 1200}, {"tenant", "acme", 4, 0}};
//     wgl_joint_key *call;
//     wgl_joint_key_new(llm, NULL, 0, charges, 2, &call);
//     wgl_acquire(llm, wgl_joint_key_text(call), wgl_joint_key_length(call), 1, timeout_ns, &permit, NULL);
//
// Fails with WGL_INVALID_ARGUMENT for a part that the limiter does not have or that is named twice, or a key of more than
// 1,024 bytes. A weight above a part's capacity is an error of the call.
int wgl_joint_key_new(const wgl_limiter *limiter,
                      const char *key,
                      size_t key_len,
                      const wgl_charge *charges,
                      size_t charge_count,
                      wgl_joint_key **joint);

// Returns the text to pass as a key. It does not end with a NUL, and lives as long as `joint`. It is for calls of this
// process, and not to be kept, sent or shown.
//
// Never fails: NULL for NULL.
const char *wgl_joint_key_text(const wgl_joint_key *joint);

// Returns the length of that text.
//
// Never fails: 0 for NULL.
size_t wgl_joint_key_length(const wgl_joint_key *joint);

// Frees the key of a joint start. NULL is a no-op. Starts and waiters that were made with it are not concerned.
//
// Never fails.
void wgl_joint_key_free(wgl_joint_key *joint);

// Ends the permit of a joint start: the job ran, and these parts used so many units instead of the weight that they were
// charged, as by wgl_settle. The other parts used what they were charged. Ending it again is a no-op.
//
// Fails as wgl_cancel does, and with WGL_INVALID_ARGUMENT for a part that the limiter does not have or that is named twice;
// the permit is not ended then.
int wgl_settle_parts(wgl_limiter *limiter,
                     wgl_permit *permit,
                     const wgl_usage *parts,
                     size_t part_count);

// Returns the name of one of a composite's parts, in their order, or NULL behind the last one. It lives as long as the
// limiter.
//
// Never fails: NULL for NULL.
const char *wgl_limiter_part_name(const wgl_limiter *limiter,
                                  size_t index);

// Waits for capacity, at most for `timeout_ns`: 0 does not wait, WGL_FOREVER waits as long as it takes. The threads of this
// process that wait for the same limiter and key start in the order of their calls. WGL_OK: admitted, and `permit` is
// written. WGL_DENIED: there is no capacity before the timeout, which is returned at once if it is certain. Nothing is held
// then; another call before `retry_after_ns` (which may be NULL) is over would be denied again. Signal handlers may run
// during the wait but do not end it.
//
// Fails as wgl_try_acquire does.
int wgl_acquire(wgl_limiter *limiter,
                const char *key,
                size_t key_len,
                uint64_t weight,
                uint64_t timeout_ns,
                wgl_permit *permit,
                uint64_t *retry_after_ns);

// Waits as wgl_acquire does, with a priority, a share and a grace; `options` may be NULL.
//
// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT for options out of range.
int wgl_acquire_with(wgl_limiter *limiter,
                     const char *key,
                     size_t key_len,
                     const wgl_waiter_options *options,
                     wgl_permit *permit,
                     uint64_t *retry_after_ns);

// Waits until a place is ready, at most for `timeout_ns` (WGL_FOREVER: as long as it takes), and starts with it; a place
// that is no longer valid is exchanged, as wgl_present does. WGL_OK: start; `place` is now the permit of the start.
// WGL_DENIED: it is not ready before the timeout, which is returned at once. The place was returned; there may be capacity
// after `retry_after_ns` (which may be NULL).
//
// Fails as wgl_present does.
int wgl_acquire_place(wgl_limiter *limiter,
                      wgl_permit *place,
                      uint64_t timeout_ns,
                      uint64_t *retry_after_ns);

// Makes a waiter. Its first step joins the line, and its timeout starts then. `options` may be NULL. All that wait in this
// process for the same limiter and key, in any way, form one line.
//
// Fails with WGL_INVALID_ARGUMENT for options out of range or a key of more than 1,024 bytes.
int wgl_waiter_new(wgl_limiter *limiter,
                   const char *key,
                   size_t key_len,
                   const wgl_waiter_options *options,
                   wgl_waiter **waiter);

// Makes a waiter for a place, as wgl_acquire_place waits. The waiter takes the place over: `place` is ended.
//
// Fails with WGL_FOREIGN_PERMIT if another limiter gave the place.
int wgl_waiter_new_for_place(wgl_limiter *limiter,
                             wgl_permit *place,
                             uint64_t timeout_ns,
                             wgl_waiter **waiter);

// Takes a step, without sleeping. WGL_OK: start, and `permit` is written. WGL_WAITING: not yet; take another step after
// `nap_ns`, or earlier. WGL_DENIED: there is no capacity before the timeout, but there may be after `nap_ns` (which may be
// NULL). After WGL_OK, WGL_DENIED or an error the wait is over.
//
// A step that is late may start late; it blocks no other caller.
//
// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT if the wait is over.
int wgl_waiter_step(wgl_waiter *waiter,
                    wgl_permit *permit,
                    uint64_t *nap_ns);

// Frees a waiter, and ends its wait if that is not over. NULL is a no-op.
//
// Never fails.
void wgl_waiter_free(wgl_waiter *waiter);

// Makes an empty line, and its descriptor.
//
// Fails with WGL_STORE_FAILURE if the process has no descriptor left.
int wgl_line_new(wgl_limiter *limiter, wgl_line **line);

// Returns the line's descriptor, for epoll, poll or select. It is readable when wgl_line_advance has work, and stays so
// until that was called. The line closes it; do not read it.
//
// Never fails: it returns -1 if `line` is NULL.
int wgl_line_fd(const wgl_line *line);

// Joins the line; the timeout starts now. WGL_OK: admitted at once, and `permit` is written. WGL_WAITING: `number` is
// written, by which wgl_line_advance returns the outcome later; numbers begin with 1 and grow, with gaps. WGL_DENIED:
// there is no capacity before the timeout, but there may be after `retry_after_ns`. `options` may be NULL. Within a key,
// waiters start in the order of their priority and then of their requests.
//
// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT for options out of range; the waiter has not joined then.
int wgl_line_join(wgl_line *line,
                  const char *key,
                  size_t key_len,
                  const wgl_waiter_options *options,
                  uint64_t *number,
                  wgl_permit *permit,
                  uint64_t *retry_after_ns);

// Does the work that is due, and returns the next wait that is over. Call it until it returns WGL_WAITING: nothing is over,
// `number` is 0, and the descriptor is readable after `nap_ns` (WGL_FOREVER: nobody waits), or earlier. Before that
// `number` is the waiter, and its outcome WGL_OK: `permit` is written, and the start counts from now, so begin its work
// before the next call; WGL_DENIED: it timed out, and there may be capacity after `nap_ns`; or an error of its own. All
// outputs but `nap_ns` must be given.
//
// The call sleeps only where the store is busy: at most 0.1 s at a time. For a limit on a server, threads of the library
// ask it.
//
// Fails with `number` 0 for a parameter, and otherwise as wgl_try_acquire does, for that waiter.
int wgl_line_advance(wgl_line *line,
                     uint64_t *number,
                     wgl_permit *permit,
                     uint64_t *nap_ns);

// Removes a waiter that stops waiting: its place goes to the next one, or back. A no-op for one whose outcome was returned;
// an outcome that was not is given back.
//
// Fails with WGL_INVALID_ARGUMENT in a forked child.
int wgl_line_leave(wgl_line *line,
                   uint64_t number);

// Says that a start of this key has ended, so that a waiter for a concurrency limit starts at once. Otherwise it starts up
// to 16 ms later, as it does when another process has ended one. With `key` NULL it may have been any key; "" is no key.
// Any thread may call it.
//
// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes.
int wgl_line_wake(wgl_line *line,
                  const char *key,
                  size_t key_len);

// Frees a line, and closes its descriptor. What its waiters hold is given back. NULL is a no-op.
//
// Never fails.
void wgl_line_free(wgl_line *line);

// Returns the counts of a key or, without a key, of the limit: by all processes that share it, without the last second of
// other processes.
//
// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes, or with a store error.
int wgl_stats(const wgl_limiter *limiter,
              const char *key,
              size_t key_len,
              wgl_counts *counts);

// Shows who has the units of a limit and key, and who waits for them: whose turn is next. It covers all processes of a
// sqlite: store. For a shared limit ("500/1m shared") no key is all tenants. A part of limits that were declared together
// has a name of its own, such as "openai/tokens". It takes part in no decision and makes none slower. When one more start
// would begin says wgl_forecast.
//
// Fails with WGL_UNKNOWN_LIMIT for a name that is not declared, WGL_UNSUPPORTED for a store on a server,
// WGL_INVALID_ARGUMENT for a name that is not 1 to 1,024 bytes or a key of more, or with a store error.
int wgl_store_line(const wgl_store *store,
                   const char *name,
                   const char *key,
                   size_t key_len,
                   wgl_line_snapshot **line);

// Writes the process at an index, from 0 on, of those that have units of a limit of concurrent starts. There are none for
// other limits: nobody has their units, which are free again when time has passed.
//
// Returns WGL_NONE if there is no such process.
//
// Fails with WGL_INVALID_ARGUMENT only.
int wgl_line_snapshot_holder(const wgl_line_snapshot *line,
                             size_t index,
                             wgl_holder_snapshot *holder);

// Writes the first waiter of a line, the next one at index 0. A process has a line for each of its event loops, and one for
// all of its threads. Those that are passed are last. Of a memory: store only those of shared limits are shown: no other
// process waits for the others.
//
// Returns WGL_NONE if there is no such line.
//
// Fails with WGL_INVALID_ARGUMENT only.
int wgl_line_snapshot_head(const wgl_line_snapshot *line,
                           size_t index,
                           wgl_head_snapshot *head);

// Writes the process at an index, from 0 on, of those whose callers wait for the limit, for all its keys together.
//
// Returns WGL_NONE if there is no such process.
//
// Fails with WGL_INVALID_ARGUMENT only.
int wgl_line_snapshot_waiting(const wgl_line_snapshot *line,
                              size_t index,
                              wgl_waiting_snapshot *waiting);

// Frees a snapshot. NULL is a no-op.
//
// Never fails.
void wgl_line_snapshot_free(wgl_line_snapshot *line);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WORKGLOW_LIMIT_H */
