/* The reentrancy guard: one thread-local word that every hook tests. If it is not 0, the calls of
 * this thread are passed through and not recorded: they are the library's own, or those of a vfork
 * child, which is another process. */
#ifndef IOPROF_GUARD_H
#define IOPROF_GUARD_H

#include "gnu_source.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#define GUARD_VFORK                                                                               \
    0x10000 /* what the vfork hook adds in the child; the assembly in vfork.c has the same number \
             */

/* Marks what runs for every small file that is read. The linker places such functions side by side:
 * between two reads of 100 kB, each page and cache line of code has to be fetched again. */
#define HOT __attribute__((hot))

/* Marks what a hot function calls seldom: inlined there, it would make it save registers first. */
#define OUT_OF_LINE __attribute__((noinline, cold))

#pragma GCC visibility push(hidden)

extern __thread volatile uint32_t ioprof_guard __attribute__((tls_model("initial-exec")));

/* How often this process has forked, by any call. Read by the assembly in vfork.c, too. */
extern volatile uint32_t ioprof_num_forks;

#pragma GCC visibility pop

static inline void guard_enter(void)
{
    ioprof_guard++;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void guard_leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    ioprof_guard--;
}

/* The library's own work in a call of the job: errno stays that of the call. */
static inline int begin_own_work(void)
{
    int saved_errno = errno;
    guard_enter();
    return saved_errno;
}

static inline void end_own_work(int saved_errno)
{
    guard_leave();
    errno = saved_errno;
}

static inline uint32_t num_forks(void)
{
    return __atomic_load_n(&ioprof_num_forks, __ATOMIC_RELAXED);
}

/* Before any call that forks: from then on, a child shares all files that are open. */
static inline void count_fork(void)
{
    __atomic_fetch_add(&ioprof_num_forks, 1, __ATOMIC_RELAXED);
}

#endif
