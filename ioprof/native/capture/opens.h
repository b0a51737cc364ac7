/* What follows the opening of a file by any function. */
#ifndef IOPROF_OPENS_H
#define IOPROF_OPENS_H

#include "string_table.h"

#pragma GCC visibility push(hidden)

/* The job opened a file at `start`, or failed to (a negative descriptor): `key` is that of its
 * path, if it was computed. The library's own files are not the job's. */
void end_open(int descriptor, int64_t start, int folder, const char *path, int flags,
              const struct string_key *key);

#pragma GCC visibility pop

#endif
