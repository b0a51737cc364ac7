/* The decision where the bytes of a read came from: storage, the page cache, or unknown.
 *
 * A pure function of what was measured: it asks nobody and changes nothing.
 * tests/test_source_decision.py has a table of cases. */
#ifndef IOPROF_SOURCE_H
#define IOPROF_SOURCE_H

#include "usage.h"

#include <stdbool.h>
#include <stdint.h>

/* What a thread's counters say of its reads, by the type of the file system. */
enum accounting {
    ACCOUNTING_UNKNOWN,    /* none of the following: a wait without blocks is not explained */
    ACCOUNTING_BLOCKS,     /* blocks are counted, so that a wait without blocks is for those that
                              another thread fetches */
    ACCOUNTING_MEMORY,     /* there is no storage below */
    ACCOUNTING_UNRELIABLE, /* blocks are not counted, or for cache hits, too */
};

/* Whether the thread was switched out during the read. */
enum switched { SWITCHED_UNKNOWN, SWITCHED_NOT, SWITCHED_OUT };

/* A file's readahead after a read whose own bytes used it up. A wait in the next read may still be
 * for what this one requested. */
#define READAHEAD_USED_UP 1

struct read_facts {
    enum accounting accounting;
    bool is_direct;         /* O_DIRECT: past the page cache */
    int64_t bytes;          /* that the read returned, more than 0 */
    int64_t duration_ns;    /* used only with SWITCHED_NOT */
    enum switched switched; /* known where the read was one call under a switch watch */

    /* The read was first made with RWF_NOWAIT: */
    int64_t nowait_bytes; /* the first bytes, which that call returned; all of them if there is no
                             second call */
    bool nowait_missed;   /* that call did not return all, and a second one followed */
    bool stale_before; /* `before` is older than this read, so that the blocks since may be in part
                          those of other files */

    /* Counters of the thread. All zero where they were not read, because the read was a plain hit.
     */
    struct usage before, between, after; /* between: after the call with RWF_NOWAIT */

    /* Bytes from the beginning of this read on that earlier reads of the file had fetched, and that
     * were not read yet; or READAHEAD_USED_UP, if this read begins where the last one of the
     * descriptor ended; or 0. */
    int64_t readahead;
};

/* Of each part, how many bytes came from storage; the rest of the part is from the page cache. */
struct read_sources {
    int64_t nowait_storage; /* of the first `nowait_bytes`; SOURCE_OF_NONE_KNOWN: the whole part is
                               unknown */
    int64_t rest_storage;   /* of the other bytes */
    int64_t readahead; /* bytes behind this read that were fetched; or READAHEAD_USED_UP, or 0 */
};

#define SOURCE_OF_NONE_KNOWN (-1)

#pragma GCC visibility push(hidden)

struct read_sources decide_sources(const struct read_facts *read);

#pragma GCC visibility pop

/* Longer than nearly every copy of so much from memory, system call included
 * (benchmarks/cold_files.py). That is no proof: a virtual processor may have been descheduled. But
 * it is a reason to read the counters, since a fast device is done before a thread waits. */
static inline bool is_slow(int64_t duration_ns, int64_t bytes)
{
    return duration_ns > 4000 + bytes * 3 / 8;
}

/* A thread that was not switched out waited for nothing, and a read that took no longer than a copy
 * fetched nothing. */
static inline bool is_certain_hit(enum switched switched, int64_t duration_ns, int64_t bytes)
{
    return switched == SWITCHED_NOT && !is_slow(duration_ns, bytes);
}

/* Whether the counters of a thread say anything of a read. */
static inline bool counters_apply(enum accounting accounting, bool is_direct)
{
    return !is_direct && (accounting == ACCOUNTING_BLOCKS || accounting == ACCOUNTING_UNKNOWN);
}

#endif
