// The header without exceptions: calls return, and take_error() has the error.
#include <cstdio>
#include <workglow_limit.hpp>

using namespace workglow;
using namespace std::chrono_literals;

static int passed, failed;

static void check(bool condition, const char *what) {
    (condition ? passed : failed)++;
    if (!condition)
        std::fprintf(stderr, "%s\n", what);
}

/// The last error must have this code, and its message this text; there is only one.
static void error(int code, const char *text) {
    const std::optional<Error> error = take_error();
    check(error && error->code() == code && std::string(error->what()).find(text) != std::string::npos,
          error ? error->what() : text);
    check(!take_error(), "an error was returned twice");
}

struct Broken : Custom {
    Verdict decide(std::string_view, std::uint64_t) override { return {false, 0, -1ns}; }
    Verdict peek(std::string_view, std::uint64_t) override { return {true}; }
};

int main() {
    const Store store("memory:"), none("nonsense:");
    check(store && !none, "a store that did not open");
    error(WGL_INVALID_URL, "nonsense");
    const RateLimiter calls(store, "calls", 2, 60s);
    {
        auto permit = calls.try_acquire("a");
        check(permit && calls.peek("a").remaining == 1 && !calls.try_acquire("a", 3), "decisions");
        error(WGL_WEIGHT_EXCEEDS_CAPACITY, "calls");
        permit->cancel();
        check(!*permit && permit->to_text().empty(), "an ended permit has no text");
        error(WGL_INVALID_ARGUMENT, "permit is ended");
        permit->renew();
        error(WGL_INVALID_ARGUMENT, "permit is ended");
    }
    check(calls.peek("a").remaining == 2 && !take_error(), "cancelled");

    check(!calls.acquire("a", 1, -1ns), "a negative timeout");
    error(WGL_INVALID_ARGUMENT, "timeout is -1 ns");
    check(!calls.reserve("a", 1, 1s, -1ns) && !calls.waiter("a", 1, 0, 1s, -1ns).waiting(), "a negative grace");
    error(WGL_INVALID_ARGUMENT, "grace is -1 ns");
    calls.pause(-1ns, "a");
    error(WGL_INVALID_ARGUMENT, "duration is -1 ns");
    check(calls.can_proceed("a"), "a refused call has no effect");
    check(!calls.place("no text") && !calls.permit("no text"), "texts");
    error(WGL_INVALID_ARGUMENT, "no text");

    // Objects that a failed constructor left empty.
    const RateLimiter lost(none, "lost", 2, 60s), bad(store, "bad", 2, -1ns);
    check(!lost && !bad, "limiters that were not made");
    error(WGL_INVALID_ARGUMENT, "window is -1 ns");
    check(!lost.try_acquire() && !lost.decide() && lost.name().empty() && none.url().empty(), "calls on them");
    error(WGL_INVALID_ARGUMENT, "limiter is NULL");
    check(none.names().empty(), "a store's names");
    error(WGL_INVALID_ARGUMENT, "store is NULL");
    check(store.line("calls", "a").waiting.empty() && !take_error(), "nobody waits");
    check(store.line("unknown").waiting.empty(), "an unknown name");
    error(WGL_UNKNOWN_LIMIT, "unknown");
    check(!store.limiter(std::string("a\0b", 3)), "a name with a NUL");
    error(WGL_INVALID_ARGUMENT, "NUL");
    check(!store.limiter("unknown"), "an unknown name");
    error(WGL_UNKNOWN_LIMIT, "unknown");
    check(!CustomLimiter("custom", nullptr), "no custom limiter");
    error(WGL_INVALID_ARGUMENT, "custom is null");
    check(!CustomLimiter("custom", std::make_shared<Broken>()).try_acquire(), "a broken custom limiter");
    error(WGL_CUSTOM_FAILURE, "custom_failure");
    std::printf("cpp without exceptions: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
