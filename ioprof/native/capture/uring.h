/* io_uring: requests are taken from the submission queue when the job enters the kernel, and
 * recorded as reads when their completions are found in the completion queue, at the end of that
 * call or of a later one.
 *
 * Both queues lie in memory that the job shares with the kernel (io_uring_setup(2)). A ring is
 * followed if its setup, its mappings and its entries go through functions that are hooked:
 * `syscall` and `mmap`, or those of liburing. What a ring did that is not followed is counted by
 * the kernel (/proc/PID/fdinfo) and noted. */
#ifndef IOPROF_URING_H
#define IOPROF_URING_H

#include "usage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a call that enters the kernel has found before it. */
struct uring_entry {
    struct uring *ring; /* NULL: the ring is not followed */
    int64_t start;
    struct usage before;
    uint64_t bytes; /* that the reads of this entry ask for */
    uint32_t reads, number;
    bool has_usage;
};

#pragma GCC visibility push(hidden)

/* The number of rings that are followed. */
extern _Atomic int num_urings;

/* A ring that io_uring_setup has made, with its parameters; it is followed once it is mapped. */
void add_uring(int descriptor, const void *parameters);

/* A mapping of a descriptor, if that is a ring. */
void map_uring(int descriptor, uint64_t offset, void *mapped);

/* A ring that liburing has made and mapped: its struct io_uring. */
void add_liburing(const void *queue);

/* Files that requests then name by their place. */
void register_files(int descriptor, const void *queue, const int *files, uint32_t count);

/* Around each entry: of a ring by its descriptor, or by liburing's struct. */
struct uring_entry begin_uring(int descriptor, const void *queue);
void end_uring(const struct uring_entry *entry);

/* Before a ring goes: what has been completed since its last entry, and whether it did more than
 * what was seen. */
void end_uring_of(int descriptor, const void *queue);

/* At the end of the process, all of them; whether all that they did was seen. */
void end_urings(void);

/* Whether a descriptor is a ring that is followed. */
bool is_followed_uring(int descriptor);

#pragma GCC visibility pop

/* Before a descriptor is closed. */
static inline void close_uring(int descriptor)
{
    if (__builtin_expect(__atomic_load_n((int *)&num_urings, __ATOMIC_RELAXED) != 0, 0))
        end_uring_of(descriptor, NULL);
}

#endif
