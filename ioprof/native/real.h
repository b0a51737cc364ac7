/* The functions that the hooks stand in front of, found by dlsym when first called, which may be before any constructor. */
#ifndef IOPROF_REAL_H
#define IOPROF_REAL_H

#include "ring.h"

#include <aio.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Under the thread sanitizer, whose library calls what it stands in front of itself before it is ready, a test links the
 * stand-ins by ld's --wrap instead, under other names. */
#ifndef HOOK_NAME
#define HOOK_NAME(name) name
#endif

/* The stand-ins have names of their own in C and the library's names in the object file: so headers that redirect a name, or have
 * an inline function of it, are no trouble. */
#define HOOK(result, name, parameters) \
    __attribute__((visibility("default"))) result hook_##name parameters __asm__(HOOK_NAME(#name)); \
    typedef result real_##name##_type parameters;
#include "hooks.h"
#undef HOOK

#define HOOK(result, name, parameters) REAL_##name,
enum real {
#include "hooks.h"
    NUM_REAL
};
#undef HOOK

#define HOOK(result, name, parameters) #name,
static const char *const real_names[] = {
#include "hooks.h"
};
#undef HOOK

static _Atomic(void *) real_addresses[NUM_REAL];

extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 */

/* False where that is not known. */
static inline bool is_single_threaded(void)
{
    return &__libc_single_threaded != NULL && __libc_single_threaded;
}

/* ---------------------------------------------------------------------------------------- where the C library has no such
 * function */

/* A program that looks for a function at run time finds the stand-in, and must be told what it knows: not implemented. */
static long real_absent(void)
{
    errno = ENOSYS;
    return -1;
}

static long real_call(long number, long a, long b, long c, long d, long e, long f);

static int absent_statx(int folder, const char *path, int flags, unsigned mask, void *status)
{
    return (int)real_call(SYS_statx, folder, (long)path, flags, mask, (long)status, 0);
}

static ssize_t absent_preadv2(int descriptor, const struct iovec *parts, int count, off_t offset, int flags)
{
    return real_call(SYS_preadv2, descriptor, (long)parts, count, offset, 0, flags);
}

static ssize_t absent_copy(int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags)
{
    return real_call(SYS_copy_file_range, from, (long)from_offset, to, (long)to_offset, (long)size, flags);
}

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static int absent_close_range(unsigned first, unsigned last, int flags)
{
    return (int)real_call(SYS_close_range, first, last, flags, 0, 0, 0);
}

static void absent_closefrom(int first)
{
    real_call(SYS_close_range, first, UINT32_MAX, 0, 0, 0, 0);
}

/* As libaio has it: the error is the result. It is often loaded where RTLD_NEXT does not look. */
static int absent_io_submit(void *context, long count, void **requests)
{
    int saved_errno = errno;
    long result = real_call(SYS_io_submit, (long)context, count, (long)requests, 0, 0, 0);
    result = result < 0 ? -errno : result;
    errno = saved_errno;
    return (int)result;
}

static void *real_substitute(enum real function)
{
    switch (function) {
    case REAL_statx:
        return (void *)absent_statx;
    case REAL_preadv2:
    case REAL_preadv64v2:
        return (void *)absent_preadv2;
    case REAL_copy_file_range:
        return (void *)absent_copy;
    case REAL_close_range:
        return (void *)absent_close_range;
    case REAL_closefrom:
        return (void *)absent_closefrom;
    case REAL_io_submit:
        return (void *)absent_io_submit;
    default:
        return (void *)real_absent;
    }
}

/* ---------------------------------------------------------------------------------------- finding them */

/* RTLD_NEXT does not see what dlopen loaded for one module alone, such as librt on an old system. */
static void *real_in_libraries(const char *name)
{
    static const char *const libraries[] = {"libc.so.6", "librt.so.1"};
    void *address = NULL;
    for (size_t place = 0; address == NULL && place < sizeof libraries / sizeof *libraries; place++) {
        void *library = dlopen(libraries[place], RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            address = dlsym(library, name);
    }
    return address;
}

static __attribute__((noinline)) void *real_find(enum real function)
{
    int saved_errno = errno;
    void *address = dlsym(RTLD_NEXT, real_names[function]);
    if (address == NULL)
        address = real_in_libraries(real_names[function]);
    if (address == NULL)
        address = real_substitute(function);
    atomic_store_explicit(&real_addresses[function], address, memory_order_relaxed);
    errno = saved_errno;
    return address;
}

static inline void *real_address(enum real function)
{
    void *address = atomic_load_explicit(&real_addresses[function], memory_order_relaxed);
    return __builtin_expect(address != NULL, 1) ? address : real_find(function);
}

#define REAL(name) ((real_##name##_type *)real_address(REAL_##name))

static long real_call(long number, long a, long b, long c, long d, long e, long f)
{
    return REAL(syscall)(number, a, b, c, d, e, f);
}

#endif
