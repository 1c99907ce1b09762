// Arguments out of range, of another kind or missing: an exception with the code and the message, and nothing created.
#include "check.hpp"
#include <cmath>
#include <fstream>

using namespace workglow;

static void stores(const Directory &dir) {
    THROWS(WGL_INVALID_URL, "redis-but-wrong", Store("redis-but-wrong:"));
    THROWS(WGL_INVALID_ARGUMENT, "url is a text with a NUL", Store(std::string("memory:\0x", 9)));
    THROWS(WGL_STORE_FAILURE, "nowhere", Store("sqlite:" + dir / "nowhere/limits.db"));
    StoreOptions options;
    options.timeout = -1ns;
    THROWS(WGL_INVALID_ARGUMENT, "timeout is -1 ns", Store("memory:", options));
    options.timeout = 0s;
    THROWS(WGL_INVALID_ARGUMENT, "timeout is 0", Store("memory:", options));
    options.timeout = 1s;
    options.mode = 0;
    THROWS(WGL_INVALID_ARGUMENT, "mode is 0", Store("memory:", options));
    options.mode = 07777;
    THROWS(WGL_INVALID_ARGUMENT, "mode is ", Store("sqlite:" + dir / "mode.db", options));
    options.mode = 0600;
    options.on_error = static_cast<OnError>(9);
    THROWS(WGL_INVALID_ARGUMENT, "on_error is 9", Store("memory:", options));
    options.on_error = OnError::deny;
    options.durability = static_cast<Durability>(9);
    THROWS(WGL_INVALID_ARGUMENT, "durability is 9", Store("memory:", options));
    options.durability = Durability::budget;
    options.max_size = 5;
    THROWS(WGL_INVALID_ARGUMENT, "max_size is 5", Store("memory:", options));
    options.max_size = std::nullopt;
    THROWS(WGL_INVALID_ARGUMENT, "by is -1 ns", ManualClock().advance(-1ns));
    THROWS(WGL_INVALID_URL, "nonsense", Store::verify("nonsense:"));
    CHECK(Store::verify("memory:", {}, true).empty(), "nothing is wrong in memory");
    const std::string path = dir / "verified.db";
    (void)RateLimiter(Store("sqlite:" + path), "limit", 5, 1h).decide("key");
    CHECK(Store::verify("sqlite:" + path).empty(), "nothing is wrong");
    std::ofstream(path + "-lane") << "no lane, and too short for one";
    CHECK(Store::verify("sqlite:" + path).at(0).rfind("the lane: ", 0) == 0, "a damaged lane");
    CHECK(Store::verify("sqlite:" + path, {}, true).at(0).rfind("repaired: the lane: ", 0) == 0, "it is repaired");
    CHECK(Store::verify("sqlite:" + path).empty(), "nothing is wrong after the repair");
}

static void closed(const std::string &url) {
    const Store store(url), copy = store;
    const auto limiter = store.limiter("closed", "1 concurrent");
    auto permit = limiter.try_acquire();
    store.close();
    THROWS(WGL_STORE_CLOSED, "make another store", limiter.try_acquire());
    THROWS(WGL_STORE_CLOSED, "make another store", limiter.acquire());
    THROWS(WGL_STORE_CLOSED, "make another store", copy.names());
    permit->complete();
    copy.close();
}

static void names(const Store &store) {
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", store.limiter("nothing"));
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", store.override("nothing", "1/1s"));
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", store.lift("nothing"));
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", store.override("nothing", "1/1s", "tenant"));
    THROWS(WGL_INVALID_ARGUMENT, "key is empty", store.override("rate", "1/1s", ""));
    THROWS(WGL_INVALID_ARGUMENT, "key is empty", store.lift("rate", ""));
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", store.share("nothing", "tenant", 3));
    THROWS(WGL_INVALID_ARGUMENT, "often", store.limiter("limit", "often"));
    THROWS(WGL_INVALID_ARGUMENT, "policy is a text with a NUL", store.limiter("limit", std::string("1/1s\0", 5)));
    THROWS(WGL_INVALID_ARGUMENT, "name is a text with a NUL", RateLimiter(store, std::string("a\0b", 3), 1, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "name is empty", RateLimiter(store, "", 1, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "nowhere.toml", store.load("nowhere.toml"));
    const RateLimiter rate(store, "rate", 1, 1s);
    THROWS(WGL_KIND_MISMATCH, "rate", ConcurrencyLimiter(store, "rate", 1));
    THROWS(WGL_KIND_MISMATCH, "rate", store.override("rate", "1 concurrent"));
}

static void numbers(const Store &store) {
    THROWS(WGL_INVALID_ARGUMENT, "max_executions is 0", RateLimiter(store, "n", 0, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "window is 0", RateLimiter(store, "n", 1, 0s));
    THROWS(WGL_INVALID_ARGUMENT, "window is -1000000000 ns", RateLimiter(store, "n", 1, -1s));
    THROWS(WGL_INVALID_ARGUMENT, "window", RateLimiter(store, "n", 1, forever));
    THROWS(WGL_INVALID_ARGUMENT, "windows is empty", RateLimiter(store, "n", std::vector<Window>{}));
    THROWS(WGL_INVALID_ARGUMENT, "window_count is 5", RateLimiter(store, "n", std::vector<Window>(5, Window{1, 1s})));
    for (double multiplier : {0.0, 1.0, -2.0, std::nan("")})
        THROWS(WGL_INVALID_ARGUMENT, "multiplier is ", RateLimiter(store, "n", 1, 1s, Backoff{1s, multiplier}));
    THROWS(WGL_INVALID_ARGUMENT, "multiplier is 1001", RateLimiter(store, "n", 1, 1s, Backoff{1s, 1001}));
    THROWS(WGL_INVALID_ARGUMENT, "initial_delay is 0", RateLimiter(store, "n", 1, 1s, Backoff{0s}));
    THROWS(WGL_INVALID_ARGUMENT, "max_delay is 0", RateLimiter(store, "n", 1, 1s, Backoff{1s, 2, 0s}));
    THROWS(WGL_INVALID_ARGUMENT, "jitter is 4", RateLimiter(store, "n", 1, 1s, Backoff{1s, 2, 1min, static_cast<Jitter>(4)}));
    THROWS(WGL_INVALID_ARGUMENT, "max_concurrent_jobs is 0", ConcurrencyLimiter(0));
    THROWS(WGL_INVALID_ARGUMENT, "max_concurrent_jobs is 65536", ConcurrencyLimiter(store, "n", 65536));
    THROWS(WGL_INVALID_ARGUMENT, "lease is 0", ConcurrencyLimiter(store, "n", 1, 0s));
    THROWS(WGL_INVALID_ARGUMENT, "lease is -1", ConcurrencyLimiter(store, "n", 1, -1ns));
    THROWS(WGL_INVALID_ARGUMENT, "delay is ", DelayLimiter(0s));
    THROWS(WGL_INVALID_ARGUMENT, "delay is -5 ns", DelayLimiter(store, "n", -5ns));
    THROWS(WGL_INVALID_ARGUMENT, "max_executions is 0", EvenlySpacedRateLimiter(0, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "max_executions is 4097", EvenlySpacedRateLimiter(store, "n", 4097, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "rate is 0", TokenBucketLimiter(store, "n", 0, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "burst is 0", TokenBucketLimiter(store, "n", 1, 1s, 0));
    THROWS(WGL_INVALID_ARGUMENT, "rate is 0", LeakyBucketLimiter(store, "n", 0, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "queue is 0", LeakyBucketLimiter(store, "n", 1, 1s, 0));
    THROWS(WGL_INVALID_ARGUMENT, "max_executions is 0", FixedWindowLimiter(store, "n", 0, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "window is ", SlidingWindowCounterLimiter(store, "n", 1, 400h * 24));
    THROWS(WGL_INVALID_ARGUMENT, "rate is missing", FlowControlLimiter(store, "n", std::nullopt));
    THROWS(WGL_INVALID_ARGUMENT, "rate is 0", FlowControlLimiter(store, "n", Window{0, 1s}));
    THROWS(WGL_INVALID_ARGUMENT, "period is 0", FlowControlLimiter(store, "n", Window{1, 0s}, 1));
    THROWS(WGL_INVALID_ARGUMENT, "parallelism is 0", FlowControlLimiter(store, "n", Window{1, 1s}, 0));
    THROWS(WGL_UNKNOWN_LIMIT, "n", store.limiter("n"));
}

static void calls(const Store &store) {
    const RateLimiter limiter(store, "calls", 2, 1min);
    THROWS(WGL_INVALID_ARGUMENT, "weight is 0", limiter.try_acquire("", 0));
    THROWS(WGL_WEIGHT_EXCEEDS_CAPACITY, "calls", limiter.try_acquire("", 3));
    THROWS(WGL_WEIGHT_EXCEEDS_CAPACITY, "calls", limiter.acquire("", 3, 1s));
    THROWS(WGL_INVALID_ARGUMENT, "key is not UTF-8", limiter.decide("\xff"));
    THROWS(WGL_INVALID_ARGUMENT, "1025 bytes", limiter.peek(std::string(1025, 'k')));
    THROWS(WGL_INVALID_ARGUMENT, "timeout is -1 ns", limiter.acquire(-1ns));
    THROWS(WGL_INVALID_ARGUMENT, "grace is -1 ns", limiter.acquire("", 1, 0, 1s, -1ns));
    THROWS(WGL_INVALID_ARGUMENT, "grace is ", limiter.acquire("", 1, 0, 1s, 400h * 24));
    THROWS(WGL_INVALID_ARGUMENT, "grace is -1 ns", limiter.waiter("", 1, 0, 1s, -1ns));
    THROWS(WGL_INVALID_ARGUMENT, "share is 0", limiter.acquire("", 1, 0, 1s, 0s, 0));
    THROWS(WGL_INVALID_ARGUMENT, "share is 0", limiter.waiter("", 1, 0, 1s, 0s, 0));
    THROWS(WGL_INVALID_ARGUMENT, "max_wait is -1 ns", limiter.reserve("", 1, -1ns));
    THROWS(WGL_INVALID_ARGUMENT, "grace is -1 ns", limiter.reserve("", 1, 1s, -1ns));
    THROWS(WGL_INVALID_ARGUMENT, "duration is -1 ns", limiter.pause(-1ns));
    THROWS(WGL_INVALID_ARGUMENT, "366 days", limiter.set_next_available_time(std::chrono::system_clock::now() + 400h * 24));
    CHECK(limiter.peek("", 0).remaining == 2, "a refused call took units");
    const std::string key("a\0b", 3);
    CHECK(limiter.try_acquire(key).has_value() && limiter.peek(key).remaining == 1 && limiter.peek("a").remaining == 2,
          "a NUL is a character of a key");
    limiter.set_next_available_time(std::chrono::system_clock::now() + 30s, "gated");
    CHECK(!limiter.can_proceed("gated") && limiter.can_proceed("open"), "a gate of a key");
    try {
        (void)store.limiter("nothing");
    } catch (const std::runtime_error &error) {
        CHECK(std::string(error.what()).find("calls") != std::string::npos, "it names the known");
    }
}

int main() {
    return run("errors", [](const char *scheme, const Directory &dir) {
        const Bench bench(scheme, dir);
        stores(dir);
        names(bench.store);
        closed("memory:");
        closed("sqlite:" + dir / "closed.db");
        numbers(bench.store);
        calls(bench.store);
    });
}
