/* The functions of the C library that the hooks interpose, found by dlsym at their first call,
 * which may be before any constructor. */
#ifndef IOPROF_REAL_H
#define IOPROF_REAL_H

#include "gnu_source.h"

#include <aio.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* The thread sanitizer interposes the same functions and calls them before it is initialised. Under
 * it, a test links the hooks by ld's --wrap instead, under other names. */
#ifndef HOOK_NAME
#define HOOK_NAME(name) name
#endif

/* A hook has a name of its own in C and the C library's name in the object file, so that it does
 * not clash with headers that redirect a name or define an inline function of it. */
#define HOOK(result, name, parameters)                                            \
    __attribute__((visibility("default"))) result hook_##name parameters __asm__( \
        HOOK_NAME(#name));                                                        \
    typedef result real_##name##_type parameters;
#include "hooks.h"
#undef HOOK

#define HOOK(result, name, parameters) REAL_##name,
enum real {
#include "hooks.h"
    NUM_REAL
};
#undef HOOK

#pragma GCC visibility push(hidden)

extern _Atomic(void *) real_addresses[NUM_REAL];

void *real_find(enum real function);

/* A system call by number, past the hook of syscall. Result and errno are those of syscall(2). */
long real_system_call(long number, long a, long b, long c, long d, long e, long f);

#pragma GCC visibility pop

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 */

/* False where the C library does not say. */
static inline bool is_single_threaded(void)
{
    return &__libc_single_threaded != NULL && __libc_single_threaded;
}

/* NULL: it was not looked for yet. */
static inline void *known_address(enum real function)
{
    return atomic_load_explicit(&real_addresses[function], memory_order_relaxed);
}

static inline void *real_address(enum real function)
{
    void *address = known_address(function);
    return __builtin_expect(address != NULL, 1) ? address : real_find(function);
}

#define REAL(name) ((real_##name##_type *)real_address(REAL_##name))
#define KNOWN_REAL(name) ((real_##name##_type *)known_address(REAL_##name))

#endif
