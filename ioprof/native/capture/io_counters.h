/* The proc io counters (/proc/self/io) compared with what the hooks counted.
 *
 * The result is stored in the header of the capture file, so that a reader knows how much of the
 * process's reading it has, even if the process is killed. */
#ifndef IOPROF_IO_COUNTERS_H
#define IOPROF_IO_COUNTERS_H

#include "process.h"

#pragma GCC visibility push(hidden)

/* The counters when recording begins are those of what happened before. */
void begin_counters(void);

/* Read both, at one moment, and store them in the file. `after_child`: this thread has just waited
 * for a child. */
void compare_counters(int64_t now, bool after_child);

/* Before and after a call that may wait for a child. */
void compare_around_child(bool after);

/* The process is about to end or to become another program; it may be in a signal handler.
 * `closed`: it ends by itself. */
void compare_at_end(bool closed);

void compare_now(int64_t now);

#pragma GCC visibility pop

/* Of all that is done after a call that went as expected, only this and a full active chunk may
 * change errno, and both restore it. */
static inline void compare_when_due(int64_t now)
{
    if (__builtin_expect(now >= atomic_load_explicit(&process->compare_at_ns, memory_order_relaxed),
                         0))
        compare_now(now);
}

#endif
