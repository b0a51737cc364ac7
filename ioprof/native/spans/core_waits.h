/* Time in which the loop's thread had no core: `user` spans. ioprof/instrument/hooks/core_waits.py
 * is the same in Python. */
#ifndef IOPROF_SPANS_CORE_WAITS_H
#define IOPROF_SPANS_CORE_WAITS_H

#include "python_api.h"

#include <stdint.h>

enum { AFTER_STEP, AFTER_WAIT, AFTER_FORWARD, NUM_PLACES };

struct core_waits {
    int64_t next_ns[NUM_PLACES];
    int place;
    int64_t begin_ns, used_ns, num_waits;
};

#pragma GCC visibility push(hidden)

/* Once per process; -1 and an exception where memory is short. */
int prepare_core_waits(void);

void begin_core_wait(struct core_waits *cores, int place, int64_t now_ns);
void end_core_wait(struct core_waits *cores, int64_t now_ns);

#pragma GCC visibility pop

#endif
