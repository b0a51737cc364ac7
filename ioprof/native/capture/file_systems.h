/* What is known of the file system of an open file, looked up once per device. */
#ifndef IOPROF_FILE_SYSTEMS_H
#define IOPROF_FILE_SYSTEMS_H

#include "source.h"
#include "wire_format.h"

#include <sys/types.h>

struct file_system {
    ioprof_counter key;          /* device + 1; 0: free; KEY_BEING_FILLED */
    _Atomic int accounting;      /* enum accounting */
    _Atomic int supports_nowait; /* whether reads may ask for what is cached only: RWF_NOWAIT */
};

#pragma GCC visibility push(hidden)

/* Of any device for which the table has no room. */
extern struct file_system unlisted_file_system;

/* False where the environment forbids RWF_NOWAIT. */
extern bool may_use_nowait;

/* The file system of an open file, which is on `device`. */
struct file_system *file_system_of(int descriptor, dev_t device);

#pragma GCC visibility pop

static inline enum accounting accounting_of(struct file_system *system)
{
    return (enum accounting)atomic_load_explicit(&system->accounting, memory_order_relaxed);
}

static inline bool supports_nowait(struct file_system *system)
{
    return atomic_load_explicit(&system->supports_nowait, memory_order_relaxed);
}

#endif
