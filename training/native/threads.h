// Divides the work of a function among threads.

#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Calls part(begin, end) for parts of [0, count) on `threads` threads, of which one is the caller's. All borders but the last are multiples of
// `unit`. If the system cannot start a thread, the caller does that thread's part.
template <class Part>
void divide(int64_t count, int64_t unit, int64_t threads, const Part& part) {
    const int64_t units = (count + unit - 1) / unit;
    threads = std::max<int64_t>(std::min(threads, units), 1);
    std::vector<std::thread> started;
    started.reserve(threads);
    const auto of_thread = [&](int64_t thread) { part(std::min(units * thread / threads * unit, count), std::min(units * (thread + 1) / threads * unit, count)); };
    int64_t thread = 1;
    try {
        for (; thread < threads; ++thread) started.emplace_back(of_thread, thread);
    } catch (const std::system_error&) {
    }
    of_thread(0);
    for (; thread < threads; ++thread) of_thread(thread);
    for (std::thread& other : started) other.join();
}

}  // namespace
