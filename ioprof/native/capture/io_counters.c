#include "io_counters.h"

#include "decimal.h"
#include "processes.h"
#include "python_start.h"
#include "real.h"
#include "uring.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

/* The counters are compared whenever the recording has lasted an eighth longer, within these
 * bounds: so what a killed process leaves is recent for a short recording, and cheap for a long
 * one. */
#define MIN_INTERVAL_NS 1000000
#define MAX_INTERVAL_NS 1000000000
#define LONG_LIFE_NS 1000000000
#define MAX_YIELDS 10000
#define MAX_ATTEMPTS 8

/* What children that were waited for had fetched is in the process's own read_bytes, too. */
static void read_children(struct io_counters *counters)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_CHILDREN, &usage);
    counters->read_bytes = -(int64_t)usage.ru_inblock * 512;
    counters->children =
        (int64_t)usage.ru_minflt + usage.ru_majflt + usage.ru_nvcsw + usage.ru_nivcsw;
}

/* /proc/self/io: rchar, wchar, syscr, syscw, read_bytes, ... in this order. May be called in a
 * signal handler. */
static bool read_proc_io(struct io_counters *counters)
{
    char text[512];
    long descriptor = real_system_call(SYS_openat, AT_FDCWD, (long)"/proc/self/io",
                                       O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (descriptor < 0)
        return false;
    long length = real_system_call(SYS_read, descriptor, (long)text, sizeof text, 0, 0, 0);
    read_children(counters);
    real_system_call(SYS_close, descriptor, 0, 0, 0, 0, 0);
    if (length <= 0)
        return false;
    const char *place = text, *end = text + length;
    counters->rchar = (int64_t)next_decimal(&place, end);
    next_decimal(&place, end);
    counters->syscr = (int64_t)next_decimal(&place, end);
    next_decimal(&place, end);
    counters->read_bytes += (int64_t)next_decimal(&place, end);
    counters->rchar -= atomic_fetch_add(&process->own_bytes, length);
    counters->syscr -= atomic_fetch_add(&process->own_calls, 1);
    return true;
}

static struct io_counters read_tallies(void)
{
    uint64_t calls = 0, bytes = 0;
    ring_read_tallies(&ring, &calls, &bytes);
    struct io_counters seen = {.rchar = (int64_t)bytes, .syscr = (int64_t)calls};
    read_children(&seen);
    return seen;
}

/* The proc io counters of this process alone since recording began, and the tallies at the same
 * moment. Other threads may read or wait for children between the two, for long if this thread
 * loses its core in between: of several attempts the one is used during which they read least, and
 * waited for no child. */
static bool read_both(struct io_counters *kernel, struct io_counters *seen)
{
    int64_t least = INT64_MAX;
    *kernel = *seen = (struct io_counters){0};
    if (!ring_is_open(&ring))
        return false;
    for (int attempt = 0; attempt < MAX_ATTEMPTS && least > 0; attempt++) {
        struct io_counters before = read_tallies(), counted;
        if (!read_proc_io(&counted))
            return false;
        struct io_counters after = is_single_threaded() ? before : read_tallies();
        int64_t meanwhile =
            after.rchar - before.rchar + (after.children == before.children ? 0 : INT64_MAX / 2);
        if (meanwhile >= least)
            continue;
        least = meanwhile;
        *seen = before;
        *kernel = counted;
    }
    kernel->rchar -= process->initial.rchar + process->reaped.rchar;
    kernel->syscr -= process->initial.syscr + process->reaped.syscr;
    kernel->read_bytes -= process->initial.read_bytes;
    return true;
}

static void store_counters(const struct io_counters *kernel, const struct io_counters *seen,
                           int64_t now)
{
    struct ioprof_file_header *header = ring.header;
    header->io_time_ns = now;
    header->io_rchar = (uint64_t)kernel->rchar;
    header->io_syscr = (uint64_t)kernel->syscr;
    header->io_read_bytes = (uint64_t)kernel->read_bytes;
    header->seen_bytes = (uint64_t)seen->rchar;
    header->seen_calls = (uint64_t)seen->syscr;
    process->unseen = (struct io_counters){.rchar = kernel->rchar - seen->rchar,
                                           .syscr = kernel->syscr - seen->syscr};
}

/* When a process has waited for a child, the kernel adds the child's counters to its own
 * (wait_task_zombie in kernel/exit.c), which would count every worker's reads twice. What the
 * counters have grown by, without having been seen, since the last comparison is taken to be the
 * child's. RUSAGE_CHILDREN grows at the same moment, which a thread notices that compares before
 * the one that waited. */
static void subtract_children(struct io_counters *kernel, const struct io_counters *seen)
{
    int64_t bytes = kernel->rchar - seen->rchar - process->unseen.rchar;
    int64_t calls = kernel->syscr - seen->syscr - process->unseen.syscr;
    process->reaped.rchar += bytes;
    process->reaped.syscr += calls;
    process->reaped.children = kernel->children;
    kernel->rchar -= bytes;
    kernel->syscr -= calls;
}

void begin_counters(void)
{
    if (read_proc_io(&process->initial))
        process->reaped.children = process->initial.children;
}

/* Of two threads that come together, one compares; but one that has waited for a child waits for
 * its turn, because the other may have read the counters before that child's were added. */
void compare_counters(int64_t now, bool after_child)
{
    struct io_counters kernel, seen;
    for (int attempt = 0; atomic_exchange(&process->comparing, 1); attempt++) {
        if (!after_child || attempt == MAX_YIELDS)
            return;
        sched_yield();
    }
    if (!program_is_python && file_header.pid == program_pid && has_python_library())
        set_noted(NOTED_PYTHON_PROGRAM);
    if (read_both(&kernel, &seen)) {
        if (after_child || kernel.children != process->reaped.children)
            subtract_children(&kernel, &seen);
        store_counters(&kernel, &seen, now);
    }
    int64_t interval = (now - file_header.anchor_after_ns) / 8;
    interval = interval < MIN_INTERVAL_NS ? MIN_INTERVAL_NS : interval;
    atomic_store(&process->compare_at_ns,
                 now + (interval > MAX_INTERVAL_NS ? MAX_INTERVAL_NS : interval));
    atomic_store(&process->comparing, 0);
}

__attribute__((noinline, cold)) void compare_now(int64_t now)
{
    int saved_errno = errno;
    compare_counters(now, false);
    errno = saved_errno;
}

void compare_around_child(bool after)
{
    if (!is_recording_already())
        return;
    int saved_errno = begin_own_work();
    compare_counters(ring_now(), after);
    end_own_work(saved_errno);
}

void compare_at_end(bool closed)
{
    if (ioprof_guard >= GUARD_VFORK || !has_begun())
        return;
    int saved_errno = begin_own_work();
    int64_t now = ring_now();
    compare_counters(now, false);
    end_urings();
    /* A ring that was made without the C library. A forked child has its parent's descriptors,
     * which it need not use. */
    if ((file_header.pid == program_pid || now - file_header.anchor_after_ns >= LONG_LIFE_NS) &&
        has_open_file(getpid(), "anon_inode:[io_uring]", false, is_followed_uring))
        set_noted(NOTED_IO_URING);
    ring.header->closed = closed;
    end_own_work(saved_errno);
}
