// Every limiter: made, attached, full, given back, gated, cleared. On memory: and sqlite:, by a manual clock.
#include "check.hpp"
#include <functional>

using namespace workglow;

// The starts that are admitted at once, and the limit that denies.
static void is_a_limit(const Bench &bench, const Limiter &limiter, const Limiter &same, std::uint64_t starts,
                       const std::string &denied_by) {
    std::vector<Permit> permits;
    while (permits.size() < 20) {
        std::optional<Permit> permit = (permits.size() % 2 == 0 ? limiter : same).try_acquire("k");
        if (!permit)
            break;
        permits.push_back(std::move(*permit));
    }
    CHECK(permits.size() == starts, denied_by + ": " + std::to_string(permits.size()));
    const Decision denial = same.decide("k");
    CHECK(!denial && !denial.admitted && !denial.permit, denied_by);
    CHECK(denial.denied_by == denied_by, denial.denied_by.value_or("no limit"));
    CHECK(denial.retry_after > 0s && denial.suggested_after >= denial.retry_after && denial.remaining == 0, denied_by);
    CHECK(!same.acquire("k", 1, 0s), denied_by);
    CHECK(limiter.can_proceed("other"), denied_by);
    CHECK(limiter.peek("other").admitted && !limiter.peek("other").permit, denied_by);

    permits.back().cancel();
    CHECK(!permits.back(), "a permit that was cancelled");
    CHECK(same.peek("k").admitted, denied_by + " after a cancel");
    Decision decision = same.decide("k");
    CHECK(decision && decision.permit && *decision.permit && !decision.denied_by, denied_by);
    const Stats counts = limiter.stats("k");
    CHECK(counts.admitted >= starts && counts.denied >= 1 && counts.cancelled == 1 && counts.store_errors == 0,
          denied_by + ": " + std::to_string(counts.admitted) + " admitted, " + std::to_string(counts.denied) + " denied, " +
              std::to_string(counts.cancelled) + " cancelled");
    permits.clear();
    decision.permit.reset();

    bench.clock.advance(5s);
    CHECK(limiter.can_proceed("k"), denied_by);
    limiter.pause(1s);
    CHECK(!same.can_proceed("k") && same.get_next_available_time("k") > limiter.get_next_available_time("k") - 1s, denied_by);
    CHECK(same.peek("k").retry_after == 1s, denied_by);
    same.clear();
    CHECK(limiter.can_proceed("k"), denied_by + " after a clear");

    limiter.record_job_start("k");
    same.record_job_completion("k");
}

static void are_shared(const Bench &bench) {
    const Store &store = bench.store;
    const std::pair<const char *, std::function<Limiter(const std::string &)>> kinds[] = {
        {"2 rate", [&](auto &name) { return RateLimiter(store, name, 2, 1s); }},
        {"2 windows", [&](auto &name) { return RateLimiter(store, name, {{2, 1s}, {100, 1min}}, Backoff{}); }},
        {"3 concurrency", [&](auto &name) { return ConcurrencyLimiter(store, name, 3); }},
        {"3 leases", [&](auto &name) { return ConcurrencyLimiter(store, name, 3, 1min); }},
        {"1 delay", [&](auto &name) { return DelayLimiter(store, name, 100ms); }},
        {"1 spaced", [&](auto &name) { return EvenlySpacedRateLimiter(store, name, 4, 1s); }},
        {"1 strict", [&](auto &name) { return EvenlySpacedRateLimiter(store, name, 4, 1s, false); }},
        {"2 tokens", [&](auto &name) { return TokenBucketLimiter(store, name, 2, 1s); }},
        {"5 burst", [&](auto &name) { return TokenBucketLimiter(store, name, 2, 1s, 5); }},
        {"1 leaky", [&](auto &name) { return LeakyBucketLimiter(store, name, 2, 1s, 3); }},
        {"2 fixed", [&](auto &name) { return FixedWindowLimiter(store, name, 2, 1s); }},
        {"2 counter", [&](auto &name) { return SlidingWindowCounterLimiter(store, name, 2, 1s); }},
        {"2 text", [&](auto &name) { return store.limiter(name, "2/1s"); }},
        {"3 flow", [&](auto &name) { return FlowControlLimiter(store, name, std::nullopt, 3); }},
    };
    for (const auto &[name, make] : kinds) {
        const Limiter limiter = make(name);
        is_a_limit(bench, limiter, store.limiter(name), std::strtoull(name, nullptr, 10), name);
    }
    const Limiter texts = store.limiter("texts", "100/1m + 3/1s + 2 concurrent");
    is_a_limit(bench, texts, store.limiter("texts"), 2, "texts/concurrency");
    const FlowControlLimiter flow(store, "both", Window{2, 1s}, 3);
    is_a_limit(bench, flow, store.limiter("both"), 2, "both/rate");
}

static void of_this_process(const Bench &bench) {
    const ConcurrencyLimiter jobs(2, bench.clock);
    is_a_limit(bench, jobs, jobs, 2, "2 concurrent");
    const DelayLimiter delay(100ms, bench.clock);
    is_a_limit(bench, delay, delay, 1, "delay 100ms");
    const EvenlySpacedRateLimiter spaced(4, 1s, true, bench.clock);
    is_a_limit(bench, spaced, spaced, 1, "4/1s spaced");
    const NullLimiter null;
    CHECK(null.try_acquire("k", 1000).has_value() && null.peek().limit == UINT64_MAX, "no limit");
}

static void composites(const Bench &bench) {
    const RateLimiter rate(bench.store, "child rate", 3, 1s);
    const ConcurrencyLimiter jobs(2, bench.clock);
    const CompositeLimiter both{rate, jobs};
    is_a_limit(bench, both, both, 2, "2 concurrent");
    THROWS(WGL_WEIGHT_EXCEEDS_CAPACITY, "2 concurrent", both.try_acquire("", 3));
    const CompositeLimiter none;
    CHECK(none.try_acquire().has_value(), "an empty composite admits");
    none.add(both);
    none.add(NullLimiter());
    auto first = none.try_acquire("x"), second = none.try_acquire("x"), third = none.try_acquire("x");
    CHECK(first && second && !third, "a composite in a composite");
    THROWS(WGL_INVALID_ARGUMENT, "contains this one", both.add(none));
}

static void alternatives(const Bench &bench) {
    const RateLimiter one(bench.store, "one", 1, 1s), two(bench.store, "two", 2, 1s);
    const FirstOfLimiter either{one, two};
    auto first = either.try_acquire(), second = either.try_acquire();
    CHECK(first && first->chosen()->index == 0 && first->chosen()->name == "one", "the first of them");
    CHECK(second && second->chosen()->index == 1 && second->chosen()->name == "two", "the next one");
    CHECK(!one.try_acquire() && !one.decide().permit, "the first is used up");
    either.add(RateLimiter(bench.store, "three", 9, 1s));
    CHECK(either.try_acquire("", 5)->chosen()->index == 2, "the others are too small");
    THROWS(WGL_INVALID_ARGUMENT, "contains this one", either.add(either));
    CHECK(!two.try_acquire("key")->chosen(), "a limit has no alternatives");
}

static void joint_starts(const Bench &bench) {
    const Limiter llm = bench.store.limiter("llm", "requests: 5/1s + tokens: 100/1s + tenant: 2/1s");
    CHECK(llm.part_names() == (std::vector<std::string>{"requests", "tokens", "tenant"}), "the parts of a text");
    const JointKey call = llm.joint({}, {{"tokens", std::nullopt, 60}, {"tenant", "acme"}});
    const auto left = [&](const char *part, const char *key) { return bench.store.limiter(part).peek(key).remaining; };
    {
        auto permit = llm.acquire(call, 1, 0s);
        CHECK(permit.has_value(), "a joint start");
        CHECK(left("llm/requests", "") == 4 && left("llm/tokens", "") == 40 && left("llm/tenant", "acme") == 1, "charged");
        CHECK(left("llm/tenant", "") == 2, "another tenant");
        const Decision denial = llm.decide(call);
        CHECK(!denial && denial.denied_by == "llm/tokens", denial.denied_by.value_or("none"));
        THROWS(WGL_INVALID_ARGUMENT, "token", permit->settle({{"token", 1}}));
        permit->settle({{"tokens", 10}});
        CHECK(!*permit && left("llm/tokens", "") == 90, "settled");
    }
    CHECK(llm.joint("own", {}).operator std::string_view() == "own", "a start without charges");
    THROWS(WGL_INVALID_ARGUMENT, "requests, tokens, tenant", llm.joint({}, {{"nothing"}}));
    THROWS(WGL_INVALID_ARGUMENT, "weight", llm.joint({}, {{"tokens", std::nullopt, 0}}));
    THROWS(WGL_INVALID_ARGUMENT, "NUL", llm.joint({}, {{std::string("a\0b", 3)}}));
    // A key that is longer than others may be.
    const std::string long_key(1000, 'x');
    const JointKey longer = llm.joint(long_key, {{"tenant", long_key}});
    CHECK(std::string_view(longer).size() > 1024 && llm.decide(longer), "a long key");
    THROWS(WGL_INVALID_ARGUMENT, "key", llm.decide("\xF4" + std::string("\x8F\xBF\xBF") + long_key + long_key));

    const CompositeLimiter both;
    both.add("slots", ConcurrencyLimiter(3, bench.clock));
    both.add("rate", RateLimiter(bench.store, "a rate of its own", 9, 1s));
    CHECK(both.try_acquire(both.joint({}, {{"rate", std::nullopt, 9}})).has_value(), "parts with names");
    THROWS(WGL_INVALID_ARGUMENT, "slots", both.add("slots", NullLimiter()));
    CHECK(both.part_names().size() == 2 && NullLimiter().part_names().empty(), "the parts");
}

// nullptr is no text.
static_assert(!std::is_constructible_v<Key, std::nullptr_t> && !std::is_constructible_v<Text, std::nullptr_t>);
static_assert(!std::is_constructible_v<Store, std::nullptr_t> && std::is_constructible_v<Store, const char *>);
static_assert(!std::is_constructible_v<RateLimiter, const Store &, std::nullptr_t, int, Duration>);
static_assert(std::is_constructible_v<RateLimiter, const Store &, const char *, int, std::chrono::seconds>);
static_assert(!std::is_constructible_v<Key, int> && std::is_constructible_v<Key, std::string_view>);

static void names_and_windows() {
    const Store store("memory:");
    CHECK(store.url() == "memory:" && store.names().empty(), store.url());
    const Limiter mail = store.limiter(std::string_view("mail"), "10/1m"), jobs = store.limiter("jobs", "5 concurrent");
    CHECK(mail.name() == "mail" && store.names() == (std::vector<std::string>{"jobs", "mail"}), mail.name());
    CHECK(mail.window() == Duration(1min) && mail.window("a") == Duration(1min) && !jobs.window(), "the windows");
    CHECK(jobs.peek().limit == 5, "before it is forgotten");
    store.forget("jobs");
    CHECK(store.names() == std::vector<std::string>{"mail"}, "a forgotten name");
    THROWS(WGL_UNKNOWN_LIMIT, "jobs", store.forget("jobs"));
    const RateLimiter other(store, "jobs", 1, 1min);
    THROWS(WGL_KIND_MISMATCH, "jobs", jobs.try_acquire());
    CHECK(doctor("memory:").empty() && postgres_schema().find("CREATE SCHEMA") != std::string_view::npos, "servers");
    mail.pause(30s, "gated");
    CHECK(!mail.can_proceed("gated") && mail.can_proceed(), "a gate of one key");
}

static void whose_turn(const Bench &bench) {
    const bool is_lane = bench.store.url() != "memory:";
    const Limiter slots = bench.store.limiter("turns", "2 concurrent");
    const auto held = slots.acquire("k", 2);
    Waiter waiter = slots.waiter("k", 1, 7);
    CHECK(!waiter.step() && waiter.waiting(), "it waits");
    const LineSnapshot seen = bench.store.line("turns", "k");
    CHECK(seen.holders.size() == 1 && seen.holders[0].starts == 1 && seen.holders[0].units == 2, "who has the units");
    CHECK(!seen.holders[0].cools_down && seen.holders[0].process.has_value() == is_lane, "its process");
    CHECK(!is_lane || seen.holders[0].process->pid == static_cast<std::uint32_t>(getpid()), "this process");
    CHECK(seen.waiting.size() == 1 && seen.waiting[0].callers == 1, "who waits");
    CHECK(seen.heads.size() == (is_lane ? 1 : 0), "no process waits for others in memory");
    for (const auto &head : seen.heads)
        CHECK(head.units == 1 && head.priority == 7 && !head.tenant && !head.is_passed && head.process, "who is next");
    CHECK(bench.store.line("turns").holders.empty(), "another key");

    const Limiter shared = bench.store.limiter("turns of tenants", "1 concurrent shared");
    const auto one = shared.acquire("holder");
    Waiter tenant = shared.waiter("tenant");
    CHECK(!tenant.step(), "it waits");
    const LineSnapshot tenants = bench.store.line("turns of tenants");
    CHECK(tenants.heads.size() == 1 && tenants.heads[0].tenant && tenants.heads[0].tenant->front() == '#', "its tenant");
    THROWS(WGL_UNKNOWN_LIMIT, "nothing", bench.store.line("nothing"));
    THROWS(WGL_INVALID_ARGUMENT, "NUL", bench.store.line(std::string("a\0b", 3)));
}

static void operators(const Bench &bench, const Directory &dir) {
    const RateLimiter limiter(bench.store, "overridden", 2, 1s);
    bench.store.override("overridden", "5/1s");
    CHECK(limiter.peek().limit == 5, "an operator's policy");
    bench.store.lift("overridden");
    CHECK(limiter.peek().limit == 2, "lifted");
    bench.store.override("overridden", "7/1s", "tenant");
    CHECK(limiter.peek("tenant").limit == 7 && limiter.peek("other").limit == 2, "a tenant's policy");
    bench.store.lift("overridden", "tenant");
    CHECK(limiter.peek("tenant").limit == 2, "lifted");
    CHECK(limiter.stats().policy_changes >= 2, "counted");

    const Limiter pace = bench.store.limiter("pace", "10/1s"), slots = bench.store.limiter("slots", "2 concurrent");
    CHECK(pace.forecast(10) == Duration(0s) && pace.forecast(25, "k") == Duration(2s), "a forecast");
    CHECK(slots.forecast(2) == Duration(0s) && !slots.forecast(3), "a start has to end before");

    const Limiter shared = bench.store.limiter("shared", "2/1s shared");
    CHECK(shared.acquire("tenant", 1, 0, forever, 0s, 3) && shared.peek("other").remaining == 1, "one budget");
    bench.store.share("shared", "tenant", 3);
    Duration retry_after{};
    CHECK(shared.acquire("tenant", 1, 0, forever, 0s, {}, &retry_after), "with the share that is kept");

    std::FILE *file = std::fopen((dir / "limits.toml").c_str(), "w");
    std::fputs("[stripe]\nallowed = 100\nperiod = \"1m\"\nburst = 20\n", file);
    std::fclose(file);
    bench.store.load(dir / "limits.toml");
    CHECK(bench.store.limiter("stripe").peek().limit == 20, "of a file");
    bench.store.flush();
    CHECK(bench.store.failures() == 0, "no failures");
    CHECK(version() == wgl_version() && version_number() == WGL_VERSION_NUMBER, "the version");
    names_and_windows();
}

int main() {
    return run("limiters", [](const char *scheme, const Directory &dir) {
        const Bench bench(scheme, dir);
        are_shared(bench);
        of_this_process(bench);
        composites(bench);
        alternatives(bench);
        joint_starts(bench);
        whose_turn(bench);
        operators(bench, dir);
    });
}
