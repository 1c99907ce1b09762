// workglow-limit for C++17: workglow_limit.h with owners instead of frees, exceptions instead of error codes, and
// std::chrono. A header only; programs link the C library.
//
//     workglow::Store store("sqlite:limits.db");
//     workglow::RateLimiter openai(store, "openai", 100, 60s);
//
//     if (auto permit = openai.acquire("tenant-7", 1, 30s)) {
//         // ... call the API ...
//     } // here the permit completes, whatever happened
//
// Answers. "Not now" is no error: it is an empty std::optional, also from a wait whose time is up. Errors are
// exceptions: workglow::Error, with the code of the C function and its message. No destructor throws.
//
// What is passed. Keys are UTF-8 of at most 1,024 bytes, and may hold any of it; the empty key is no key. Weights are
// units, at least 1. Durations convert from every std::chrono duration in whole numbers that fits into nanoseconds;
// `forever` is the longest. Limits count in whole microseconds, rounded so that they are never exceeded.
//
// Ownership. Stores and limiters are handles: copies are the same store or limiter, which lives as long as any of them,
// or a permit of it. A limiter of any kind may be kept as a workglow::Limiter. Permits and places can be moved only.
//
// Threads. Stores and limiters may be used by any number of threads at once. One at a time may use a permit or a place.
//
// Fork. Stores and limiters work in the child. Permits and places stay the parent's: in a child their destructors do
// nothing.

#ifndef WORKGLOW_LIMIT_HPP
#define WORKGLOW_LIMIT_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "workglow_limit.h"

namespace workglow {

using Duration = std::chrono::nanoseconds;
/// Unix time.
using Time = std::chrono::time_point<std::chrono::system_clock, Duration>;

/// As long as it takes.
inline constexpr Duration forever = Duration::max();

/// What the C library refused or failed to do: what() is its message, code() its status.
class Error : public std::runtime_error {
public:
    Error(int code, const std::string &message) : std::runtime_error(message), code_(code) {}

    /// WGL_INVALID_ARGUMENT, WGL_UNKNOWN_LIMIT, …
    int code() const noexcept { return code_; }
    /// The code's name, the same in every language: "invalid_argument", "unknown_limit", …
    const char *name() const noexcept { return wgl_status_name(code_); }

private:
    int code_;
};

namespace detail {

inline Error invalid(const std::string &parameter, const std::string &value, const std::string &expected) {
    return Error(WGL_INVALID_ARGUMENT, parameter + " is " + value + ", not " + expected);
}

/// What an exception said that a limiter of the program's own threw in the call that is being made on this thread.
inline std::string &thrown() {
    static thread_local std::string what;
    return what;
}

/// Was it WGL_OK, and not another normal outcome?
inline bool ok(int status) {
    if (status >= 0)
        return status == WGL_OK;
    std::string message = wgl_last_error();
    if (status == WGL_CUSTOM_FAILURE && !thrown().empty())
        message += ": " + std::exchange(thrown(), {});
    throw Error(status, message);
}

inline std::uint64_t ns(const char *parameter, Duration duration) {
    if (duration < Duration::zero())
        throw invalid(parameter, std::to_string(duration.count()) + " ns", "0 or more");
    return static_cast<std::uint64_t>(duration.count());
}

/// A number of which 0 means to C that nothing was said: so nothing becomes 0, and 0 is refused.
inline std::uint64_t given(const char *parameter, std::optional<std::uint64_t> value) {
    if (value == 0u)
        throw invalid(parameter, "0", "1 or more");
    return value.value_or(0);
}

inline std::uint64_t given(const char *parameter, std::optional<Duration> value) {
    return given(parameter, value ? std::optional(ns(parameter, *value)) : std::nullopt);
}

/// Where the longest time has a meaning of its own, it is the largest number.
inline std::uint64_t span(const char *parameter, Duration duration) {
    return duration == forever ? WGL_FOREVER : ns(parameter, duration);
}

inline Duration duration(std::uint64_t ns) {
    return ns > static_cast<std::uint64_t>(forever.count()) ? forever : Duration(static_cast<std::int64_t>(ns));
}

/// C's texts end with a NUL, so one inside would cut them short.
inline const char *text(const char *parameter, const std::string &text) {
    if (text.find('\0') != std::string::npos)
        throw invalid(parameter, "a text with a NUL in it", "a text without");
    return text.c_str();
}

/// The key that is meant; without one, all of a limit, which C says by NULL.
inline std::pair<const char *, std::size_t> key_or_limit(std::optional<std::string_view> key) {
    if (!key)
        return {nullptr, 0};
    return {key->data() == nullptr ? "" : key->data(), key->size()};
}

inline wgl_waiter_options waiter_options(std::uint64_t weight, Duration timeout, std::int32_t priority, Duration grace) {
    wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
    options.weight = weight;
    options.timeout_ns = span("timeout", timeout);
    options.priority = priority;
    options.grace_ns = ns("grace", grace);
    return options;
}

using Handle = std::shared_ptr<wgl_limiter>;

} // namespace detail

/// A clock for tests: it stands still until it is advanced, and the stores and limiters that were given it live by it.
class ManualClock {
public:
    ManualClock() {
        wgl_manual_clock *clock = nullptr;
        detail::ok(wgl_manual_clock_new(&clock));
        clock_.reset(clock, wgl_manual_clock_free);
    }

    void advance(Duration by) const { detail::ok(wgl_manual_clock_advance(get(), detail::ns("by", by))); }
    const wgl_manual_clock *get() const noexcept { return clock_.get(); }

private:
    std::shared_ptr<wgl_manual_clock> clock_;
};

/// What a permit and a place have in common.
class Held {
public:
    Held(Held &&other) noexcept { swap(other); }

    /// Is anything held? Not after it was ended or moved from.
    explicit operator bool() const noexcept { return limiter_ != nullptr; }

    /// The text with which another process that has the same limit goes on, through Limiter::permit or Limiter::place.
    /// From then on it is that one's to end: the destructor here leaves it alone.
    ///
    /// Fails with WGL_UNSUPPORTED where permits belong to one process.
    std::string text() {
        std::string text(WGL_PERMIT_TEXT_MAX, '\0');
        std::size_t length = 0;
        auto write = [&] { return wgl_permit_to_text(limiter(), &raw_, text.data(), text.size(), &length); };
        int status = write();
        if (status == WGL_INVALID_ARGUMENT) { // a composite's place, which may need more
            text.resize(65536);
            status = write();
        }
        detail::ok(status);
        is_ours_ = false;
        text.resize(length);
        return text;
    }

    /// When the place came that a waiting start had, or comes; nothing if it had none.
    std::optional<Time> ready_at() const {
        std::int64_t unix_ns = 0;
        if (!detail::ok(wgl_permit_ready_at(limiter(), &raw_, &unix_ns)))
            return std::nullopt;
        return Time(Duration(unix_ns));
    }

    /// The same on the system's monotonic clock, never later than it was (on a server: by no more than its answers are late): for measuring.
    std::optional<std::chrono::time_point<std::chrono::steady_clock, Duration>> ready_at_monotonic() const {
        std::uint64_t ns = 0;
        if (!detail::ok(wgl_permit_ready_at_monotonic(limiter(), &raw_, &ns)))
            return std::nullopt;
        return std::chrono::time_point<std::chrono::steady_clock, Duration>(detail::duration(ns));
    }

protected:
    Held(detail::Handle limiter, const wgl_permit &raw, bool is_ours)
        : limiter_(std::move(limiter)), raw_(raw), generation_(wgl_fork_generation()), is_ours_(is_ours) {}
    ~Held() = default;

    wgl_limiter *limiter() const {
        if (limiter_ == nullptr)
            throw detail::invalid("permit", "ended or moved from", "a permit or place that is held");
        return limiter_.get();
    }

    /// Ends what is held, if anything is. It is held still if that fails.
    template <class End, class... More> void end(End call, More... more) {
        if (limiter_ == nullptr)
            return;
        detail::ok(call(limiter_.get(), &raw_, more...));
        limiter_.reset();
    }

    /// The destructor's way. Nobody is left to hear of an error: a lease then ends by itself, and a rate has counted.
    void drop(int (*call)(const wgl_limiter *, wgl_permit *)) noexcept {
        if (limiter_ == nullptr || !is_ours_ || generation_ != wgl_fork_generation())
            return;
        if (call(limiter_.get(), &raw_) == WGL_CUSTOM_FAILURE)
            detail::thrown().clear();
    }

    void swap(Held &other) noexcept {
        std::swap(limiter_, other.limiter_);
        std::swap(raw_, other.raw_);
        std::swap(generation_, other.generation_);
        std::swap(is_ours_, other.is_ours_);
    }

    friend class Limiter;
    detail::Handle limiter_;
    wgl_permit raw_{};
    std::uint64_t generation_ = 0;
    bool is_ours_ = false;
};

/// What an admitted start holds. Its destructor completes.
class [[nodiscard]] Permit : public Held {
public:
    Permit(Permit &&) noexcept = default;
    Permit &operator=(Permit &&other) noexcept {
        Permit taken(std::move(other));
        swap(taken); // what was held until now completes here
        return *this;
    }
    ~Permit() { drop(wgl_complete); }

    /// The job ran. What the destructor does too, but an error is told. A no-op if nothing is held.
    void complete() { end(wgl_complete); }

    /// The job never ran: its units are free again at once. A no-op if nothing is held.
    void cancel() { end(wgl_cancel); }

    /// The job ran, and was worth `actual` units instead of its weight: the rest is free again at once, what is beyond
    /// is owed. A no-op if nothing is held.
    ///
    /// Fails with WGL_UNSUPPORTED for concurrency limits, whose units come back when the job ends.
    void settle(std::uint64_t actual) { end(wgl_settle, actual); }

    /// Lets a lease begin anew. A no-op for permits that need none.
    ///
    /// Fails with WGL_LEASE_LOST if it has ended meanwhile.
    void renew() { detail::ok(wgl_renew(limiter(), &raw_)); }

    /// The number of a lease, larger for every later one of the same key; nothing for permits that are no leases.
    std::optional<std::uint64_t> fence() const {
        std::uint64_t fence = 0;
        return detail::ok(wgl_fence(limiter(), &raw_, &fence)) ? std::optional(fence) : std::nullopt;
    }

private:
    friend class Limiter;
    friend class Waiter;
    using Held::Held;
};

/// A start in the future, which Limiter::present or Limiter::acquire turns into a permit. Its destructor gives it back,
/// unless it left as a text, or came from one and was not presented here.
class [[nodiscard]] Place : public Held {
public:
    Place(Place &&) noexcept = default;
    Place &operator=(Place &&other) noexcept {
        Place taken(std::move(other));
        swap(taken); // what was held until now is given back here
        wait_ = taken.wait_;
        return *this;
    }
    ~Place() { drop(wgl_cancel_place); }

    /// Gives the place back, unless somebody has started with it meanwhile, perhaps elsewhere with its text. A no-op if
    /// nothing is held.
    void cancel() { end(wgl_cancel_place); }

    /// How long after it was taken, or last presented, it is ready. Zero for one that was made from a text.
    Duration wait() const noexcept { return wait_; }

private:
    friend class Limiter;
    using Held::Held;
    Duration wait_{};
};

/// The whole answer to "may this start now, and if not, when?". Numbers are UINT64_MAX where there is no limit.
struct Decision {
    bool admitted = false;
    /// Zero if admitted. Else after this long a retry succeeds, if nobody else took the room; one microsecond earlier
    /// it fails. For a concurrency limit, which frees when somebody completes, a suggestion of when to look again.
    Duration retry_after{};
    /// `retry_after` for callers that requeue: never less.
    Duration suggested_after{};
    /// The heaviest start that would be admitted after this decision.
    std::uint64_t remaining = 0;
    /// What the limit allows.
    std::uint64_t limit = 0;
    /// After this long with no further start the limiter is as new. For a concurrency limit, which does not know, zero.
    Duration reset_after{};
    /// The name of the limit that said no.
    std::optional<std::string> denied_by;
    /// What the start holds, if admitted; never in a peek.
    std::optional<Permit> permit;

    explicit operator bool() const noexcept { return admitted; }
};

/// What was counted.
struct Counts {
    std::uint64_t admitted, denied, units_wanted, units_granted, waited;
    /// How long those who waited did, together.
    Duration wait_time;
    std::uint64_t cancelled, store_errors, policy_changes;
};

class Waiter;

/// Answers "may this job start now, and if not, when?", whatever its kind.
class Limiter {
public:
    /// Takes over a limiter that the C interface made.
    explicit Limiter(wgl_limiter *owned) : limiter_(owned, wgl_limiter_free) {}

    /// The same limiter for the C interface; it stays this one's to free.
    wgl_limiter *get() const noexcept { return limiter_.get(); }

    /// Starts if there is room now: decides and records in one act.
    ///
    /// Fails with WGL_WEIGHT_EXCEEDS_CAPACITY if it could never start, or with a store error. So do the other calls.
    [[nodiscard]] std::optional<Permit> try_acquire(std::string_view key = {}, std::uint64_t weight = 1) const {
        return permit_if(
            [&](wgl_permit *raw) { return wgl_try_acquire(get(), key.data(), key.size(), weight, raw, nullptr); });
    }

    /// Waits for room. Nothing if there is none before the timeout, which is said at once if it can be known at once: there
    /// may be some after `retry_after`, if that is asked for, so stay away for so long. Of the waiters in this process
    /// those with lower priorities start first, and equal ones in the order in which they asked. It may come late for its
    /// place by `grace` without losing it, if that is more than usual.
    [[nodiscard]] std::optional<Permit> acquire(std::string_view key = {}, std::uint64_t weight = 1,
                                                Duration timeout = forever, std::int32_t priority = 0,
                                                Duration *retry_after = nullptr, Duration grace = {}) const {
        const wgl_waiter_options options = detail::waiter_options(weight, timeout, priority, grace);
        std::uint64_t after_ns = 0;
        std::optional<Permit> permit = permit_if(
            [&](wgl_permit *raw) { return wgl_acquire_with(get(), key.data(), key.size(), &options, raw, &after_ns); });
        if (retry_after)
            *retry_after = detail::duration(after_ns);
        return permit;
    }
    [[nodiscard]] std::optional<Permit> acquire(Duration timeout) const { return acquire({}, 1, timeout); }

    /// The same wait in steps: see Waiter.
    [[nodiscard]] Waiter waiter(std::string_view key = {}, std::uint64_t weight = 1, Duration timeout = forever,
                                std::int32_t priority = 0, Duration grace = {}) const;

    /// A wait for a place's time in steps. The place is used up.
    [[nodiscard]] Waiter waiter(Place &place, Duration timeout = forever) const;

    /// As try_acquire, answering with the whole decision.
    [[nodiscard]] Decision decide(std::string_view key = {}, std::uint64_t weight = 1) const {
        wgl_decision raw = WGL_DECISION_INIT;
        const bool is_admitted = detail::ok(wgl_decide(get(), key.data(), key.size(), weight, &raw));
        std::optional<Permit> permit;
        if (is_admitted)
            permit = Permit(limiter_, raw.permit, true);
        return decision(raw, std::move(permit));
    }

    /// What decide would answer. Records nothing; `weight` may be 0.
    [[nodiscard]] Decision peek(std::string_view key = {}, std::uint64_t weight = 1) const {
        wgl_decision raw = WGL_DECISION_INIT;
        detail::ok(wgl_peek(get(), key.data(), key.size(), weight, &raw));
        return decision(raw, std::nullopt);
    }

    /// Takes a place: a start in the future, or now, good until `grace` after it is ready (nothing: a fortieth of the
    /// window, at most 50 ms). Nothing if it would be further away than `max_wait`.
    ///
    /// Fails with WGL_UNSUPPORTED for a limiter whose room is not a matter of time.
    [[nodiscard]] std::optional<Place> reserve(std::string_view key = {}, std::uint64_t weight = 1,
                                               Duration max_wait = forever,
                                               std::optional<Duration> grace = std::nullopt) const {
        const std::uint64_t max_wait_ns = detail::span("max_wait", max_wait);
        const std::uint64_t wish = grace ? detail::ns("grace", *grace) : WGL_DEFAULT_GRACE;
        const std::uint64_t grace_ns = grace && wish == 0 ? WGL_NO_GRACE : wish;
        wgl_permit raw{};
        std::uint64_t after_ns = 0;
        if (!detail::ok(wgl_reserve(get(), key.data(), key.size(), weight, max_wait_ns, grace_ns, &raw, &after_ns)))
            return std::nullopt;
        Place place(limiter_, raw, true);
        place.wait_ = detail::duration(after_ns);
        return place;
    }

    /// Starts with a place, if its time has come: it is used up then. Else it is the place to present after `wait()`:
    /// the same one if it was early, a fresh one if it came too late, was used before, or was overtaken.
    [[nodiscard]] std::optional<Permit> present(Place &place) const {
        std::uint64_t after_ns = 0;
        if (detail::ok(wgl_present(get(), raw_of(place), &after_ns)))
            return started(place);
        place.is_ours_ = true;
        place.wait_ = detail::duration(after_ns);
        return std::nullopt;
    }

    /// Waits for a place's time and starts with it. Nothing if that does not come before the timeout, which is said at
    /// once: the place was given back. It is used up in either case.
    [[nodiscard]] std::optional<Permit> acquire(Place &place, Duration timeout = forever) const {
        if (detail::ok(wgl_acquire_place(get(), raw_of(place), detail::span("timeout", timeout), nullptr)))
            return started(place);
        place.limiter_.reset();
        return std::nullopt;
    }

    /// The permit of a text that a Permit gave, perhaps in another process.
    [[nodiscard]] Permit permit(std::string_view text) const { return Permit(limiter_, from_text(text), true); }

    /// The place of a text that a Place gave, perhaps in another process: present it.
    [[nodiscard]] Place place(std::string_view text) const { return Place(limiter_, from_text(text), false); }

    /// Nobody starts for so long, of all who share the limit: what a Retry-After asks for. No key: of all keys.
    void pause(Duration pause, std::string_view key = {}) const {
        detail::ok(wgl_pause(get(), key.data(), key.size(), detail::ns("pause", pause)));
    }

    /// What was counted, of a key or without a key of all.
    [[nodiscard]] Counts stats(std::string_view key = {}) const {
        wgl_counts raw = WGL_COUNTS_INIT;
        detail::ok(wgl_stats(get(), key.data(), key.size(), &raw));
        return {raw.admitted, raw.denied, raw.units_wanted, raw.units_granted, raw.waited,
                detail::duration(raw.wait_time_ns), raw.cancelled, raw.store_errors, raw.policy_changes};
    }

    /// Back to the initial state, gate included. No key: of all keys.
    void clear(std::string_view key = {}) const { detail::ok(wgl_clear(get(), key.data(), key.size())); }

    // For schedulers that look first and record afterwards, and so let others in between; try_acquire does not.

    /// Would a start of weight 1 be admitted now?
    [[nodiscard]] bool can_proceed(std::string_view key = {}) const {
        return detail::ok(wgl_can_proceed(get(), key.data(), key.size()));
    }
    /// A job has started: recorded even when the limit is full.
    void record_job_start(std::string_view key = {}) const {
        detail::ok(wgl_record_job_start(get(), key.data(), key.size()));
    }
    /// A job has ended: the oldest start without a permit that this process recorded on that key.
    void record_job_completion(std::string_view key = {}) const {
        detail::ok(wgl_record_job_completion(get(), key.data(), key.size()));
    }
    /// When a start of weight 1 would be admitted; now, if now.
    [[nodiscard]] Time get_next_available_time(std::string_view key = {}) const {
        std::int64_t unix_ns = 0;
        detail::ok(wgl_get_next_available_time(get(), key.data(), key.size(), &unix_ns));
        return Time(Duration(unix_ns));
    }
    /// Nobody starts before that instant, of all who share the limit. No key: of all keys.
    void set_next_available_time(Time time, std::string_view key = {}) const {
        detail::ok(wgl_set_next_available_time(get(), key.data(), key.size(), time.time_since_epoch().count()));
    }

protected:
    /// Makes a limiter with a C function that writes it to where its argument says.
    template <class Make> static Limiter make(Make call) {
        wgl_limiter *made = nullptr;
        detail::ok(call(&made));
        return Limiter(made);
    }

private:
    template <class Call> std::optional<Permit> permit_if(Call call) const {
        wgl_permit raw{};
        return detail::ok(call(&raw)) ? std::optional(Permit(limiter_, raw, true)) : std::nullopt;
    }

    static wgl_permit *raw_of(Place &place) {
        place.limiter();
        return &place.raw_;
    }

    Permit started(Place &place) const {
        place.limiter_.reset();
        return Permit(limiter_, place.raw_, true);
    }

    wgl_permit from_text(std::string_view text) const {
        wgl_permit raw{};
        // An empty text is refused as one that is no permit's, not as none.
        detail::ok(wgl_permit_from_text(get(), text.empty() ? "" : text.data(), text.size(), &raw));
        return raw;
    }

    static Decision decision(const wgl_decision &raw, std::optional<Permit> permit) {
        std::optional<std::string> denied_by;
        if (raw.denied_by != nullptr)
            denied_by = raw.denied_by;
        return {raw.admitted != 0, detail::duration(raw.retry_after_ns), detail::duration(raw.suggested_after_ns),
                raw.remaining, raw.limit, detail::duration(raw.reset_after_ns), std::move(denied_by),
                std::move(permit)};
    }

    detail::Handle limiter_;
};

/// One that waits in steps: in an event loop, or where something else may end the wait. Its destructor gives the wait up.
/// One thread at a time may use it; it waits in one line with all that wait in this process for the same limiter and key.
class [[nodiscard]] Waiter {
public:
    /// Takes a step, and does not sleep: a permit, or nothing. Then, if it is waiting() still, the next step is due after
    /// wait(); else there is no room before the timeout, but perhaps after wait().
    ///
    /// Fails as Limiter::acquire does, and with WGL_INVALID_ARGUMENT if the wait is over.
    [[nodiscard]] std::optional<Permit> step() {
        wgl_permit raw{};
        std::uint64_t nap_ns = 0;
        const int status = wgl_waiter_step(waiter_.get(), &raw, &nap_ns);
        is_waiting_ = status == WGL_WAITING;
        const bool is_admitted = detail::ok(status);
        wait_ = detail::duration(nap_ns);
        return is_admitted ? std::optional(Permit(limiter_, raw, true)) : std::nullopt;
    }

    bool waiting() const noexcept { return is_waiting_; }
    Duration wait() const noexcept { return wait_; }

private:
    friend class Limiter;
    Waiter(detail::Handle limiter, wgl_waiter *owned) : limiter_(std::move(limiter)), waiter_(owned) {}

    struct Free {
        void operator()(wgl_waiter *waiter) const noexcept { wgl_waiter_free(waiter); }
    };
    detail::Handle limiter_;
    std::unique_ptr<wgl_waiter, Free> waiter_;
    Duration wait_{};
    bool is_waiting_ = true;
};

inline Waiter Limiter::waiter(std::string_view key, std::uint64_t weight, Duration timeout,
                              std::int32_t priority, Duration grace) const {
    const wgl_waiter_options options = detail::waiter_options(weight, timeout, priority, grace);
    wgl_waiter *made = nullptr;
    detail::ok(wgl_waiter_new(get(), key.data(), key.size(), &options, &made));
    return Waiter(limiter_, made);
}

inline Waiter Limiter::waiter(Place &place, Duration timeout) const {
    wgl_waiter *made = nullptr;
    detail::ok(wgl_waiter_new_for_place(get(), raw_of(place), detail::span("timeout", timeout), &made));
    place.limiter_.reset();
    return Waiter(limiter_, made);
}

/// What a decision answers when the store fails it.
enum class OnError : std::uint32_t { raise = WGL_ON_ERROR_RAISE, deny = WGL_ON_ERROR_DENY, admit = WGL_ON_ERROR_ADMIT };

/// What a power cut may cost: a budget of 5 % of a limit, which then counts as spent, or nothing.
enum class Durability : std::uint32_t { budget = WGL_DURABILITY_BUDGET, commit = WGL_DURABILITY_COMMIT };

/// How a store behaves; see wgl_store_options.
struct StoreOptions {
    OnError on_error = OnError::raise;
    Duration timeout = std::chrono::seconds(5);
    Durability durability = Durability::budget;
    std::uint32_t mode = 0600;
    std::optional<ManualClock> clock = std::nullopt;
};

/// Where limits live: "memory:" (this process) or "sqlite:PATH" (this machine).
class Store {
public:
    /// Opens a store, and makes its files if there are none.
    explicit Store(const std::string &url, const StoreOptions &options = {}) {
        const wgl_store_options raw = raw_of(options);
        wgl_store *store = nullptr;
        detail::ok(wgl_store_open(detail::text("url", url), &raw, &store));
        store_.reset(store, wgl_store_free);
    }

    /// What is wrong with the files of a store, which need not open; nothing if all is well. With `repair` it repairs what it
    /// can, and those lines begin with "repaired: ". See wgl_store_verify.
    [[nodiscard]] static std::vector<std::string> verify(const std::string &url, bool repair = false,
                                                         const StoreOptions &options = {}) {
        const wgl_store_options raw = raw_of(options);
        std::vector<char> report(std::size_t{1} << 20);
        std::size_t count = 0;
        detail::ok(wgl_store_verify(detail::text("url", url), &raw, repair, report.data(), report.size(), &count));
        std::vector<std::string> problems;
        std::istringstream lines(report.data());
        for (std::string line; std::getline(lines, line);)
            problems.push_back(line);
        return problems;
    }

    /// The same store for the C interface; it stays this one's to free.
    const wgl_store *get() const noexcept { return store_.get(); }

    /// Declares the limits of a policy under a name, for all who share the store: `limiter("openai", "100/1m + 5 concurrent")`.
    [[nodiscard]] Limiter limiter(const std::string &name, const std::string &policy) const {
        wgl_limiter *made = nullptr;
        detail::ok(wgl_policy_limiter_new(get(), detail::text("name", name), detail::text("policy", policy), &made));
        return Limiter(made);
    }

    /// Takes what is declared under a name, of whatever kind.
    ///
    /// Fails with WGL_UNKNOWN_LIMIT, naming those that there are.
    [[nodiscard]] Limiter limiter(const std::string &name) const {
        wgl_limiter *made = nullptr;
        detail::ok(wgl_limiter_attach(get(), detail::text("name", name), &made));
        return Limiter(made);
    }

    /// Declares the limits of a TOML file, all or none.
    void load(const std::string &path) const { detail::ok(wgl_store_load(get(), detail::text("path", path))); }

    /// Puts an operator's policy above what programs declare, at once, for all who share the store, until it is lifted. With
    /// a key only for that one, such as a tenant's plan, whether anybody has used it or not.
    void override(const std::string &name, const std::string &policy,
                  std::optional<std::string_view> key = std::nullopt) const {
        const auto [bytes, length] = detail::key_or_limit(key);
        detail::ok(
            wgl_store_override(get(), detail::text("name", name), detail::text("policy", policy), bytes, length));
    }
    /// Takes it away: what was declared last holds again; with a key, what holds for the limit.
    void lift(const std::string &name, std::optional<std::string_view> key = std::nullopt) const {
        const auto [bytes, length] = detail::key_or_limit(key);
        detail::ok(wgl_store_lift(get(), detail::text("name", name), bytes, length));
    }

    /// Writes to the database now what it does not have yet of what was admitted.
    void flush() const { detail::ok(wgl_store_flush(get())); }

    /// How often the store failed a decision in this process, whatever was answered instead.
    [[nodiscard]] std::uint64_t failures() const {
        std::uint64_t count = 0;
        detail::ok(wgl_store_failures(get(), &count));
        return count;
    }

private:
    static wgl_store_options raw_of(const StoreOptions &options) {
        wgl_store_options raw = WGL_STORE_OPTIONS_INIT;
        raw.mode = static_cast<std::uint32_t>(detail::given("mode", options.mode));
        raw.timeout_ns = detail::given("timeout", options.timeout);
        raw.clock = options.clock ? options.clock->get() : nullptr;
        raw.on_error = static_cast<std::uint32_t>(options.on_error);
        raw.durability = static_cast<std::uint32_t>(options.durability);
        return raw;
    }

    std::shared_ptr<wgl_store> store_;
};

/// How retries spread.
enum class Jitter : std::uint32_t {
    scaled = WGL_JITTER_SCALED,
    full = WGL_JITTER_FULL,
    equal = WGL_JITTER_EQUAL,
    none = WGL_JITTER_NONE
};

/// What denials of a rate limit add to `suggested_after`; see wgl_rate_limiter_options.
struct Backoff {
    Duration initial_delay = std::chrono::seconds(1);
    double multiplier = 2;
    Duration max_delay = std::chrono::minutes(10);
    Jitter jitter = Jitter::scaled;
};

/// One window of a rate limit.
struct Window {
    std::uint64_t max_executions;
    Duration length;
};

/// At most `max_executions` units in any rolling window, or in each of up to four windows, for all who open the name.
class RateLimiter : public Limiter {
public:
    RateLimiter(const Store &store, const std::string &name, std::uint64_t max_executions, Duration window,
                const Backoff &backoff = {})
        : RateLimiter(store, name, std::vector<Window>{{max_executions, window}}, backoff) {}

    RateLimiter(const Store &store, const std::string &name, const std::vector<Window> &windows,
                const Backoff &backoff = {})
        : Limiter(make([&](wgl_limiter **made) {
              if (windows.empty())
                  throw detail::invalid("windows", "empty", "1 to 4 windows");
              std::vector<wgl_window> raw;
              for (const Window &window : windows)
                  raw.push_back({window.max_executions, detail::ns("window", window.length)});
              wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
              options.jitter = static_cast<std::uint32_t>(backoff.jitter);
              options.windows = raw.data();
              options.window_count = raw.size();
              options.initial_backoff_delay_ns = detail::given("initial_delay", backoff.initial_delay);
              if (!(backoff.multiplier > 1))
                  throw detail::invalid("multiplier", std::to_string(backoff.multiplier), "more than 1");
              options.backoff_multiplier = backoff.multiplier;
              options.max_backoff_delay_ns = detail::given("max_delay", backoff.max_delay);
              return wgl_rate_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}

    /// Takes the rate limit that is declared under a name.
    [[nodiscard]] static RateLimiter attach(const Store &store, const std::string &name) {
        return RateLimiter(make([&](wgl_limiter **made) {
            return wgl_rate_limiter_attach(store.get(), detail::text("name", name), made);
        }));
    }

private:
    explicit RateLimiter(Limiter &&made) : Limiter(std::move(made)) {}
};

/// At most so many units at the same time, per key: in this process, or with a store and a name in all.
class ConcurrencyLimiter : public Limiter {
public:
    explicit ConcurrencyLimiter(std::uint64_t max_concurrent_jobs,
                                const std::optional<ManualClock> &clock = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
              options.max_concurrent_jobs = max_concurrent_jobs;
              options.clock = clock ? clock->get() : nullptr;
              return wgl_concurrency_limiter_new(&options, made);
          })) {}

    /// With a lease a start holds its units only for so long, unless it renews; without, as long as its process lives.
    ConcurrencyLimiter(const Store &store, const std::string &name, std::uint64_t max_concurrent_jobs,
                       std::optional<Duration> lease = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
              options.max_concurrent_jobs = max_concurrent_jobs;
              options.lease_ns = detail::given("lease", lease);
              return wgl_concurrency_limiter_shared(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// So long between one start and the next: in this process, or with a store and a name in all.
class DelayLimiter : public Limiter {
public:
    explicit DelayLimiter(Duration delay = std::chrono::milliseconds(50),
                          const std::optional<ManualClock> &clock = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_delay_limiter_options options = options_of(delay);
              options.clock = clock ? clock->get() : nullptr;
              return wgl_delay_limiter_new(&options, made);
          })) {}

    DelayLimiter(const Store &store, const std::string &name, Duration delay = std::chrono::milliseconds(50))
        : Limiter(make([&](wgl_limiter **made) {
              const wgl_delay_limiter_options options = options_of(delay);
              return wgl_delay_limiter_shared(store.get(), detail::text("name", name), &options, made);
          })) {}

private:
    static wgl_delay_limiter_options options_of(Duration delay) {
        wgl_delay_limiter_options options = WGL_DELAY_LIMITER_OPTIONS_INIT;
        options.delay_ns = detail::ns("delay", delay);
        return options;
    }
};

/// Starts at even distances, if `adaptive` shortened by what jobs take, never more than `max_executions` in any rolling
/// window: in this process, or with a store and a name in all.
class EvenlySpacedRateLimiter : public Limiter {
public:
    EvenlySpacedRateLimiter(std::uint64_t max_executions, Duration window, bool adaptive = true,
                            const std::optional<ManualClock> &clock = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_evenly_spaced_limiter_options options = options_of(max_executions, window, adaptive);
              options.clock = clock ? clock->get() : nullptr;
              return wgl_evenly_spaced_limiter_new(&options, made);
          })) {}

    EvenlySpacedRateLimiter(const Store &store, const std::string &name, std::uint64_t max_executions, Duration window,
                            bool adaptive = true)
        : Limiter(make([&](wgl_limiter **made) {
              const wgl_evenly_spaced_limiter_options options = options_of(max_executions, window, adaptive);
              return wgl_evenly_spaced_limiter_shared(store.get(), detail::text("name", name), &options, made);
          })) {}

private:
    static wgl_evenly_spaced_limiter_options options_of(std::uint64_t max_executions, Duration window, bool adaptive) {
        wgl_evenly_spaced_limiter_options options = WGL_EVENLY_SPACED_LIMITER_OPTIONS_INIT;
        options.adaptive = adaptive ? 1 : 0;
        options.max_executions = max_executions;
        options.window_ns = detail::ns("window", window);
        return options;
    }
};

/// `rate` units per period, saved up to a `burst`, by default `rate`.
class TokenBucketLimiter : public Limiter {
public:
    TokenBucketLimiter(const Store &store, const std::string &name, std::uint64_t rate, Duration period,
                       std::optional<std::uint64_t> burst = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_token_bucket_limiter_options options = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
              options.rate = rate;
              options.period_ns = detail::ns("period", period);
              options.burst = detail::given("burst", burst);
              return wgl_token_bucket_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// One start at a time, period / `rate` apart; up to `queue` units wait for their turn, by default `rate`.
class LeakyBucketLimiter : public Limiter {
public:
    LeakyBucketLimiter(const Store &store, const std::string &name, std::uint64_t rate, Duration period,
                       std::optional<std::uint64_t> queue = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_leaky_bucket_limiter_options options = WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT;
              options.rate = rate;
              options.period_ns = detail::ns("period", period);
              options.queue = detail::given("queue", queue);
              return wgl_leaky_bucket_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// So many units in each window of the clock; twice as many across a boundary.
class FixedWindowLimiter : public Limiter {
public:
    FixedWindowLimiter(const Store &store, const std::string &name, std::uint64_t max_executions, Duration window)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_fixed_window_limiter_options options = WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT;
              options.max_executions = max_executions;
              options.window_ns = detail::ns("window", window);
              return wgl_fixed_window_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// An estimate of the rolling window from two counts, for very large limits.
class SlidingWindowCounterLimiter : public Limiter {
public:
    SlidingWindowCounterLimiter(const Store &store, const std::string &name, std::uint64_t max_executions,
                                Duration window)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_sliding_window_counter_limiter_options options = WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT;
              options.max_executions = max_executions;
              options.window_ns = detail::ns("window", window);
              return wgl_sliding_window_counter_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// So many in any rolling window, so many at the same time, or both.
class FlowControlLimiter : public Limiter {
public:
    FlowControlLimiter(const Store &store, const std::string &name, std::optional<Window> rate,
                       std::optional<std::uint64_t> parallelism = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              wgl_flow_control_limiter_options options = WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT;
              options.rate = rate ? detail::given("rate", rate->max_executions) : 0;
              options.period_ns = rate ? detail::given("period", rate->length) : 0;
              options.parallelism = detail::given("parallelism", parallelism);
              return wgl_flow_control_limiter_new(store.get(), detail::text("name", name), &options, made);
          })) {}
};

/// Admits everything: for where no limit is wanted.
class NullLimiter : public Limiter {
public:
    NullLimiter() : Limiter(make(wgl_null_limiter_new)) {}
};

/// Admits what every one of its children admits: everything, as long as it has none.
class CompositeLimiter : public Limiter {
public:
    CompositeLimiter(std::initializer_list<Limiter> children = {}) : Limiter(make(wgl_composite_limiter_new)) {
        for (const Limiter &child : children)
            add(child);
    }

    /// Adds a child, at any time. Permits that are out end with the children they were taken from.
    void add(const Limiter &child) const { detail::ok(wgl_composite_limiter_add(get(), child.get())); }
};

/// A limiter of the program's own: derive from it, and give it to a CustomLimiter. See wgl_custom_limiter_table. Any
/// thread may call it, and several may at once. What it throws is a failure: whoever asked gets WGL_CUSTOM_FAILURE with
/// its what(), and nothing is charged anywhere.
class Custom {
public:
    /// Admitted, with a number for `end`; or denied, and perhaps not after `retry_after`.
    struct Verdict {
        bool admitted;
        std::uint64_t start = 0;
        Duration retry_after = std::chrono::milliseconds(10);
    };
    enum class End : std::uint32_t {
        completed = WGL_END_COMPLETED,
        cancelled = WGL_END_CANCELLED,
        settled = WGL_END_SETTLED
    };

    virtual ~Custom() = default;
    /// Decides and records in one act.
    virtual Verdict decide(std::string_view key, std::uint64_t weight) = 0;
    /// What decide would answer. Records nothing.
    virtual Verdict peek(std::string_view key, std::uint64_t weight) = 0;
    /// A start has ended for which decide gave that number; `actual` is 0 unless it was settled.
    virtual void end(std::uint64_t, End, std::uint64_t) {}
    /// Nobody starts for so long; no key: of all keys.
    virtual void pause(std::string_view, Duration) {}
    virtual void clear(std::string_view) {}
    virtual void record_job_start(std::string_view) {}
    virtual void record_job_completion(std::string_view) {}
};

/// Asks a limiter of the program's own, which it shares. Composites take it as a child.
class CustomLimiter : public Limiter {
public:
    CustomLimiter(std::shared_ptr<Custom> custom, const std::string &name)
        : Limiter(make([&](wgl_limiter **made) {
              if (custom == nullptr)
                  throw detail::invalid("custom", "null", "a limiter");
              auto context = std::make_unique<std::shared_ptr<Custom>>(std::move(custom));
              wgl_custom_limiter_table table = WGL_CUSTOM_LIMITER_TABLE_INIT;
              table.context = context.get();
              table.name = detail::text("name", name);
              table.decide = [](void *self, const char *key, std::size_t length, std::uint64_t weight,
                                std::uint64_t *start, std::uint64_t *retry_after_ns) {
                  return guard([&] {
                      const Custom::Verdict verdict = of(self).decide({key, length}, weight);
                      *start = verdict.start;
                      return status(verdict, retry_after_ns);
                  });
              };
              table.peek = [](void *self, const char *key, std::size_t length, std::uint64_t weight,
                              std::uint64_t *retry_after_ns) {
                  return guard([&] { return status(of(self).peek({key, length}, weight), retry_after_ns); });
              };
              table.end = [](void *self, std::uint64_t start, std::uint32_t how, std::uint64_t actual) {
                  return guard([&] { return of(self).end(start, static_cast<Custom::End>(how), actual), WGL_OK; });
              };
              table.pause = [](void *self, const char *key, std::size_t length, std::uint64_t ns) {
                  return guard([&] { return of(self).pause({key, length}, detail::duration(ns)), WGL_OK; });
              };
              table.clear = [](void *self, const char *key, std::size_t length) {
                  return guard([&] { return of(self).clear({key, length}), WGL_OK; });
              };
              table.record_job_start = [](void *self, const char *key, std::size_t length) {
                  return guard([&] { return of(self).record_job_start({key, length}), WGL_OK; });
              };
              table.record_job_completion = [](void *self, const char *key, std::size_t length) {
                  return guard([&] { return of(self).record_job_completion({key, length}), WGL_OK; });
              };
              table.free = [](void *self) { delete static_cast<std::shared_ptr<Custom> *>(self); };
              const int status = wgl_custom_limiter_new(&table, made);
              if (status == WGL_OK)
                  context.release();
              return status;
          })) {}

private:
    static Custom &of(void *self) { return **static_cast<std::shared_ptr<Custom> *>(self); }

    static int status(const Custom::Verdict &verdict, std::uint64_t *retry_after_ns) {
        if (verdict.admitted)
            return WGL_OK;
        *retry_after_ns = detail::ns("retry_after", verdict.retry_after);
        return WGL_DENIED;
    }

    /// No exception passes through the C library: it stays behind as a text for detail::ok.
    template <class Call> static int guard(Call call) noexcept {
        try {
            return call();
        } catch (const std::exception &exception) {
            detail::thrown() = exception.what();
        } catch (...) {
            detail::thrown() = "an exception that is no std::exception";
        }
        return WGL_CUSTOM_FAILURE;
    }
};

/// The version of the library that is loaded.
inline std::string_view version() noexcept {
    return wgl_version();
}

} // namespace workglow

#endif // WORKGLOW_LIMIT_HPP
