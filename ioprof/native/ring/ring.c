/* Which thread owns which active chunk, from the first span of a thread to its end, and of a
 * recording from ring_open to ring_close. */
#include "ring.h"

#include "ring_file.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RETRY_EVERY \
    1024 /* a file that could not be extended is extended again after so many losses */

static pthread_key_t thread_key;

/* -------------------------------------------------------------- active chunks without a thread */

static void release_chunk(struct ioprof_ring *ring, uint32_t generation, uint32_t number)
{
    for (int place = 0; place < IOPROF_FREE; place++) {
        uint64_t empty = 0;
        if (atomic_compare_exchange_strong(&ring->free[place], &empty,
                                           (uint64_t)generation << 32 | (number + 1)))
            return;
    }
}

/* The destructor of `thread_key`: a thread ends, and its active chunk may have a new owner. */
static void release_thread(void *argument)
{
    struct ioprof_writer *writer = argument;
    struct ioprof_ring *ring = writer->ring;
    uint32_t generation = writer->generation;
    writer->generation = 0;
    if (ring != NULL && generation != 0 && generation == atomic_load(&ring->generation))
        release_chunk(ring, generation, writer->number);
}

int ring_setup(void)
{
    return pthread_key_create(&thread_key, release_thread);
}

/* Take a released chunk: of a thread that ended, or one that was mapped together with another's. */
static bool take_chunk(struct ioprof_ring *ring, struct ioprof_writer *writer, uint32_t generation)
{
    for (int place = 0; place < IOPROF_FREE; place++) {
        if (atomic_load_explicit(&ring->free[place], memory_order_relaxed) == 0)
            continue;
        uint64_t ticket = atomic_exchange(&ring->free[place], 0);
        if (ticket >> 32 != generation)
            continue;
        uint32_t number = (uint32_t)ticket - 1;
        struct ioprof_chunk *chunk = atomic_load(&ring->windows[number / IOPROF_WINDOW_CHUNKS]) +
                                     number % IOPROF_WINDOW_CHUNKS;
        uint64_t state = atomic_load_explicit(&chunk->state, memory_order_relaxed);
        *writer = (struct ioprof_writer){ring, chunk, generation, number, state};
        pthread_setspecific(thread_key, writer);
        return true;
    }
    return false;
}

/* -------------------------------------------------------------------------- extending the file */

static bool may_extend(struct ioprof_ring *ring)
{
    uint64_t lost = atomic_load_explicit(&ring->header->lost, memory_order_relaxed);
    return !atomic_load_explicit(&ring->full, memory_order_relaxed) || lost % RETRY_EVERY == 0;
}

/* Map a window of active chunks, none of which has an owner yet. */
static bool map_window(struct ioprof_ring *ring, uint32_t generation)
{
    if (!may_extend(ring))
        return false;
    uint64_t first = atomic_fetch_add(&ring->header->chunks, IOPROF_WINDOW_CHUNKS);
    struct ioprof_chunk *chunks =
        first + IOPROF_WINDOW_CHUNKS <= IOPROF_CHUNKS ? ring_map_window(ring, first) : NULL;
    atomic_store_explicit(&ring->full, chunks == NULL, memory_order_relaxed);
    if (chunks == NULL)
        return false;
    uint32_t number = atomic_fetch_add(&ring->num_windows, 1);
    if (number >= IOPROF_WINDOWS) {
        ring_unmap_window(chunks, first);
        return false;
    }
    for (uint32_t place = 0; place < IOPROF_WINDOW_CHUNKS; place++)
        chunks[place].origin = first + place + 1;
    atomic_store(&ring->windows[number], chunks);
    for (uint32_t place = 0; place < IOPROF_WINDOW_CHUNKS; place++)
        release_chunk(ring, generation, number * IOPROF_WINDOW_CHUNKS + place);
    return true;
}

/* Copy the full active chunk to the end of the file, and start again at its first slot. */
static bool flush_chunk(struct ioprof_ring *ring, struct ioprof_writer *writer)
{
    if (!may_extend(ring))
        return false;
    bool copied = ring_copy_chunk(ring, writer->chunk, atomic_fetch_add(&ring->header->chunks, 1));
    atomic_store_explicit(&ring->full, !copied, memory_order_relaxed);
    if (copied) {
        writer->state = ((writer->state >> 32) + 1) << 32;
        ring_publish(writer, 0);
    }
    return copied;
}

/* The slots that follow are of this thread: the chunk's header names its first owner, an owner
 * record any other. */
static void write_owner(struct ioprof_writer *writer)
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

static bool make_room(struct ioprof_ring *ring, struct ioprof_writer *writer, uint64_t slots)
{
    uint32_t generation = atomic_load(&ring->generation);
    if (generation == 0)
        return false;
    if (writer->generation != generation || writer->chunk == NULL)
        while (!take_chunk(ring, writer, generation))
            if (!map_window(ring, generation))
                return false;
    if (!ring_has_room(writer, slots + 1) &&
        !flush_chunk(ring, writer)) /* 1: for the owner record */
        return false;
    write_owner(writer);
    return true;
}

__attribute__((noinline)) struct ioprof_record *
ring_reserve_slowly(struct ioprof_ring *ring, struct ioprof_writer *writer, uint64_t slots)
{
    int saved_errno = errno;
    struct ioprof_record *record = NULL;
    if (make_room(ring, writer, slots))
        record = &writer->chunk->slots[(uint32_t)writer->state];
    else if (ring_is_open(ring))
        atomic_fetch_add(&ring->header->lost, 1);
    errno = saved_errno;
    return record;
}

void ring_read_tallies(struct ioprof_ring *ring, uint64_t *calls, uint64_t *bytes)
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

/* ------------------------------------------------------------------------------- begin and end */

int ring_open(struct ioprof_ring *ring, const char *path, const struct ioprof_file_header *header)
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
    if (ring_create_file(ring, header) < 0)
        return -1;
    uint32_t generation = atomic_fetch_add(&generations, 1) + 1;
    atomic_store(&ring->generation, generation);
    map_window(ring, generation); /* so that no span has to wait for it; without room, spans are
                                     lost and counted */
    return 0;
}

void ring_forget(struct ioprof_ring *ring)
{
    uint32_t used = atomic_load(&ring->num_windows);
    atomic_store(&ring->generation, 0);
    for (uint32_t number = 0; number < used && number < IOPROF_WINDOWS; number++) {
        struct ioprof_chunk *chunks = atomic_exchange(&ring->windows[number], NULL);
        if (chunks != NULL) /* NULL: a thread of the parent was mapping it */
            ring_unmap_window(chunks, chunks->origin - 1);
    }
    munmap(ring->header, IOPROF_HEADER_BYTES);
    ring->header = NULL;
}

void ring_close(struct ioprof_ring *ring)
{
    ring->header->closed = 1;
    ring_forget(ring);
}
