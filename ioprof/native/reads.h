/* One read: made as the job asked for it, timed, and told with its file, offset and the source of its bytes.
 *
 * Where the file system can say it, the read is first made with RWF_NOWAIT, which takes what is cached and nothing else: if that
 * is all of it, and quick, the question is answered at the price of the read itself. What remains is read as usual between two
 * readings of what the kernel counts for this thread: blocks that it submitted, and voluntary switches, of which there is one when
 * it had to wait. */
#ifndef IOPROF_READS_H
#define IOPROF_READS_H

#include "files.h"

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

#define MOST_BYTES 0x7ffff000 /* of one read, whatever was asked (read(2)) */
#define MOST_PARTS 16         /* of a readv that may be made in two halves */
#define SLOW_NS 10000         /* a call without bytes is a span of its own from here on */
#define LARGE 1048576         /* a read beside which asking for usage costs next to nothing */
#define PLAIN (-1)            /* a request's offset: at the descriptor's position */

/* ---------------------------------------------------------------------------------------- calls that move no bytes */

static inline void tell_short(int64_t start, int64_t end, int32_t path, int32_t name)
{
    tell(&(struct told){start, end, -1, -1, path, name, KIND_OPEN, SOURCE_NONE});
}

/* A call that began at `start` has just ended, and moved no bytes: it is a span of its own only if it took long. `number` gives the
 * path, where there is need of it. */
#define END_SHORT(start, what, number) \
    do { \
        int64_t end_ = clock_now(); \
        hands_off(); \
        if (__builtin_expect(end_ - (start) < SLOW_NS, 1)) { \
            tally_short(end_ - (start)); \
        } else { \
            int saved_errno_ = errno; \
            tell_short(start, end_, saved_errno_ == EFAULT ? -1 : (number), NAME(what)); \
            errno = saved_errno_; \
        } \
        compare_when_due(end_); \
        hands_on(); \
    } while (0)

static int32_t number_of(int descriptor)
{
    if ((unsigned)descriptor < FILES && is_known(&files[descriptor]))
        return GET(&files[descriptor], path);
    return -1;
}

/* ---------------------------------------------------------------------------------------- files that are opened */

static void tell_open(int descriptor, int64_t start, int64_t end, int32_t number, int flags)
{
    if (descriptor >= 0)
        add_file(descriptor, flags, number);
    tell(&(struct told){start, end, -1, -1, number, -1, KIND_OPEN, SOURCE_NONE});
    compare_when_due(end);
}

/* The job opened a file, or failed to: `key` is its path's, if that was looked up. The library's own files are none of the job's. */
static void end_open(int descriptor, int64_t start, int folder_of, const char *path, int flags, const struct key *key)
{
    int64_t end = clock_now();
    hands_off();
    if (__builtin_expect(descriptor < 0, 0)) {
        int saved_errno = errno;
        if (end - start < SLOW_NS)
            tally_short(end - start);
        else if (saved_errno != EFAULT && !in_spool(path))
            tell_open(descriptor, start, end, opened_number(key, folder_of, path), flags);
        errno = saved_errno;
    } else if (!in_spool(path)) {
        tell_open(descriptor, start, end, opened_number(key, folder_of, path), flags);
    } else {
        forget_file(descriptor);
    }
    hands_on();
}

/* ---------------------------------------------------------------------------------------- where bytes came from */

struct usage {
    int64_t blocks, waits;
    int64_t preemptions;
};

/* When it was last asked. */
static __thread struct usage usage_known;

/* How many more reads of this thread are expected to miss the cache: its first, and those after a miss. */
#define EXPECTED_MISSES 32
static __thread int hits;

/* The only thread of a child has what its parent's knew, but the kernel counts for it from zero. */
static void forget_usage(void)
{
    usage_known = (struct usage){0, 0, 0};
    hits = 0;
}

static struct usage usage_now(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0)
        return (struct usage){0, 0, 0};
    return usage_known = (struct usage){usage.ru_inblock, usage.ru_nvcsw, usage.ru_nivcsw};
}

/* How a part of a read went. */
struct fetched {
    int64_t bytes;
    int64_t blocks; /* of 512 bytes, submitted meanwhile by this thread */
    bool waited;
    bool is_half; /* the rest of the read follows */
};

#define FETCHED 1 /* a credit of one byte, which stands for none: the read before has submitted, and that is used up */

/* Bytes of this read that had to come from the device or the network; -1: cannot be known.
 *
 * They are those that it submitted, whether it waited for them or not: a fast device may be done before the thread waits, or while
 * the thread has no core. What a read submits beyond its own bytes is credit: a later read that goes on where the last ended finds
 * those bytes in the page cache, or waits for them, but they were fetched for it. A read that waited without submitting waited for a
 * page that another thread had asked for; or for one that the read before had asked for, and been told of: then one byte stands for
 * the wait. */
static int64_t from_storage(struct file *file, int64_t offset, const struct fetched *part)
{
    int64_t credit = offset == GET(file, next) ? GET(file, credit) : 0;
    bool follows = credit > 0, only_waited = part->waited && part->blocks == 0;
    int64_t fetched = part->blocks * 512, stored;
    credit -= credit == FETCHED;
    if (only_waited && !follows)
        stored = medium_of(GET(file, system)) == MEDIUM_BLOCKS ? part->bytes : -1;
    else if (only_waited && credit == 0)
        stored = part->bytes > 0;
    else
        stored = part->bytes < credit + fetched ? part->bytes : credit + fetched;
    credit += fetched - (stored < 0 ? 0 : stored);
    SET(file, credit, credit > 0 ? credit : fetched > 0 || (follows && part->is_half) ? FETCHED : 0);
    SET(file, next, offset + part->bytes);
    return stored;
}

static void tell_part(struct file *file, int64_t start, int64_t end, int64_t offset, int64_t bytes, enum source source)
{
    if (bytes > 0)
        tell(&(struct told){start, end, bytes, offset, GET(file, path), -1, KIND_READ, source});
}

/* A read that moved no bytes. */
static void tell_nothing(struct file *file, int64_t start, int64_t end, int64_t position)
{
    if (end - start >= SLOW_NS)
        tell(&(struct told){start, end, 0, position, GET(file, path), -1, KIND_READ, SOURCE_UNKNOWN});
    else
        tally_short(end - start);
}

/* A part whose bytes are of two sources is told as two spans. What was cached took no time to speak of. */
static void tell_fetched(struct file *file, int64_t start, int64_t end, int64_t offset, const struct fetched *part)
{
    if (part->bytes <= 0)
        return;
    if (flags_of(file) & FILE_DIRECT) {
        tell_part(file, start, end, offset, part->bytes, SOURCE_STORAGE);
        return;
    }
    enum medium medium = medium_of(GET(file, system));
    int64_t stored = medium == MEDIUM_MEMORY ? 0 : medium == MEDIUM_UNKNOWN ? -1 : from_storage(file, offset, part);
    if (stored < 0) {
        tell_part(file, start, end, offset, part->bytes, SOURCE_UNKNOWN);
        return;
    }
    tell_part(file, start, end, offset, stored, SOURCE_STORAGE);
    tell_part(file, stored > 0 ? end : start, end, offset + stored, part->bytes - stored, SOURCE_PAGE_CACHE);
}

/* ---------------------------------------------------------------------------------------- a request */

struct request {
    int descriptor;
    int count;
    const struct iovec *parts;
    int64_t offset; /* PLAIN: at the descriptor's position, which moves */
    int flags;      /* of preadv2 */
};

static ssize_t make(const struct request *request)
{
    const struct iovec *first = request->parts;
    if (request->flags != 0)
        return REAL(preadv64v2)(request->descriptor, first, request->count, request->offset, request->flags);
    if (request->count == 1 && request->offset == PLAIN)
        return REAL(read)(request->descriptor, first->iov_base, first->iov_len);
    if (request->count == 1)
        return REAL(pread64)(request->descriptor, first->iov_base, first->iov_len, request->offset);
    if (request->offset == PLAIN)
        return REAL(readv)(request->descriptor, first, request->count);
    return REAL(preadv64)(request->descriptor, first, request->count, request->offset);
}

/* Bytes asked for; -1: more than one read may move, or a request that the kernel will refuse. */
static inline int64_t wanted_bytes(const struct request *request)
{
    uint64_t sum = 0;
    for (int place = 0; place < request->count; place++) {
        if (request->parts[place].iov_len > MOST_BYTES)
            return -1;
        sum += request->parts[place].iov_len;
    }
    return sum > MOST_BYTES ? -1 : (int64_t)sum;
}

/* What is left of a request after its first `done` bytes; `parts` has room for all of its own. */
static void rest_of(const struct request *request, int64_t done, struct request *rest, struct iovec *parts)
{
    int place = 0;
    int64_t skip = done;
    while (place < request->count && skip >= (int64_t)request->parts[place].iov_len)
        skip -= (int64_t)request->parts[place++].iov_len;
    *rest = *request;
    rest->count = request->count - place;
    for (int number = 0; number < rest->count; number++)
        parts[number] = request->parts[place + number];
    parts[0].iov_base = (char *)parts[0].iov_base + skip;
    parts[0].iov_len -= (size_t)skip;
    rest->parts = parts;
    if (request->offset != PLAIN)
        rest->offset += done;
}

/* ---------------------------------------------------------------------------------------- first what is cached */

/* Nothing is expected there, and so nothing that would have to be fetched. */
static inline bool is_behind(const struct file *file, int64_t position)
{
    int64_t size = GET(file, size);
    return size >= 0 && position >= size;
}

static inline bool may_try_cached(struct file *file, const struct request *request, int64_t position, int64_t wanted)
{
    if (atomic_load_explicit(&GET(file, system)->nowait, memory_order_relaxed) == NOWAIT_NEVER || (flags_of(file) & FILE_DIRECT))
        return false;
    if (position < 0 || wanted <= 0 || request->count > MOST_PARTS || request->flags != 0 || is_behind(file, position))
        return false;
    return request->offset != PLAIN || take_position(file);
}

/* The cached beginning of what was asked for: its bytes, 0 if there is none. EAGAIN is the answer "none"; EOPNOTSUPP and EINVAL are
 * those of a file system or kernel that has no such thing; any other error will come again with the read itself. */
static int64_t read_cached(struct file *file, const struct request *request)
{
    ssize_t got = REAL(preadv64v2)(request->descriptor, request->parts, request->count, request->offset, RWF_NOWAIT);
    if (got < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS))
        atomic_store_explicit(&GET(file, system)->nowait, NOWAIT_NEVER, memory_order_relaxed);
    return got > 0 ? got : 0;
}

/* Whether a read that stopped here met the end of the file. A cache holds whole pages, so that one which stops within a page
 * stops at the end; at the end of a page, what the process was told of the size must decide. */
static inline bool is_end(const struct file *file, int64_t place)
{
    return place % PAGE_BYTES != 0 || place == GET(file, size);
}

/* ---------------------------------------------------------------------------------------- the whole */

/* A read of a regular file while it goes on. */
struct reading {
    struct file *file;
    int64_t position, start, middle; /* middle: when what was cached had been read */
    int64_t cached;
    struct usage before, between, after; /* between: after the attempt to find all in the cache */
    bool asked;                          /* whether usage was read */
    bool missed, surprised;              /* the attempt failed; and usage had not been read before it */
    bool uncounted;                      /* by the kernel, and so not here */
};

static inline bool usage_tells(struct file *file)
{
    enum medium medium = medium_of(GET(file, system));
    return (medium == MEDIUM_BLOCKS || medium == MEDIUM_OTHER) && !(flags_of(file) & FILE_DIRECT);
}

/* Before Linux 5.9, and again in newer ones, RWF_NOWAIT itself starts to fetch what it does not find. To see that, usage has to
 * be read before, which costs as much as a small cached read: so only where that is little beside the read, or a miss is likely.
 * Where one comes as a surprise, what the thread has submitted since it was last asked is taken for this read's. */
static inline bool expects_miss(const struct file *file, int64_t wanted)
{
    return hits < EXPECTED_MISSES || wanted >= LARGE || GET(file, credit) > 0;
}

/* Longer than nearly every copy of so much from memory, system call included (benchmarks/cold_files.py). That is no proof: a virtual
 * processor may have been away. But the question is worth its price then, since a fast device is done before a thread waits. */
static inline bool is_slow(int64_t duration, int64_t bytes)
{
    return duration > 4000 + bytes * 3 / 8;
}

static inline void ask_before(struct reading *reading)
{
    if (reading->asked || !usage_tells(reading->file) || is_behind(reading->file, reading->position))
        return;
    reading->asked = true;
    reading->before = reading->between = usage_now();
}

/* After an attempt that missed as a surprise: it submitted what the thread has submitted since it was last asked. */
static inline void ask_late(struct reading *reading)
{
    int64_t blocks = usage_known.blocks;
    ask_before(reading);
    if (reading->asked)
        reading->before.blocks = blocks;
}

/* Of all calls between a read and the return to the job: errno is left alone. A read that found all at the first attempt, and took
 * long, did not wait, but may have submitted what the thread has submitted since it was last asked. */
static inline void ask_after(struct reading *reading, int64_t duration, int64_t got)
{
    bool is_late = !reading->asked;
    if (is_late && (got <= 0 || !is_slow(duration, got) || !usage_tells(reading->file)))
        return;
    int saved_errno = errno;
    int64_t blocks = usage_known.blocks;
    reading->after = usage_now();
    if (is_late) {
        reading->asked = true;
        reading->before = reading->after;
        reading->before.blocks = blocks;
    }
    errno = saved_errno;
}

/* What is not cached. After a first half there is a result already: an error in the second is for the next read to meet, as in the
 * kernel. */
static ssize_t make_rest(const struct request *request, struct reading *reading)
{
    struct iovec parts[MOST_PARTS];
    struct request rest;
    if (reading->cached == 0)
        return make(request);
    rest_of(request, reading->cached, &rest, parts);
    int saved_errno = errno;
    ssize_t got = make(&rest);
    errno = saved_errno;
    return reading->cached + (got > 0 ? got : 0);
}

static inline bool has_waited(const struct reading *reading)
{
    return reading->after.waits > reading->before.waits;
}

static inline bool has_fetched(const struct reading *reading)
{
    return reading->missed || has_waited(reading) || reading->after.blocks > reading->before.blocks;
}

/* Of the blocks that the attempt to find all in the cache submitted, those that must be of the part which it took: what arrived at
 * once. The rest needs its own first. */
static int64_t blocks_at_once(const struct reading *reading, int64_t got)
{
    if (reading->cached == 0 || reading->surprised)
        return 0; /* a surprise's are in part what the thread had submitted before, perhaps for another file */
    const struct usage *after = reading->cached == got ? &reading->after : &reading->between;
    int64_t more = after->blocks - reading->before.blocks - (got - reading->cached + 511) / 512;
    return more > 0 ? more : 0;
}

/* What the attempt did not find may have arrived before the read began to wait for it, and is a wait all the same where the thread
 * itself submitted nothing. */
static void tell_reading(const struct reading *reading, int64_t got, int64_t end)
{
    int64_t blocks = reading->after.blocks - reading->before.blocks;
    struct fetched cached = {reading->cached, blocks_at_once(reading, got), false, reading->cached != got};
    struct fetched rest = {got - reading->cached, blocks - cached.blocks, reading->missed || has_waited(reading), false};
    if (!reading->uncounted)
        tally_read(got > 0 ? (uint64_t)got : 0);
    if (got <= 0)
        tell_nothing(reading->file, reading->start, end, reading->position);
    tell_fetched(reading->file, reading->start, cached.bytes == got ? end : reading->middle, reading->position, &cached);
    tell_fetched(reading->file, reading->middle, end, reading->position + cached.bytes, &rest);
    compare_when_due(end);
}

/* Everything about a read that is over; `got` is its result. errno is left as the read left it. */
static void end_reading(const struct reading *reading, int64_t got, int64_t end)
{
    int saved_errno = errno;
    hands_off();
    tell_reading(reading, got, end);
    hands_on();
    errno = saved_errno;
}

/* A read that is counted but not told. */
static inline void count_read(int64_t bytes)
{
    hands_off();
    tally_read(bytes > 0 ? (uint64_t)bytes : 0);
    hands_on();
}

static inline bool is_untimed_end(struct file *file, int64_t position)
{
    return is_behind(file, position) &&
           atomic_load_explicit(&GET(file, system)->nowait, memory_order_relaxed) != NOWAIT_NEVER;
}

/* A read behind the end of a file on a local file system, the last of every loop, waits for nothing and moves nothing: it is
 * counted and not timed. Should the file have grown meanwhile, what was read is told without a duration. `is_plain`: the
 * descriptor's position moves. */
static inline ssize_t end_at_end(struct file *file, bool is_plain, int64_t position, ssize_t got)
{
    count_read(got);
    if (__builtin_expect(got <= 0, 1))
        return got;
    int saved_errno = errno;
    int64_t now = clock_now();
    if (is_plain)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    SET(file, size, -1);
    hands_off();
    tell_part(file, now, now, position, got, SOURCE_UNKNOWN);
    hands_on();
    errno = saved_errno;
    return got;
}

/* What was not cached, or all of it where that was not asked. The attempt left an errno that the job must not see. */
static ssize_t read_rest(const struct request *request, struct reading *reading, int saved_errno)
{
    if (reading->missed)
        atomic_fetch_add_explicit(&live->own_calls, 1, memory_order_relaxed); /* the attempt */
    if (reading->cached > 0)
        reading->middle = clock_now();
    if (reading->asked && reading->missed)
        reading->between = usage_now();
    reading->surprised = reading->missed && !reading->asked;
    if (reading->surprised)
        ask_late(reading);
    else
        ask_before(reading);
    errno = saved_errno;
    return make_rest(request, reading);
}

static ssize_t read_regular(struct file *file, const struct request *request)
{
    int saved_errno = errno;
    int64_t wanted = wanted_bytes(request);
    struct reading reading = {.file = file};
    reading.position = request->offset == PLAIN ? position_of(request->descriptor, file) : request->offset;
    if (is_untimed_end(file, reading.position))
        return end_at_end(file, request->offset == PLAIN, reading.position, make(request));
    bool try_cached = may_try_cached(file, request, reading.position, wanted);
    if (!try_cached || expects_miss(file, wanted))
        ask_before(&reading);
    reading.start = reading.middle = clock_now();
    ssize_t got = reading.cached = try_cached ? read_cached(file, request) : 0;
    bool is_whole = got > 0 && (got == wanted || is_end(file, reading.position + got));
    reading.missed = try_cached && !is_whole;
    if (!is_whole)
        got = read_rest(request, &reading, saved_errno);
    int64_t end = clock_now();
    ask_after(&reading, end - reading.start, got);
    if (has_fetched(&reading))
        hits = 0;
    else if (reading.asked) /* a hit is one that is known to be: of a file in memory nothing is asked */
        hits += hits < EXPECTED_MISSES;
    if (request->offset == PLAIN && got > 0)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    if (try_cached && request->offset == PLAIN)
        give_position(file);
    end_reading(&reading, got, end);
    return got;
}

/* ---------------------------------------------------------------------------------------- a read that was watched */

/* Of a thread whose last reads all found their bytes in memory, the next one is made as it is, and only watched for a switch. */
static inline bool may_watch(struct file *file, int64_t wanted)
{
    return hits >= EXPECTED_MISSES && wanted > 0 && wanted < LARGE && GET(file, credit) == 0 && usage_tells(file) && watch_can();
}

/* A read that took long, or during which the thread was switched out: it waited, or it was preempted. What tells is what it did since
 * it was last asked; if it was preempted at some time and waited at another without a block, nobody knows which of them was now. */
static __attribute__((noinline, cold)) void tell_suspect(struct file *file, int64_t start, int64_t end, int64_t position, int64_t got,
                                                         bool switched)
{
    int saved_errno = errno;
    struct usage before = usage_known, after = usage_now();
    struct fetched part = {got, after.blocks - before.blocks, switched && after.waits > before.waits, false};
    if (part.waited && part.blocks == 0 && after.preemptions > before.preemptions)
        tell_part(file, start, end, position, got, SOURCE_UNKNOWN);
    else
        tell_fetched(file, start, end, position, &part);
    if (part.waited || part.blocks > 0)
        hits = 0;
    errno = saved_errno;
}

static inline void end_watched(struct file *file, int64_t start, int64_t position, int64_t got, bool switched)
{
    int64_t end = clock_now();
    hands_off();
    tally_read(got > 0 ? (uint64_t)got : 0);
    if (__builtin_expect(got <= 0, 0)) {
        tell_nothing(file, start, end, position);
    } else if (__builtin_expect(switched || is_slow(end - start, got), 0)) {
        tell_suspect(file, start, end, position, got, switched);
    } else {
        SET(file, next, position + got);
        tell_part(file, start, end, position, got, SOURCE_PAGE_CACHE);
    }
    compare_when_due(end);
    hands_on();
}

static inline ssize_t make_one(int descriptor, void *buffer, size_t size, int64_t offset)
{
    return offset == PLAIN ? REAL(read)(descriptor, buffer, size) : REAL(pread64)(descriptor, buffer, size, offset);
}

/* Pipes, sockets, terminals: whose reads wait for somebody and not for storage. */
static ssize_t read_other(const struct request *request)
{
    ssize_t got = make(request);
    count_read(got);
    return got;
}

static inline ssize_t read_recorded(const struct request *request)
{
    struct file *file = regular_file(request->descriptor);
    return file == NULL ? read_other(request) : read_regular(file, request);
}

/* The same for the plainest of requests. */
static inline ssize_t read_one(int descriptor, void *buffer, size_t size, int64_t offset)
{
    struct file *file = regular_file(descriptor);
    int64_t position = file == NULL || offset != PLAIN ? offset : position_of(descriptor, file);
    if (file != NULL && is_untimed_end(file, position))
        return end_at_end(file, offset == PLAIN, position, make_one(descriptor, buffer, size, offset));
    if (file == NULL || is_behind(file, position) || !may_watch(file, (int64_t)size))
        return read_recorded(&(struct request){descriptor, 1, &(struct iovec){buffer, size}, offset, 0});
    int64_t start = clock_now();
    watch_begin();
    ssize_t got = make_one(descriptor, buffer, size, offset);
    bool switched = !watch_end();
    if (offset == PLAIN && got > 0)
        atomic_fetch_add_explicit(&file->position, got, memory_order_relaxed);
    end_watched(file, start, position, got, switched);
    return got;
}

/* ---------------------------------------------------------------------------------------- what is fetched ahead */

/* A call that may have the kernel fetch ahead of reading: the file whose credit it is, or NULL. */
static struct file *begin_ahead(int descriptor)
{
    int saved_errno = errno;
    struct file *file = regular_file(descriptor);
    if (file != NULL && usage_tells(file))
        usage_now();
    else
        file = NULL;
    errno = saved_errno;
    return file;
}

static void end_ahead(struct file *file, int64_t offset)
{
    int saved_errno = errno;
    int64_t before = usage_known.blocks, fetched = (usage_now().blocks - before) * 512;
    if (fetched > 0) {
        SET(file, credit, fetched);
        SET(file, next, offset);
    }
    errno = saved_errno;
}

/* ---------------------------------------------------------------------------------------- reads that something else makes */

/* A read by sendfile, stdio and the like: of a regular file, beginning at its position, to be ended by `end_other_reading`. */
static bool begin_other_reading(int descriptor, int64_t offset, struct reading *reading)
{
    struct file *file = regular_file(descriptor);
    if (file == NULL)
        return false;
    int saved_errno = errno;
    *reading = (struct reading){.file = file, .position = offset};
    if (offset == PLAIN)
        reading->position = position_of(descriptor, file);
    ask_before(reading);
    reading->start = reading->middle = clock_now();
    errno = saved_errno;
    return true;
}

static void end_other_reading(struct reading *reading, int64_t got)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    ask_after(reading, end - reading->start, got);
    end_reading(reading, got, end);
    errno = saved_errno;
}

#endif
