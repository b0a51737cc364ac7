#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOOK(result, name, parameters) #name,
static const char *const real_names[] = {
#include "hooks.h"
};
#undef HOOK

_Atomic(void *) real_addresses[NUM_REAL];

long real_system_call(long number, long a, long b, long c, long d, long e, long f)
{
    return REAL(syscall)(number, a, b, c, d, e, f);
}

/* --------------------------------------------------------- functions that this C library lacks */

/* A program that looks for a function at run time finds the hook, which must then report that it is
 * not implemented. */
static long real_absent(void)
{
    errno = ENOSYS;
    return -1;
}

static int absent_statx(int folder, const char *path, int flags, unsigned mask, void *status)
{
    return (int)real_system_call(SYS_statx, folder, (long)path, flags, mask, (long)status, 0);
}

static ssize_t absent_preadv2(int descriptor, const struct iovec *parts, int count, off_t offset,
                              int flags)
{
    return real_system_call(SYS_preadv2, descriptor, (long)parts, count, offset, 0, flags);
}

static ssize_t absent_copy(int from, off_t *from_offset, int to, off_t *to_offset, size_t size,
                           unsigned flags)
{
    return real_system_call(SYS_copy_file_range, from, (long)from_offset, to, (long)to_offset,
                            (long)size, flags);
}

static int absent_close_range(unsigned first, unsigned last, int flags)
{
    return (int)real_system_call(SYS_close_range, first, last, flags, 0, 0, 0);
}

static void absent_closefrom(int first)
{
    real_system_call(SYS_close_range, first, UINT32_MAX, 0, 0, 0, 0);
}

/* As in libaio, the error is the result. libaio is often loaded where RTLD_NEXT does not look. */
static int absent_io_submit(void *context, long count, void **requests)
{
    int saved_errno = errno;
    long result = real_system_call(SYS_io_submit, (long)context, count, (long)requests, 0, 0, 0);
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

/* ----------------------------------------------------------------------------- looking them up */

#define EMPTY_SINCE 34 /* glibc 2.34 has all of librt in libc */

/* RTLD_NEXT does not see what dlopen loaded for one module alone, such as librt on an old system.
 * A library that is not loaded is searched for in all folders each time. */
static void *real_in_libraries(const char *name)
{
    static const char *const libraries[] = {"libc.so.6", "librt.so.1"};
    const char *(*version)(void) =
        (const char *(*)(void))(uintptr_t)dlsym(RTLD_NEXT, "gnu_get_libc_version");
    const char *text = version == NULL ? "" : version();
    const size_t number = strncmp(text, "2.", 2) == 0 && atoi(text + 2) >= EMPTY_SINCE ? 1 : 2;
    void *address = NULL;
    for (size_t place = 0; address == NULL && place < number; place++) {
        void *library = dlopen(libraries[place], RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            address = dlsym(library, name);
    }
    return address;
}

__attribute__((noinline)) void *real_find(enum real function)
{
    int saved_errno = errno;
    void *address = NULL;
#ifdef IOPROF_SYMBOL_VERSIONS
    if (function >= REAL_pthread_cond_wait && function <= REAL_pthread_cond_broadcast)
        address = dlvsym(RTLD_NEXT, real_names[function],
                         "GLIBC_2.3.2"); /* dlsym may find the older one */
#endif
    if (address == NULL)
        address = dlsym(RTLD_NEXT, real_names[function]);
    if (address == NULL)
        address = real_in_libraries(real_names[function]);
    if (address == NULL)
        address = real_substitute(function);
    atomic_store_explicit(&real_addresses[function], address, memory_order_relaxed);
    errno = saved_errno;
    return address;
}
