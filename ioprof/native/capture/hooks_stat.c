/* Hooks of calls that ask for metadata, list folders, allocate, or have the kernel read ahead. */
#include "open_files.h"
#include "paths.h"
#include "reading.h"
#include "real.h"
#include "short_calls.h"

#include <dirent.h>

#define TIMED(result_type, name, parameters, arguments, what, number) \
    result_type hook_##name parameters                                \
    {                                                                 \
        if (!is_recording())                                          \
            return REAL(name) arguments;                              \
        int64_t start = clock_now();                                  \
        result_type result = REAL(name) arguments;                    \
        END_SHORT_CALL(start, what, number);                          \
        return result;                                                \
    }

TIMED(int, stat, (const char *path, void *status), (path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, stat64, (const char *path, void *status), (path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, lstat, (const char *path, void *status), (path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, lstat64, (const char *path, void *status), (path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, __xstat, (int version, const char *path, void *status), (version, path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, __xstat64, (int version, const char *path, void *status), (version, path, status),
      "stat", path_number(AT_FDCWD, path))
TIMED(int, __lxstat, (int version, const char *path, void *status), (version, path, status), "stat",
      path_number(AT_FDCWD, path))
TIMED(int, __lxstat64, (int version, const char *path, void *status), (version, path, status),
      "stat", path_number(AT_FDCWD, path))
TIMED(int, access, (const char *path, int mode), (path, mode), "stat", path_number(AT_FDCWD, path))
TIMED(int, faccessat, (int folder, const char *path, int mode, int flags),
      (folder, path, mode, flags), "stat", path_number(folder, path))
TIMED(void *, opendir, (const char *path), (path), "readdir", path_number(AT_FDCWD, path))
TIMED(int, fallocate, (int descriptor, int mode, off_t offset, off_t size),
      (descriptor, mode, offset, size), "fallocate", known_path(descriptor))
TIMED(int, fallocate64, (int descriptor, int mode, off_t offset, off_t size),
      (descriptor, mode, offset, size), "fallocate", known_path(descriptor))

/* A folder is read into a buffer of about a thousand entries, and readdir mostly takes the next of
 * these: to time such a call, which does not enter the kernel, would cost several times as much as
 * the call. These are the first fields of glibc's DIR. Another C library may have others, so they
 * are used once a first call has changed them as it should; where it never does, each call is
 * timed. */
struct folder_buffer {
    int descriptor, lock;
    size_t allocated, filled, position;
};

static _Atomic bool knows_folder_buffers;

static inline bool has_entry(const void *open_folder)
{
    const struct folder_buffer *buffer = open_folder;
    return atomic_load_explicit(&knows_folder_buffers, memory_order_relaxed) &&
           buffer->position < buffer->filled;
}

/* A call returned the first entry of a buffer, which was used up before. */
static void learn_folder_buffer(const struct folder_buffer *before, const void *open_folder,
                                const struct dirent *entry)
{
    const struct folder_buffer *after = open_folder;
    const size_t place = (size_t)((const char *)entry - (const char *)open_folder);
    if (entry != NULL && before->position == before->filled &&
        before->descriptor == dirfd((void *)open_folder) && after->allocated == before->allocated &&
        after->filled > 0 && after->filled <= after->allocated &&
        after->position == entry->d_reclen && place >= sizeof *after && place <= 2 * sizeof *after)
        atomic_store_explicit(&knows_folder_buffers, true, memory_order_relaxed);
}

#define READDIR(name)                                                                   \
    OUT_OF_LINE static void *read_buffer_by_##name(void *open_folder)                   \
    {                                                                                   \
        if (!is_recording())                                                            \
            return REAL(name)(open_folder);                                             \
        const struct folder_buffer before = *(const struct folder_buffer *)open_folder; \
        int64_t start = clock_now();                                                    \
        void *entry = REAL(name)(open_folder);                                          \
        END_SHORT_CALL(start, "readdir", -1);                                           \
        if (!atomic_load_explicit(&knows_folder_buffers, memory_order_relaxed))         \
            learn_folder_buffer(&before, open_folder, entry);                           \
        return entry;                                                                   \
    }                                                                                   \
    HOT void *hook_##name(void *open_folder)                                            \
    {                                                                                   \
        real_##name##_type *real = KNOWN_REAL(name);                                    \
        return __builtin_expect(real != NULL && has_entry(open_folder), 1)              \
                   ? real(open_folder)                                                  \
                   : read_buffer_by_##name(open_folder);                                \
    }

READDIR(readdir)
READDIR(readdir64)

/* What the kernel is asked to read ahead is attributed to the read that begins there. */
#define AHEAD(type, name, parameters, arguments, what, wanted)                  \
    type hook_##name parameters                                                 \
    {                                                                           \
        if (!is_recording())                                                    \
            return REAL(name) arguments;                                        \
        struct open_file *file = (wanted) ? begin_readahead(descriptor) : NULL; \
        int64_t start = clock_now();                                            \
        type result = REAL(name) arguments;                                     \
        if (file != NULL)                                                       \
            end_readahead(file, offset);                                        \
        END_SHORT_CALL(start, what, known_path(descriptor));                    \
        return result;                                                          \
    }

AHEAD(ssize_t, readahead, (int descriptor, off_t offset, size_t size), (descriptor, offset, size),
      "readahead", true)
AHEAD(int, posix_fadvise, (int descriptor, off_t offset, off_t size, int advice),
      (descriptor, offset, size, advice), "fadvise", advice == POSIX_FADV_WILLNEED)
AHEAD(int, posix_fadvise64, (int descriptor, off_t offset, off_t size, int advice),
      (descriptor, offset, size, advice), "fadvise", advice == POSIX_FADV_WILLNEED)

#define FSTAT(name, parameters, arguments, descriptor)         \
    HOT int hook_##name parameters                             \
    {                                                          \
        if (!is_recording())                                   \
            return REAL(name) arguments;                       \
        int64_t start = clock_now();                           \
        int result = REAL(name) arguments;                     \
        END_SHORT_CALL(start, "stat", known_path(descriptor)); \
        if (result == 0)                                       \
            set_file_status(descriptor, status);               \
        return result;                                         \
    }

FSTAT(fstat, (int descriptor, void *status), (descriptor, status), descriptor)
FSTAT(fstat64, (int descriptor, void *status), (descriptor, status), descriptor)
FSTAT(__fxstat, (int version, int descriptor, void *status), (version, descriptor, status),
      descriptor)
FSTAT(__fxstat64, (int version, int descriptor, void *status), (version, descriptor, status),
      descriptor)

/* With an empty path it is an fstat of the descriptor. */
static bool is_about_descriptor(const char *path, int flags)
{
    return (flags & AT_EMPTY_PATH) && (path == NULL || path[0] == '\0');
}

static int32_t path_at(int folder, const char *path, int flags)
{
    return is_about_descriptor(path, flags) ? known_path(folder) : path_number(folder, path);
}

#define FSTATAT(name, parameters, arguments)                         \
    int hook_##name parameters                                       \
    {                                                                \
        if (!is_recording())                                         \
            return REAL(name) arguments;                             \
        int64_t start = clock_now();                                 \
        int result = REAL(name) arguments;                           \
        END_SHORT_CALL(start, "stat", path_at(folder, path, flags)); \
        if (result == 0 && is_about_descriptor(path, flags))         \
            set_file_status(folder, status);                         \
        return result;                                               \
    }

FSTATAT(fstatat, (int folder, const char *path, void *status, int flags),
        (folder, path, status, flags))
FSTATAT(fstatat64, (int folder, const char *path, void *status, int flags),
        (folder, path, status, flags))
FSTATAT(__fxstatat, (int version, int folder, const char *path, void *status, int flags),
        (version, folder, path, status, flags))
FSTATAT(__fxstatat64, (int version, int folder, const char *path, void *status, int flags),
        (version, folder, path, status, flags))
TIMED(int, statx, (int folder, const char *path, int flags, unsigned mask, void *status),
      (folder, path, flags, mask, status), "stat", path_at(folder, path, flags))

int hook_closedir(void *open_folder)
{
    if (is_recording_already())
        forget_file(dirfd(open_folder));
    return REAL(closedir)(open_folder);
}

int hook_chdir(const char *path)
{
    int result = REAL(chdir)(path);
    forget_working_directory();
    return result;
}

int hook_fchdir(int descriptor)
{
    int result = REAL(fchdir)(descriptor);
    forget_working_directory();
    return result;
}
