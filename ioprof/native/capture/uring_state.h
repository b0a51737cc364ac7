/* Rings of io_uring that are followed: the kernel's and liburing's layouts, and what is known of
 * each ring. For uring.c and urings.c. */
#ifndef IOPROF_URING_STATE_H
#define IOPROF_URING_STATE_H

#include "open_files.h"
#include "tables.h"

#include <stddef.h>

/* The kernel's interface (linux/io_uring.h), of which old headers lack parts. */
enum {
    SETUP_SQPOLL = 1 << 1,
    SETUP_SQE128 = 1 << 10,
    SETUP_CQE32 = 1 << 11,
    SETUP_NO_MMAP = 1 << 14,
    SETUP_NO_SQARRAY = 1 << 16,
    FEATURE_SINGLE_MMAP = 1,
    SQE_FIXED_FILE = 1,
    SQE_SKIP_COMPLETION = 1 << 6,
    OP_READV = 1,
    OP_READ_FIXED = 4,
    OP_READ = 22,
};
/* What the kernel does by a thread of its own, queues in memory of the job's, and what is newer
 * than this. */
#define NOT_FOLLOWED (SETUP_SQPOLL | SETUP_NO_MMAP | ~(uint32_t)(2 * SETUP_NO_SQARRAY - 1))
#define OFFSET_COMPLETIONS 0x8000000
#define OFFSET_REQUESTS 0x10000000

struct request_offsets {
    uint32_t head, tail, mask, entries, flags, dropped, array, more;
    uint64_t user_address;
};
struct completion_offsets {
    uint32_t head, tail, mask, entries, overflow, completions, flags, more;
    uint64_t user_address;
};
struct parameters {
    uint32_t requests, completions, flags, cpu, idle, features, workers, reserved[3];
    struct request_offsets of_requests;
    struct completion_offsets of_completions;
};
struct request_entry {
    uint8_t opcode, flags;
    uint16_t priority;
    int32_t descriptor;
    uint64_t offset, address;
    uint32_t length, operation_flags;
    uint64_t user_data, rest[3];
};
struct completion {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
};
/* Of liburing.h, as it was from 0.1 on. */
struct liburing {
    struct {
        uint32_t *head, *tail, *mask, *entries, *flags, *dropped, *array;
        struct request_entry *requests;
        uint32_t first, last; /* requests that are not handed over yet */
        size_t size;
        void *memory;
        uint32_t more[4];
    } requests;
    struct {
        uint32_t *head, *tail, *mask, *entries, *flags, *overflow;
        struct completion *completions;
        size_t size;
        void *memory;
        uint32_t more[4];
    } completions;
    uint32_t flags;
    int32_t descriptor;
};

/* A request that is not completed yet. */
struct pending {
    uint64_t user_data;
    int64_t start, offset;
    struct file_system *system;
    int32_t path, descriptor;
    uint32_t sequence; /* 0: none is here */
    uint32_t entry;
    uint16_t is_read, is_direct;
};

/* A file that the job has registered with a ring. */
struct registered {
    struct file_system *system;
    int32_t path;
    bool is_direct;
};

#define MAX_REGISTERED 64 /* files of a ring; those of more have no name */
#define MAX_RINGS 64
#define MAX_PENDING 65536
#define ENTRIES 256 /* whose sources are remembered */

struct uring {
    _Atomic uint32_t generation; /* of the recording in which it is followed; 0: free */
    _Atomic uint32_t holder;
    int descriptor;
    const struct liburing *queue;
    struct parameters parameters;
    char *request_memory, *completion_memory;
    struct request_entry *requests;
    uint32_t *request_tail, *array, *completion_tail;
    struct completion *completions;
    uint32_t request_mask, completion_mask, request_scale,
        completion_scale; /* scale: 1, or 2 where entries are twice as large */
    uint32_t requests_seen, completions_seen, sequence, num_pending, num_entries;
    bool is_incomplete; /* requests or completions were missed */
    bool is_tallied;    /* what the entry that ends now has fetched */
    uint8_t sources[ENTRIES];
    uint32_t num_registered;
    struct registered registered[MAX_REGISTERED];
    table_pages pending; /* kept for the next ring of this place, as is its size */
    uint32_t capacity;
};

#pragma GCC visibility push(hidden)

/* A table of MAX_RINGS rings, of which num_urings were used; NULL: there is none. */
extern table_pages urings;

/* The ring of a descriptor, or of liburing's struct; NULL: it is not followed. */
struct uring *find_uring(int descriptor, const void *queue);

#pragma GCC visibility pop

#endif
