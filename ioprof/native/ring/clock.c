#include "clock.h"

#if defined(__x86_64__)

#include <fcntl.h>
#include <unistd.h>

#define TRUSTED_NS 1000000        /* how long a thread extrapolates without asking the kernel */
#define FIRST_INTERVAL_NS 1000000 /* the first rate is measured over so long, */
#define INTERVAL_NS 50000000      /* and the following ones */
#define MAX_WIDTH_TICKS \
    400 /* around the kernel's answer; if it is more, the thread was interrupted */
#define MAX_CHANGE                                                                               \
    1024 /* a rate that changes by more than 1 in so many is discarded: the machine slept or was \
            migrated */

struct clock_state clock_state;
__thread struct clock_reading clock_reference;

static struct {
    _Atomic int is_tsc;         /* the kernel's clock source is the time stamp counter */
    _Atomic int is_measuring;   /* a thread measures the rate, */
    struct clock_reading first; /* and only that thread uses this */
} calibration;

void clock_setup(void)
{
    static const char source[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                      wanted[] = "tsc\n";
    char name[sizeof wanted];
    int descriptor = open(source, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    ssize_t length = read(descriptor, name, sizeof name);
    close(descriptor);
    atomic_store(&calibration.is_tsc,
                 length == sizeof wanted - 1 && memcmp(name, wanted, sizeof wanted - 1) == 0);
}

/* Start the next measurement; `rate` is that of the last one, 0: none is known. A thread that still
 * uses the old rate errs little: it does so for a millisecond at most. */
static void start_measurement(struct clock_reading from, uint64_t rate)
{
    calibration.first = from;
    if (rate != 0)
        atomic_store(&clock_state.rate, rate);
    atomic_store(&clock_state.trusted_ticks,
                 rate == 0 ? 0 : (uint64_t)(((unsigned __int128)TRUSTED_NS << 32) / rate));
}

static void measure_rate(struct clock_reading now)
{
    const struct clock_reading first = calibration.first;
    uint64_t known =
        atomic_load(&clock_state.trusted_ticks) == 0 ? 0 : atomic_load(&clock_state.rate);
    if (first.ticks == 0 || now.ticks <= first.ticks || now.ns < first.ns) {
        start_measurement(now, 0);
    } else if (now.ns - first.ns >= (known == 0 ? FIRST_INTERVAL_NS : INTERVAL_NS)) {
        uint64_t measured = (uint64_t)(((unsigned __int128)(uint64_t)(now.ns - first.ns) << 32) /
                                       (now.ticks - first.ticks));
        uint64_t change = measured > known ? measured - known : known - measured;
        start_measurement(now, known != 0 && change > known / MAX_CHANGE ? 0 : measured);
    }
}

__attribute__((noinline)) int64_t clock_ask_kernel(void)
{
    uint64_t before = __builtin_ia32_rdtsc();
    int64_t ns = ring_now();
    uint64_t width = __builtin_ia32_rdtsc() - before;
    if (!atomic_load_explicit(&calibration.is_tsc, memory_order_relaxed) || width > MAX_WIDTH_TICKS)
        return ns;
    clock_reference = (struct clock_reading){before + width / 2, ns};
    if (atomic_exchange(&calibration.is_measuring, 1) == 0) {
        measure_rate(clock_reference);
        atomic_store(&calibration.is_measuring, 0);
    }
    return ns;
}

#endif
