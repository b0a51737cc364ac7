#include "source.h"

/* One of the two parts of a read. */
struct part {
    int64_t bytes;
    int64_t blocks; /* that the thread submitted for it */
    bool waited;
    bool is_followed; /* the rest of the read follows */
};

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes of this part that had to come from the device or the network.
 *
 * They are those that it submitted, whether the thread waited for them or not: a fast device may be
 * done before the thread waits, or while the thread has no core. What a read submits beyond its own
 * bytes is readahead: a later read that continues there finds those bytes in the page cache, or
 * waits for them, but they were fetched for it. A read that waited without submitting waited for a
 * page that another thread had requested; or for one that the read before had requested, and was
 * counted for: then one byte stands for the wait. */
static int64_t storage_bytes(enum accounting accounting, const struct part *part,
                             int64_t *readahead)
{
    int64_t ahead = *readahead, fetched = part->blocks * 512, stored;
    const bool follows = ahead > 0, only_waited = part->waited && part->blocks == 0;
    if (ahead == READAHEAD_USED_UP)
        ahead = 0;
    if (only_waited && !follows)
        stored = accounting == ACCOUNTING_BLOCKS ? part->bytes : SOURCE_OF_NONE_KNOWN;
    else if (only_waited && ahead == 0)
        stored = minimum(part->bytes, 1);
    else
        stored = minimum(part->bytes, ahead + fetched);
    ahead += fetched - (stored < 0 ? 0 : stored);
    if (ahead <= 0)
        ahead = fetched > 0 || (follows && part->is_followed) ? READAHEAD_USED_UP : 0;
    *readahead = ahead;
    return stored;
}

/* Of the blocks that the call with RWF_NOWAIT submitted, those that must be of the part which it
 * returned: they arrived at once. The rest of the read needs its own blocks first. */
static int64_t blocks_of_nowait(const struct read_facts *read)
{
    if (read->nowait_bytes == 0 || (read->nowait_missed && read->stale_before))
        return 0; /* stale: some may be what the thread submitted before, perhaps for another file
                   */
    const struct usage *after = read->nowait_bytes == read->bytes ? &read->after : &read->between;
    int64_t blocks =
        after->blocks - read->before.blocks - (read->bytes - read->nowait_bytes + 511) / 512;
    return blocks > 0 ? blocks : 0;
}

struct read_sources decide_sources(const struct read_facts *read)
{
    const int64_t rest_bytes = read->bytes - read->nowait_bytes;
    if (read->is_direct)
        return (struct read_sources){read->nowait_bytes, rest_bytes, 0};
    if (read->accounting == ACCOUNTING_MEMORY ||
        is_certain_hit(read->switched, read->duration_ns, read->bytes))
        return (struct read_sources){0, 0, 0};
    if (read->accounting == ACCOUNTING_UNRELIABLE)
        return (struct read_sources){SOURCE_OF_NONE_KNOWN, SOURCE_OF_NONE_KNOWN, 0};

    const int64_t blocks = read->after.blocks - read->before.blocks;
    const bool was_preempted = read->after.preemptions > read->before.preemptions;
    const bool waited = read->switched != SWITCHED_NOT && read->after.waits > read->before.waits;
    /* The counters of a watched read were last read some reads ago: it was switched out once now,
     * but waited once and was preempted once since then, and only one of the two was now. */
    if (read->switched == SWITCHED_OUT && waited && blocks == 0 && was_preempted)
        return (struct read_sources){SOURCE_OF_NONE_KNOWN, SOURCE_OF_NONE_KNOWN, 0};

    struct part nowait = {read->nowait_bytes, blocks_of_nowait(read), false, rest_bytes > 0};
    /* What RWF_NOWAIT did not find may have arrived before the second call began to wait for it. It
     * counts as a wait all the same. */
    struct part rest = {rest_bytes, blocks - nowait.blocks, waited || read->nowait_missed, false};
    struct read_sources sources = {0, 0, read->readahead};
    if (nowait.bytes > 0)
        sources.nowait_storage = storage_bytes(read->accounting, &nowait, &sources.readahead);
    if (rest.bytes > 0)
        sources.rest_storage = storage_bytes(read->accounting, &rest, &sources.readahead);
    return sources;
}
