/* Calls that move no bytes: fstat, close, readdir and the like. Only one that took long is a span;
 * the others are added up. */
#ifndef IOPROF_SHORT_CALLS_H
#define IOPROF_SHORT_CALLS_H

#include "events.h"
#include "io_counters.h"
#include "string_table.h"

#include <errno.h>

#define SLOW_CALL_NS 10000 /* from here on a call without bytes is a span of its own */

#pragma GCC visibility push(hidden)

/* `path`: number of a string; -1: none. */
void emit_slow_call(int64_t start, int64_t end, int32_t path, const char *name, size_t length);

#pragma GCC visibility pop

/* A call that began at `start` has just ended. `name` is its literal name; `number`, an expression,
 * gives the path's number and is evaluated only for a span. */
#define END_SHORT_CALL(start, name, number)                                           \
    do {                                                                              \
        int64_t end_ = clock_now();                                                   \
        guard_enter();                                                                \
        if (__builtin_expect(end_ - (start) < SLOW_CALL_NS, 1)) {                     \
            tally_short_call(end_ - (start));                                         \
        } else {                                                                      \
            int saved_errno_ = errno;                                                 \
            emit_slow_call(start, end_, saved_errno_ == EFAULT ? -1 : (number), name, \
                           sizeof name - 1);                                          \
            errno = saved_errno_;                                                     \
        }                                                                             \
        compare_when_due(end_);                                                       \
        guard_leave();                                                                \
    } while (0)

#endif
