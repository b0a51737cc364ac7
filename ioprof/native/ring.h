/* The capture file of one process, written by any number of threads without a lock, an allocation or a flush.
 *
 * FORMAT.md explains every byte. A thread owns a chunk: it fills the next slot and then stores the chunk's count with release
 * order, so whatever was counted is whole, even if the process is killed at the next instruction. Chunks are claimed by a
 * fetch-add in the file's header. The file grows by windows whose blocks are allocated before they are touched: a store to a
 * mapped hole of a full disk is a SIGBUS, a refused fallocate is a counted loss.
 *
 * Free of Python; to be included before any system header, or with _GNU_SOURCE defined. A program that
 * wraps open, mmap or pwrite must hold its recursion guard around ring_open and whatever may claim a chunk (ring_reserve,
 * ring_string). Works from zeroed state: a zeroed ring is a closed one. */
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
#define IOPROF_FORMAT_VERSION 1
#define IOPROF_HEADER_BYTES 4096
#define IOPROF_CHUNK_BYTES 65536
#define IOPROF_CHUNK_HEADER_BYTES 64
#define IOPROF_RECORD_BYTES 56
#define IOPROF_SLOTS ((IOPROF_CHUNK_BYTES - IOPROF_CHUNK_HEADER_BYTES) / IOPROF_RECORD_BYTES)
#define IOPROF_STRING_KIND 0
#define IOPROF_STRING_BYTES 4352 /* PATH_MAX and a name's worth more; longer strings are cut */

/* 16 chunks are 1 MiB: small beside a job's own scratch files even with a hundred processes on a node, and large enough that
 * one growth (open, fallocate, mmap, close) is shared by 18,704 spans. */
#define IOPROF_WINDOW_CHUNKS 16
#define IOPROF_WINDOW_BYTES ((size_t)IOPROF_WINDOW_CHUNKS * IOPROF_CHUNK_BYTES)
#define IOPROF_WINDOWS 16384 /* 16 GiB, or 306 million spans of one process; what comes after is counted as lost */
#define IOPROF_ABANDONED 64  /* chunks of ended threads that wait for a new owner */
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

typedef unsigned char ioprof_reserved[48];
typedef char ioprof_magic[8];
typedef char ioprof_host[64];
typedef _Atomic uint64_t ioprof_counter;

#define IOPROF_CHUNK_HEADER_FIELDS(FIELD) \
    FIELD(uint32_t, tid) \
    FIELD(uint32_t, flags) \
    FIELD(ioprof_counter, count) \
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
    FIELD(ioprof_host, host)

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
_Static_assert(sizeof(struct ioprof_file_header) == 152, "the file's header");
_Static_assert(sizeof(ioprof_counter) == 8, "counters are lock-free words");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "capture files are little-endian");

#define IOPROF_EMPTY_RECORD \
    ((struct ioprof_record){.bytes = -1, .offset = -1, .batch = -1, .step = -1, .file = -1, .name = -1, .stream = -1})

struct ioprof_window {
    _Atomic(struct ioprof_chunk *) chunks; /* NULL: not mapped; IOPROF_BUSY: one thread is mapping it */
    ioprof_counter tally;                  /* generation << 32 | chunks that nobody will write to any more */
};

#define IOPROF_BUSY ((struct ioprof_chunk *)1)

struct ioprof_ring {
    _Atomic uint32_t generation; /* 0: closed. Differs between any two recordings of a process and its forks */
    _Atomic uint32_t full;       /* the last attempt to grow failed */
    _Atomic int32_t strings;     /* the next string's id */
    size_t slack;                /* bytes mapped before each window where a page is larger than the file's header */
    dev_t device;                /* what the path must still lead to when the file grows */
    ino_t inode;
    struct ioprof_file_header *header;
    ioprof_counter abandoned[IOPROF_ABANDONED]; /* generation << 32 | chunk index + 1; 0: free */
    struct ioprof_window windows[IOPROF_WINDOWS];
    char path[4096];
};

/* One thread's place in a ring. Zeroed: no chunk yet. */
struct ioprof_writer {
    struct ioprof_ring *ring;
    struct ioprof_chunk *chunk;
    uint32_t generation;
    uint32_t index; /* of the chunk */
    uint64_t count; /* slots written; the chunk's own count follows it */
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

/* posix_fallocate is not used: where the file system cannot, glibc reads and rewrites a byte of every block, and so could
 * undo what another thread stores through its mapping. Passing RLIMIT_FSIZE would raise SIGXFSZ, whose default kills. */
static int ring_allocate(int descriptor, off_t offset, size_t length)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && (rlim_t)offset + length > limit.rlim_cur) {
        errno = EFBIG;
        return -1;
    }
    int result;
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

static struct ioprof_chunk *ring_map_window(struct ioprof_ring *ring, uint64_t number)
{
    int descriptor = ring_reopen(ring);
    if (descriptor < 0)
        return NULL;
    off_t offset = IOPROF_HEADER_BYTES + (off_t)(number * IOPROF_WINDOW_BYTES);
    struct ioprof_chunk *chunks = ring_map(descriptor, offset, IOPROF_WINDOW_BYTES);
    close(descriptor);
    return chunks;
}

/* The window's chunks, mapped by the first thread that needs one; the others wait for it some milliseconds at most. */
static struct ioprof_chunk *ring_window(struct ioprof_ring *ring, uint32_t generation, uint64_t number)
{
    struct ioprof_window *window = &ring->windows[number];
    for (int attempt = 0; attempt < 10000; attempt++) {
        struct ioprof_chunk *chunks = NULL;
        if (atomic_compare_exchange_strong(&window->chunks, &chunks, IOPROF_BUSY)) {
            chunks = ring_map_window(ring, number);
            atomic_store(&window->tally, (uint64_t)generation << 32);
            atomic_store(&window->chunks, chunks);
            return chunks;
        }
        if (chunks != IOPROF_BUSY)
            return chunks;
        sched_yield();
    }
    return NULL;
}

static void ring_unmap_window(struct ioprof_ring *ring, struct ioprof_window *window)
{
    struct ioprof_chunk *chunks = atomic_load(&window->chunks);
    if (chunks == NULL || chunks == IOPROF_BUSY || !atomic_compare_exchange_strong(&window->chunks, &chunks, NULL))
        return;
    munmap((char *)chunks - ring->slack, IOPROF_WINDOW_BYTES + ring->slack);
}

/* Nobody will write to this chunk any more. A window of such chunks is unmapped, so that a long recording holds neither memory
 * nor mappings (vm.max_map_count is the job's too). The generation in the tally turns away threads of an earlier recording. */
static void ring_retire(struct ioprof_ring *ring, uint32_t generation, uint32_t index)
{
    struct ioprof_window *window = &ring->windows[index / IOPROF_WINDOW_CHUNKS];
    uint64_t tally = atomic_load(&window->tally);
    do {
        if (tally >> 32 != generation)
            return;
    } while (!atomic_compare_exchange_weak(&window->tally, &tally, tally + 1));
    if ((uint32_t)(tally + 1) == IOPROF_WINDOW_CHUNKS)
        ring_unmap_window(ring, window);
}

/* ---------------------------------------------------------------------------------------- a thread's chunk */

static pthread_key_t ring_thread_key;

/* A thread ends: its chunk waits for a new owner, or is done with when too many wait already. */
static void ring_thread_ends(void *argument)
{
    struct ioprof_writer *writer = argument;
    struct ioprof_ring *ring = writer->ring;
    uint32_t generation = writer->generation;
    writer->generation = 0;
    if (ring == NULL || generation == 0 || generation != atomic_load(&ring->generation))
        return;
    uint64_t ticket = (uint64_t)generation << 32 | (writer->index + 1);
    for (int place = 0; place < IOPROF_ABANDONED; place++) {
        uint64_t free = 0;
        if (atomic_compare_exchange_strong(&ring->abandoned[place], &free, ticket))
            return;
    }
    ring_retire(ring, generation, writer->index);
}

/* Once per process, before the first ring_open. */
static int ring_setup(void)
{
    return pthread_key_create(&ring_thread_key, ring_thread_ends);
}

static void ring_take(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation, uint32_t index,
                      struct ioprof_chunk *chunk)
{
    if (writer->generation == generation && writer->chunk != NULL)
        ring_retire(ring, generation, writer->index);
    *writer = (struct ioprof_writer){ring, chunk, generation, index, atomic_load_explicit(&chunk->count, memory_order_relaxed)};
    pthread_setspecific(ring_thread_key, writer);
}

static inline void ring_publish(struct ioprof_writer *writer, uint64_t slots)
{
    writer->count += slots;
    atomic_store_explicit(&writer->chunk->count, writer->count, memory_order_release);
}

/* Go on in a chunk whose thread has ended, after a record that says so. Without this a job that starts threads for every batch
 * would fill a disk with chunks of a few spans each. */
static bool ring_adopt(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation, uint64_t slots)
{
    for (int place = 0; place < IOPROF_ABANDONED; place++) {
        if (atomic_load_explicit(&ring->abandoned[place], memory_order_relaxed) == 0)
            continue;
        uint64_t ticket = atomic_exchange(&ring->abandoned[place], 0);
        uint32_t index = (uint32_t)ticket - 1;
        if (ticket >> 32 != generation)
            continue;
        struct ioprof_chunk *chunk = atomic_load(&ring->windows[index / IOPROF_WINDOW_CHUNKS].chunks);
        chunk += index % IOPROF_WINDOW_CHUNKS;
        if (atomic_load(&chunk->count) + 1 + slots > IOPROF_SLOTS) {
            ring_retire(ring, generation, index);
            continue;
        }
        ring_take(ring, writer, generation, index, chunk);
        struct ioprof_record *owner = &chunk->slots[writer->count];
        *owner = IOPROF_EMPTY_RECORD;
        owner->batch = (int64_t)syscall(SYS_gettid);
        ring_publish(writer, 1);
        return true;
    }
    return false;
}

static bool ring_claim(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation)
{
    uint64_t lost = atomic_load_explicit(&ring->header->lost, memory_order_relaxed);
    if (atomic_load_explicit(&ring->full, memory_order_relaxed) && lost % IOPROF_RETRY_EVERY != 0)
        return false;
    uint64_t index = atomic_fetch_add(&ring->header->chunks, 1);
    uint64_t number = index / IOPROF_WINDOW_CHUNKS;
    struct ioprof_chunk *chunk = number < IOPROF_WINDOWS ? ring_window(ring, generation, number) : NULL;
    atomic_store_explicit(&ring->full, chunk == NULL, memory_order_relaxed);
    if (chunk == NULL)
        return false;
    chunk += index % IOPROF_WINDOW_CHUNKS;
    chunk->tid = (uint32_t)syscall(SYS_gettid);
    ring_take(ring, writer, generation, (uint32_t)index, chunk);
    return true;
}

/* Where the thread's chunk has no room for `slots`: its next chunk, or NULL and one more loss. The old chunk is kept when there
 * is no new one: what is left of it may do for shorter records. */
static __attribute__((noinline)) struct ioprof_record *ring_turn(struct ioprof_ring *ring, struct ioprof_writer *writer,
                                                                 uint64_t slots)
{
    int saved_errno = errno;
    uint32_t generation = atomic_load(&ring->generation);
    struct ioprof_record *record = NULL;
    if (generation != 0) {
        if (ring_adopt(ring, writer, generation, slots) || ring_claim(ring, writer, generation))
            record = &writer->chunk->slots[writer->count];
        else
            atomic_fetch_add(&ring->header->lost, 1);
    }
    errno = saved_errno;
    return record;
}

/* Room for `slots` records in a row, to be filled and then published; NULL: closed, or no room (and that is counted). */
static inline struct ioprof_record *ring_reserve(struct ioprof_ring *ring, struct ioprof_writer *writer, uint64_t slots)
{
    if (writer->generation == atomic_load_explicit(&ring->generation, memory_order_relaxed) && writer->chunk != NULL &&
        writer->count + slots <= IOPROF_SLOTS)
        return &writer->chunk->slots[writer->count];
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
    ring->slack = IOPROF_HEADER_BYTES % (size_t)sysconf(_SC_PAGESIZE);
    for (int place = 0; place < IOPROF_ABANDONED; place++)
        atomic_store(&ring->abandoned[place], 0);
    atomic_store(&ring->full, 0);
    atomic_store(&ring->strings, 0);
    if (ring_create(ring, header) < 0)
        return -1;
    uint32_t generation = atomic_fetch_add(&generations, 1) + 1;
    atomic_store(&ring->generation, generation);
    ring_window(ring, generation, 0); /* so that no span has to wait for it; where it finds no room, spans are lost and counted */
    return 0;
}

/* Let go of the mappings without a store to the file: what a forked child does with its parent's. */
static void ring_forget(struct ioprof_ring *ring)
{
    uint64_t used = 1 + atomic_load(&ring->header->chunks) / IOPROF_WINDOW_CHUNKS; /* the first is mapped without a claim */
    atomic_store(&ring->generation, 0);
    for (uint64_t number = 0; number < used && number < IOPROF_WINDOWS; number++) {
        ring_unmap_window(ring, &ring->windows[number]);
        if (atomic_load(&ring->windows[number].chunks) != NULL) /* a thread of the parent was mapping it */
            atomic_store(&ring->windows[number].chunks, NULL);
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
