/* The monotonic clock at the price of the processor's counter.
 *
 * clock_gettime takes 24 ns where the counter takes 10 (AMD EPYC), and reading a small file is told by eight of them. So a thread
 * asks the kernel once in a millisecond, and in between adds what the counter went on by, at the rate that it was seen to have
 * between two answers that lay 50 ms apart or more (the first time 1 ms): the two clocks differ by some 20 ns at most. Done only where
 * the kernel keeps its own time by that counter (clocksource tsc), because it has then found it steady, and alike on all processors. */
#ifndef IOPROF_CLOCK_H
#define IOPROF_CLOCK_H

#include "ring.h"

#if defined(__x86_64__)

#define CLOCK_TRUSTED_NS 1000000 /* how long a thread goes on without asking the kernel */
#define CLOCK_FIRST_NS 1000000   /* the first rate is taken over so long, */
#define CLOCK_APART_NS 50000000  /* and the following ones */
#define CLOCK_WIDEST_TICKS 400   /* around the kernel's answer; if it is more, something came between */
#define CLOCK_JUMP 1024          /* a rate that changes by more than 1 in so many is none: the machine slept, or is another */

struct clock_reading {
    uint64_t ticks;
    int64_t ns;
};

static struct {
    _Atomic uint64_t trusted_ticks; /* CLOCK_TRUSTED_NS; 0: the rate is not known, and the kernel is always asked */
    _Atomic uint64_t rate;          /* nanoseconds per tick, times 2^32 */
    _Atomic int is_steady;
    _Atomic int comparing;      /* a thread is at it, */
    struct clock_reading first; /* and this is for it alone */
} clock_state;

static __thread struct clock_reading clock_asked;

static inline uint64_t clock_ticks(void)
{
    return __builtin_ia32_rdtsc();
}

/* Once per program, where the includer's own calls are not the job's; a forked child inherits the answer. */
static void clock_setup(void)
{
    static const char source[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource", wanted[] = "tsc\n";
    char name[sizeof wanted];
    int descriptor = open(source, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    ssize_t length = read(descriptor, name, sizeof name);
    close(descriptor);
    atomic_store(&clock_state.is_steady, length == sizeof wanted - 1 && memcmp(name, wanted, sizeof wanted - 1) == 0);
}

/* A rate that was seen, or 0: none is known. Whoever trusts a while longer in the old one errs by little: it lasts a millisecond. */
static void clock_begin_again(struct clock_reading from, uint64_t rate)
{
    clock_state.first = from;
    if (rate != 0)
        atomic_store(&clock_state.rate, rate);
    atomic_store(&clock_state.trusted_ticks, rate == 0 ? 0 : (uint64_t)(((unsigned __int128)CLOCK_TRUSTED_NS << 32) / rate));
}

static void clock_compare(struct clock_reading now)
{
    const struct clock_reading first = clock_state.first;
    uint64_t known = atomic_load(&clock_state.trusted_ticks) == 0 ? 0 : atomic_load(&clock_state.rate);
    if (first.ticks == 0 || now.ticks <= first.ticks || now.ns < first.ns) {
        clock_begin_again(now, 0);
    } else if (now.ns - first.ns >= (known == 0 ? CLOCK_FIRST_NS : CLOCK_APART_NS)) {
        uint64_t seen = (uint64_t)(((unsigned __int128)(uint64_t)(now.ns - first.ns) << 32) / (now.ticks - first.ticks));
        uint64_t change = seen > known ? seen - known : known - seen;
        clock_begin_again(now, known != 0 && change > known / CLOCK_JUMP ? 0 : seen);
    }
}

static __attribute__((noinline)) int64_t clock_ask(void)
{
    uint64_t before = clock_ticks();
    int64_t ns = ring_now();
    uint64_t width = clock_ticks() - before;
    if (!atomic_load_explicit(&clock_state.is_steady, memory_order_relaxed) || width > CLOCK_WIDEST_TICKS)
        return ns;
    clock_asked = (struct clock_reading){before + width / 2, ns};
    if (atomic_exchange(&clock_state.comparing, 1) == 0) {
        clock_compare(clock_asked);
        atomic_store(&clock_state.comparing, 0);
    }
    return ns;
}

/* CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t clock_now(void)
{
    uint64_t passed = clock_ticks() - clock_asked.ticks;
    if (__builtin_expect(passed < atomic_load_explicit(&clock_state.trusted_ticks, memory_order_relaxed), 1))
        return clock_asked.ns + (int64_t)(passed * atomic_load_explicit(&clock_state.rate, memory_order_relaxed) >> 32);
    return clock_ask();
}

#else

static inline void clock_setup(void)
{
}

static inline int64_t clock_now(void)
{
    return ring_now();
}

#endif

#endif
