/* CLOCK_MONOTONIC, mostly read from the processor's time stamp counter.
 *
 * clock_gettime takes 24 ns where the counter takes 10 (AMD EPYC), and recording the read of a
 * small file takes eight of them. So a thread asks the kernel once in a millisecond, and in between
 * adds the ticks of the counter at a measured rate. The rate is measured between two answers of the
 * kernel that are at least 50 ms apart (the first time 1 ms); the two clocks differ by some 20 ns
 * at most. This is done only where the kernel itself uses that counter (clocksource tsc), because
 * it has then found it constant, and equal on all processors. */
#ifndef IOPROF_CLOCK_H
#define IOPROF_CLOCK_H

#include "ring.h"

#if defined(__x86_64__)

struct clock_reading {
    uint64_t ticks;
    int64_t ns;
};

struct clock_state {
    _Atomic uint64_t trusted_ticks; /* how long a reading of the kernel's clock is extrapolated; 0:
                                       the rate is not known */
    _Atomic uint64_t rate;          /* nanoseconds per tick, times 2^32 */
};

#pragma GCC visibility push(hidden)

extern struct clock_state clock_state;
extern __thread struct clock_reading clock_reference; /* this thread's last answer of the kernel */

/* Once per program, under the reentrancy guard if there is one; a forked child inherits the result.
 */
void clock_setup(void);

int64_t clock_ask_kernel(void);

#pragma GCC visibility pop

/* CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t clock_now(void)
{
    uint64_t passed = __builtin_ia32_rdtsc() - clock_reference.ticks;
    if (__builtin_expect(
            passed < atomic_load_explicit(&clock_state.trusted_ticks, memory_order_relaxed), 1))
        return clock_reference.ns +
               (int64_t)(passed * atomic_load_explicit(&clock_state.rate, memory_order_relaxed) >>
                         32);
    return clock_ask_kernel();
}

#else

static inline void clock_setup(void) {}

static inline int64_t clock_now(void)
{
    return ring_now();
}

#endif

#endif
