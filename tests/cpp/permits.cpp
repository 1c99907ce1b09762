// Permits end with their scope, also after an exception; places start once or are returned. On memory: and sqlite:.
#include "check.hpp"
#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>

using namespace workglow;

static_assert(!std::is_copy_constructible_v<Permit> && !std::is_copy_assignable_v<Permit>);
static_assert(std::is_nothrow_move_constructible_v<Permit> && std::is_nothrow_move_assignable_v<Permit>);
static_assert(!std::is_copy_constructible_v<Place> && std::is_nothrow_move_constructible_v<Place>);
static_assert(std::is_nothrow_destructible_v<Permit> && std::is_nothrow_destructible_v<Place>);
static_assert(std::is_copy_constructible_v<Limiter> && std::is_copy_constructible_v<Store>);

static std::uint64_t running(const Limiter &jobs) {
    const Decision seen = jobs.peek("", 0);
    return seen.limit - seen.remaining;
}

static void scopes(const Limiter &jobs) {
    {
        const auto permit = jobs.try_acquire();
        CHECK(permit.has_value() && running(jobs) == 1, "in its scope");
    }
    CHECK(running(jobs) == 0, "after its scope");
    try {
        const auto permit = jobs.acquire(1s);
        throw std::runtime_error("the job failed");
    } catch (const std::runtime_error &) {
        CHECK(running(jobs) == 0, "after an exception");
    }
    const auto returned = [&] { return jobs.try_acquire("", 2); }();
    CHECK(returned && running(jobs) == 2, "returned by a function");
}

static void moves(const Limiter &jobs) {
    std::optional<Permit> first = jobs.try_acquire(), second = jobs.try_acquire();
    CHECK(running(jobs) == 2, "two");
    *first = std::move(*second);
    CHECK(running(jobs) == 1 && *first && !*second, "the overwritten permit completes");
    Permit moved(std::move(*first));
    CHECK(running(jobs) == 1 && moved && !*first, "a move is no end");

    // An empty permit has no start to end, and no properties to read.
    first->complete();
    first->cancel();
    first->settle(1);
    CHECK(running(jobs) == 1, "a permit that was moved from");
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", first->renew());
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", first->fence());
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", first->to_text());
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", first->ready_at());
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", first->ready_at_monotonic());

    Permit &itself = moved;
    moved = std::move(itself);
    CHECK(moved && running(jobs) == 1, "a move to itself");
    moved.complete();
    moved.complete();
    moved.cancel();
    CHECK(!moved && running(jobs) == 0, "ended once");
}

// A permit keeps its limiter, and that its store.
static void lifetimes(const Bench &bench) {
    std::optional<Permit> permit;
    {
        const ConcurrencyLimiter jobs(bench.open(), "lifetimes", 1);
        permit = jobs.try_acquire();
    }
    permit->renew();
    permit->complete();
    permit = ConcurrencyLimiter(1).try_acquire();
    permit.reset();
    CHECK(bench.store.limiter("lifetimes of a name", "2/1s").try_acquire().has_value(), "a temporary limiter");
}

static void ends(const Bench &bench) {
    const RateLimiter rate(bench.store, "ends", 5, 1s);
    auto left = [&] { return rate.peek("", 0).remaining; };
    { const auto permit = rate.try_acquire("", 2); }
    CHECK(left() == 3, "a rate counts what ran");
    rate.try_acquire("", 3)->cancel();
    CHECK(left() == 3, "and not what did not");
    rate.try_acquire("", 3)->settle(1);
    CHECK(left() == 2, "settled");
    CHECK(!rate.try_acquire("", 2)->fence(), "no lease");

    const ConcurrencyLimiter leases(bench.store, "leases", 1, 1s);
    auto lease = leases.try_acquire();
    const auto fence = lease->fence();
    CHECK(fence.has_value(), "a lease has a number");
    bench.clock.advance(900ms);
    lease->renew();
    bench.clock.advance(900ms);
    CHECK(!leases.try_acquire(), "renewed");
    bench.clock.advance(200ms);
    const auto next = leases.try_acquire();
    CHECK(next && next->fence() > fence, "the next one's is larger");
    THROWS(WGL_LEASE_LOST, "leases", lease->renew());
    lease.reset();
    CHECK(!leases.try_acquire(), "the end of a lost lease does not affect another");
    THROWS(WGL_UNSUPPORTED, "", leases.try_acquire("settled")->settle(1));
    CHECK(leases.try_acquire("settled").has_value(), "it completed all the same");
}

static void places(const Bench &bench) {
    const RateLimiter rate(bench.store, "places", 1, 1s);
    auto waiting = [&] { return rate.peek().retry_after > 1500ms; };
    const auto running = rate.try_acquire();
    CHECK(!running->ready_at(), "it did not wait");
    {
        const auto place = rate.reserve();
        CHECK(place && place->wait() > 900ms && place->ready_at() && place->ready_at_monotonic() && waiting(), "taken");
    }
    CHECK(!waiting(), "a place that is dropped is given back");
    CHECK(!rate.reserve("", 1, 10ms), "too far away");

    std::optional<Place> place = rate.reserve();
    CHECK(!rate.present(*place) && *place && place->wait() > 0s, "too early");
    bench.clock.advance(1s);
    const auto started = rate.present(*place);
    CHECK(started && *started && !*place && started->ready_at(), "in time");
    THROWS(WGL_INVALID_ARGUMENT, "ended or moved from", rate.present(*place));

    // As a text, through another handle.
    std::string text;
    Duration wait;
    {
        auto leaves = rate.reserve("", 1, 10s, 100ms);
        text = leaves->to_text();
        wait = leaves->wait();
    }
    CHECK(waiting(), "a place that was written as a text is not returned here");
    const Limiter other = (bench.url == "memory:" ? bench.store : bench.open()).limiter("places");
    { const Place seen = other.place(text); }
    CHECK(waiting(), "reading its text does not return it either");
    bench.clock.advance(wait);
    Place arrived = other.place(text), again = rate.place(text);
    CHECK(other.present(arrived).has_value() && !arrived, "it starts");
    Place copy = rate.place(text);
    copy.cancel();
    CHECK(!copy && !rate.can_proceed(), "a start made elsewhere is not undone");
    CHECK(!rate.present(again) && again && again.wait() > 0s, "once");
    CHECK(!rate.acquire(again, 0s) && !again && !waiting(), "a wait that is too long returns the new place");

    Place third = *rate.reserve();
    CHECK(waiting(), "a third place");
    third = *rate.reserve("another key");
    CHECK(!waiting() && third.wait() == 0s, "an assignment returns the overwritten place");
    bench.clock.advance(2s);
    Place now = *rate.reserve();
    const auto at_once = rate.acquire(now, 1s);
    CHECK(at_once && !now, "a place that is ready");
    std::string permit_text = rate.try_acquire("text")->to_text();
    Permit from_text = rate.permit(permit_text);
    from_text.cancel();
    CHECK(rate.try_acquire("text").has_value(), "a permit of a text");
    THROWS(WGL_INVALID_ARGUMENT, "\"\"", rate.place(""));
    THROWS(WGL_INVALID_ARGUMENT, "nonsense", rate.place("nonsense"));
    const RateLimiter another(bench.store, "another", 1, 1s);
    THROWS(WGL_FOREIGN_PERMIT, "another", another.place(text));
    THROWS(WGL_UNSUPPORTED, "", ConcurrencyLimiter(1).reserve());
}

// A composite's place names the places of its children, and may be longer than WGL_PERMIT_TEXT_MAX.
static void places_of_composites(const Bench &bench) {
    const RateLimiter first(bench.store, "first child", 1, 1s), second(bench.store, "second child", 1, 2s);
    const CompositeLimiter both{first, second};
    const std::string key(300, 'k');
    const auto running = both.try_acquire(key);
    std::optional<Place> place = both.reserve(key);
    const Duration wait = place->wait();
    const std::string text = place->to_text();
    place.reset();
    CHECK(text.size() > WGL_PERMIT_TEXT_MAX && wait > 1900ms, text);
    Place arrived = both.place(text);
    CHECK(!both.present(arrived) && arrived, "too early");
    bench.clock.advance(wait);
    CHECK(both.present(arrived).has_value() && !arrived, "in time");
}

// Waits that are driven from outside, and how long to stay away after one that ended without a start.
static void waiters(const Bench &bench) {
    const RateLimiter rate(bench.store, "waiters", 1, 1s);
    const auto first = rate.try_acquire();
    Duration retry_after{};
    CHECK(!rate.acquire({}, 1, 10ms, &retry_after) && retry_after > 10ms, "it returns when to try again");
    {
        Waiter hasty = rate.waiter({}, 1, 10ms);
        CHECK(!hasty.step() && !hasty.waiting() && hasty.wait() > 10ms, "known at once");
        THROWS(WGL_INVALID_ARGUMENT, "over", (void)hasty.step());
    }
    Waiter late = rate.waiter({}, 1, 1);
    CHECK(!late.step() && late.waiting() && late.wait() > 0ms, "it waits");
    Waiter soon = rate.waiter();
    CHECK(!soon.step() && soon.waiting(), "it waits");
    std::optional<Place> place = rate.reserve();
    Waiter placed = rate.waiter(*place);
    CHECK(!placed.step() && placed.waiting(), "it waits for its place");
}

// A step 300 ms late, with another waiter behind it.
static bool starts_late(const Bench &bench, const char *name, Duration grace) {
    const RateLimiter rate(bench.store, name, 1, 1s);
    const auto first = rate.try_acquire();
    Waiter waiter = rate.waiter({}, 1, 0, forever, grace);
    CHECK(!waiter.step(), "it waits");
    const std::optional<Place> behind = rate.reserve();
    bench.clock.advance(1300ms);
    std::optional<Permit> permit;
    do
        permit = waiter.step();
    while (waiter.waiting() && waiter.wait() == 0ns);
    return permit.has_value();
}

// In a child, the parent's permits and places are left alone, and its own are ended.
static void forks(const Bench &bench) {
    const ConcurrencyLimiter jobs(bench.store, "forks", 2);
    const RateLimiter rate(bench.store, "forks of a rate", 1, 1s);
    std::optional<Permit> permit = jobs.try_acquire();
    const auto first = rate.try_acquire();
    std::optional<Place> place = rate.reserve();
    const pid_t child = fork();
    if (child == 0) {
        permit.reset();
        place.reset();
        { const auto own = jobs.try_acquire(); }
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, std::to_string(status));
    CHECK(running(jobs) == 1 && rate.peek().retry_after > 1500ms, "the parent keeps permits dropped in the child");
    permit.reset();
    place.reset();
    CHECK(running(jobs) == 0 && rate.peek().retry_after < 1500ms, "and ended by it");
}

static void threads(const std::string &url) {
    const ConcurrencyLimiter jobs(Store(url), "threads", 3);
    std::vector<std::thread> threads;
    std::atomic<int> now = 0, most = 0, done = 0;
    for (int t = 0; t < 6; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < 50; i++) {
                const auto permit = jobs.acquire();
                for (int seen = ++now, known = most; seen > known && !most.compare_exchange_weak(known, seen);) {
                }
                std::this_thread::yield();
                --now;
                ++done;
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(done == 300 && most <= 3, std::to_string(most));
    CHECK(running(jobs) == 0, "all have ended");
}

int main() {
    return run("permits", [](const char *scheme, const Directory &dir) {
        const Bench bench(scheme, dir);
        const ConcurrencyLimiter jobs(bench.store, "jobs", 3);
        scopes(jobs);
        moves(jobs);
        scopes(ConcurrencyLimiter(3));
        lifetimes(bench);
        ends(bench);
        places(bench);
        places_of_composites(bench);
        waiters(bench);
        CHECK(!starts_late(bench, "late", 0s) && starts_late(bench, "late, with grace", 500ms), "its place is kept");
        forks(bench);
        threads(scheme == std::string("sqlite:") ? "sqlite:" + dir / "threads.db" : scheme);
    });
}
