// Shares the limit "openai", 100 starts in any rolling minute, with all programs that use limits.db of this directory.
//
//     c++ -std=c++17 quickstart.cpp -o quickstart $(pkg-config --cflags --libs workglow_limit)
#include <iostream>
#include <workglow_limit.hpp>

using namespace std::chrono_literals;

int main() try {
    const workglow::Store store("sqlite:limits.db");
    const workglow::RateLimiter openai(store, "openai", 100, 60s);

    if (const auto permit = openai.acquire(30s)) { // completes at the end of its scope, also after an exception
        const int status = 200;                    // ... call the API ...
        if (status == 429)                         // one program gets the 429, and all wait, in every language
            openai.pause(20s);
    } else {
        std::cout << "no room within 30 s\n";
    }
    std::cout << openai.peek("", 0).remaining << " of 100 left\n";
} catch (const workglow::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
