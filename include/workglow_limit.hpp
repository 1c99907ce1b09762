// workglow-limit for C++17: workglow_limit.h with owners instead of _free, exceptions instead of error codes, and
// std::chrono. It is only a header; programs link the C library.
//
//     workglow::Store store("sqlite:limits.db");
//     workglow::RateLimiter openai(store, "openai", 100, 60s);
//
//     if (auto permit = openai.acquire("tenant-7", 1, 30s)) {
//         // ... call the API ...
//     } // the permit completes here, whatever happened
//
// Results. A denial is not an error: it is an empty std::optional, also from a wait that timed out. Errors are exceptions:
// workglow::Error, with the code of the C function and its message. No destructor throws. Each method fails as the C
// function of its name, which workglow_limit.h documents.
//
// Without exceptions (-fno-exceptions) the same calls return instead: an empty std::optional, false, zero, or an object
// that tests as false. workglow::take_error() then returns the error, once. A call on an object that a failed constructor
// left empty fails as well; nothing terminates the program.
//
//     workglow::Store store("sqlite:limits.db");
//     auto permit = workglow::RateLimiter(store, "openai", 100, 60s).try_acquire("tenant-7");
//     if (auto error = workglow::take_error()) // of any of the three calls
//         std::fprintf(stderr, "%s\n", error->what());
//
// Parameters. The order is the same everywhere: what a call sets and for which key, or the key, weight, priority, times
// and share of a start; then outputs. Keys are UTF-8 of at most 1,024 bytes, NULs included; the empty key is no key.
// Weights are units, at least 1. Durations convert from every std::chrono duration in whole numbers that fits into
// nanoseconds; `forever` is the longest. Limits count in whole microseconds, rounded so that they are never exceeded.
//
// Ownership. Stores and limiters are handles: a copy is the same store or limiter, which lives as long as any copy or
// permit of it. A limiter of any kind may be kept as a workglow::Limiter. Permits and places can only be moved.
//
// Threads. Any number of threads may use a store or limiter at once. One thread at a time may use a permit or a place.
//
// Fork. Stores and limiters work in the child. Permits and places stay with the parent: in a child their destructors do
// nothing.

#ifndef WORKGLOW_LIMIT_HPP
#define WORKGLOW_LIMIT_HPP

#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "workglow_limit.h"

// The names of the binary interface; code with and without exceptions may be linked into one program.
#ifdef __cpp_exceptions
#define WORKGLOW_LIMIT_NAMESPACE v0
#else
#define WORKGLOW_LIMIT_NAMESPACE v0_no_exceptions
#endif

namespace workglow {
inline namespace WORKGLOW_LIMIT_NAMESPACE {

using Duration = std::chrono::nanoseconds;
/// Unix time.
using Time = std::chrono::time_point<std::chrono::system_clock, Duration>;

/// A timeout that never expires.
inline constexpr Duration forever = Duration::max();

/// An error of the C library: what() is its message, code() its status.
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

/// A key: anything that converts to std::string_view, except nullptr. The empty key is no key. It refers to the
/// characters only during the call.
class Key {
public:
    constexpr Key() = default;
    template <class T, class = std::enable_if_t<std::is_convertible_v<const T &, std::string_view>>>
    constexpr Key(const T &key) : key_(key) {}
    Key(std::nullptr_t) = delete;

    constexpr const char *data() const noexcept { return key_.data(); }
    constexpr std::size_t size() const noexcept { return key_.size(); }

private:
    std::string_view key_;
};

/// A name, URL, policy or path: anything that converts to std::string or std::string_view, except nullptr.
class Text {
public:
    template <class T, class = std::enable_if_t<std::is_convertible_v<const T &, std::string_view> ||
                                                std::is_convertible_v<const T &, std::string>>>
    Text(const T &text) {
        if constexpr (std::is_convertible_v<const T &, std::string_view>)
            text_ = std::string_view(text);
        else
            text_ = text;
    }
    Text(std::nullptr_t) = delete;

    const std::string &string() const noexcept { return text_; }

private:
    std::string text_;
};

/// What one part of a composite is charged for a start, where this differs from the start's own key and weight.
struct Charge {
    /// The part's name; a part of a composite that is itself a part is "OUTER/INNER".
    Text part;
    std::optional<std::string> key{};
    std::optional<std::uint64_t> weight{};
};

/// The alternative that was charged: its index in the FirstOfLimiter, and its name, which lives as long as that. With
/// FirstOfLimiters in one another, the index is that in the outer one, and the name the innermost one's.
struct Chosen {
    std::size_t index;
    std::string_view name;
};

/// The units that one part of a composite used.
struct Usage {
    Text part;
    std::uint64_t units;
};

namespace detail {

/// The status of a call that was refused here, before the C function: its error is known.
inline constexpr int refused = INT_MIN;

#ifdef __cpp_exceptions
[[noreturn]] inline void fail(const Error &error) {
    throw error;
}
#else
inline std::optional<Error> &last_error() {
    static thread_local std::optional<Error> error;
    return error;
}
inline void fail(const Error &error) {
    last_error() = error;
}
#endif

inline Error invalid(const std::string &parameter, const std::string &value, const std::string &expected) {
    return Error(WGL_INVALID_ARGUMENT, parameter + " is " + value + ", not " + expected);
}

/// The message of an exception that a custom limiter threw in the current call on this thread.
inline std::string &thrown() {
    static thread_local std::string what;
    return what;
}

/// Returns whether a status is WGL_OK, rather than another normal outcome. An error is thrown.
inline bool ok(int status) {
    if (status >= 0)
        return status == WGL_OK;
    if (status == refused)
        return false;
    std::string message = wgl_last_error();
    if (status == WGL_CUSTOM_FAILURE && !thrown().empty())
        message += ": " + std::exchange(thrown(), {});
    fail(Error(status, message));
    return false;
}

/// Converts the arguments of one call. Without exceptions, it is false after one that is not valid.
class Arguments {
public:
    explicit operator bool() const noexcept { return is_valid_; }

    void refuse(const Error &error) {
        is_valid_ = false;
        fail(error);
    }

    std::uint64_t ns(const char *parameter, Duration duration) {
        if (duration < Duration::zero()) {
            refuse(invalid(parameter, std::to_string(duration.count()) + " ns", "0 or more"));
            return 0;
        }
        return static_cast<std::uint64_t>(duration.count());
    }

    /// A timeout, which may be `forever`.
    std::uint64_t timeout(const char *parameter, Duration duration) {
        return duration == forever ? WGL_FOREVER : ns(parameter, duration);
    }

    /// An option whose C value 0 is the default: nothing becomes 0, and 0 is refused.
    std::uint64_t option(const char *parameter, std::optional<std::uint64_t> value) {
        if (value == 0u)
            refuse(invalid(parameter, "0", "1 or more"));
        return value.value_or(0);
    }
    std::uint64_t option(const char *parameter, std::optional<Duration> value) {
        return value ? option(parameter, std::optional(ns(parameter, *value))) : 0;
    }

    /// A text of C, which ends at its first NUL. NULL if it is not valid.
    const char *text(const char *parameter, const Text &text) {
        if (text.string().find('\0') == std::string::npos)
            return text.string().c_str();
        refuse(invalid(parameter, "a text with a NUL in it", "a text without"));
        return nullptr;
    }

    wgl_waiter_options wait(std::uint64_t weight, std::int32_t priority, Duration timeout, Duration grace,
                            std::optional<std::uint32_t> share) {
        wgl_waiter_options options = WGL_WAITER_OPTIONS_INIT;
        if (weight == 0)
            refuse(invalid("weight", "0", "1 or more"));
        options.weight = weight;
        const std::uint64_t timeout_ns = this->timeout("timeout", timeout);
        options.timeout_ns = timeout_ns == 0 ? WGL_NO_WAIT : timeout_ns;
        options.priority = priority;
        options.grace_ns = ns("grace", grace);
        if (share == 0U)
            refuse(invalid("share", "0", "a whole number from 1 to 1000"));
        options.share = share.value_or(0);
        return options;
    }

private:
    bool is_valid_ = true;
};

inline Duration duration(std::uint64_t ns) {
    return ns > static_cast<std::uint64_t>(forever.count()) ? forever : Duration(static_cast<std::int64_t>(ns));
}

/// A key, or the whole limit, which is NULL in C.
inline std::pair<const char *, std::size_t> key_or_limit(const std::optional<Key> &key) {
    if (!key)
        return {nullptr, 0};
    return {key->data() == nullptr ? "" : key->data(), key->size()};
}

/// The texts of a list, which is freed.
inline std::vector<std::string> strings(wgl_strings *owned) {
    const std::unique_ptr<wgl_strings, decltype(&wgl_strings_free)> list(owned, wgl_strings_free);
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < wgl_strings_count(owned); i++)
        texts.emplace_back(wgl_strings_get(owned, i));
    return texts;
}

using Handle = std::shared_ptr<wgl_limiter>;

} // namespace detail

#ifndef __cpp_exceptions
/// Returns the error of the last call that failed on this thread, and forgets it; nothing if none has failed since.
/// It exists only without exceptions.
[[nodiscard]] inline std::optional<Error> take_error() {
    return std::exchange(detail::last_error(), std::nullopt);
}
#endif

/// A clock for tests. It stands still until it is advanced; stores and limiters that were made with it follow it.
class ManualClock {
public:
    ManualClock() {
        wgl_manual_clock *clock = nullptr;
        detail::ok(wgl_manual_clock_new(&clock));
        clock_.reset(clock, wgl_manual_clock_free);
    }

    void advance(Duration by) const {
        detail::Arguments checked;
        const std::uint64_t by_ns = checked.ns("by", by);
        detail::ok(checked ? wgl_manual_clock_advance(get(), by_ns) : detail::refused);
    }
    wgl_manual_clock *get() const noexcept { return clock_.get(); }

private:
    std::shared_ptr<wgl_manual_clock> clock_;
};

/// The common part of a permit and a place.
class PermitBase {
public:
    PermitBase(PermitBase &&other) noexcept { swap(other); }

    /// Returns whether it still holds something: not after it was ended or moved from.
    explicit operator bool() const noexcept { return limiter_ != nullptr; }

    /// Returns the text with which another process that has the same limit continues, through Limiter::permit or
    /// Limiter::place. From then on that process ends it; the destructor here leaves it alone.
    std::string to_text() {
        std::string text(WGL_PERMIT_TEXT_MAX, '\0');
        std::size_t length = 0;
        int status = detail::refused;
        if (wgl_limiter *limiter = this->limiter()) {
            while ((status = wgl_permit_to_text(limiter, &raw_, text.data(), text.size(), &length)) == WGL_TOO_SMALL)
                text.resize(length + 1);
        }
        if (!detail::ok(status))
            return {};
        is_ours_ = false;
        text.resize(length);
        return text;
    }

    /// Returns when the place of a start or place is or was ready; nothing if it had no place.
    std::optional<Time> ready_at() const {
        std::int64_t unix_ns = 0;
        wgl_limiter *limiter = this->limiter();
        if (!detail::ok(limiter ? wgl_permit_ready_at(limiter, &raw_, &unix_ns) : detail::refused))
            return std::nullopt;
        return Time(Duration(unix_ns));
    }

    /// Returns the same on the system's monotonic clock, for measurements. It is never later than the place was ready; on a
    /// server by no more than the delay of its replies.
    std::optional<std::chrono::time_point<std::chrono::steady_clock, Duration>> ready_at_monotonic() const {
        std::uint64_t ns = 0;
        wgl_limiter *limiter = this->limiter();
        if (!detail::ok(limiter ? wgl_permit_ready_at_monotonic(limiter, &raw_, &ns) : detail::refused))
            return std::nullopt;
        return std::chrono::time_point<std::chrono::steady_clock, Duration>(detail::duration(ns));
    }

protected:
    PermitBase(detail::Handle limiter, const wgl_permit &raw, bool is_ours)
        : limiter_(std::move(limiter)), raw_(raw), generation_(wgl_fork_generation()), is_ours_(is_ours) {}
    ~PermitBase() = default;

    wgl_limiter *limiter() const {
        if (limiter_ == nullptr)
            detail::fail(detail::invalid("permit", "ended or moved from", "a permit or place that is not ended"));
        return limiter_.get();
    }

    /// Ends it, unless it is ended. After an error it is not.
    template <class End, class... More> void end(End call, More... more) {
        if (limiter_ != nullptr && detail::ok(call(limiter_.get(), &raw_, more...)))
            limiter_.reset();
    }

    /// Ends it in a destructor, which cannot report an error: a lease then expires, and a rate has counted the start.
    void drop(int (*call)(wgl_limiter *, wgl_permit *)) noexcept {
        if (limiter_ == nullptr || !is_ours_ || generation_ != wgl_fork_generation())
            return;
        if (call(limiter_.get(), &raw_) == WGL_CUSTOM_FAILURE)
            detail::thrown().clear();
    }

    void swap(PermitBase &other) noexcept {
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

/// Proof of an admitted start. Its destructor completes it.
class [[nodiscard]] Permit : public PermitBase {
public:
    Permit(Permit &&) noexcept = default;
    Permit &operator=(Permit &&other) noexcept {
        Permit taken(std::move(other));
        swap(taken); // the previous permit completes here
        return *this;
    }
    ~Permit() { drop(wgl_complete); }

    /// Ends it: the job ran. The destructor does the same, but reports no error. A no-op if it is ended.
    void complete() { end(wgl_complete); }

    /// Ends it: the job never ran, and its units are free again at once. A no-op if it is ended.
    void cancel() { end(wgl_cancel); }

    /// Ends it: the job ran and used `actual` units instead of its weight. The rest is free again at once, units beyond it
    /// are owed. A no-op if it is ended.
    void settle(std::uint64_t actual) { end(wgl_settle, actual); }

    /// Ends the permit of a joint start: the job ran, and these parts used so many units; the others used what they were
    /// charged. A no-op if it is ended.
    void settle(std::initializer_list<Usage> parts) {
        detail::Arguments checked;
        std::vector<wgl_usage> all;
        for (const Usage &usage : parts)
            all.push_back({checked.text("part", usage.part), usage.units});
        if (checked)
            end(wgl_settle_parts, static_cast<const wgl_usage *>(all.data()), all.size());
        else
            detail::ok(detail::refused);
    }

    /// Says that the job has reached the server that counts it, as when the head of its response is here. A limit with a
    /// cooldown counts it from now on instead of from its end. The permit remains. A no-op for other limits.
    void arrived() {
        wgl_limiter *limiter = this->limiter();
        detail::ok(limiter ? wgl_arrived(limiter, &raw_) : detail::refused);
    }

    /// Restarts a lease. A no-op for permits without one.
    void renew() {
        wgl_limiter *limiter = this->limiter();
        detail::ok(limiter ? wgl_renew(limiter, &raw_) : detail::refused);
    }

    /// Returns the number of a lease, larger for every later lease of the same key; nothing for permits without one.
    std::optional<std::uint64_t> fence() const {
        std::uint64_t fence = 0;
        wgl_limiter *limiter = this->limiter();
        return detail::ok(limiter ? wgl_fence(limiter, &raw_, &fence) : detail::refused) ? std::optional(fence)
                                                                                         : std::nullopt;
    }

    /// Returns which alternative of a FirstOfLimiter was charged; nothing for others.
    std::optional<Chosen> chosen() const {
        std::size_t index = 0;
        const char *name = "";
        wgl_limiter *limiter = this->limiter();
        return detail::ok(limiter ? wgl_chosen(limiter, &raw_, &index, &name) : detail::refused)
                   ? std::optional(Chosen{index, name})
                   : std::nullopt;
    }

private:
    friend class Limiter;
    friend class Waiter;
    using PermitBase::PermitBase;
};

/// A start in the future, which Limiter::present or Limiter::acquire turns into a permit. Its destructor returns it,
/// unless it left as a text, or came from a text and was not presented here.
class [[nodiscard]] Place : public PermitBase {
public:
    Place(Place &&) noexcept = default;
    Place &operator=(Place &&other) noexcept {
        Place taken(std::move(other));
        swap(taken); // the previous place is returned here
        wait_ = taken.wait_;
        return *this;
    }
    ~Place() { drop(wgl_cancel_place); }

    /// Returns the place, unless it was used to start, perhaps in another process with its text. A no-op if it is ended.
    void cancel() { end(wgl_cancel_place); }

    /// The time from when it was taken, or last presented, until it is ready. Zero for a place from a text.
    Duration wait() const noexcept { return wait_; }

private:
    friend class Limiter;
    using PermitBase::PermitBase;
    Duration wait_{};
};

/// The whole answer to "may this start now, and if not, when?". Numbers are UINT64_MAX where there is no limit.
struct Decision {
    bool admitted = false;
    /// Zero if admitted. Otherwise the time after which a retry succeeds, unless another caller took the capacity; one
    /// microsecond earlier it fails. For a concurrency limit, whose units come back when a job ends, a suggestion.
    Duration retry_after{};
    /// At least `retry_after`: the same for callers that requeue, with the backoff.
    Duration suggested_after{};
    /// The heaviest start that would be admitted after this decision.
    std::uint64_t remaining = 0;
    /// The units that the limit allows.
    std::uint64_t limit = 0;
    /// The time after which the limiter is reset if nothing else starts. Zero for a concurrency limit, which cannot know it.
    Duration reset_after{};
    /// The name of the limit that denied.
    std::optional<std::string> denied_by;
    /// The permit of the start, if admitted; never after peek.
    std::optional<Permit> permit;

    explicit operator bool() const noexcept { return admitted; }
};

/// The counts of a limit or key; see wgl_counts.
struct Stats {
    std::uint64_t admitted = 0, denied = 0, units_wanted = 0, units_granted = 0, waited = 0;
    /// How long the starts that waited did, in total.
    Duration wait_time{};
    std::uint64_t cancelled = 0, store_errors = 0, policy_changes = 0;
};

/// A process that uses a store; see wgl_holder_snapshot.
struct Process {
    std::uint32_t pid = 0;
    std::string program;
    /// How long it has used the store.
    Duration since{};
};

/// Who had the units of a limit, or of a key of it, and who waited for them; see wgl_store_line. A process that is not in the
/// list of processes is nothing, and so is the one of a memory: store.
struct LineSnapshot {
    struct Holder {
        std::optional<Process> process;
        std::uint64_t starts = 0, units = 0;
        /// Whether the starts have ended, and their units are free after the limit's cooldown.
        bool cools_down = false;
    };
    struct Head {
        std::optional<Process> process;
        /// How long it has waited.
        Duration waits{};
        std::uint64_t units = 0;
        std::int32_t priority = 0;
        /// Of a shared limit, its tenant: '#' and an id of the key.
        std::optional<std::string> tenant;
        /// Whether it is passed, because its process does not run.
        bool is_passed = false;
    };
    struct Waiting {
        std::optional<Process> process;
        /// For all keys of the limit together.
        std::uint64_t callers = 0;
    };
    /// The processes that have units of a limit of concurrent starts.
    std::vector<Holder> holders;
    /// The first waiter of each line, the next one first; those that are passed last.
    std::vector<Head> heads;
    /// The processes whose callers wait.
    std::vector<Waiting> waiting;
};

class Waiter;

/// The key of a joint start, with what each part is charged: the key of any call of the limiter that made it, in this
/// process and forked children. A copy is the same key.
class JointKey {
public:
    operator std::string_view() const noexcept {
        return {wgl_joint_key_text(key_.get()), wgl_joint_key_length(key_.get())};
    }

    /// False only if it could not be made, without exceptions.
    explicit operator bool() const noexcept { return key_ != nullptr; }

private:
    friend class Limiter;
    std::shared_ptr<wgl_joint_key> key_;
};

/// Decides whether a job may start now, and if not, when: a limiter of any kind.
class Limiter {
public:
    /// Takes over a limiter that the C interface made.
    explicit Limiter(wgl_limiter *owned) : limiter_(owned, wgl_limiter_free) {}

    /// The same limiter for the C interface; this object still frees it.
    wgl_limiter *get() const noexcept { return limiter_.get(); }

    /// False only if the constructor failed, without exceptions.
    explicit operator bool() const noexcept { return limiter_ != nullptr; }

    /// The name of the limit, as Decision::denied_by has it.
    [[nodiscard]] std::string name() const {
        const char *name = wgl_limiter_name(get());
        return name ? name : "";
    }

    /// Makes the key of a joint start, which charges some parts of a composite with keys or weights of their own. Parts
    /// that are not named are charged with `key`, and with the weight that the call gets.
    ///
    ///     auto call = llm.joint({}, {{"tokens", std::nullopt, 1200}, {"tenant", "acme"}});
    ///     if (auto permit = llm.acquire(call, 1, 30s))
    ///         permit->settle({{"tokens", 830}});
    [[nodiscard]] JointKey joint(Key key, std::initializer_list<Charge> charges) const {
        detail::Arguments checked;
        std::vector<wgl_charge> all;
        for (const Charge &charge : charges)
            all.push_back({checked.text("part", charge.part), charge.key ? charge.key->c_str() : nullptr,
                           charge.key ? charge.key->size() : 0, checked.option("weight", charge.weight)});
        wgl_joint_key *made = nullptr;
        JointKey joint;
        if (detail::ok(checked ? wgl_joint_key_new(get(), key.data(), key.size(), all.data(), all.size(), &made)
                               : detail::refused))
            joint.key_ = std::shared_ptr<wgl_joint_key>(made, wgl_joint_key_free);
        return joint;
    }

    /// The names of a composite's parts, in their order; none for others.
    [[nodiscard]] std::vector<std::string> part_names() const {
        std::vector<std::string> names;
        while (const char *name = wgl_limiter_part_name(get(), names.size()))
            names.emplace_back(name);
        return names;
    }

    /// Starts if there is capacity now: decides and records in one act.
    [[nodiscard]] std::optional<Permit> try_acquire(Key key = {}, std::uint64_t weight = 1) const {
        return permit_if(
            [&](wgl_permit *raw) { return wgl_try_acquire(get(), key.data(), key.size(), weight, raw, nullptr); });
    }

    /// Waits for capacity. Nothing if there is none before the timeout, which is returned at once if it is certain; there
    /// may be some after `retry_after`. The waiters of this process for the same key start in the order of their calls.
    [[nodiscard]] std::optional<Permit> acquire(Key key = {}, std::uint64_t weight = 1, Duration timeout = forever,
                                                Duration *retry_after = nullptr) const {
        return acquire(key, weight, 0, timeout, Duration::zero(), std::nullopt, retry_after);
    }

    /// Waits the same with a priority, a grace and a share. Lower priorities start first. A waiter that is late for its place
    /// by less than `grace` keeps it; a grace that is shorter than the default has no effect. The share is that of the tenant
    /// that the key names in a shared limit, 1 to 1,000. Nothing: the one that Store::share has set, or else 1.
    [[nodiscard]] std::optional<Permit> acquire(Key key, std::uint64_t weight, std::int32_t priority,
                                                Duration timeout = forever, Duration grace = {},
                                                std::optional<std::uint32_t> share = std::nullopt,
                                                Duration *retry_after = nullptr) const {
        detail::Arguments checked;
        const wgl_waiter_options options = checked.wait(weight, priority, timeout, grace, share);
        std::uint64_t after_ns = 0;
        std::optional<Permit> permit = permit_if([&](wgl_permit *raw) {
            return checked ? wgl_acquire_with(get(), key.data(), key.size(), &options, raw, &after_ns) : detail::refused;
        });
        if (retry_after)
            *retry_after = detail::duration(after_ns);
        return permit;
    }

    [[nodiscard]] std::optional<Permit> acquire(Duration timeout) const { return acquire(Key(), 1, timeout); }

    /// Waits until a place is ready and starts with it. Nothing if it is not ready before the timeout, which is returned
    /// at once: the place was returned. The place is ended in either case.
    [[nodiscard]] std::optional<Permit> acquire(Place &place, Duration timeout = forever) const {
        detail::Arguments checked;
        const std::uint64_t timeout_ns = checked.timeout("timeout", timeout);
        wgl_permit *raw = raw_of(place);
        const int status = checked && raw ? wgl_acquire_place(get(), raw, timeout_ns, nullptr) : detail::refused;
        if (detail::ok(status))
            return started(place);
        if (status == WGL_DENIED)
            place.limiter_.reset();
        return std::nullopt;
    }

    /// Makes a wait in steps: see Waiter.
    [[nodiscard]] Waiter waiter(Key key = {}, std::uint64_t weight = 1, Duration timeout = forever) const;

    /// Makes the same with a priority, a grace and a share, as acquire has them.
    [[nodiscard]] Waiter waiter(Key key, std::uint64_t weight, std::int32_t priority, Duration timeout = forever,
                                Duration grace = {}, std::optional<std::uint32_t> share = std::nullopt) const;

    /// Makes a wait in steps for a place. The place is ended.
    [[nodiscard]] Waiter waiter(Place &place, Duration timeout = forever) const;

    /// Does the same as try_acquire and returns the whole decision.
    [[nodiscard]] Decision decide(Key key = {}, std::uint64_t weight = 1) const {
        wgl_decision raw = WGL_DECISION_INIT;
        const bool is_admitted = detail::ok(wgl_decide(get(), key.data(), key.size(), weight, &raw));
        std::optional<Permit> permit;
        if (is_admitted)
            permit = Permit(limiter_, raw.permit, true);
        return decision(raw, std::move(permit));
    }

    /// Returns the decision that decide would make. Records nothing; `weight` may be 0.
    [[nodiscard]] Decision peek(Key key = {}, std::uint64_t weight = 1) const {
        wgl_decision raw = WGL_DECISION_INIT;
        detail::ok(wgl_peek(get(), key.data(), key.size(), weight, &raw));
        return decision(raw, std::nullopt);
    }

    /// Returns in what time so many more starts will have begun, as `wgl_forecast` does; nothing if a start has to end before.
    /// Records nothing.
    [[nodiscard]] std::optional<Duration> forecast(std::uint64_t starts, Key key = {}) const {
        std::uint64_t ns = 0;
        return detail::ok(wgl_forecast(get(), key.data(), key.size(), starts, &ns)) ? std::optional(detail::duration(ns))
                                                                                   : std::nullopt;
    }

    /// Takes a place: a start in the future, or now, valid until `grace` after it is ready (nothing: a fortieth of the
    /// window, at most 50 ms). Nothing if it would be further away than `max_wait`.
    [[nodiscard]] std::optional<Place> reserve(Key key = {}, std::uint64_t weight = 1, Duration max_wait = forever,
                                               std::optional<Duration> grace = std::nullopt) const {
        detail::Arguments checked;
        const std::uint64_t max_wait_ns = checked.timeout("max_wait", max_wait);
        const std::uint64_t wish = grace ? checked.ns("grace", *grace) : WGL_DEFAULT_GRACE;
        const std::uint64_t grace_ns = grace && wish == 0 ? WGL_NO_GRACE : wish;
        wgl_permit raw{};
        std::uint64_t after_ns = 0;
        if (!detail::ok(checked ? wgl_reserve(get(), key.data(), key.size(), weight, max_wait_ns, grace_ns, &raw,
                                              &after_ns)
                                : detail::refused))
            return std::nullopt;
        Place place(limiter_, raw, true);
        place.wait_ = detail::duration(after_ns);
        return place;
    }

    /// Starts with a place, if it is ready: the place is ended then. Otherwise it is the place to present after `wait()`:
    /// the same one if this call was early, a new one if it was late, used before, or overtaken.
    [[nodiscard]] std::optional<Permit> present(Place &place) const {
        std::uint64_t after_ns = 0;
        wgl_permit *raw = raw_of(place);
        const int status = raw ? wgl_present(get(), raw, &after_ns) : detail::refused;
        if (detail::ok(status))
            return started(place);
        if (status == WGL_DENIED) {
            place.is_ours_ = true;
            place.wait_ = detail::duration(after_ns);
        }
        return std::nullopt;
    }

    /// Returns the permit of a text from Permit::text, perhaps of another process. Without exceptions, an error gives an
    /// ended one.
    [[nodiscard]] Permit permit(const Text &text) const {
        wgl_permit raw{};
        return from_text(text, &raw) ? Permit(limiter_, raw, true) : Permit(nullptr, raw, false);
    }

    /// Returns the place of a text from Place::text, perhaps of another process, to present it. Without exceptions, an
    /// error gives an ended one.
    [[nodiscard]] Place place(const Text &text) const {
        wgl_permit raw{};
        return from_text(text, &raw) ? Place(limiter_, raw, false) : Place(nullptr, raw, false);
    }

    /// Sets a gate: no start for `duration`, of all that share the limit, as a Retry-After asks for. The empty key: of all keys.
    void pause(Duration duration, Key key = {}) const {
        detail::Arguments checked;
        const std::uint64_t duration_ns = checked.ns("duration", duration);
        detail::ok(checked ? wgl_pause(get(), duration_ns, key.data(), key.size()) : detail::refused);
    }

    /// Returns the counts of a key; of the limit for the empty key.
    [[nodiscard]] Stats stats(Key key = {}) const {
        wgl_counts raw = WGL_COUNTS_INIT;
        detail::ok(wgl_stats(get(), key.data(), key.size(), &raw));
        return {raw.admitted, raw.denied, raw.units_wanted, raw.units_granted, raw.waited,
                detail::duration(raw.wait_time_ns), raw.cancelled, raw.store_errors, raw.policy_changes};
    }

    /// Returns the shortest time over which the limit counts the starts of a key; nothing if it counts over no time.
    [[nodiscard]] std::optional<Duration> window(Key key = {}) const {
        std::uint64_t ns = 0;
        return detail::ok(wgl_window(get(), key.data(), key.size(), &ns)) ? std::optional(detail::duration(ns))
                                                                          : std::nullopt;
    }

    /// Resets a key, gate included; all keys for the empty key.
    void clear(Key key = {}) const { detail::ok(wgl_clear(get(), key.data(), key.size())); }

    // For schedulers that check first and record later: another caller may start in between. try_acquire has no such gap.

    /// Returns whether a start of weight 1 would be admitted now.
    [[nodiscard]] bool can_proceed(Key key = {}) const {
        return detail::ok(wgl_can_proceed(get(), key.data(), key.size()));
    }
    /// Records that a job has started, even if the limit is full.
    void record_job_start(Key key = {}) const { detail::ok(wgl_record_job_start(get(), key.data(), key.size())); }
    /// Records that a job has ended: the oldest start without a permit that this process recorded on that key.
    void record_job_completion(Key key = {}) const {
        detail::ok(wgl_record_job_completion(get(), key.data(), key.size()));
    }
    /// Returns when a start of weight 1 would be admitted; now, if that is now.
    [[nodiscard]] Time get_next_available_time(Key key = {}) const {
        std::int64_t unix_ns = 0;
        detail::ok(wgl_get_next_available_time(get(), key.data(), key.size(), &unix_ns));
        return Time(Duration(unix_ns));
    }
    /// Sets a gate: no start before that instant, of all that share the limit. The empty key: of all keys.
    void set_next_available_time(Time when, Key key = {}) const {
        detail::ok(wgl_set_next_available_time(get(), when.time_since_epoch().count(), key.data(), key.size()));
    }

protected:
    /// Makes a limiter with a C function that writes it to its argument.
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

    static wgl_permit *raw_of(Place &place) { return place.limiter() ? &place.raw_ : nullptr; }

    Permit started(Place &place) const {
        place.limiter_.reset();
        return Permit(limiter_, place.raw_, true);
    }

    bool from_text(const Text &text, wgl_permit *raw) const {
        return detail::ok(wgl_permit_from_text(get(), text.string().data(), text.string().size(), raw));
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

/// A wait in steps: for an event loop, or where something else may end the wait. Its destructor ends the wait. One thread
/// at a time may use it; all that wait in this process for the same limiter and key form one line.
class [[nodiscard]] Waiter {
public:
    /// Takes a step, without sleeping: a permit, or nothing. If it is waiting() then, the next step is due after wait();
    /// otherwise there is no capacity before the timeout, but there may be after wait().
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
    Waiter(detail::Handle limiter, wgl_waiter *owned)
        : limiter_(std::move(limiter)), waiter_(owned), is_waiting_(owned != nullptr) {}

    struct Free {
        void operator()(wgl_waiter *waiter) const noexcept { wgl_waiter_free(waiter); }
    };
    detail::Handle limiter_;
    std::unique_ptr<wgl_waiter, Free> waiter_;
    Duration wait_{};
    bool is_waiting_;
};

inline Waiter Limiter::waiter(Key key, std::uint64_t weight, Duration timeout) const {
    return waiter(key, weight, 0, timeout);
}

inline Waiter Limiter::waiter(Key key, std::uint64_t weight, std::int32_t priority, Duration timeout, Duration grace,
                              std::optional<std::uint32_t> share) const {
    detail::Arguments checked;
    const wgl_waiter_options options = checked.wait(weight, priority, timeout, grace, share);
    wgl_waiter *made = nullptr;
    detail::ok(checked ? wgl_waiter_new(get(), key.data(), key.size(), &options, &made) : detail::refused);
    return Waiter(limiter_, made);
}

inline Waiter Limiter::waiter(Place &place, Duration timeout) const {
    detail::Arguments checked;
    const std::uint64_t timeout_ns = checked.timeout("timeout", timeout);
    wgl_permit *raw = raw_of(place);
    wgl_waiter *made = nullptr;
    if (detail::ok(checked && raw ? wgl_waiter_new_for_place(get(), raw, timeout_ns, &made) : detail::refused))
        place.limiter_.reset();
    return Waiter(limiter_, made);
}

/// What a decision does if the store fails.
enum class OnError : std::uint32_t { raise = WGL_ON_ERROR_RAISE, deny = WGL_ON_ERROR_DENY, admit = WGL_ON_ERROR_ADMIT };

/// What a power cut may lose: a budget of 5 % of a limit, which then counts as spent, or nothing.
enum class Durability : std::uint32_t { budget = WGL_DURABILITY_BUDGET, commit = WGL_DURABILITY_COMMIT };

/// How a store behaves; see wgl_store_options.
struct StoreOptions {
    Duration timeout = std::chrono::seconds(5);
    std::uint32_t mode = 0600;
    OnError on_error = OnError::raise;
    Durability durability = Durability::budget;
    std::optional<ManualClock> clock = std::nullopt;
    /// In bytes.
    std::optional<std::uint64_t> max_size = std::nullopt;
};

/// A place where limits live: "memory:" (this process), "sqlite:PATH" (this machine), or a server; see wgl_store.
class Store {
public:
    /// Opens a store, and makes its files if there are none.
    explicit Store(const Text &url, const StoreOptions &options = {}) {
        detail::Arguments checked;
        const wgl_store_options raw = raw_of(options, checked);
        const char *address = checked.text("url", url);
        wgl_store *store = nullptr;
        detail::ok(checked ? wgl_store_open(address, &raw, &store) : detail::refused);
        store_.reset(store, wgl_store_free);
    }

    /// Checks the files of a store, which need not open: a line for each problem, none if all is well. With `repair` it
    /// repairs what it can, and the lines of those begin with "repaired: ". See wgl_store_verify.
    [[nodiscard]] static std::vector<std::string> verify(const Text &url, const StoreOptions &options = {},
                                                         bool repair = false) {
        detail::Arguments checked;
        const wgl_store_options raw = raw_of(options, checked);
        const char *address = checked.text("url", url);
        wgl_strings *problems = nullptr;
        detail::ok(checked ? wgl_store_verify(address, &raw, repair, &problems) : detail::refused);
        return detail::strings(problems);
    }

    /// The same store for the C interface; this object still frees it.
    wgl_store *get() const noexcept { return store_.get(); }

    /// False only if the constructor failed, without exceptions.
    explicit operator bool() const noexcept { return store_ != nullptr; }

    /// The store's address, as it was given but without a password.
    [[nodiscard]] std::string url() const {
        const char *url = wgl_store_url(get());
        return url ? url : "";
    }

    /// The names of the limits that are declared in the store, in order.
    [[nodiscard]] std::vector<std::string> names() const {
        wgl_strings *names = nullptr;
        detail::ok(wgl_store_names(get(), &names));
        return detail::strings(names);
    }

    /// Declares the limits of a policy text under a name, for all that share the store:
    /// `limiter("openai", "100/1m + 5 concurrent")`.
    [[nodiscard]] Limiter limiter(const Text &name, const Text &policy) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name), *text = checked.text("policy", policy);
        wgl_limiter *made = nullptr;
        detail::ok(checked ? wgl_policy_limiter_new(get(), called, text, &made) : detail::refused);
        return Limiter(made);
    }

    /// Makes a limiter of the limit that is declared under a name, of whatever kind. The message of WGL_UNKNOWN_LIMIT lists
    /// the names.
    [[nodiscard]] Limiter limiter(const Text &name) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        wgl_limiter *made = nullptr;
        detail::ok(checked ? wgl_limiter_attach(get(), called, &made) : detail::refused);
        return Limiter(made);
    }

    /// Declares the limits of a TOML file, all or none, and returns their names.
    std::vector<std::string> load(const Text &path) const {
        detail::Arguments checked;
        const char *file = checked.text("path", path);
        wgl_strings *names = nullptr;
        detail::ok(checked ? wgl_store_load(get(), file, &names) : detail::refused);
        return detail::strings(names);
    }

    /// Puts an operator's policy above what programs declare, at once, for all that share the store, until it is lifted.
    /// With a key only for that key, such as a tenant's plan, even before the key is used.
    void override(const Text &name, const Text &policy, const std::optional<Key> &key = std::nullopt) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name), *text = checked.text("policy", policy);
        const auto [bytes, length] = detail::key_or_limit(key);
        detail::ok(checked ? wgl_store_override(get(), called, text, bytes, length) : detail::refused);
    }
    /// Removes it: the last declared policy applies again; with a key, the limit's.
    void lift(const Text &name, const std::optional<Key> &key = std::nullopt) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        const auto [bytes, length] = detail::key_or_limit(key);
        detail::ok(checked ? wgl_store_lift(get(), called, bytes, length) : detail::refused);
    }

    /// Sets the share of a tenant of a shared limit, 1 to 1,000, until it is set again. See wgl_store_share.
    void share(const Text &name, Key key, std::uint32_t share) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        detail::ok(checked ? wgl_store_share(get(), called, key.data(), key.size(), share) : detail::refused);
    }

    /// Shows who has the units of a limit and key, and who waits for them: whose turn is next. See wgl_store_line.
    [[nodiscard]] LineSnapshot line(const Text &name, Key key = {}) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        wgl_line_snapshot *owned = nullptr;
        detail::ok(checked ? wgl_store_line(get(), called, key.data(), key.size(), &owned) : detail::refused);
        const std::unique_ptr<wgl_line_snapshot, decltype(&wgl_line_snapshot_free)> owner(owned, wgl_line_snapshot_free);
        LineSnapshot seen;
        if (owned == nullptr)
            return seen;
        const auto process = [](const auto &raw) {
            return raw.program == nullptr
                       ? std::nullopt
                       : std::optional(Process{raw.pid, raw.program, detail::duration(raw.since_ns)});
        };
        wgl_holder_snapshot holder = WGL_HOLDER_SNAPSHOT_INIT;
        for (std::size_t i = 0; detail::ok(wgl_line_snapshot_holder(owned, i, &holder)); i++)
            seen.holders.push_back({process(holder), holder.starts, holder.units, holder.cools_down != 0});
        wgl_head_snapshot head = WGL_HEAD_SNAPSHOT_INIT;
        for (std::size_t i = 0; detail::ok(wgl_line_snapshot_head(owned, i, &head)); i++)
            seen.heads.push_back({process(head), detail::duration(head.waits_ns), head.units, head.priority,
                                  head.tenant == nullptr ? std::nullopt : std::optional<std::string>(head.tenant),
                                  head.is_passed != 0});
        wgl_waiting_snapshot waiting = WGL_WAITING_SNAPSHOT_INIT;
        for (std::size_t i = 0; detail::ok(wgl_line_snapshot_waiting(owned, i, &waiting)); i++)
            seen.waiting.push_back({process(waiting), waiting.callers});
        return seen;
    }

    /// Removes the limit that is declared under a name, with its overrides. See wgl_store_forget.
    void forget(const Text &name) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        detail::ok(checked ? wgl_store_forget(get(), called) : detail::refused);
    }

    /// Writes admitted starts that the database lacks to it now.
    void flush() const { detail::ok(wgl_store_flush(get())); }

    /// Ends the use of this store, its copies and its limiters in this process: later calls fail with WGL_STORE_CLOSED, and
    /// waits end with it. Permits can still end. See wgl_store_close.
    void close() const { detail::ok(wgl_store_close(get())); }

    /// Returns how often the store failed a decision in this process, whatever `on_error` made of that.
    [[nodiscard]] std::uint64_t failures() const {
        std::uint64_t count = 0;
        detail::ok(wgl_store_failures(get(), &count));
        return count;
    }

private:
    static wgl_store_options raw_of(const StoreOptions &options, detail::Arguments &checked) {
        wgl_store_options raw = WGL_STORE_OPTIONS_INIT;
        raw.mode = static_cast<std::uint32_t>(checked.option("mode", std::optional<std::uint64_t>(options.mode)));
        raw.timeout_ns = checked.option("timeout", std::optional(options.timeout));
        raw.on_error = static_cast<std::uint32_t>(options.on_error);
        raw.durability = static_cast<std::uint32_t>(options.durability);
        raw.clock = options.clock ? options.clock->get() : nullptr;
        raw.max_size = checked.option("max_size", options.max_size);
        return raw;
    }

    std::shared_ptr<wgl_store> store_;
};

/// Checks the settings of a server for what endangers limits there: a line for each, the worst first. See wgl_doctor.
[[nodiscard]] inline std::vector<std::string> doctor(const Text &url) {
    detail::Arguments checked;
    const char *address = checked.text("url", url);
    wgl_strings *findings = nullptr;
    detail::ok(checked ? wgl_doctor(address, &findings) : detail::refused);
    return detail::strings(findings);
}

/// The SQL that makes the schema which limits on Postgres need. See wgl_postgres_schema.
[[nodiscard]] inline std::string_view postgres_schema() {
    return wgl_postgres_schema();
}

/// How retries spread.
enum class Jitter : std::uint32_t {
    scaled = WGL_JITTER_SCALED,
    full = WGL_JITTER_FULL,
    equal = WGL_JITTER_EQUAL,
    none = WGL_JITTER_NONE
};

/// The backoff of a rate limit, which denials add to `suggested_after`; see wgl_rate_limiter_options.
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

/// At most `max_executions` units in any rolling window, or in each of up to four windows, for all that share the name.
class RateLimiter : public Limiter {
public:
    RateLimiter(const Store &store, const Text &name, std::uint64_t max_executions, Duration window,
                const Backoff &backoff = {})
        : RateLimiter(store, name, std::vector<Window>{{max_executions, window}}, backoff) {}

    RateLimiter(const Store &store, const Text &name, const std::vector<Window> &windows,
                const Backoff &backoff = {})
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              if (windows.empty())
                  checked.refuse(detail::invalid("windows", "empty", "1 to 4 windows"));
              std::vector<wgl_rate_window> raw;
              for (const Window &window : windows)
                  raw.push_back({window.max_executions, checked.ns("window", window.length)});
              wgl_rate_limiter_options options = WGL_RATE_LIMITER_OPTIONS_INIT;
              options.jitter = static_cast<std::uint32_t>(backoff.jitter);
              options.windows = raw.data();
              options.window_count = raw.size();
              options.initial_backoff_delay_ns = checked.option("initial_delay", std::optional(backoff.initial_delay));
              if (!(backoff.multiplier > 1))
                  checked.refuse(detail::invalid("multiplier", std::to_string(backoff.multiplier), "more than 1"));
              options.backoff_multiplier = backoff.multiplier;
              options.max_backoff_delay_ns = checked.option("max_delay", std::optional(backoff.max_delay));
              const char *called = checked.text("name", name);
              return checked ? wgl_rate_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// At most `max_concurrent_jobs` units at the same time, per key: in this process, or with a store and a name in all.
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

    /// With a lease a start holds its units until the lease expires, unless it renews it; without, as long as its process
    /// lives. With a cooldown its units are free only that long after its end.
    ConcurrencyLimiter(const Store &store, const Text &name, std::uint64_t max_concurrent_jobs,
                       std::optional<Duration> lease = std::nullopt, std::optional<Duration> cooldown = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_concurrency_limiter_options options = WGL_CONCURRENCY_LIMITER_OPTIONS_INIT;
              options.max_concurrent_jobs = max_concurrent_jobs;
              options.lease_ns = checked.option("lease", lease);
              options.cooldown_ns = checked.option("cooldown", cooldown);
              const char *called = checked.text("name", name);
              return checked ? wgl_concurrency_limiter_shared(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// A time between one start and the next: in this process, or with a store and a name in all.
class DelayLimiter : public Limiter {
public:
    explicit DelayLimiter(Duration delay = std::chrono::milliseconds(50),
                          const std::optional<ManualClock> &clock = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_delay_limiter_options options = options_of(delay, checked);
              options.clock = clock ? clock->get() : nullptr;
              return checked ? wgl_delay_limiter_new(&options, made) : detail::refused;
          })) {}

    DelayLimiter(const Store &store, const Text &name, Duration delay = std::chrono::milliseconds(50))
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              const wgl_delay_limiter_options options = options_of(delay, checked);
              const char *called = checked.text("name", name);
              return checked ? wgl_delay_limiter_shared(store.get(), called, &options, made) : detail::refused;
          })) {}

private:
    static wgl_delay_limiter_options options_of(Duration delay, detail::Arguments &checked) {
        wgl_delay_limiter_options options = WGL_DELAY_LIMITER_OPTIONS_INIT;
        options.delay_ns = checked.option("delay", std::optional(delay));
        return options;
    }
};

/// Starts at even distances, which `adaptive` shortens by the time that jobs take, at most `max_executions` in any rolling
/// window: in this process, or with a store and a name in all.
class EvenlySpacedRateLimiter : public Limiter {
public:
    EvenlySpacedRateLimiter(std::uint64_t max_executions, Duration window, bool adaptive = true,
                            const std::optional<ManualClock> &clock = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_evenly_spaced_rate_limiter_options options = options_of(max_executions, window, adaptive, checked);
              options.clock = clock ? clock->get() : nullptr;
              return checked ? wgl_evenly_spaced_rate_limiter_new(&options, made) : detail::refused;
          })) {}

    EvenlySpacedRateLimiter(const Store &store, const Text &name, std::uint64_t max_executions, Duration window,
                            bool adaptive = true)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              const wgl_evenly_spaced_rate_limiter_options options = options_of(max_executions, window, adaptive, checked);
              const char *called = checked.text("name", name);
              return checked ? wgl_evenly_spaced_rate_limiter_shared(store.get(), called, &options, made) : detail::refused;
          })) {}

private:
    static wgl_evenly_spaced_rate_limiter_options options_of(std::uint64_t max_executions, Duration window, bool adaptive,
                                                        detail::Arguments &checked) {
        wgl_evenly_spaced_rate_limiter_options options = WGL_EVENLY_SPACED_RATE_LIMITER_OPTIONS_INIT;
        options.spacing = adaptive ? WGL_SPACING_ADAPTIVE : WGL_SPACING_FIXED;
        options.max_executions = max_executions;
        options.window_ns = checked.ns("window", window);
        return options;
    }
};

/// `rate` units per period, saved up to a `burst`, by default `rate`.
class TokenBucketLimiter : public Limiter {
public:
    TokenBucketLimiter(const Store &store, const Text &name, std::uint64_t rate, Duration period,
                       std::optional<std::uint64_t> burst = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_token_bucket_limiter_options options = WGL_TOKEN_BUCKET_LIMITER_OPTIONS_INIT;
              options.rate = rate;
              options.period_ns = checked.ns("period", period);
              options.burst = checked.option("burst", burst);
              const char *called = checked.text("name", name);
              return checked ? wgl_token_bucket_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// One start at a time, period / `rate` apart; up to `queue` units wait for their turn, by default `rate`.
class LeakyBucketLimiter : public Limiter {
public:
    LeakyBucketLimiter(const Store &store, const Text &name, std::uint64_t rate, Duration period,
                       std::optional<std::uint64_t> queue = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_leaky_bucket_limiter_options options = WGL_LEAKY_BUCKET_LIMITER_OPTIONS_INIT;
              options.rate = rate;
              options.period_ns = checked.ns("period", period);
              options.queue = checked.option("queue", queue);
              const char *called = checked.text("name", name);
              return checked ? wgl_leaky_bucket_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// At most `max_executions` units in each window of the clock; twice as many across a boundary.
class FixedWindowLimiter : public Limiter {
public:
    FixedWindowLimiter(const Store &store, const Text &name, std::uint64_t max_executions, Duration window)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_fixed_window_limiter_options options = WGL_FIXED_WINDOW_LIMITER_OPTIONS_INIT;
              options.max_executions = max_executions;
              options.window_ns = checked.ns("window", window);
              const char *called = checked.text("name", name);
              return checked ? wgl_fixed_window_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// An estimate of the rolling window from two counts, for very large limits.
class SlidingWindowCounterLimiter : public Limiter {
public:
    SlidingWindowCounterLimiter(const Store &store, const Text &name, std::uint64_t max_executions,
                                Duration window)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_sliding_window_counter_limiter_options options = WGL_SLIDING_WINDOW_COUNTER_LIMITER_OPTIONS_INIT;
              options.max_executions = max_executions;
              options.window_ns = checked.ns("window", window);
              const char *called = checked.text("name", name);
              return checked ? wgl_sliding_window_counter_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// A rate in any rolling window, a number of units at the same time, or both.
class FlowControlLimiter : public Limiter {
public:
    FlowControlLimiter(const Store &store, const Text &name, std::optional<Window> rate,
                       std::optional<std::uint64_t> parallelism = std::nullopt)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              wgl_flow_control_limiter_options options = WGL_FLOW_CONTROL_LIMITER_OPTIONS_INIT;
              options.rate = rate ? checked.option("rate", std::optional(rate->max_executions)) : 0;
              options.period_ns = rate ? checked.option("period", std::optional(rate->length)) : 0;
              options.parallelism = checked.option("parallelism", parallelism);
              const char *called = checked.text("name", name);
              return checked ? wgl_flow_control_limiter_new(store.get(), called, &options, made) : detail::refused;
          })) {}
};

/// Admits everything: for where no limit is wanted.
class NullLimiter : public Limiter {
public:
    NullLimiter() : Limiter(make(wgl_null_limiter_new)) {}
};

/// Admits what all of its children admit; without children it admits everything.
class CompositeLimiter : public Limiter {
public:
    CompositeLimiter(std::initializer_list<Limiter> children = {}) : Limiter(make(wgl_composite_limiter_new)) {
        for (const Limiter &child : children)
            add(child);
    }

    /// Adds a child, at any time. Permits that are not ended yet end against the children that they came from.
    void add(const Limiter &child) const { detail::ok(wgl_composite_limiter_add(get(), child.get())); }

    /// Adds a child as a part with a name of its own, by which joint starts charge it.
    void add(const Text &name, const Limiter &child) const {
        detail::Arguments checked;
        const char *called = checked.text("name", name);
        detail::ok(checked ? wgl_composite_limiter_add_named(get(), called, child.get()) : detail::refused);
    }
};

/// Admits what one of its alternatives admits: the first of them, in their order, that can start now. Exactly one is charged:
/// Permit::chosen says which. See wgl_first_of_limiter_new.
class FirstOfLimiter : public Limiter {
public:
    FirstOfLimiter(std::initializer_list<Limiter> alternatives) : Limiter(make(wgl_first_of_limiter_new)) {
        for (const Limiter &alternative : alternatives)
            add(alternative);
    }

    /// Adds an alternative, as the last one.
    void add(const Limiter &alternative) const { detail::ok(wgl_first_of_limiter_add(get(), alternative.get())); }
};

/// A custom limiter: derive from it, and pass it to a CustomLimiter. See wgl_custom_limiter_table. Any threads may call it,
/// several at once. An exception is a failure: the caller gets WGL_CUSTOM_FAILURE with its what(), and nothing is charged.
class Custom {
public:
    /// Admitted, with a number for `end`; or denied, for `retry_after`.
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
    /// Returns what decide would return. Records nothing.
    virtual Verdict peek(std::string_view key, std::uint64_t weight) = 0;
    /// Ends the start for which decide returned that number; `actual` is 0 unless it was settled.
    virtual void end(std::uint64_t, End, std::uint64_t) {}
    /// Sets a gate: no start for that long; of all keys without a key.
    virtual void pause(Duration, std::string_view) {}
    virtual void clear(std::string_view) {}
    virtual void record_job_start(std::string_view) {}
    virtual void record_job_completion(std::string_view) {}
};

/// A limiter of a Custom, which it shares. Composites take it as a child.
class CustomLimiter : public Limiter {
public:
    CustomLimiter(const Text &name, std::shared_ptr<Custom> custom)
        : Limiter(make([&](wgl_limiter **made) {
              detail::Arguments checked;
              if (custom == nullptr)
                  checked.refuse(detail::invalid("custom", "null", "a limiter"));
              auto context = std::make_unique<std::shared_ptr<Custom>>(std::move(custom));
              wgl_custom_limiter_table table = WGL_CUSTOM_LIMITER_TABLE_INIT;
              table.context = context.get();
              table.name = checked.text("name", name);
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
              table.pause = [](void *self, std::uint64_t ns, const char *key, std::size_t length) {
                  return guard([&] { return of(self).pause(detail::duration(ns), {key, length}), WGL_OK; });
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
              const int status = checked ? wgl_custom_limiter_new(&table, made) : detail::refused;
              if (status == WGL_OK)
                  context.release();
              return status;
          })) {}

private:
    static Custom &of(void *self) { return **static_cast<std::shared_ptr<Custom> *>(self); }

    static int status(const Custom::Verdict &verdict, std::uint64_t *retry_after_ns) {
        if (verdict.admitted)
            return WGL_OK;
        detail::Arguments checked;
        *retry_after_ns = checked.ns("retry_after", verdict.retry_after);
        return checked ? WGL_DENIED : WGL_CUSTOM_FAILURE;
    }

    /// Keeps exceptions out of the C library: detail::ok gets their text.
    template <class Call> static int guard(Call call) noexcept {
#ifdef __cpp_exceptions
        try {
            return call();
        } catch (const std::exception &exception) {
            detail::thrown() = exception.what();
        } catch (...) {
            detail::thrown() = "an exception that is no std::exception";
        }
        return WGL_CUSTOM_FAILURE;
#else
        return call();
#endif
    }
};

/// The version of the library that is loaded.
inline std::string_view version() noexcept {
    return wgl_version();
}

/// The version of the library that is loaded, as WGL_VERSION_NUMBER is that of the header.
inline int version_number() noexcept {
    return wgl_version_number();
}

} // namespace WORKGLOW_LIMIT_NAMESPACE
} // namespace workglow

#undef WORKGLOW_LIMIT_NAMESPACE

#endif // WORKGLOW_LIMIT_HPP
