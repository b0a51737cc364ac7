/* Whether a thread was switched out during a call, at the cost of a store and a load.
 *
 * A read that never gave up its processor waited for nothing. The kernel maintains restartable
 * sequences (Linux 4.18; glibc 2.35 registers every thread): when a thread that was switched out
 * comes back, the kernel clears the thread's word `rseq_cs`, unless the thread was within the
 * sequence that the word points to (kernel/rseq.c). So before a read the word is set to a sequence
 * that no thread ever executes; if it is still there afterwards, there was no switch. Whether the
 * kernel examines the word after a system call is tested by a sleep, once per program; where it
 * does not, the word is not used. */
#ifndef IOPROF_SWITCHES_H
#define IOPROF_SWITCHES_H

#include "gnu_source.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GLIBC__) && defined(__has_include) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#ifdef RSEQ_SIG

extern const ptrdiff_t __rseq_offset __attribute__((weak));

struct switch_sequence {
    uint64_t version_and_flags, start, length, abort;
} __attribute__((aligned(32)));

#pragma GCC visibility push(hidden)

extern struct switch_sequence switch_sequence;
extern bool can_detect_switches;

/* Once per program: 55 µs, the shortest sleep. */
void switches_setup(void);

#pragma GCC visibility pop

static inline struct rseq *rseq_area(void)
{
    return (struct rseq *)(void *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Whether switches of this thread can be detected. */
static inline bool can_watch_switches(void)
{
    return can_detect_switches &&
           (int32_t)__atomic_load_n(&rseq_area()->cpu_id, __ATOMIC_RELAXED) >= 0;
}

static inline void begin_switch_watch(void)
{
    __atomic_store_n((uint64_t *)(void *)&rseq_area()->rseq_cs,
                     (uint64_t)(uintptr_t)&switch_sequence, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Whether the thread was switched out since `begin_switch_watch`. A signal handler that watched a
 * read of its own counts as a switch. */
static inline bool was_switched_out(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    uint64_t *place = (uint64_t *)(void *)&rseq_area()->rseq_cs;
    if (__atomic_load_n(place, __ATOMIC_RELAXED) != (uint64_t)(uintptr_t)&switch_sequence)
        return true;
    __atomic_store_n(place, 0, __ATOMIC_RELAXED);
    return false;
}

#else

static inline bool can_watch_switches(void)
{
    return false;
}

static inline void begin_switch_watch(void) {}

static inline bool was_switched_out(void)
{
    return true;
}

static inline void switches_setup(void) {}

#endif

#endif
