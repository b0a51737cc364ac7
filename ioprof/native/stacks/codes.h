/* Code objects of a sampled process: read once, and looked at again from time to time, since their
 * memory may be reused. */

#ifndef IOPROF_STACKS_CODES_H
#define IOPROF_STACKS_CODES_H

#include "target.h"

/* Whether all fields of a code object are within the bytes that are read of it: offsets come from
 * the process itself. */
bool fits(const struct layout *layout);

/* The code object at an address, written to the file when it is new; NULL where there is none. */
const struct code *code_at(struct shared *shared, struct target *target, uint64_t address,
                           uint64_t now_ns);

#endif
