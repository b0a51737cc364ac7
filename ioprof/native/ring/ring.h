/* The writer of a capture file: any number of threads of one process write to it without a lock or
 * an allocation.
 *
 * FORMAT.md explains every byte. Each thread owns a mapped chunk, its active chunk: it fills the
 * next slot and then stores the chunk's state with release order, so that every counted slot is
 * complete, even if the process is killed at the next instruction. A full active chunk is flushed:
 * copied to its place in the file by pwrite, and the thread starts again in the same pages. They
 * are dirty and mapped already, and a page fault on a mapped file costs as much as writing forty
 * spans. Active chunks are mapped from windows whose blocks are allocated before they are touched:
 * a store to a mapped hole of a full disk raises SIGBUS, whereas a refused fallocate is a counted
 * loss.
 *
 * Independent of Python. A program that interposes open, mmap or pwrite must hold its reentrancy
 * guard around ring_open and every function that may extend the file (ring_reserve, ring_string).
 * Works from zeroed state: a zeroed ring is a closed one. */
#ifndef IOPROF_RING_H
#define IOPROF_RING_H

#include "wire_format.h"

#include <stdbool.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#define IOPROF_WINDOWS \
    4096 /* of active chunks: 16,384 threads at a time; spans of more are counted as lost */
#define IOPROF_CHUNKS \
    (1 << 18) /* 16 GiB, or 306 million spans of one process; further ones are counted as lost */
#define IOPROF_FREE                                                               \
    1024 /* active chunks that wait for a thread; further ones are not used again \
          */

/* The beginning of a path that names an empty file without a name: a rehearsal leaves nothing,
 * however it ends. */
#define IOPROF_REHEARSAL "/proc/self/fd/"

struct ioprof_ring {
    _Atomic uint32_t
        generation; /* 0: closed. Differs between any two recordings of a process and its forks */
    _Atomic uint32_t full;        /* the last attempt to extend the file failed */
    _Atomic int32_t strings;      /* the next string's number */
    _Atomic uint32_t num_windows; /* tried so far; those that could not be mapped are NULL */
    dev_t device; /* which file the path must still name when the file is extended */
    ino_t inode;
    struct ioprof_file_header *header;
    ioprof_counter free[IOPROF_FREE]; /* generation << 32 | active chunk + 1; 0: empty */
    _Atomic(struct ioprof_chunk *) windows[IOPROF_WINDOWS];
    char path[4096];
};

/* One thread's position in a ring. Zeroed: no active chunk yet. */
struct ioprof_writer {
    struct ioprof_ring *ring;
    struct ioprof_chunk *chunk; /* the thread's active chunk */
    uint32_t generation;
    uint32_t number; /* of the active chunk: window * IOPROF_WINDOW_CHUNKS + index within it */
    uint64_t state;  /* the value of the chunk's own `state`: times it was flushed << 32 | slots
                        written */
};

#pragma GCC visibility push(hidden)

/* Once per process, before the first ring_open. */
int ring_setup(void);

/* Begin a recording in a new file at an absolute path, or in that of a rehearsal. Returns 0, or -1
 * and errno. */
int ring_open(struct ioprof_ring *ring, const char *path, const struct ioprof_file_header *header);

/* End the recording. Only while no other thread can be between ring_reserve and ring_publish. */
void ring_close(struct ioprof_ring *ring);

/* Unmap without a store to the file: what a forked child does with its parent's ring. */
void ring_forget(struct ioprof_ring *ring);

/* Where the thread has no active chunk with `slots` free slots: room in a new or flushed one, or
 * NULL and one more loss. */
struct ioprof_record *ring_reserve_slowly(struct ioprof_ring *ring, struct ioprof_writer *writer,
                                          uint64_t slots);

/* The number of a string that is now in the file; -1: closed, or no room. The same text twice gets
 * two numbers. */
int32_t ring_string(struct ioprof_ring *ring, struct ioprof_writer *writer, const char *text,
                    size_t length);

/* Adds the read calls and bytes of all threads of this recording to `calls` and `bytes`. */
void ring_read_tallies(struct ioprof_ring *ring, uint64_t *calls, uint64_t *bytes);

#pragma GCC visibility pop

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

static inline void ring_publish(struct ioprof_writer *writer, uint64_t slots)
{
    writer->state += slots;
    atomic_store_explicit(&writer->chunk->state, writer->state, memory_order_release);
}

static inline bool ring_has_room(const struct ioprof_writer *writer, uint64_t slots)
{
    return (uint32_t)writer->state + slots <= IOPROF_SLOTS;
}

/* Room for `slots` consecutive records, to be filled and then published; NULL: closed, or no room
 * (which is counted as a loss). */
static inline struct ioprof_record *ring_reserve(struct ioprof_ring *ring,
                                                 struct ioprof_writer *writer, uint64_t slots)
{
    if (writer->generation == atomic_load_explicit(&ring->generation, memory_order_relaxed) &&
        writer->chunk != NULL && ring_has_room(writer, slots))
        return &writer->chunk->slots[(uint32_t)writer->state];
    return ring_reserve_slowly(ring, writer, slots);
}

static inline void ring_write(struct ioprof_ring *ring, struct ioprof_writer *writer,
                              const struct ioprof_record *record)
{
    struct ioprof_record *slot = ring_reserve(ring, writer, 1);
    if (slot != NULL) {
        *slot = *record;
        ring_publish(writer, 1);
    }
}

/* The thread's active chunk, whose tallies no other thread changes; NULL: it has none. */
static inline struct ioprof_chunk *ring_tallies(struct ioprof_ring *ring,
                                                struct ioprof_writer *writer)
{
    return ring_reserve(ring, writer, 0) == NULL ? NULL : writer->chunk;
}

static inline void ring_add(uint64_t *tally, uint64_t more)
{
    __atomic_store_n(tally, *tally + more, __ATOMIC_RELAXED);
}

#endif
