// Custom limiters: every call arrives, an exception fails the call, and they are freed once.
#include "check.hpp"

using namespace workglow;

namespace {

// Has scripted results, and records its arguments.
struct Scripted : Custom {
    explicit Scripted(int &freed) : freed_(freed) {}
    ~Scripted() override { ++freed_; }

    Verdict decide(std::string_view key, std::uint64_t weight) override { return note("decide", key, weight), verdict(); }
    Verdict peek(std::string_view key, std::uint64_t weight) override { return note("peek", key, weight), verdict(); }
    void end(std::uint64_t start, End how, std::uint64_t actual) override {
        note("end " + std::to_string(static_cast<int>(how)), std::to_string(actual), start);
    }
    void pause(Duration duration, std::string_view key) override { note("pause", key, static_cast<std::uint64_t>(duration.count())); }
    void clear(std::string_view key) override { note("clear", key, 0); }
    void record_job_start(std::string_view key) override { note("start", key, 0); }
    void record_job_completion(std::string_view key) override { note("completion", key, 0); }

    bool admits = true;
    std::string throws, call;

private:
    void note(const std::string &name, std::string_view key, std::uint64_t number) {
        call = name + "(" + std::string(key) + ", " + std::to_string(number) + ")";
        if (throws == "int")
            throw 7;
        if (!throws.empty())
            throw std::logic_error(throws);
    }
    Verdict verdict() const { return {admits, 42, 3s}; }

    int &freed_;
};

} // namespace

static void every_call_arrives(Scripted &script, const Limiter &limiter) {
    auto permit = limiter.try_acquire("key", 5);
    CHECK(permit && script.call == "decide(key, 5)", script.call);
    permit->settle(3);
    CHECK(script.call == "end 2(3, 42)", script.call);
    { const auto completes = limiter.try_acquire(); }
    CHECK(script.call == "end 0(0, 42)", script.call);
    limiter.try_acquire()->cancel();
    CHECK(script.call == "end 1(0, 42)", script.call);
    limiter.pause(2ns, "key");
    CHECK(script.call == "pause(key, 2)" || script.call == "pause(key, 1000)", script.call);
    limiter.clear("key");
    CHECK(script.call == "clear(key, 0)", script.call);
    limiter.record_job_start("key");
    CHECK(script.call == "start(key, 0)", script.call);
    limiter.record_job_completion("key");
    CHECK(script.call == "completion(key, 0)", script.call);
    script.admits = false;
    const Decision denial = limiter.decide("key");
    CHECK(!denial && denial.retry_after == 3s && denial.denied_by == "scripted", denial.denied_by.value_or(""));
    CHECK(!limiter.can_proceed() && script.call == "peek(, 1)", script.call);
    script.admits = true;
}

static void exceptions(Scripted &script, const Limiter &limiter) {
    script.throws = "the disk is full";
    THROWS(WGL_CUSTOM_FAILURE, "its decide returned -15 (custom_failure): the disk is full", limiter.try_acquire());
    THROWS(WGL_CUSTOM_FAILURE, "its clear returned -15 (custom_failure): the disk is full", limiter.clear());
    script.throws = "int";
    THROWS(WGL_CUSTOM_FAILURE, "no std::exception", limiter.peek());
    script.throws.clear();
    {
        auto permit = limiter.try_acquire();
        script.throws = "never mind";
        THROWS(WGL_CUSTOM_FAILURE, "never mind", permit->complete());
        CHECK(*permit, "the permit is still held");
    }
    script.throws.clear();
    CHECK(limiter.try_acquire().has_value(), "the limiter works again");
}

int main() {
    return run("custom", [](const char *scheme, const Directory &dir) {
        const Bench bench(scheme, dir);
        int freed = 0;
        {
            const auto script = std::make_shared<Scripted>(freed);
            const CompositeLimiter composite;
            {
                const CustomLimiter limiter("scripted", script);
                every_call_arrives(*script, limiter);
                exceptions(*script, limiter);
                composite.add(limiter);
            }
            const RateLimiter rate(bench.store, "child", 1, 1s);
            composite.add(rate);
            script->admits = false;
            CHECK(!composite.try_acquire() && rate.peek().remaining == 1, "no charge for a denial");
            script->admits = true;
            script->throws = "broken";
            THROWS(WGL_CUSTOM_FAILURE, "broken", composite.try_acquire());
            CHECK(rate.peek().remaining == 1, "nor for a failure");
            script->throws.clear();
            CHECK(composite.try_acquire().has_value() && !composite.try_acquire(), "both decide");
            CHECK(freed == 0, "in use");
        }
        CHECK(freed == 1, "freed once: " + std::to_string(freed));
        THROWS(WGL_INVALID_ARGUMENT, "custom is null", CustomLimiter("none", nullptr));
        THROWS(WGL_INVALID_ARGUMENT, "name is empty", CustomLimiter("", std::make_shared<Scripted>(freed)));
        THROWS(WGL_INVALID_ARGUMENT, "NUL", CustomLimiter(std::string(1, '\0'), std::make_shared<Scripted>(freed)));
        CHECK(freed == 3, "a refused context is freed: " + std::to_string(freed));
    });
}
