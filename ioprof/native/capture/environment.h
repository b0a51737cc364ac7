/* The environment that records the processes of the job: kept in programs that the job starts with
 * another one.
 *
 * A wrapper may set LD_PRELOAD or PYTHONPATH for its own ends, or start a program with an empty
 * environment. What recording needs is then added at exec, in front of what the job gave: the
 * library in LD_PRELOAD, IOPROF_* and the folder of sitecustomize.py in PYTHONPATH, if this program
 * had it. An environment with another IOPROF_SPOOL, also an empty one, is left as it is.
 *
 * Where the dynamic linker could not load the library (behind a chroot, for a user who may not read
 * it, into a 32-bit program), it would say so in the job's standard error: there the environment
 * loses what recording added. */
#ifndef IOPROF_ENVIRONMENT_H
#define IOPROF_ENVIRONMENT_H

#include "gnu_source.h"

#include <stdbool.h>
#include <stddef.h>

/* What must be added to an environment, or removed from it. */
struct addition {
    bool removes; /* `preload` and `pythonpath` are the new values, but for one entry that is left
                     out of each */
    size_t count; /* variables of the environment */
    size_t bytes; /* room for the result; 0: nothing must be added */
    const char *preload; /* the value of LD_PRELOAD that must be extended; "": there is none; NULL:
                            it has the library */
    const char *pythonpath; /* the same of PYTHONPATH */
};

#define NO_ADDITION ((struct addition){false, 0, 0, NULL, NULL})

#pragma GCC visibility push(hidden)

/* By the constructor, where this program is recorded. */
void keep_environment(void);

/* The folder of sitecustomize.py; NULL: hooks are off, or this program did not have it. */
const char *site_folder(void);

struct addition find_addition(char *const *environment);

/* Whether a program that is started now could open the library. Under the reentrancy guard; 3 µs.
 */
bool can_open_library(void);

/* The opposite of `find_addition`; without `hooks` the folder of sitecustomize.py is removed, too.
 */
struct addition find_removal(char *const *environment, bool hooks);

/* `room` has `bytes` bytes, and is aligned for pointers. */
char *const *extend_environment(const struct addition *addition, char *const *environment,
                                char *room);

#pragma GCC visibility pop

#endif
