/* Whether a thread was switched out during a call, at the price of a store and a load.
 *
 * A read that never gave up its processor waited for nothing: its bytes were in memory. The kernel keeps restartable sequences (Linux
 * 4.18; glibc 2.35 registers every thread): when a thread that was switched out comes back, the kernel clears the thread's word
 * `rseq_cs`, unless it was within the sequence that the word leads to (kernel/rseq.c). So before a read the word is set to a sequence
 * that nobody ever runs; if it is still there afterwards, there was no switch. A kernel that would not look at the word after a system
 * call is found out by a sleep, once per program, and the word is not used then. */
#ifndef IOPROF_WATCH_H
#define IOPROF_WATCH_H

#include "real.h"

#if defined(__GLIBC__) && defined(__has_include) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#ifdef RSEQ_SIG

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

/* The signature that must stand before the address to go to, should the sequence be interrupted; it is never run. */
static const struct {
    uint32_t never_run, signature, abort;
} watch_text = {0, RSEQ_SIG, 0};

static struct {
    uint64_t version_and_flags, start, length, abort;
} watch_sequence __attribute__((aligned(32)));

static bool watch_works;

static inline struct rseq *watch_area(void)
{
    return (struct rseq *)(void *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Whether this thread can be watched. */
static inline bool watch_can(void)
{
    return watch_works && (int32_t)__atomic_load_n(&watch_area()->cpu_id, __ATOMIC_RELAXED) >= 0;
}

static inline void watch_begin(void)
{
    __atomic_store_n((uint64_t *)(void *)&watch_area()->rseq_cs, (uint64_t)(uintptr_t)&watch_sequence, __ATOMIC_RELAXED);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Whether there was no switch since `watch_begin`. A signal handler that was watched itself counts as one. */
static inline bool watch_end(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    uint64_t *place = (uint64_t *)(void *)&watch_area()->rseq_cs;
    if (__atomic_load_n(place, __ATOMIC_RELAXED) != (uint64_t)(uintptr_t)&watch_sequence)
        return false;
    __atomic_store_n(place, 0, __ATOMIC_RELAXED);
    return true;
}

/* Once per program: 55 µs, the shortest sleep. */
static void watch_setup(void)
{
    const struct timespec shortest = {0, 1};
    if (&__rseq_size == NULL || __rseq_size == 0)
        return;
    watch_sequence.start = (uint64_t)(uintptr_t)&watch_text.never_run;
    watch_sequence.length = 1;
    watch_sequence.abort = (uint64_t)(uintptr_t)&watch_text.abort;
    watch_works = true;
    if (watch_can()) {
        watch_begin();
        real_call(SYS_nanosleep, (long)&shortest, 0, 0, 0, 0, 0);
    }
    watch_works = watch_can() && !watch_end();
}

#else

static inline bool watch_can(void)
{
    return false;
}

static inline void watch_begin(void)
{
}

static inline bool watch_end(void)
{
    return false;
}

static inline void watch_setup(void)
{
}

#endif

#endif
