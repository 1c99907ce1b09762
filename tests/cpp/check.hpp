// Helpers of the C++ tests: counting, expected errors, and a temporary directory.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <workglow_limit.hpp>

using namespace std::chrono_literals;

inline int passed, failed;

inline void check(bool condition, const std::string &what, const char *file, int line) {
    if (condition) {
        passed++;
    } else {
        failed++;
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    }
}

// Counts a check; a failed one prints its location and its subject.
#define CHECK(condition, about) check(static_cast<bool>(condition), std::string(#condition ": ") + (about), __FILE__, __LINE__)

// The call must throw an Error with this code and a message that contains the text.
#define THROWS(expected, text, call)                                                                                 \
    do {                                                                                                             \
        try {                                                                                                        \
            (void)(call);                                                                                            \
            check(false, #call ": no error", __FILE__, __LINE__);                                                    \
        } catch (const workglow::Error &error) {                                                                     \
            const std::string what = error.what();                                                                   \
            check(error.code() == (expected), std::string(#call ": ") + error.name() + ", " + what, __FILE__, __LINE__); \
            check(what.find(text) != std::string::npos, #call ": says \"" + what + "\", not \"" text "\"", __FILE__, __LINE__); \
        }                                                                                                            \
    } while (0)

// A directory that is removed when the test ends.
class Directory {
public:
    Directory() {
        if (mkdtemp(path_) == nullptr)
            std::abort();
    }
    Directory(const Directory &) = delete;
    Directory &operator=(const Directory &) = delete;
    ~Directory() { std::filesystem::remove_all(path_); }

    std::string operator/(const std::string &name) const { return path_ + ("/" + name); }

private:
    char path_[32] = "/tmp/workglow-limit-XXXXXX";
};

// A store of this scheme, by a manual clock.
struct Bench {
    Bench(const std::string &scheme, const Directory &dir)
        : url(scheme == "sqlite:" ? scheme + dir / std::to_string(number++) + ".db" : scheme), store(open()) {}

    workglow::Store open() const {
        workglow::StoreOptions options;
        options.clock = clock;
        return workglow::Store(url, options);
    }

    static inline int number = 0;
    std::string url;
    workglow::ManualClock clock;
    workglow::Store store;
};

// Runs a test on both kinds of store, counts exceptions as failures, and prints the summary line.
template <class Test> int run(const char *name, Test test) {
    try {
        const Directory dir;
        for (const char *scheme : {"memory:", "sqlite:"})
            test(scheme, dir);
    } catch (const std::exception &exception) {
        check(false, std::string("it threw ") + exception.what(), name, 0);
    }
    std::printf("cpp %s: %d passed, %d failed\n", name, passed, failed);
    return failed != 0 || passed == 0;
}

#endif
