/* Hooks of calls that copy, move, change or close descriptors. */
#include "open_files.h"
#include "positions.h"
#include "paths.h"
#include "real.h"
#include "received_files.h"
#include "receiving.h"
#include "short_calls.h"
#include "uring.h"
#include "waits.h"

#include <sys/file.h>

int hook_dup(int from)
{
    int to = REAL(dup)(from);
    if (to >= 0 && is_recording_already()) {
        forget_file(to);
        copy_file(from, to);
    }
    return to;
}

#define DUP_ONTO(name, parameters, arguments)      \
    int hook_##name parameters                     \
    {                                              \
        if (!is_recording_already() || from == to) \
            return REAL(name) arguments;           \
        forget_file(to);                           \
        int result = REAL(name) arguments;         \
        if (result >= 0)                           \
            copy_file(from, to);                   \
        return result;                             \
    }

DUP_ONTO(dup2, (int from, int to), (from, to))
DUP_ONTO(dup3, (int from, int to, int flags), (from, to, flags))

static void end_fcntl(int descriptor, int command, long argument, int result)
{
    if (result < 0)
        return;
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        forget_file(result);
        copy_file(descriptor, result);
    } else if (command == F_SETFL && known_file(descriptor) != NULL) {
        if (argument & O_DIRECT)
            set_flags(known_file(descriptor), FILE_DIRECT);
        else
            clear_flags(known_file(descriptor), FILE_DIRECT);
    }
}

/* ------------------------------------------------------------------------------ locks of files */

/* One object for each file, whichever part of it is locked. errno is kept. */
static uint64_t lock_of_file(int descriptor)
{
    struct stat status;
    int saved_errno = begin_own_work();
    bool is_known = fstat(descriptor, &status) == 0;
    end_own_work(saved_errno);
    return is_known ? object_hash(status.st_ino << 24 ^ status.st_dev, FILE_LOCKED) : 0;
}

static void end_unlock(int64_t start, uint64_t object)
{
    int saved_errno = errno;
    emit_wake(start, clock_now(), OBJECT_FILE_LOCK, object);
    errno = saved_errno;
}

/* `result` is that of a call that locks, or unlocks, and began at `start`. */
static void end_file_lock(int descriptor, int64_t start, int result, bool locks)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    struct open_file *file = regular_file(descriptor);
    if (file != NULL && result == 0 && locks)
        set_flags(file, FILE_LOCKED);
    if (locks && end - start >= LEAST_BLOCK_NS)
        emit_block(start, end, OBJECT_FILE_LOCK, lock_of_file(descriptor), END_WOKEN);
    else if (!locks && result == 0)
        end_unlock(start, lock_of_file(descriptor));
    errno = saved_errno;
}

#define LOCK_FILE(name, parameters, arguments, locks)    \
    int hook_##name parameters                           \
    {                                                    \
        if (!is_recording_already())                     \
            return REAL(name) arguments;                 \
        int64_t start = clock_now();                     \
        int result = REAL(name) arguments;               \
        end_file_lock(descriptor, start, result, locks); \
        return result;                                   \
    }

LOCK_FILE(flock, (int descriptor, int operation), (descriptor, operation), !(operation & LOCK_UN))
LOCK_FILE(lockf, (int descriptor, int operation, off_t size), (descriptor, operation, size),
          operation == F_LOCK || operation == F_TLOCK)
LOCK_FILE(lockf64, (int descriptor, int operation, off_t size), (descriptor, operation, size),
          operation == F_LOCK || operation == F_TLOCK)

static inline bool is_lock_command(int command)
{
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||
           command == F_OFD_SETLKW;
}

/* The third argument is always passed on, since only the kernel knows which commands have one. */
#define FCNTL(name)                                                                    \
    int hook_##name(int descriptor, int command, ...)                                  \
    {                                                                                  \
        va_list values;                                                                \
        va_start(values, command);                                                     \
        long argument = va_arg(values, long);                                          \
        va_end(values);                                                                \
        if (__builtin_expect(is_lock_command(command), 0) && is_recording_already()) { \
            int64_t start = clock_now();                                               \
            int locked = REAL(name)(descriptor, command, argument);                    \
            if (locked == 0) /* the kernel has accepted the address */                 \
                end_file_lock(descriptor, start, locked,                               \
                              ((const struct flock *)argument)->l_type != F_UNLCK);    \
            return locked;                                                             \
        }                                                                              \
        int result = REAL(name)(descriptor, command, argument);                        \
        if (is_recording_already())                                                    \
            end_fcntl(descriptor, command, argument, result);                          \
        return result;                                                                 \
    }

FCNTL(fcntl)
FCNTL(fcntl64)

#define SEEK(name)                                                                       \
    off_t hook_##name(int descriptor, off_t offset, int whence)                          \
    {                                                                                    \
        struct open_file *file = is_recording_already() ? file_entry(descriptor) : NULL; \
        if (file != NULL && is_known(file))                                              \
            wait_for_position(file);                                                     \
        off_t position = REAL(name)(descriptor, offset, whence);                         \
        if (file != NULL && position >= 0)                                               \
            SET(file, position, position);                                               \
        return position;                                                                 \
    }

SEEK(lseek)
SEEK(lseek64)

#define TRUNCATE(name)                                                             \
    int hook_##name(int descriptor, off_t length)                                  \
    {                                                                              \
        int result = REAL(name)(descriptor, length);                               \
        struct open_file *file =                                                   \
            result == 0 && is_recording_already() ? file_entry(descriptor) : NULL; \
        if (file != NULL)                                                          \
            SET(file, size, length);                                               \
        return result;                                                             \
    }

TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

static __attribute__((noinline)) void before_close(int descriptor, struct open_file *file)
{
    if (is_peer(file)) {
        emit_hang_up(clock_now(), channel_of(descriptor, file, true));
        end_peer(descriptor, file);
    }
    if (flags_of(file) & FILE_CREATED)
        end_created(descriptor, file);
}

/* Forgotten before it is closed: afterwards the number may be that of another thread's new file. */
HOT int hook_close(int descriptor)
{
    if (!is_recording_already())
        return REAL(close)(descriptor);
    struct open_file *file = known_file(descriptor);
    int32_t number = file != NULL ? GET(file, path) : -1;
    const uint32_t special = FILE_SOCKET | FILE_PIPE | FILE_CREATED | FILE_LOCKED;
    if (file != NULL && __builtin_expect(flags_of(file) & special, 0))
        before_close(descriptor, file);
    uint64_t lock = file != NULL && flags_of(file) & FILE_LOCKED ? lock_of_file(descriptor) : 0;
    close_uring(descriptor);
    forget_file(descriptor);
    int64_t start = clock_now();
    int result = REAL(close)(descriptor);
    if (__builtin_expect(lock != 0, 0))
        end_unlock(start, lock);
    END_SHORT_CALL(start, "close", number);
    return result;
}

int hook_close_range(unsigned first, unsigned last, int flags)
{
    const int only_cloexec = 4; /* CLOSE_RANGE_CLOEXEC */
    if (is_recording_already() && !(flags & only_cloexec))
        forget_files(first, last);
    return REAL(close_range)(first, last, flags);
}

void hook_closefrom(int first)
{
    if (is_recording_already())
        forget_files(first < 0 ? 0 : (unsigned)first, MAX_DESCRIPTORS - 1);
    REAL(closefrom)(first);
}

/* Downloads are often renamed when they are complete; checkpoints too, and then it says that the
 * file is one to keep. */
static void end_rename(int64_t start, int folder, const char *path)
{
    int saved_errno = begin_own_work();
    int64_t end = clock_now();
    if (!is_in_spool(path))
        emit_event(&(struct event){start, end, -1, -1, path_number(folder, path), NAME("rename"),
                                   KIND_USER, SOURCE_NONE});
    end_own_work(saved_errno);
}

#define RENAME(name, parameters, arguments, from_folder, to_folder) \
    int hook_##name parameters                                      \
    {                                                               \
        if (!is_recording_already())                                \
            return REAL(name) arguments;                            \
        int64_t start = clock_now();                                \
        int result = REAL(name) arguments;                          \
        if (result == 0 && has_received_files())                    \
            rename_received_file(from_folder, from, to_folder, to); \
        if (result == 0)                                            \
            end_rename(start, to_folder, to);                       \
        return result;                                              \
    }

RENAME(rename, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD)
RENAME(renameat, (int from_folder, const char *from, int to_folder, const char *to),
       (from_folder, from, to_folder, to), from_folder, to_folder)
RENAME(renameat2,
       (int from_folder, const char *from, int to_folder, const char *to, unsigned flags),
       (from_folder, from, to_folder, to, flags), from_folder, to_folder)
