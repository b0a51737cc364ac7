/* The interpreter's lock (the GIL): whether the sampled thread waits for it, and which thread holds
 * it meanwhile. */

#ifndef IOPROF_STACKS_LOCK_H
#define IOPROF_STACKS_LOCK_H

#include "memory.h"
#include "target.h"

/* The state of the thread that holds the lock for which the sampled thread waits; 0: it does not
 * wait for it, or that is not known. */
uint64_t awaited_holder(struct view *view, const struct target *target);

#endif
