#include "reads.h"

#include "io_counters.h"
#include "positions.h"
#include "readahead.h"
#include "reading.h"
#include "real.h"
#include "receiving.h"
#include "switches.h"

#include <errno.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

#define PAGE_BYTES 4096 /* the smallest page there is */
#define LARGE_READ                                                                \
    1048576 /* reading the counters costs next to nothing compared to such a read \
             */

/* ------------------------------------------------------------------------ first what is cached */

static inline bool may_try_nowait(struct open_file *file, const struct request *request,
                                  int64_t position, int64_t wanted)
{
    if (!supports_nowait(GET(file, system)) || (flags_of(file) & FILE_DIRECT))
        return false;
    if (position < 0 || wanted <= 0 || request->count > MAX_SPLIT_PARTS || request->flags != 0 ||
        is_behind_end(file, position))
        return false;
    return request->offset != AT_POSITION || lock_position(file);
}

/* The cached beginning of what was asked for: its bytes, 0 if there is none. EAGAIN is the answer
 * "none"; EOPNOTSUPP and EINVAL are those of a file system or kernel that has no such thing; any
 * other error will come again with the read itself. */
static int64_t read_nowait(struct open_file *file, const struct request *request)
{
    ssize_t got = REAL(preadv64v2)(request->descriptor, request->parts, request->count,
                                   request->offset, RWF_NOWAIT);
    if (got < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS))
        atomic_store_explicit(&GET(file, system)->supports_nowait, false, memory_order_relaxed);
    return got > 0 ? got : 0;
}

/* Whether a read that stopped here met the end of the file. A cache holds whole pages, so that one
 * which stops within a page stops at the end; at the end of a page, the size that fstat last
 * returned decides. */
static inline bool is_end(const struct open_file *file, int64_t place)
{
    return place % PAGE_BYTES != 0 || place == GET(file, size);
}

/* Before Linux 5.9, and again in newer versions, RWF_NOWAIT itself starts to fetch what it does not
 * find. To see that, the counters have to be read before, which costs as much as a small cached
 * read: so this is done only where the read is large or a miss is likely. After an unexpected miss,
 * what the thread has submitted since the last look is attributed to this read. */
static inline bool expects_miss(const struct open_file *file, int64_t position, int64_t wanted)
{
    return num_hits < HITS_TO_EXPECT_ONE || wanted >= LARGE_READ ||
           may_have_readahead(file, position, wanted);
}

/* ------------------------------------------------------------------------------- then the rest */

/* After a first half there is a result already: an error in the second is for the next read to
 * meet, as in the kernel. */
static ssize_t make_rest(const struct request *request, int64_t done)
{
    struct iovec parts[MAX_SPLIT_PARTS];
    if (done == 0)
        return make_request(request);
    struct request rest = rest_of_request(request, done, parts);
    int saved_errno = errno;
    ssize_t got = make_request(&rest);
    errno = saved_errno;
    return done + (got > 0 ? got : 0);
}

/* What was not cached, or all of it where RWF_NOWAIT was not used. That call left an errno that the
 * job must not see. */
static ssize_t read_rest(const struct request *request, struct reading *reading, int64_t wanted,
                         int saved_errno)
{
    if (reading->nowait_missed)
        atomic_fetch_add_explicit(&process->own_calls, 1,
                                  memory_order_relaxed); /* the call with RWF_NOWAIT */
    if (reading->nowait_bytes > 0)
        reading->middle = clock_now();
    if (reading->has_usage && reading->nowait_missed)
        reading->between = read_usage();
    reading->stale_before = reading->nowait_missed && !reading->has_usage;
    if (reading->stale_before)
        read_usage_late(reading, wanted);
    else
        read_usage_before(reading);
    errno = saved_errno;
    return make_rest(request, reading->nowait_bytes);
}

/* -------------------------------------------------------------- reads behind the end of a file */

static inline bool is_untimed_end(struct open_file *file, int64_t position)
{
    return is_behind_end(file, position) && supports_nowait(GET(file, system));
}

/* A read behind the end of a file on a local file system, the last of every loop, waits for nothing
 * and moves nothing: it is counted and not timed. Should the file have grown meanwhile, what was
 * read is recorded without a duration. */
static inline ssize_t end_at_end(struct open_file *file, bool is_at_position, int64_t position,
                                 ssize_t got)
{
    count_read(got);
    if (__builtin_expect(got <= 0, 1))
        return got;
    int saved_errno = errno;
    int64_t now = clock_now();
    if (is_at_position)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    SET(file, size, -1);
    guard_enter();
    emit_read(file, now, now, position, got, SOURCE_UNKNOWN);
    guard_leave();
    errno = saved_errno;
    return got;
}

/* ----------------------------------------------------------------------------------- the whole */

static void count_hit(const struct reading *reading)
{
    if (reading->nowait_missed || reading->after.waits > reading->before.waits ||
        reading->after.blocks > reading->before.blocks)
        num_hits = 0;
    else if (reading->has_usage) /* only what is known to be a hit: of a file in memory the counters
                                    are not read */
        num_hits += num_hits < HITS_TO_EXPECT_ONE;
}

static ssize_t read_regular(struct open_file *file, const struct request *request)
{
    int saved_errno = errno;
    const bool is_at_position = request->offset == AT_POSITION;
    int64_t wanted = wanted_bytes(request);
    struct reading reading = {.file = file};
    reading.position = is_at_position ? position_of(request->descriptor, file) : request->offset;
    if (is_untimed_end(file, reading.position))
        return end_at_end(file, is_at_position, reading.position, make_request(request));
    bool try_nowait = may_try_nowait(file, request, reading.position, wanted);
    if (!try_nowait || expects_miss(file, reading.position, wanted))
        read_usage_before(&reading);
    reading.start = reading.middle = clock_now();
    ssize_t got = reading.nowait_bytes = try_nowait ? read_nowait(file, request) : 0;
    bool is_whole = got > 0 && (got == wanted || is_end(file, reading.position + got));
    reading.nowait_missed = try_nowait && !is_whole;
    if (!is_whole)
        got = read_rest(request, &reading, wanted, saved_errno);
    int64_t end = clock_now();
    read_usage_after(&reading, end - reading.start, got);
    count_hit(&reading);
    if (is_at_position && got > 0)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    if (try_nowait && is_at_position)
        unlock_position(file);
    end_reading(&reading, got, end);
    return got;
}

/* Reads of pipes and sockets wait for another program, see receiving.h; those of terminals and
 * devices are only counted. */
static __attribute__((noinline)) ssize_t read_other(const struct request *request,
                                                    const void *caller)
{
    struct receiving receiving = begin_receiving(request->descriptor);
    ssize_t got = make_request(request);
    count_read(got);
    end_receiving(&receiving, got, request->parts, request->count, caller);
    return got;
}

ssize_t read_request(const struct request *request, const void *caller)
{
    struct open_file *file = regular_file(request->descriptor);
    return file == NULL ? read_other(request, caller) : read_regular(file, request);
}

/* ----------------------------------------------------------------- a read under a switch watch */

/* The next read of a thread whose last reads all hit the page cache is made in one call, and only
 * watched for a switch. */
static inline bool may_watch(struct open_file *file, int64_t position, int64_t wanted)
{
    return num_hits >= HITS_TO_EXPECT_ONE && wanted > 0 && wanted < LARGE_READ &&
           !may_have_readahead(file, position, wanted) && has_usable_counters(file) &&
           can_watch_switches();
}

/* A watched read that took long, or during which the thread was switched out: it waited, or it was
 * preempted. Its counters are those since the last look. */
static __attribute__((noinline, cold)) void emit_suspect(struct open_file *file, int64_t start,
                                                         int64_t end, int64_t position, int64_t got,
                                                         enum switched switched)
{
    int saved_errno = errno;
    struct usage before = last_usage, after = read_usage();
    before.blocks = first_block_of(&before, &after, got);
    struct read_facts facts = {.bytes = got,
                               .duration_ns = end - start,
                               .switched = switched,
                               .before = before,
                               .between = before,
                               .after = after};
    emit_sources(file, start, start, end, position, &facts);
    if ((switched == SWITCHED_OUT && after.waits > before.waits) || after.blocks > before.blocks)
        num_hits = 0;
    errno = saved_errno;
}

static inline void end_watched(struct open_file *file, int64_t start, int64_t position, int64_t got,
                               enum switched switched)
{
    int64_t end = clock_now();
    guard_enter();
    tally_read(got > 0 ? (uint64_t)got : 0);
    if (__builtin_expect(got <= 0, 0)) {
        emit_empty_read(file, start, end, position);
    } else if (__builtin_expect(!is_certain_hit(switched, end - start, got), 0)) {
        emit_suspect(file, start, end, position, got, switched);
    } else {
        SET(file, next, position + got);
        emit_read(file, start, end, position, got, SOURCE_PAGE_CACHE);
    }
    compare_when_due(end);
    guard_leave();
}

static inline ssize_t make_single(int descriptor, void *buffer, size_t size, int64_t offset)
{
    return offset == AT_POSITION ? REAL(read)(descriptor, buffer, size)
                                 : REAL(pread64)(descriptor, buffer, size, offset);
}

HOT ssize_t read_single(int descriptor, void *buffer, size_t size, int64_t offset,
                        const void *caller)
{
    struct open_file *file = regular_file(descriptor);
    if (file == NULL)
        return read_other(
            &(struct request){descriptor, 1, &(struct iovec){buffer, size}, offset, 0}, caller);
    int64_t position = offset == AT_POSITION ? position_of(descriptor, file) : offset;
    if (is_untimed_end(file, position))
        return end_at_end(file, offset == AT_POSITION, position,
                          make_single(descriptor, buffer, size, offset));
    if (is_behind_end(file, position) || !may_watch(file, position, (int64_t)size))
        return read_regular(
            file, &(struct request){descriptor, 1, &(struct iovec){buffer, size}, offset, 0});
    int64_t start = clock_now();
    begin_switch_watch();
    ssize_t got = make_single(descriptor, buffer, size, offset);
    enum switched switched = was_switched_out() ? SWITCHED_OUT : SWITCHED_NOT;
    if (offset == AT_POSITION && got > 0)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    end_watched(file, start, position, got, switched);
    return got;
}
