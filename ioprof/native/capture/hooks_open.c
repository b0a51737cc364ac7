#include "opens.h"
#include "paths.h"
#include "real.h"

#include <fcntl.h>

/* There is a third argument with O_CREAT and with O_TMPFILE, which includes O_DIRECTORY (open(2)).
 */
#define TAKE_MODE                                                \
    mode_t mode = 0;                                             \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list values;                                          \
        va_start(values, flags);                                 \
        mode = va_arg(values, mode_t);                           \
        va_end(values);                                          \
    }

#define OPEN_BODY(call, folder, path_key_or_none)           \
    if (!is_recording())                                    \
        return call;                                        \
    const struct string_key key = path_key_or_none;         \
    int64_t start = clock_now();                            \
    int descriptor = call;                                  \
    end_open(descriptor, start, folder, path, flags, &key); \
    return descriptor;

#define OPEN(name)                                                                   \
    HOT int hook_##name(const char *path, int flags, ...)                            \
    {                                                                                \
        TAKE_MODE OPEN_BODY(REAL(name)(path, flags, mode), AT_FDCWD, path_key(path)) \
    }
#define OPENAT(name)                                                                       \
    HOT int hook_##name(int folder, const char *path, int flags, ...)                      \
    {                                                                                      \
        TAKE_MODE OPEN_BODY(REAL(name)(folder, path, flags, mode), folder, path_key(path)) \
    }
#define OPEN_CHECKED(name)                                           \
    int hook_##name(const char *path, int flags)                     \
    {                                                                \
        OPEN_BODY(REAL(name)(path, flags), AT_FDCWD, path_key(path)) \
    }
#define OPENAT_CHECKED(name)                                               \
    int hook_##name(int folder, const char *path, int flags)               \
    {                                                                      \
        OPEN_BODY(REAL(name)(folder, path, flags), folder, path_key(path)) \
    }
#define CREAT(name)                                                 \
    int hook_##name(const char *path, mode_t mode)                  \
    {                                                               \
        const int flags = O_WRONLY;                                 \
        OPEN_BODY(REAL(name)(path, mode), AT_FDCWD, path_key(path)) \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_CHECKED(__open_2)
OPEN_CHECKED(__open64_2)
OPENAT_CHECKED(__openat_2)
OPENAT_CHECKED(__openat64_2)
CREAT(creat)
CREAT(creat64)

#define MAKE_TEMPORARY(name, parameters, arguments)       \
    int hook_##name parameters                            \
    {                                                     \
        const int flags = O_RDWR;                         \
        OPEN_BODY(REAL(name) arguments, AT_FDCWD, NO_KEY) \
    }

MAKE_TEMPORARY(mkstemp, (char *path), (path))
MAKE_TEMPORARY(mkstemp64, (char *path), (path))
MAKE_TEMPORARY(mkostemp, (char *path, int more), (path, more))
MAKE_TEMPORARY(mkostemp64, (char *path, int more), (path, more))
MAKE_TEMPORARY(mkstemps, (char *path, int suffix), (path, suffix))
MAKE_TEMPORARY(mkstemps64, (char *path, int suffix), (path, suffix))
MAKE_TEMPORARY(mkostemps, (char *path, int suffix, int more), (path, suffix, more))
MAKE_TEMPORARY(mkostemps64, (char *path, int suffix, int more), (path, suffix, more))
