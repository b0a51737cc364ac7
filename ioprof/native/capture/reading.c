#include "reading.h"

#include "io_counters.h"
#include "positions.h"
#include "readahead.h"
#include "request.h"
#include "short_calls.h"

#include <errno.h>

/* ----------------------------------------------------------------------- the thread's counters */

void read_usage_before(struct reading *reading)
{
    if (reading->has_usage || !has_usable_counters(reading->file) ||
        is_behind_end(reading->file, reading->position))
        return;
    reading->has_usage = true;
    reading->before = reading->between = read_usage();
}

void read_usage_late(struct reading *reading, int64_t wanted)
{
    struct usage last = last_usage;
    read_usage_before(reading);
    if (reading->has_usage)
        reading->before.blocks = first_block_of(&last, &reading->before, wanted);
}

/* Of all calls between a read and the return to the job, this one leaves errno alone. A read that
 * found all at the first call and took long did not wait, but may have submitted what the thread
 * has submitted since the last look. */
void read_usage_after(struct reading *reading, int64_t duration, int64_t got)
{
    bool is_late = !reading->has_usage;
    if (is_late && (got <= 0 || !is_slow(duration, got) || !has_usable_counters(reading->file)))
        return;
    int saved_errno = errno;
    struct usage last = last_usage;
    reading->after = read_usage();
    if (is_late) {
        reading->has_usage = true;
        reading->before = reading->after;
        reading->before.blocks = first_block_of(&last, &reading->after, got);
    }
    errno = saved_errno;
}

/* --------------------------------------------------------------------------------------- spans */

void emit_empty_read(struct open_file *file, int64_t start, int64_t end, int64_t position)
{
    if (end - start >= SLOW_CALL_NS)
        emit_event(&(struct event){start, end, 0, position, GET(file, path), -1, KIND_READ,
                                   SOURCE_UNKNOWN});
    else
        tally_short_call(end - start);
}

/* A part whose bytes are of two sources is two spans. What was cached takes no time compared to
 * what was fetched. */
static void emit_part(struct open_file *file, int64_t start, int64_t end, int64_t offset,
                      int64_t bytes, int64_t storage)
{
    if (storage == SOURCE_OF_NONE_KNOWN) {
        emit_read(file, start, end, offset, bytes, SOURCE_UNKNOWN);
        return;
    }
    emit_read(file, start, end, offset, storage, SOURCE_STORAGE);
    emit_read(file, storage > 0 ? end : start, end, offset + storage, bytes - storage,
              SOURCE_PAGE_CACHE);
}

void emit_sources(struct open_file *file, int64_t start, int64_t middle, int64_t end,
                  int64_t position, struct read_facts *facts)
{
    const int64_t first = facts->nowait_bytes, rest = facts->bytes - first;
    facts->accounting = accounting_of(GET(file, system));
    facts->is_direct = flags_of(file) & FILE_DIRECT;
    facts->readahead = take_readahead(file, position, facts->bytes);
    struct read_sources sources = decide_sources(facts);
    if (counters_apply(facts->accounting, facts->is_direct))
        add_readahead(file, position, facts->bytes, sources.readahead);
    tally_fetched(facts->is_direct ? (facts->bytes + 511) / 512 * 512
                                   : (facts->after.blocks - facts->before.blocks) * 512);
    if (first > 0)
        emit_part(file, start, rest > 0 ? middle : end, position, first, sources.nowait_storage);
    if (rest > 0)
        emit_part(file, middle, end, position + first, rest, sources.rest_storage);
}

void end_reading(const struct reading *reading, int64_t got, int64_t end)
{
    int saved_errno = begin_own_work();
    if (!reading->is_uncounted)
        tally_read(got > 0 ? (uint64_t)got : 0);
    if (got > 0) {
        struct read_facts facts = {.bytes = got,
                                   .nowait_bytes = reading->nowait_bytes,
                                   .nowait_missed = reading->nowait_missed,
                                   .stale_before = reading->stale_before,
                                   .before = reading->before,
                                   .between = reading->between,
                                   .after = reading->after};
        emit_sources(reading->file, reading->start, reading->middle, end, reading->position,
                     &facts);
    } else {
        emit_empty_read(reading->file, reading->start, end, reading->position);
    }
    compare_when_due(end);
    end_own_work(saved_errno);
}

/* --------------------------------------------------------------- reads made by other functions */

bool begin_other_reading(int descriptor, int64_t offset, struct reading *reading)
{
    struct open_file *file = regular_file(descriptor);
    if (file == NULL)
        return false;
    int saved_errno = errno;
    *reading = (struct reading){.file = file, .position = offset};
    if (offset == AT_POSITION)
        reading->position = position_of(descriptor, file);
    read_usage_before(reading);
    reading->start = reading->middle = clock_now();
    errno = saved_errno;
    return true;
}

void end_other_reading(struct reading *reading, int64_t got)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    read_usage_after(reading, end - reading->start, got);
    end_reading(reading, got, end);
    errno = saved_errno;
}

/* ------------------------------------------------------------- readahead that the job asks for */

struct open_file *begin_readahead(int descriptor)
{
    int saved_errno = errno;
    struct open_file *file = regular_file(descriptor);
    if (file != NULL && has_usable_counters(file))
        read_usage();
    else
        file = NULL;
    errno = saved_errno;
    return file;
}

void end_readahead(struct open_file *file, int64_t offset)
{
    int saved_errno = errno;
    int64_t before = last_usage.blocks, fetched = (read_usage().blocks - before) * 512;
    if (fetched > 0) {
        guard_enter();
        add_readahead(file, offset, 0, fetched);
        tally_fetched(fetched);
        guard_leave();
    }
    errno = saved_errno;
}
