#include "uring.h"

#include "decimal.h"
#include "events.h"
#include "reading.h"
#include "real.h"
#include "string_table.h"
#include "uring_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#define MAX_YIELDS 100

/* ------------------------------------------------------------------------------------ requests */

static inline uint32_t place_of(const struct uring *ring, uint64_t user_data)
{
    return (uint32_t)(mixed(user_data, 0x9e3779b97f4a7c15) & (ring->capacity - 1));
}

/* Bytes that a request asks for, whose parts are the job's: at an invalid address the kernel would
 * fail, and this library too. */
static uint64_t wanted_by(const struct request_entry *request)
{
    if (request->opcode != OP_READV)
        return request->length;
    uint64_t bytes = 0;
    const struct iovec *parts = (const struct iovec *)(uintptr_t)request->address;
    for (uint32_t part = 0; part < request->length && part < 1024; part++)
        bytes += parts[part].iov_len;
    return bytes;
}

static void set_file(const struct uring *ring, const struct request_entry *request,
                     struct pending *found)
{
    found->path = -1;
    found->descriptor = -1;
    if (request->flags & SQE_FIXED_FILE) {
        uint32_t place = (uint32_t)request->descriptor;
        found->is_read = true;
        if (place < ring->num_registered) {
            found->path = ring->registered[place].path;
            found->system = ring->registered[place].system;
            found->is_direct = ring->registered[place].is_direct;
        }
        return;
    }
    struct open_file *file = regular_file(request->descriptor);
    if (file == NULL)
        return;
    found->is_read = true;
    found->descriptor = request->descriptor;
    found->path = GET(file, path);
    found->system = GET(file, system);
    found->is_direct = (flags_of(file) & FILE_DIRECT) != 0;
}

static bool is_read(const struct request_entry *request)
{
    return request->opcode == OP_READ || request->opcode == OP_READV ||
           request->opcode == OP_READ_FIXED;
}

static void add_request(struct uring *ring, struct uring_entry *entry,
                        const struct request_entry *request)
{
    struct pending *table = mapped_table(&ring->pending),
                   found = {.user_data = request->user_data, .start = entry->start};
    if (request->flags & SQE_SKIP_COMPLETION)
        return; /* only its failure is told */
    if (ring->num_pending >= ring->capacity / 4 * 3) {
        ring->is_incomplete = true;
        return;
    }
    if (is_read(request)) {
        set_file(ring, request, &found);
        found.offset = (int64_t)request->offset; /* -1: at the descriptor's position */
        if (found.is_read) {
            entry->reads++;
            entry->bytes += wanted_by(request);
        }
    }
    found.entry = entry->number;
    found.sequence = ++ring->sequence == 0 ? ++ring->sequence : ring->sequence;
    uint32_t place = place_of(ring, found.user_data);
    while (table[place].sequence != 0)
        place = (place + 1) & (ring->capacity - 1);
    table[place] = found;
    ring->num_pending++;
}

/* Takes the oldest request of this name: a job may give all of them the same. */
static bool take_request(struct uring *ring, uint64_t user_data, struct pending *taken)
{
    struct pending *table = mapped_table(&ring->pending);
    uint32_t last = ring->capacity - 1, oldest = 0, place = place_of(ring, user_data);
    bool has_one = false;
    for (; table[place].sequence != 0; place = (place + 1) & last) {
        if (table[place].user_data != user_data)
            continue;
        if (!has_one || (int32_t)(table[place].sequence - table[oldest].sequence) < 0)
            oldest = place;
        has_one = true;
    }
    if (!has_one)
        return false;
    *taken = table[oldest];
    ring->num_pending--;
    /* those behind it move up, so that no search ends before them (Knuth, volume 3, 6.4, algorithm
     * R) */
    for (uint32_t hole = oldest, next = (hole + 1) & last;; next = (next + 1) & last) {
        if (table[next].sequence == 0) {
            table[hole].sequence = 0;
            return true;
        }
        uint32_t home = place_of(ring, table[next].user_data);
        if (((next - home) & last) >= ((next - hole) & last)) {
            table[hole] = table[next];
            hole = next;
        }
    }
}

/* --------------------------------------------------------------------------------- completions */

/* Where the bytes of the reads of one entry came from, as far as it can be told of all of them
 * together. */
static enum ioprof_source source_of_entry(const struct uring_entry *entry, int64_t duration,
                                          int64_t blocks)
{
    if (!entry->has_usage || entry->reads == 0)
        return SOURCE_UNKNOWN;
    if (blocks == 0)
        return is_slow(duration, (int64_t)entry->bytes) ? SOURCE_UNKNOWN : SOURCE_PAGE_CACHE;
    return (uint64_t)blocks * 512 >= entry->bytes ? SOURCE_STORAGE : SOURCE_UNKNOWN;
}

static enum ioprof_source source_of(const struct uring *ring, const struct pending *request)
{
    if (request->is_direct)
        return SOURCE_STORAGE;
    if (request->system == NULL)
        return SOURCE_UNKNOWN;
    if (accounting_of(request->system) == ACCOUNTING_MEMORY)
        return SOURCE_PAGE_CACHE;
    bool is_remembered = ring->num_entries - request->entry < ENTRIES;
    return is_remembered && counters_apply(accounting_of(request->system), false)
               ? (enum ioprof_source)ring->sources[request->entry % ENTRIES]
               : SOURCE_UNKNOWN;
}

/* The counters of a thread around an entry say of its one read what they say of a call of read. */
static bool emit_single(const struct pending *request, int64_t bytes, int64_t now,
                        const struct uring_entry *entry, const struct usage *after)
{
    struct open_file *file =
        request->system != NULL && request->offset >= 0 ? known_file(request->descriptor) : NULL;
    if (file == NULL || GET(file, path) != request->path || !has_usable_counters(file))
        return false;
    struct read_facts facts = {
        .bytes = bytes, .before = entry->before, .between = entry->before, .after = *after};
    emit_sources(file, request->start, request->start, now, request->offset, &facts);
    return true;
}

/* `entry`: the one that ends, with the counters after it; NULL: one begins. */
static void emit_completion(struct uring *ring, const struct completion *completion, int64_t now,
                            const struct uring_entry *entry, const struct usage *after)
{
    struct pending request;
    if (!take_request(ring, completion->user_data, &request) || !request.is_read ||
        completion->result <= 0)
        return;
    if (entry != NULL && entry->reads == 1 && request.entry == entry->number &&
        emit_single(&request, completion->result, now, entry, after)) {
        ring->is_tallied = true;
        return;
    }
    emit_event(&(struct event){request.start, now, completion->result, request.offset, request.path,
                               -1, KIND_READ, source_of(ring, &request)});
}

static void take_completions(struct uring *ring, int64_t now, const struct uring_entry *entry,
                             const struct usage *after)
{
    uint32_t tail = __atomic_load_n(ring->completion_tail, __ATOMIC_ACQUIRE),
             size = ring->completion_mask + 1;
    if (tail - ring->completions_seen > size) { /* the kernel has written over those before */
        ring->is_incomplete = true;
        ring->completions_seen = tail - size;
    }
    for (; ring->completions_seen != tail; ring->completions_seen++)
        emit_completion(ring,
                        &ring->completions[(ring->completions_seen & ring->completion_mask) *
                                           ring->completion_scale],
                        now, entry, after);
}

/* The same of memory that the job may have unmapped since. */
static void take_last_completions(struct uring *ring, int64_t now)
{
    uint32_t tail;
    struct completion found;
    struct iovec own = {&tail, sizeof tail}, theirs = {ring->completion_tail, sizeof tail};
    pid_t pid = getpid();
    if (ring->completion_tail == NULL ||
        process_vm_readv(pid, &own, 1, &theirs, 1, 0) != sizeof tail ||
        tail - ring->completions_seen > ring->completion_mask + 1)
        return;
    for (; ring->completions_seen != tail; ring->completions_seen++) {
        own = (struct iovec){&found, sizeof found};
        theirs =
            (struct iovec){&ring->completions[(ring->completions_seen & ring->completion_mask) *
                                              ring->completion_scale],
                           sizeof found};
        if (process_vm_readv(pid, &own, 1, &theirs, 1, 0) != sizeof found)
            return;
        emit_completion(ring, &found, now, NULL, NULL);
    }
}

/* ------------------------------------------------------------------------------------- entries */

static bool lock_uring(struct uring *ring)
{
    for (int attempt = 0; attempt < MAX_YIELDS; attempt++) {
        if (try_lock(&ring->holder))
            return true;
        sched_yield();
    }
    return false;
}

static void take_requests(struct uring *ring, struct uring_entry *entry)
{
    uint32_t tail = ring->queue != NULL ? ring->queue->requests.last
                                        : __atomic_load_n(ring->request_tail, __ATOMIC_ACQUIRE);
    if (tail - ring->requests_seen > ring->request_mask + 1) {
        ring->is_incomplete = true;
        ring->requests_seen = tail - ring->request_mask - 1;
    }
    for (; ring->requests_seen != tail; ring->requests_seen++) {
        uint32_t place = ring->requests_seen & ring->request_mask;
        if (ring->array != NULL)
            place = ring->array[place] & ring->request_mask;
        add_request(ring, entry, &ring->requests[place * ring->request_scale]);
    }
}

struct uring_entry begin_uring(int descriptor, const void *queue)
{
    struct uring_entry entry = {.ring = find_uring(descriptor, queue)};
    struct uring *ring = entry.ring;
    if (ring == NULL)
        return entry;
    int saved_errno = begin_own_work();
    if (ring->completion_tail == NULL || ring->requests == NULL || !lock_uring(ring)) {
        ring->is_incomplete = true;
        entry.ring = NULL;
    } else {
        entry.start = clock_now();
        take_completions(ring, entry.start, NULL, NULL);
        entry.number = ++ring->num_entries;
        take_requests(ring, &entry);
        unlock(&ring->holder);
        if (entry.reads > 0) {
            entry.has_usage = true;
            entry.before = read_usage();
        }
    }
    end_own_work(saved_errno);
    return entry;
}

void end_uring(const struct uring_entry *entry)
{
    struct uring *ring = entry->ring;
    if (ring == NULL)
        return;
    int saved_errno = begin_own_work();
    int64_t now = clock_now();
    struct usage after = entry->has_usage ? read_usage() : entry->before;
    int64_t blocks = after.blocks - entry->before.blocks;
    if (lock_uring(ring)) {
        ring->is_tallied = false;
        if (entry->reads > 0)
            ring->sources[entry->number % ENTRIES] =
                (uint8_t)source_of_entry(entry, now - entry->start, blocks);
        take_completions(ring, now, entry, &after);
        if (!ring->is_tallied)
            tally_fetched(blocks * 512);
        unlock(&ring->holder);
    } else {
        ring->is_incomplete = true;
    }
    end_own_work(saved_errno);
}

/* ---------------------------------------------------------------------------------------- ends */

/* Requests that the kernel has taken from a ring (`CachedSqHead` of its fdinfo); -1: not known. */
static int64_t taken_requests(int descriptor)
{
    char path[48] = "/proc/self/fdinfo/", text[1024];
    *append_decimal(path + 18, (uint64_t)descriptor) = '\0';
    int file =
        (int)real_system_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (file < 0)
        return -1;
    long size = real_system_call(SYS_read, file, (long)text, sizeof text - 1, 0, 0, 0);
    real_system_call(SYS_close, file, 0, 0, 0, 0, 0);
    atomic_fetch_add(&process->own_calls, 1);
    atomic_fetch_add(&process->own_bytes, size > 0 ? size : 0);
    text[size > 0 ? size : 0] = '\0';
    const char *found = strstr(text, "CachedSqHead:");
    if (found == NULL)
        return -1;
    int64_t count = 0;
    for (found += 13; *found == ' ' || *found == '\t'; found++) {
    }
    for (; *found >= '0' && *found <= '9'; found++)
        count = count * 10 + (*found - '0');
    return count;
}

static void finish(struct uring *ring)
{
    if (lock_uring(ring)) {
        take_last_completions(ring, clock_now());
        unlock(&ring->holder);
    }
    int64_t taken = taken_requests(ring->descriptor);
    if (ring->is_incomplete || (taken >= 0 && (uint32_t)taken != ring->requests_seen))
        set_noted(NOTED_IO_URING);
}

void end_uring_of(int descriptor, const void *queue)
{
    struct uring *ring = find_uring(descriptor, queue);
    if (ring == NULL)
        return;
    int saved_errno = begin_own_work();
    finish(ring);
    atomic_store_explicit(&ring->generation, 0, memory_order_release);
    end_own_work(saved_errno);
}

void end_urings(void)
{
    struct uring *table = mapped_table(&urings);
    int count = atomic_load(&num_urings);
    for (int place = 0; table != NULL && place < count; place++)
        if (GET(&table[place], generation) == GET(process, generation))
            finish(&table[place]);
}
