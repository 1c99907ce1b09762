// One limit in one file, taken in turns by this program and a C program: sharing URL, and the path of the C program.
#include "check.hpp"
#include <sys/wait.h>

using namespace workglow;

// Returns the C program's exit status: the number of starts that were admitted, or 99 if it failed.
static int by_c(const std::string &program, const std::string &url, int starts) {
    const int status = std::system((program + " '" + url + "' " + std::to_string(starts)).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

int main(int, char **arguments) {
    const std::string program = arguments[1];
    return run("sharing", [&](const std::string &scheme, const Directory &dir) {
        if (scheme == "memory:")
            return; // a memory: store is private to the process
        const std::string url = "sqlite:" + dir / "limits.db";
        const RateLimiter limiter(Store(url), "shared", 10, 1h);
        CHECK(by_c(program, url, 3) == 3, "three by C");
        CHECK(limiter.peek("", 0).remaining == 7, "seen in C++");
        const auto fourth = limiter.try_acquire("", 4);
        CHECK(fourth.has_value(), "four by C++");
        CHECK(by_c(program, url, 9) == 3, "the last three by C");
        CHECK(!limiter.try_acquire(), "none is left");
        limiter.clear();
        limiter.pause(1h);
        CHECK(by_c(program, url, 1) == 0, "a pause is C's too");
        limiter.clear();
        CHECK(by_c(program, url, 1) == 1, "and its end");
    });
}
