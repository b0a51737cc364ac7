/* The capture file of one process, written by any number of threads without a lock or an allocation.
 *
 * FORMAT.md explains every byte. A thread owns a mapped chunk, its home: it fills the next slot and then stores the chunk's state
 * with release order, so whatever was counted is whole, even if the process is killed at the next instruction. A full home is
 * copied to its place in the file by pwrite, and the thread goes on in the same pages: they are dirty and mapped already, and a
 * page fault on a mapped file costs as much as writing forty spans. Homes are mapped from windows whose blocks are allocated before
 * they are touched: a store to a mapped hole of a full disk is a SIGBUS, a refused fallocate is a counted loss.
 *
 * Free of Python; to be included before any system header, or with _GNU_SOURCE defined. A program that wraps open, mmap or pwrite
 * must hold its recursion guard around ring_open and whatever may need room (ring_reserve, ring_string). Works from zeroed state: a
 * zeroed ring is a closed one. */
#ifndef IOPROF_RING_H
#define IOPROF_RING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IOPROF_MAGIC_BYTES {'I', 'O', 'P', 'R', 'O', 'F', 'R', '1'}
#define IOPROF_FORMAT_VERSION 2
#define IOPROF_HEADER_BYTES 4096
#define IOPROF_CHUNK_BYTES 65536
#define IOPROF_CHUNK_HEADER_BYTES 64
#define IOPROF_RECORD_BYTES 56
#define IOPROF_SLOTS ((IOPROF_CHUNK_BYTES - IOPROF_CHUNK_HEADER_BYTES) / IOPROF_RECORD_BYTES)
#define IOPROF_STRING_KIND 0
#define IOPROF_STRING_BYTES 4352 /* PATH_MAX and a name's worth more; longer strings are cut */

#define IOPROF_WINDOW_CHUNKS 4 /* homes that are allocated and mapped at once: 256 KiB, enough for most processes */
#define IOPROF_WINDOW_BYTES ((size_t)IOPROF_WINDOW_CHUNKS * IOPROF_CHUNK_BYTES)
#define IOPROF_WINDOWS 4096      /* of homes: 16,384 threads at a time; spans of more are counted as lost */
#define IOPROF_CHUNKS (1 << 18)  /* 16 GiB, or 306 million spans of one process; what comes after is counted as lost */
#define IOPROF_FREE 1024         /* homes that wait for a thread; those of more threads that end at a time are not used again */
#define IOPROF_RETRY_EVERY 1024 /* a ring without room asks for it again after so many losses */

/* One list per structure: it makes the struct here, and the table of offsets that a test compares with schema.py. */
#define IOPROF_RECORD_FIELDS(FIELD) \
    FIELD(int64_t, start_ns) \
    FIELD(int64_t, end_ns) \
    FIELD(int64_t, bytes) \
    FIELD(int64_t, offset) \
    FIELD(int64_t, batch) \
    FIELD(int32_t, step) \
    FIELD(int32_t, file) \
    FIELD(int32_t, name) \
    FIELD(int16_t, stream) \
    FIELD(uint8_t, kind) \
    FIELD(uint8_t, source)

typedef unsigned char ioprof_reserved[8];
typedef char ioprof_magic[8];
typedef char ioprof_host[64];
typedef _Atomic uint64_t ioprof_counter;

#define IOPROF_CHUNK_HEADER_FIELDS(FIELD) \
    FIELD(uint32_t, tid) \
    FIELD(uint32_t, flags) \
    FIELD(ioprof_counter, state) \
    FIELD(uint64_t, origin) \
    FIELD(uint64_t, calls) \
    FIELD(uint64_t, bytes) \
    FIELD(uint64_t, short_calls) \
    FIELD(uint64_t, short_ns) \
    FIELD(ioprof_reserved, reserved)

#define IOPROF_FILE_HEADER_FIELDS(FIELD) \
    FIELD(ioprof_magic, magic) \
    FIELD(uint32_t, version) \
    FIELD(uint32_t, record_bytes) \
    FIELD(uint32_t, chunk_bytes) \
    FIELD(uint32_t, header_bytes) \
    FIELD(ioprof_counter, chunks) \
    FIELD(ioprof_counter, lost) \
    FIELD(uint32_t, pid) \
    FIELD(uint32_t, parent_pid) \
    FIELD(int32_t, rank) \
    FIELD(int32_t, worker) \
    FIELD(uint32_t, role) \
    FIELD(uint32_t, closed) \
    FIELD(int64_t, anchor_before_ns) \
    FIELD(int64_t, anchor_wall_ns) \
    FIELD(int64_t, anchor_after_ns) \
    FIELD(ioprof_host, host) \
    FIELD(uint32_t, writer) \
    FIELD(uint32_t, rank_source) \
    FIELD(ioprof_counter, noted) \
    FIELD(int64_t, io_time_ns) \
    FIELD(uint64_t, io_rchar) \
    FIELD(uint64_t, io_syscr) \
    FIELD(uint64_t, io_read_bytes) \
    FIELD(uint64_t, seen_bytes) \
    FIELD(uint64_t, seen_calls)

#define IOPROF_MEMBER(type, name) type name;

struct ioprof_record {
    IOPROF_RECORD_FIELDS(IOPROF_MEMBER)
};

struct ioprof_file_header {
    IOPROF_FILE_HEADER_FIELDS(IOPROF_MEMBER)
};

struct ioprof_chunk {
    IOPROF_CHUNK_HEADER_FIELDS(IOPROF_MEMBER)
    struct ioprof_record slots[IOPROF_SLOTS];
    unsigned char rest[IOPROF_CHUNK_BYTES - IOPROF_CHUNK_HEADER_BYTES - IOPROF_SLOTS * IOPROF_RECORD_BYTES];
};

_Static_assert(sizeof(struct ioprof_record) == IOPROF_RECORD_BYTES, "a record is 56 bytes");
_Static_assert(sizeof(struct ioprof_chunk) == IOPROF_CHUNK_BYTES, "a chunk is 64 KiB");
_Static_assert(offsetof(struct ioprof_chunk, slots) == IOPROF_CHUNK_HEADER_BYTES, "slots follow the chunk's header");
_Static_assert(sizeof(struct ioprof_file_header) == 216, "the file's header");
_Static_assert(sizeof(ioprof_counter) == 8, "counters are lock-free words");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "capture files are little-endian");

#define IOPROF_EMPTY_RECORD \
    ((struct ioprof_record){.bytes = -1, .offset = -1, .batch = -1, .step = -1, .file = -1, .name = -1, .stream = -1})

struct ioprof_ring {
    _Atomic uint32_t generation;  /* 0: closed. Differs between any two recordings of a process and its forks */
    _Atomic uint32_t full;        /* the last attempt to grow failed */
    _Atomic int32_t strings;      /* the next string's id */
    _Atomic uint32_t num_windows; /* tried so far; those that could not be mapped are NULL */
    dev_t device;                 /* what the path must still lead to when the file grows */
    ino_t inode;
    struct ioprof_file_header *header;
    ioprof_counter free[IOPROF_FREE]; /* generation << 32 | home + 1; 0: empty */
    _Atomic(struct ioprof_chunk *) windows[IOPROF_WINDOWS];
    char path[4096];
};

/* One thread's place in a ring. Zeroed: no home yet. */
struct ioprof_writer {
    struct ioprof_ring *ring;
    struct ioprof_chunk *chunk; /* its home */
    uint32_t generation;
    uint32_t home;  /* window * IOPROF_WINDOW_CHUNKS + place in it */
    uint64_t state; /* what the home's own state follows: times it was copied << 32 | slots written */
};

static inline int64_t ring_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline bool ring_is_open(struct ioprof_ring *ring)
{
    return atomic_load_explicit(&ring->generation, memory_order_relaxed) != 0;
}

static inline uint64_t ring_lost(struct ioprof_ring *ring)
{
    return ring_is_open(ring) ? atomic_load_explicit(&ring->header->lost, memory_order_relaxed) : 0;
}

/* ---------------------------------------------------------------------------------------- room in the file */

/* Blocks for the range, written as zeros where the file system has no fallocate (ENOTSUP on some NFS and FUSE). */
static int ring_zero_range(int descriptor, off_t offset, size_t length)
{
    static const char zeros[16384];
    while (length > 0) {
        ssize_t written = pwrite(descriptor, zeros, length < sizeof zeros ? length : sizeof zeros, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return -1;
        offset += written;
        length -= (size_t)written;
    }
    return 0;
}

/* Passing RLIMIT_FSIZE would raise SIGXFSZ, whose default kills. */
static bool ring_may_reach(off_t end)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || (rlim_t)end <= limit.rlim_cur)
        return true;
    errno = EFBIG;
    return false;
}

/* posix_fallocate is not used: where the file system cannot, glibc reads and rewrites a byte of every block, and so could
 * undo what another thread stores through its mapping. */
static int ring_allocate(int descriptor, off_t offset, size_t length)
{
    int result;
    if (!ring_may_reach(offset + (off_t)length))
        return -1;
    do
        result = fallocate(descriptor, 0, offset, (off_t)length);
    while (result < 0 && errno == EINTR);
    if (result < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        result = ring_zero_range(descriptor, offset, length);
    return result;
}

static void *ring_map(int descriptor, off_t offset, size_t length)
{
    if (ring_allocate(descriptor, offset, length) < 0)
        return NULL;
    size_t slack = (size_t)offset % (size_t)sysconf(_SC_PAGESIZE);
    char *start = mmap(NULL, length + slack, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, offset - (off_t)slack);
    return start == MAP_FAILED ? NULL : start + slack;
}

/* The file is opened anew for every window: a descriptor kept open could be closed by a job that closes all it does not know,
 * and its number could then be some other file of the job. */
static int ring_reopen(struct ioprof_ring *ring)
{
    struct stat status;
    int descriptor = open(ring->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) == 0 && status.st_dev == ring->device && status.st_ino == ring->inode)
        return descriptor;
    close(descriptor);
    return -1;
}

static off_t ring_place(uint64_t chunk)
{
    return IOPROF_HEADER_BYTES + (off_t)(chunk * IOPROF_CHUNK_BYTES);
}

static struct ioprof_chunk *ring_map_chunks(struct ioprof_ring *ring, uint64_t first)
{
    int descriptor = ring_reopen(ring);
    if (descriptor < 0)
        return NULL;
    struct ioprof_chunk *chunks = ring_map(descriptor, ring_place(first), IOPROF_WINDOW_BYTES);
    close(descriptor);
    return chunks;
}

static void ring_unmap(void *start, size_t length, off_t offset)
{
    size_t slack = (size_t)offset % (size_t)sysconf(_SC_PAGESIZE);
    munmap((char *)start - slack, length + slack);
}

/* A chunk as it is now, into the file. Half a copy is no harm: it bears the number that its home still has. */
static bool ring_copy(struct ioprof_ring *ring, const struct ioprof_chunk *chunk, uint64_t to)
{
    int descriptor = to < IOPROF_CHUNKS && ring_may_reach(ring_place(to + 1)) ? ring_reopen(ring) : -1;
    if (descriptor < 0)
        return false;
    size_t done = 0;
    while (done < sizeof *chunk) {
        ssize_t written = pwrite(descriptor, (const char *)chunk + done, sizeof *chunk - done, ring_place(to) + (off_t)done);
        if (written <= 0 && !(written < 0 && errno == EINTR))
            break;
        done += written > 0 ? (size_t)written : 0;
    }
    close(descriptor);
    return done == sizeof *chunk;
}

/* A file without room is asked for it again after so many losses. */
static bool ring_may_grow(struct ioprof_ring *ring)
{
    uint64_t lost = atomic_load_explicit(&ring->header->lost, memory_order_relaxed);
    return !atomic_load_explicit(&ring->full, memory_order_relaxed) || lost % IOPROF_RETRY_EVERY == 0;
}

/* ---------------------------------------------------------------------------------------- a thread's home */

static pthread_key_t ring_thread_key;

static void ring_set_free(struct ioprof_ring *ring, uint32_t generation, uint32_t home)
{
    for (int place = 0; place < IOPROF_FREE; place++) {
        uint64_t empty = 0;
        if (atomic_compare_exchange_strong(&ring->free[place], &empty, (uint64_t)generation << 32 | (home + 1)))
            return;
    }
}

/* A thread ends: its home waits for a new owner. */
static void ring_thread_ends(void *argument)
{
    struct ioprof_writer *writer = argument;
    struct ioprof_ring *ring = writer->ring;
    uint32_t generation = writer->generation;
    writer->generation = 0;
    if (ring != NULL && generation != 0 && generation == atomic_load(&ring->generation))
        ring_set_free(ring, generation, writer->home);
}

/* Once per process, before the first ring_open. */
static int ring_setup(void)
{
    return pthread_key_create(&ring_thread_key, ring_thread_ends);
}

static inline void ring_publish(struct ioprof_writer *writer, uint64_t slots)
{
    writer->state += slots;
    atomic_store_explicit(&writer->chunk->state, writer->state, memory_order_release);
}

static inline bool ring_has_room(const struct ioprof_writer *writer, uint64_t slots)
{
    return (uint32_t)writer->state + slots <= IOPROF_SLOTS;
}

static struct ioprof_chunk *ring_home(struct ioprof_ring *ring, uint32_t home)
{
    return atomic_load(&ring->windows[home / IOPROF_WINDOW_CHUNKS]) + home % IOPROF_WINDOW_CHUNKS;
}

static void ring_take(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation, uint32_t home)
{
    struct ioprof_chunk *chunk = ring_home(ring, home);
    *writer = (struct ioprof_writer){ring, chunk, generation, home, atomic_load_explicit(&chunk->state, memory_order_relaxed)};
    pthread_setspecific(ring_thread_key, writer);
}

/* Take a home that no thread has: one of a thread that ended, or one that was mapped with another's. */
static bool ring_adopt(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation)
{
    for (int place = 0; place < IOPROF_FREE; place++) {
        if (atomic_load_explicit(&ring->free[place], memory_order_relaxed) == 0)
            continue;
        uint64_t ticket = atomic_exchange(&ring->free[place], 0);
        if (ticket >> 32 != generation)
            continue;
        ring_take(ring, writer, generation, (uint32_t)ticket - 1);
        return true;
    }
    return false;
}

/* Map a window of homes, all of them free. */
static bool ring_grow(struct ioprof_ring *ring, uint32_t generation)
{
    if (!ring_may_grow(ring))
        return false;
    uint64_t first = atomic_fetch_add(&ring->header->chunks, IOPROF_WINDOW_CHUNKS);
    struct ioprof_chunk *chunks = first + IOPROF_WINDOW_CHUNKS <= IOPROF_CHUNKS ? ring_map_chunks(ring, first) : NULL;
    atomic_store_explicit(&ring->full, chunks == NULL, memory_order_relaxed);
    if (chunks == NULL)
        return false;
    uint32_t number = atomic_fetch_add(&ring->num_windows, 1);
    if (number >= IOPROF_WINDOWS) {
        ring_unmap(chunks, IOPROF_WINDOW_BYTES, ring_place(first));
        return false;
    }
    for (uint32_t place = 0; place < IOPROF_WINDOW_CHUNKS; place++)
        chunks[place].origin = first + place + 1;
    atomic_store(&ring->windows[number], chunks);
    for (uint32_t place = 0; place < IOPROF_WINDOW_CHUNKS; place++)
        ring_set_free(ring, generation, number * IOPROF_WINDOW_CHUNKS + place);
    return true;
}

/* Copy the full home into the file, and begin it anew. */
static bool ring_empty(struct ioprof_ring *ring, struct ioprof_writer *writer)
{
    if (!ring_may_grow(ring))
        return false;
    bool copied = ring_copy(ring, writer->chunk, atomic_fetch_add(&ring->header->chunks, 1));
    atomic_store_explicit(&ring->full, !copied, memory_order_relaxed);
    if (copied) {
        writer->state = ((writer->state >> 32) + 1) << 32;
        ring_publish(writer, 0);
    }
    return copied;
}

/* What follows in the home is of this thread: the home's first owner by its header, any other by a record that says so. */
static void ring_sign(struct ioprof_writer *writer)
{
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    if (writer->chunk->tid == 0)
        writer->chunk->tid = tid;
    if (writer->chunk->tid == tid)
        return;
    struct ioprof_record *owner = &writer->chunk->slots[(uint32_t)writer->state];
    *owner = IOPROF_EMPTY_RECORD;
    owner->batch = tid;
    ring_publish(writer, 1);
}

static bool ring_settle(struct ioprof_ring *ring, struct ioprof_writer *writer, uint64_t slots)
{
    uint32_t generation = atomic_load(&ring->generation);
    if (generation == 0)
        return false;
    if (writer->generation != generation || writer->chunk == NULL)
        while (!ring_adopt(ring, writer, generation))
            if (!ring_grow(ring, generation))
                return false;
    if (!ring_has_room(writer, slots + 1) && !ring_empty(ring, writer)) /* 1: for the signature */
        return false;
    ring_sign(writer);
    return true;
}

/* Where the thread has no home with room for `slots`: room in a new or an emptied one, or NULL and one more loss. */
static __attribute__((noinline)) struct ioprof_record *ring_turn(struct ioprof_ring *ring, struct ioprof_writer *writer,
                                                                 uint64_t slots)
{
    int saved_errno = errno;
    struct ioprof_record *record = NULL;
    if (ring_settle(ring, writer, slots))
        record = &writer->chunk->slots[(uint32_t)writer->state];
    else if (ring_is_open(ring))
        atomic_fetch_add(&ring->header->lost, 1);
    errno = saved_errno;
    return record;
}

/* Room for `slots` records in a row, to be filled and then published; NULL: closed, or no room (and that is counted). */
static inline struct ioprof_record *ring_reserve(struct ioprof_ring *ring, struct ioprof_writer *writer, uint64_t slots)
{
    if (writer->generation == atomic_load_explicit(&ring->generation, memory_order_relaxed) && writer->chunk != NULL &&
        ring_has_room(writer, slots))
        return &writer->chunk->slots[(uint32_t)writer->state];
    return ring_turn(ring, writer, slots);
}

static inline void ring_write(struct ioprof_ring *ring, struct ioprof_writer *writer, const struct ioprof_record *record)
{
    struct ioprof_record *slot = ring_reserve(ring, writer, 1);
    if (slot != NULL) {
        *slot = *record;
        ring_publish(writer, 1);
    }
}

/* ---------------------------------------------------------------------------------------- strings */

static const char ring_ellipsis[] = "\xe2\x80\xa6";

/* How much of an overlong string is kept: never a part of a UTF-8 character, if it is UTF-8. */
static size_t ring_cut(const char *text)
{
    size_t length = IOPROF_STRING_BYTES - (sizeof ring_ellipsis - 1);
    for (int step = 0; step < 3 && (text[length] & 0xc0) == 0x80; step++)
        length--;
    return length;
}

/* The thread's home, whose tallies only it changes; NULL: it has none. */
static inline struct ioprof_chunk *ring_tallies(struct ioprof_ring *ring, struct ioprof_writer *writer)
{
    return ring_reserve(ring, writer, 0) == NULL ? NULL : writer->chunk;
}

static inline void ring_add(uint64_t *tally, uint64_t more)
{
    __atomic_store_n(tally, *tally + more, __ATOMIC_RELAXED);
}

/* Calls and bytes that all threads of this recording were seen to read, by the tallies in their homes. */
static inline void ring_seen(struct ioprof_ring *ring, uint64_t *calls, uint64_t *bytes)
{
    uint32_t used = atomic_load(&ring->num_windows);
    for (uint32_t number = 0; number < used && number < IOPROF_WINDOWS; number++) {
        struct ioprof_chunk *chunks = atomic_load(&ring->windows[number]);
        for (int place = 0; chunks != NULL && place < IOPROF_WINDOW_CHUNKS; place++) {
            *calls += __atomic_load_n(&chunks[place].calls, __ATOMIC_RELAXED);
            *bytes += __atomic_load_n(&chunks[place].bytes, __ATOMIC_RELAXED);
        }
    }
}

/* The id of a string that is now in the file; -1: closed, or no room. The same text twice gets two ids. */
static int32_t ring_string(struct ioprof_ring *ring, struct ioprof_writer *writer, const char *text, size_t length)
{
    bool whole = length <= IOPROF_STRING_BYTES;
    size_t kept = whole ? length : ring_cut(text);
    size_t total = whole ? length : kept + sizeof ring_ellipsis - 1;
    uint64_t slots = 1 + (total + IOPROF_RECORD_BYTES - 1) / IOPROF_RECORD_BYTES;
    struct ioprof_record *record = ring_reserve(ring, writer, slots);
    if (record == NULL)
        return -1;
    int32_t id = atomic_fetch_add(&ring->strings, 1);
    *record = IOPROF_EMPTY_RECORD;
    record->bytes = (int64_t)total;
    record->file = id;
    memcpy(record + 1, text, kept);
    if (!whole)
        memcpy((char *)(record + 1) + kept, ring_ellipsis, sizeof ring_ellipsis - 1);
    ring_publish(writer, slots);
    return id;
}

/* ---------------------------------------------------------------------------------------- begin and end */

static int ring_create(struct ioprof_ring *ring, const struct ioprof_file_header *header)
{
    struct stat status;
    int descriptor = open(ring->path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0)
        return -1;
    ring->header = fstat(descriptor, &status) == 0 ? ring_map(descriptor, 0, IOPROF_HEADER_BYTES) : NULL;
    int saved_errno = errno;
    close(descriptor);
    if (ring->header == NULL) {
        unlink(ring->path);
        errno = saved_errno;
        return -1;
    }
    ring->device = status.st_dev;
    ring->inode = status.st_ino;
    memcpy(ring->header, header, sizeof *header);
    return 0;
}

/* Begin a recording in a new file at an absolute path. Returns 0, or -1 and errno. */
static int ring_open(struct ioprof_ring *ring, const char *path, const struct ioprof_file_header *header)
{
    static _Atomic uint32_t generations;
    if (strlen(path) >= sizeof ring->path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(ring->path, path, strlen(path) + 1);
    for (int place = 0; place < IOPROF_FREE; place++)
        atomic_store(&ring->free[place], 0);
    atomic_store(&ring->num_windows, 0);
    atomic_store(&ring->full, 0);
    atomic_store(&ring->strings, 0);
    if (ring_create(ring, header) < 0)
        return -1;
    uint32_t generation = atomic_fetch_add(&generations, 1) + 1;
    atomic_store(&ring->generation, generation);
    ring_grow(ring, generation); /* so that no span has to wait for it; without room, spans are lost and counted */
    return 0;
}

/* Let go of the mappings without a store to the file: what a forked child does with its parent's. */
static void ring_forget(struct ioprof_ring *ring)
{
    uint32_t used = atomic_load(&ring->num_windows);
    atomic_store(&ring->generation, 0);
    for (uint32_t number = 0; number < used && number < IOPROF_WINDOWS; number++) {
        struct ioprof_chunk *chunks = atomic_exchange(&ring->windows[number], NULL);
        if (chunks != NULL) /* NULL: a thread of the parent was mapping it */
            ring_unmap(chunks, IOPROF_WINDOW_BYTES, ring_place(chunks->origin - 1));
    }
    munmap(ring->header, IOPROF_HEADER_BYTES);
    ring->header = NULL;
}

/* End the recording. Only where no other thread can be between ring_reserve and ring_publish. */
static void ring_close(struct ioprof_ring *ring)
{
    ring->header->closed = 1;
    ring_forget(ring);
}

#endif
