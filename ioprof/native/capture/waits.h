/* What a thread was blocked on, and which call of another thread ended that.
 *
 * A block is recorded if it took 20 µs or more. A call that may end one is recorded where somebody
 * waits: the C library's locks, conditions and semaphores say so. Of pipes, sockets and eventfds it
 * is not known; a call so soon after another one of the same thread cannot have ended a block that
 * counts, and is left out. Who woke whom is found out afterwards, by the objects.
 *
 * An object is a number: of one process alone its address, of what several share a hash. */
#ifndef IOPROF_WAITS_H
#define IOPROF_WAITS_H

#include "clock.h"
#include "process.h"

#include <stdbool.h>

#define LEAST_BLOCK_NS 20000
#define OF_SEVERAL (1ull << 62) /* of an object that is not of one process alone */
#define SAME_WAIT_NS 100000 /* a wait that goes on so soon after its time was over is one wait */

/* Which values of a program's C library say that somebody waits; tried out once per program. */
struct waiters_known {
    unsigned waited_lock; /* the least word of a lock that is waited for; 0: not known */
    bool of_semaphores;
    int place_in_condition; /* of the number of waiters, counted in ints; -1: not known */
};

#pragma GCC visibility push(hidden)

extern struct waiters_known waiters_known;

void waits_setup(void);

/* `start` to `end` is at least LEAST_BLOCK_NS. errno is kept. */
void emit_block(int64_t start, int64_t end, enum ioprof_object kind, uint64_t object,
                enum ioprof_end how);
void emit_wake(int64_t start, int64_t end, enum ioprof_object kind, uint64_t object);

/* This end of a channel is closed. */
void emit_hang_up(int64_t now, uint64_t channel);

/* This process ends. */
void emit_exit(void);

/* This process waited for a child that had ended, with this status (man 2 wait). */
void emit_reaped(int64_t now, uint64_t child, int status);

/* The object at an address that other processes may have mapped elsewhere. errno is kept. */
uint64_t shared_object(const void *address);

/* Something is mapped there no more. */
void forget_shared_object(const void *address);

#pragma GCC visibility pop

static inline uint64_t object_at(const void *address, bool is_shared)
{
    return is_shared ? shared_object(address) : (uint64_t)(uintptr_t)address;
}

static inline uint64_t object_hash(uint64_t a, uint64_t b)
{
    uint64_t hash = (a ^ 0x9e3779b97f4a7c15u) * 0xc2b2ae3d27d4eb4fu;
    hash = (hash ^ hash >> 32 ^ b) * 0x165667b19e3779f9u;
    return (hash ^ hash >> 29) >> 2 | OF_SEVERAL;
}

#endif
