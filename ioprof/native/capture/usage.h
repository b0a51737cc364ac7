/* What the kernel counts for one thread (getrusage, RUSAGE_THREAD), and how many of the thread's
 * last reads hit the page cache. */
#ifndef IOPROF_USAGE_H
#define IOPROF_USAGE_H

#include "gnu_source.h"

#include <stdint.h>

struct usage {
    int64_t blocks;      /* of 512 bytes, that the thread has submitted to be read */
    int64_t waits;       /* voluntary context switches */
    int64_t preemptions; /* involuntary ones */
    int64_t faults;      /* major page faults, which submit blocks too */
};

/* The largest readahead that a read of a file causes: 4 MiB on btrfs, and some more. */
#define MAX_READAHEAD_BYTES (8 << 20)

/* So many hits in a row, and the next read is expected to hit; the first reads of a thread are
 * expected to miss. */
#define HITS_TO_EXPECT_ONE 32

#pragma GCC visibility push(hidden)

/* The last answer of the kernel for this thread. */
extern __thread struct usage last_usage;

/* Reads that hit the page cache since the thread's last miss, HITS_TO_EXPECT_ONE at most. */
extern __thread int num_hits;

/* Asks the kernel; may change errno. */
struct usage read_usage(void);

/* The number of blocks from which on those up to `now` are taken to be of a read of so many bytes,
 * where the counters were last read some reads ago, as `last`. The thread may also have read mapped
 * files since then. */
int64_t first_block_of(const struct usage *last, const struct usage *now, int64_t bytes);

/* The only thread of a forked child has the values of its parent's thread, but the kernel counts
 * for it from zero. */
void forget_usage(void);

#pragma GCC visibility pop

#endif
