/* Whether this process is recorded, and its capture file.
 *
 * What belongs to one process alone is in pages that the kernel zeroes in a child
 * (MADV_WIPEONFORK), so that every fork is noticed, also one that bypassed the C library, without
 * asking for the process id. A child begins its own file with the first call that it records. */
#ifndef IOPROF_PROCESS_H
#define IOPROF_PROCESS_H

#include "clock.h"
#include "guard.h"
#include "ring.h"

/* The generation of a recording that could not begin: it is not tried again. */
#define RECORDING_FAILED UINT32_MAX

/* Counters of /proc/self/io, or their equivalents as counted by the library. */
struct io_counters {
    int64_t rchar, syscr, read_bytes;
    int64_t children; /* grows whenever the kernel adds a child's counters to these */
};

struct process_state {
    _Atomic uint32_t generation; /* of this process's recording; 0: none has begun yet */
    _Atomic uint32_t beginning;  /* a thread is creating the capture file */
    _Atomic uint32_t comparing;  /* a thread is comparing counters */
    _Atomic int64_t compare_at_ns;
    _Atomic int64_t
        own_calls; /* reads by the library itself, which are subtracted from the proc io counters */
    _Atomic int64_t own_bytes;
    /* The following only for the thread that holds `comparing`. */
    struct io_counters initial; /* the proc io counters when recording began: reads of the loader,
                                   or those before an exec */
    struct io_counters
        unseen; /* what the last comparison found in the proc io counters and not in the tallies */
    struct io_counters reaped; /* what the kernel added to the proc io counters when this process
                                  waited for its children */
};

enum recording_mode { MODE_UNDECIDED, MODE_OFF, MODE_ON };

#pragma GCC visibility push(hidden)

extern struct process_state *process;
extern struct ioprof_ring ring;
extern __thread struct ioprof_writer writer;

/* Of the program; set once by the constructor. */
extern _Atomic int recording_mode;
extern struct ioprof_file_header file_header; /* of this process's file and of its children's */
extern char spool[3072];                      /* the folder of capture files */
extern size_t spool_length;
extern bool program_is_python;
extern uint32_t program_pid; /* of the process that the constructor ran in */

/* Maps the pages of `process`. */
bool map_process_state(void);

/* Zeroes them, in a forked child, where the kernel did not. */
void reset_process_state(void);

/* Creates the capture file of this process, unless another thread did; whether it is recorded now.
 */
bool begin_recording(void);

#pragma GCC visibility pop

static inline bool has_begun(void)
{
    return atomic_load_explicit(&process->generation, memory_order_acquire) + 1 >
           1; /* neither 0 nor RECORDING_FAILED */
}

/* Whether this call is the job's and is recorded: the first question of every hook. */
static inline bool is_recording(void)
{
    return ioprof_guard == 0 && (__builtin_expect(has_begun(), 1) || begin_recording());
}

/* The same for calls that do not justify creating a file, such as those between fork and exec. */
static inline bool is_recording_already(void)
{
    return ioprof_guard == 0 && has_begun();
}

/* A lock that a child does not find locked by a thread that it does not have: its holder is a
 * recording, and a child has another. */
static inline bool try_lock(_Atomic uint32_t *holder)
{
    uint32_t own = atomic_load_explicit(&process->generation, memory_order_relaxed),
             before = atomic_load(holder);
    return before != own && atomic_compare_exchange_strong(holder, &before, own);
}

static inline void unlock(_Atomic uint32_t *holder)
{
    atomic_store_explicit(holder, 0, memory_order_release);
}

/* Say in the file's header that the process does I/O of a kind that is not recorded. */
static inline void set_noted(enum ioprof_noted what)
{
    if (has_begun() && !(atomic_load_explicit(&ring.header->noted, memory_order_relaxed) & what))
        atomic_fetch_or(&ring.header->noted, what);
}

#endif
