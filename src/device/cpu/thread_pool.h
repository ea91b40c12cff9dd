// The library's own threads: made when first needed, kept for the life of the process, asleep when idle.
#pragma once

#include <cstdint>

namespace flashwave {

// Calls job(arg, worker) exactly once for each worker in [0, workers) and returns when all calls have. The calling
// thread takes part from the start and runs whatever numbers no other thread has taken by then, so it never waits for
// a thread to wake up. May be called from any thread at any time: while another call has the threads (a concurrent
// one, or the one this call is nested in), this one runs all its numbers itself. Works in a forked child.
void run_on_pool(int32_t workers, void (*job)(void* arg, int32_t worker), void* arg);

}  // namespace flashwave
