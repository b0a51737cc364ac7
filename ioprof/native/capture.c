/* The capture library: loaded into a job by LD_PRELOAD, it sees what files the job opens and reads, and when, and where the bytes
 * came from. CAPTURE.md explains how; hooks.h lists what it stands in front of.
 *
 * Every hook passes on what it was given and returns what it got, errno with it. Where nothing is recorded that is all it does. */
#include "ring_quietly.h"

#include "mapped.h"
#include "streams.h"

#include <dirent.h>

/* What `ioprof.record.preload.sees_reads` asks: a reader that would record its own reads leaves them to the library. */
__attribute__((visibility("default"))) int ioprof_capture_is_recording(void);
int ioprof_capture_is_recording(void)
{
    return recording();
}

/* ---------------------------------------------------------------------------------------- open */

/* The third argument is there with O_CREAT and with O_TMPFILE, of which O_DIRECTORY is a part (open(2)). */
#define TAKE_MODE \
    mode_t mode = 0; \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list values; \
        va_start(values, flags); \
        mode = va_arg(values, mode_t); \
        va_end(values); \
    }

#define OPEN_BODY(call, folder_of, looked_up) \
    if (!recording()) \
        return call; \
    const struct key key = looked_up; \
    int64_t start = clock_now(); \
    int descriptor = call; \
    end_open(descriptor, start, folder_of, path, flags, &key); \
    return descriptor;

#define OPEN(name) \
    int hook_##name(const char *path, int flags, ...) \
    { \
        TAKE_MODE OPEN_BODY(REAL(name)(path, flags, mode), AT_FDCWD, look_up(path)) \
    }
#define OPENAT(name) \
    int hook_##name(int above, const char *path, int flags, ...) \
    { \
        TAKE_MODE OPEN_BODY(REAL(name)(above, path, flags, mode), above, look_up(path)) \
    }
#define OPEN_CHECKED(name) \
    int hook_##name(const char *path, int flags) \
    { \
        OPEN_BODY(REAL(name)(path, flags), AT_FDCWD, look_up(path)) \
    }
#define OPENAT_CHECKED(name) \
    int hook_##name(int above, const char *path, int flags) \
    { \
        OPEN_BODY(REAL(name)(above, path, flags), above, look_up(path)) \
    }
#define CREAT(name) \
    int hook_##name(const char *path, mode_t mode) \
    { \
        const int flags = O_WRONLY; \
        OPEN_BODY(REAL(name)(path, mode), AT_FDCWD, look_up(path)) \
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

#define MAKE_TEMPORARY(name, parameters, arguments) \
    int hook_##name parameters \
    { \
        const int flags = O_RDWR; \
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

/* ---------------------------------------------------------------------------------------- copies of descriptors */

int hook_dup(int from)
{
    int to = REAL(dup)(from);
    if (to >= 0 && recording_already()) {
        forget_file(to);
        copy_file(from, to);
    }
    return to;
}

#define DUP_ONTO(name, parameters, arguments) \
    int hook_##name parameters \
    { \
        if (!recording_already() || from == to) \
            return REAL(name) arguments; \
        forget_file(to); \
        int result = REAL(name) arguments; \
        if (result >= 0) \
            copy_file(from, to); \
        return result; \
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
    } else if (command == F_SETFL && (unsigned)descriptor < FILES && is_known(&files[descriptor])) {
        if (argument & O_DIRECT)
            set_flags(&files[descriptor], FILE_DIRECT);
        else
            atomic_fetch_and(&files[descriptor].flags, ~(uint32_t)FILE_DIRECT);
    }
}

/* The third argument is always passed on: which commands have one, the kernel knows best. */
#define FCNTL(name) \
    int hook_##name(int descriptor, int command, ...) \
    { \
        va_list values; \
        va_start(values, command); \
        long argument = va_arg(values, long); \
        va_end(values); \
        int result = REAL(name)(descriptor, command, argument); \
        if (recording_already()) \
            end_fcntl(descriptor, command, argument, result); \
        return result; \
    }

FCNTL(fcntl)
FCNTL(fcntl64)

#define SEEK(name) \
    off_t hook_##name(int descriptor, off_t offset, int whence) \
    { \
        bool is_told = recording_already() && (unsigned)descriptor < FILES; \
        if (is_told && is_known(&files[descriptor])) \
            await_turn(&files[descriptor]); \
        off_t position = REAL(name)(descriptor, offset, whence); \
        if (is_told && position >= 0) \
            SET(&files[descriptor], position, position); \
        return position; \
    }

SEEK(lseek)
SEEK(lseek64)

#define TRUNCATE(name) \
    int hook_##name(int descriptor, off_t length) \
    { \
        int result = REAL(name)(descriptor, length); \
        if (result == 0 && recording_already() && (unsigned)descriptor < FILES) \
            SET(&files[descriptor], size, length); \
        return result; \
    }

TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* Forgotten before it is closed: afterwards the number may be another thread's new file. */
int hook_close(int descriptor)
{
    if (!recording_already())
        return REAL(close)(descriptor);
    int32_t number = number_of(descriptor);
    forget_file(descriptor);
    int64_t start = clock_now();
    int result = REAL(close)(descriptor);
    END_SHORT(start, "close", number);
    return result;
}

int hook_close_range(unsigned first, unsigned last, int flags)
{
    const int only_cloexec = 4; /* CLOSE_RANGE_CLOEXEC */
    if (recording_already() && !(flags & only_cloexec))
        forget_files(first, last);
    return REAL(close_range)(first, last, flags);
}

void hook_closefrom(int first)
{
    if (recording_already())
        forget_files(first < 0 ? 0 : (unsigned)first, FILES - 1);
    REAL(closefrom)(first);
}

/* ---------------------------------------------------------------------------------------- read */

ssize_t hook_read(int descriptor, void *buffer, size_t size)
{
    return recording() ? read_one(descriptor, buffer, size, PLAIN) : REAL(read)(descriptor, buffer, size);
}

/* Fortified: too large a size ends the program, which is for the real function to do. */
ssize_t hook___read_chk(int descriptor, void *buffer, size_t size, size_t room)
{
    return size <= room && recording() ? read_one(descriptor, buffer, size, PLAIN)
                                       : REAL(__read_chk)(descriptor, buffer, size, room);
}

#define PREAD(name) \
    ssize_t hook_##name(int descriptor, void *buffer, size_t size, off_t offset) \
    { \
        return offset >= 0 && recording() ? read_one(descriptor, buffer, size, offset) \
                                          : REAL(name)(descriptor, buffer, size, offset); \
    }
#define PREAD_CHECKED(name) \
    ssize_t hook_##name(int descriptor, void *buffer, size_t size, off_t offset, size_t room) \
    { \
        return offset >= 0 && size <= room && recording() ? read_one(descriptor, buffer, size, offset) \
                                                          : REAL(name)(descriptor, buffer, size, offset, room); \
    }

PREAD(pread)
PREAD(pread64)
PREAD_CHECKED(__pread_chk)
PREAD_CHECKED(__pread64_chk)

/* IOV_MAX parts at most; what the kernel refuses is refused by the real function. */
static bool is_sound(const struct iovec *parts, int count)
{
    return parts != NULL && count > 0 && count <= 1024;
}

ssize_t hook_readv(int descriptor, const struct iovec *parts, int count)
{
    if (!is_sound(parts, count) || !recording())
        return REAL(readv)(descriptor, parts, count);
    return read_recorded(&(struct request){descriptor, count, parts, PLAIN, 0});
}

#define PREADV(name) \
    ssize_t hook_##name(int descriptor, const struct iovec *parts, int count, off_t offset) \
    { \
        if (offset < 0 || !is_sound(parts, count) || !recording()) \
            return REAL(name)(descriptor, parts, count, offset); \
        return read_recorded(&(struct request){descriptor, count, parts, offset, 0}); \
    }
#define PREADV2(name) \
    ssize_t hook_##name(int descriptor, const struct iovec *parts, int count, off_t offset, int flags) \
    { \
        if (offset < PLAIN || !is_sound(parts, count) || !recording()) \
            return REAL(name)(descriptor, parts, count, offset, flags); \
        return read_recorded(&(struct request){descriptor, count, parts, offset, flags}); \
    }

PREADV(preadv)
PREADV(preadv64)
PREADV2(preadv2)
PREADV2(preadv64v2)

/* ---------------------------------------------------------------------------------------- copies within the kernel */

/* The bytes that left `from`, at `*offset` or its position. An offset is looked at only once the kernel has found it where it was
 * said to be. Where `from` is no file they are not told, only counted. */
#define COPY_BODY(call, from, from_offset, counted) \
    if (!recording()) \
        return call; \
    struct reading reading; \
    bool is_file = begin_other_reading(from, (from_offset) == NULL ? PLAIN : 0, &reading); \
    reading.uncounted = !(counted); \
    ssize_t copied = call; \
    if (copied > 0 && (from_offset) != NULL) \
        reading.position = *(from_offset) - copied; \
    if (copied > 0 && is_file && (from_offset) == NULL) \
        atomic_fetch_add(&reading.file->position, copied); \
    if (is_file) \
        end_other_reading(&reading, copied); \
    else if (counted) \
        count_read(copied); \
    return copied;

#define SENDFILE(name) \
    ssize_t hook_##name(int to, int from, off_t *offset, size_t size) \
    { \
        COPY_BODY(REAL(name)(to, from, offset, size), from, offset, true) \
    }

SENDFILE(sendfile)
SENDFILE(sendfile64)

ssize_t hook_copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags)
{
    COPY_BODY(REAL(copy_file_range)(from, from_offset, to, to_offset, size, flags), from, from_offset, true)
}

/* What splice moves the kernel does not count as read. */
ssize_t hook_splice(int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags)
{
    COPY_BODY(REAL(splice)(from, from_offset, to, to_offset, size, flags), from, from_offset, false)
}

/* ---------------------------------------------------------------------------------------- mmap */

#define MMAP(name) \
    void *hook_##name(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) \
    { \
        if (descriptor < 0 || (flags & MAP_ANONYMOUS) || !recording()) \
            return REAL(name)(address, length, protection, flags, descriptor, offset); \
        int64_t start = clock_now(); \
        void *mapped = REAL(name)(address, length, protection, flags, descriptor, offset); \
        if (mapped != MAP_FAILED) \
            end_mmap(mapped, descriptor, start, length, offset); \
        return mapped; \
    }

MMAP(mmap)
MMAP(mmap64)

#define ADVISE(name) \
    int hook_##name(void *address, size_t length, int advice) \
    { \
        if (!fetches(advice) || !recording()) \
            return REAL(name)(address, length, advice); \
        int saved_errno = errno; \
        int64_t before = usage_now().blocks, start = clock_now(); \
        errno = saved_errno; \
        int result = REAL(name)(address, length, advice); \
        saved_errno = errno; \
        end_advice(address, start, usage_now().blocks - before); \
        errno = saved_errno; \
        return result; \
    }

ADVISE(madvise)
ADVISE(posix_madvise)

/* ---------------------------------------------------------------------------------------- reads made elsewhere */

/* POSIX asynchronous I/O: a thread of the C library reads; when it did is not known, only how much. */
static void end_asynchronous(const struct aiocb *request, ssize_t result)
{
    if (request->aio_lio_opcode != LIO_READ || !recording())
        return;
    struct file *file = regular_file(request->aio_fildes);
    int saved_errno = errno;
    int64_t now = clock_now();
    hands_off();
    tally_read(result > 0 ? (uint64_t)result : 0);
    if (result > 0 && file != NULL)
        tell(&(struct told){now, now, result, request->aio_offset, GET(file, path), NAME("aio"), KIND_READ, SOURCE_UNKNOWN});
    hands_on();
    errno = saved_errno;
}

#define AIO_RETURN(name) \
    ssize_t hook_##name(struct aiocb *request) \
    { \
        ssize_t result = REAL(name)(request); \
        end_asynchronous(request, result); \
        return result; \
    }

AIO_RETURN(aio_return)
AIO_RETURN(aio_return64)

int hook_io_submit(void *context, long count, void **requests)
{
    if (recording())
        note(NOTED_LIBAIO);
    return REAL(io_submit)(context, count, requests);
}

/* System calls that the job makes by number. Those that change what is known of descriptors are heeded. */
static void before_system_call(long number, long first, long second)
{
    switch (number) {
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
        note(NOTED_IO_URING);
        break;
#endif
    case SYS_io_setup:
    case SYS_io_submit:
        note(NOTED_LIBAIO);
        break;
    case SYS_close:
        forget_file((int)first);
        break;
    case SYS_close_range:
        forget_files((unsigned)first, (unsigned)second);
        break;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
        forget_file((int)second);
        break;
    default:
        break;
    }
}

/* Bytes that were read by number are counted; which file and from where is not told. */
static void after_system_call(long number, long descriptor, long result)
{
    switch (number) {
    case SYS_read:
        if ((unsigned long)descriptor < FILES && is_known(&files[descriptor]) && result > 0)
            atomic_fetch_add(&files[descriptor].position, result);
        /* fall through */
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
        note(NOTED_SYSCALL);
        count_read(result);
        break;
    default:
        break;
    }
}

static inline bool is_heeded(long number)
{
    switch (number) {
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_close:
    case SYS_close_range:
    case SYS_dup3:
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_io_setup:
    case SYS_io_submit:
#ifdef SYS_io_uring_setup
    case SYS_io_uring_setup:
#endif
        return true;
    default:
        return false;
    }
}

/* No system call has more than six arguments. Those that were not given are whatever lies there, as in the C library's own
 * syscall. */
__attribute__((no_sanitize("address"))) long hook_syscall(long number, ...)
{
    va_list values;
    va_start(values, number);
    long a = va_arg(values, long), b = va_arg(values, long), c = va_arg(values, long);
    long d = va_arg(values, long), e = va_arg(values, long), f = va_arg(values, long);
    va_end(values);
    bool heeded = is_heeded(number) && recording();
    if (heeded)
        before_system_call(number, a, b);
    long result = REAL(syscall)(number, a, b, c, d, e, f);
    if (heeded)
        after_system_call(number, a, result);
    return result;
}

/* ---------------------------------------------------------------------------------------- stat and the like */

#define TIMED(result_type, name, parameters, arguments, what, number) \
    result_type hook_##name parameters \
    { \
        if (!recording()) \
            return REAL(name) arguments; \
        int64_t start = clock_now(); \
        result_type result = REAL(name) arguments; \
        END_SHORT(start, what, number); \
        return result; \
    }

TIMED(int, stat, (const char *path, void *status), (path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, stat64, (const char *path, void *status), (path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, lstat, (const char *path, void *status), (path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, lstat64, (const char *path, void *status), (path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, __xstat, (int version, const char *path, void *status), (version, path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, __xstat64, (int version, const char *path, void *status), (version, path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, __lxstat, (int version, const char *path, void *status), (version, path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, __lxstat64, (int version, const char *path, void *status), (version, path, status), "stat", path_number(AT_FDCWD, path))
TIMED(int, access, (const char *path, int mode), (path, mode), "stat", path_number(AT_FDCWD, path))
TIMED(int, faccessat, (int above, const char *path, int mode, int flags), (above, path, mode, flags), "stat",
      path_number(above, path))
TIMED(void *, opendir, (const char *path), (path), "readdir", path_number(AT_FDCWD, path))
TIMED(void *, readdir, (void *open_folder), (open_folder), "readdir", -1)
TIMED(void *, readdir64, (void *open_folder), (open_folder), "readdir", -1)
TIMED(int, fallocate, (int descriptor, int mode, off_t offset, off_t size), (descriptor, mode, offset, size), "fallocate",
      number_of(descriptor))
TIMED(int, fallocate64, (int descriptor, int mode, off_t offset, off_t size), (descriptor, mode, offset, size), "fallocate",
      number_of(descriptor))

/* What a descriptor's file is asked to fetch ahead is fetched for those who go on from there. */
#define AHEAD(type, name, parameters, arguments, what, wanted) \
    type hook_##name parameters \
    { \
        if (!recording()) \
            return REAL(name) arguments; \
        struct file *file = (wanted) ? begin_ahead(descriptor) : NULL; \
        int64_t start = clock_now(); \
        type result = REAL(name) arguments; \
        if (file != NULL) \
            end_ahead(file, offset); \
        END_SHORT(start, what, number_of(descriptor)); \
        return result; \
    }

AHEAD(ssize_t, readahead, (int descriptor, off_t offset, size_t size), (descriptor, offset, size), "readahead", true)
AHEAD(int, posix_fadvise, (int descriptor, off_t offset, off_t size, int advice), (descriptor, offset, size, advice), "fadvise",
      advice == POSIX_FADV_WILLNEED)
AHEAD(int, posix_fadvise64, (int descriptor, off_t offset, off_t size, int advice), (descriptor, offset, size, advice), "fadvise",
      advice == POSIX_FADV_WILLNEED)

/* What the job learns about its descriptor the library needs not ask. */
static void learn_from(int descriptor, const void *status)
{
    if ((unsigned)descriptor >= FILES || !is_known(&files[descriptor]))
        return;
    int saved_errno = errno;
    hands_off();
    learn(descriptor, &files[descriptor], status);
    hands_on();
    errno = saved_errno;
}

#define FSTAT(name, parameters, arguments, descriptor) \
    int hook_##name parameters \
    { \
        if (!recording()) \
            return REAL(name) arguments; \
        int64_t start = clock_now(); \
        int result = REAL(name) arguments; \
        END_SHORT(start, "stat", number_of(descriptor)); \
        if (result == 0) \
            learn_from(descriptor, status); \
        return result; \
    }

FSTAT(fstat, (int descriptor, void *status), (descriptor, status), descriptor)
FSTAT(fstat64, (int descriptor, void *status), (descriptor, status), descriptor)
FSTAT(__fxstat, (int version, int descriptor, void *status), (version, descriptor, status), descriptor)
FSTAT(__fxstat64, (int version, int descriptor, void *status), (version, descriptor, status), descriptor)

/* With an empty path it is an fstat of the folder's descriptor. */
static bool is_about_descriptor(const char *path, int flags)
{
    return (flags & AT_EMPTY_PATH) && (path == NULL || path[0] == '\0');
}

static int32_t number_at(int above, const char *path, int flags)
{
    return is_about_descriptor(path, flags) ? number_of(above) : path_number(above, path);
}

#define FSTATAT(name, parameters, arguments) \
    int hook_##name parameters \
    { \
        if (!recording()) \
            return REAL(name) arguments; \
        int64_t start = clock_now(); \
        int result = REAL(name) arguments; \
        END_SHORT(start, "stat", number_at(above, path, flags)); \
        if (result == 0 && is_about_descriptor(path, flags)) \
            learn_from(above, status); \
        return result; \
    }

FSTATAT(fstatat, (int above, const char *path, void *status, int flags), (above, path, status, flags))
FSTATAT(fstatat64, (int above, const char *path, void *status, int flags), (above, path, status, flags))
FSTATAT(__fxstatat, (int version, int above, const char *path, void *status, int flags), (version, above, path, status, flags))
FSTATAT(__fxstatat64, (int version, int above, const char *path, void *status, int flags), (version, above, path, status, flags))
TIMED(int, statx, (int above, const char *path, int flags, unsigned mask, void *status), (above, path, flags, mask, status), "stat",
      number_at(above, path, flags))

int hook_closedir(void *open_folder)
{
    if (recording_already())
        forget_file(dirfd(open_folder));
    return REAL(closedir)(open_folder);
}

int hook_chdir(const char *path)
{
    int result = REAL(chdir)(path);
    forget_folder();
    return result;
}

int hook_fchdir(int descriptor)
{
    int result = REAL(fchdir)(descriptor);
    forget_folder();
    return result;
}

/* ---------------------------------------------------------------------------------------- processes */

/* Whether an environment takes the library along: by the name of its file, which other preloads do not bear. */
static bool takes_us_along(char *const *environment)
{
    bool preloaded = false, told = false;
    for (; environment != NULL && *environment != NULL; environment++) {
        preloaded |= strncmp(*environment, "LD_PRELOAD=", 11) == 0 && strstr(*environment, "_capture") != NULL;
        told |= strncmp(*environment, "IOPROF_SPOOL=", 13) == 0;
    }
    return preloaded && told;
}

/* In a child of vfork it is the parent's file that is told: they share their memory, and the child has no file. */
static void heed_exec(char *const *environment)
{
    int saved_errno = errno;
    if (atomic_load(&mode) == ON && !takes_us_along(environment) && (ioprof_hands_off >= HANDS_OFF_VFORK || recording()))
        note(NOTED_EXEC);
    compare_last(true);
    errno = saved_errno;
}

/* exec returned, so it failed: the process goes on. */
static void outlive_exec(void)
{
    if (recording_already())
        ring.header->closed = false;
}

#define EXEC(name, parameters, arguments, environment) \
    int hook_##name parameters \
    { \
        heed_exec(environment); \
        int result = REAL(name) arguments; \
        outlive_exec(); \
        return result; \
    }

/* The arguments of a call that are listed one by one, up to NULL; what follows is the environment, if the call has one. */
#define EXEC_LIST(name, real, parameter, has_environment) \
    int hook_##name(const char *parameter, const char *first, ...) \
    { \
        va_list values; \
        size_t count = 0; \
        va_start(values, first); \
        for (const char *next = first; next != NULL; next = va_arg(values, const char *)) \
            count++; \
        va_end(values); \
        char *arguments[count + 1]; \
        va_start(values, first); \
        for (size_t place = 0; place <= count; place++) \
            arguments[place] = place == 0 ? (char *)(uintptr_t)first : va_arg(values, char *); \
        char *const *environment = (has_environment) ? va_arg(values, char *const *) : environ; \
        va_end(values); \
        heed_exec(environment); \
        int result = real; \
        outlive_exec(); \
        return result; \
    }

EXEC_LIST(execl, REAL(execv)(path, arguments), path, false)
EXEC_LIST(execlp, REAL(execvp)(file, arguments), file, false)
EXEC_LIST(execle, REAL(execve)(path, arguments, environment), path, true)
EXEC(execv, (const char *path, char *const *arguments), (path, arguments), environ)
EXEC(execvp, (const char *file, char *const *arguments), (file, arguments), environ)
EXEC(execve, (const char *path, char *const *arguments, char *const *environment), (path, arguments, environment), environment)
EXEC(execvpe, (const char *file, char *const *arguments, char *const *environment), (file, arguments, environment), environment)
EXEC(fexecve, (int descriptor, char *const *arguments, char *const *environment), (descriptor, arguments, environment), environment)

#define SPAWN(name) \
    int hook_##name(pid_t *pid, const char *path, const void *actions, const void *attributes, char *const *arguments, \
                    char *const *environment) \
    { \
        before_fork(); \
        if (atomic_load(&mode) == ON && !takes_us_along(environment) && recording()) \
            note(NOTED_EXEC); \
        return REAL(name)(pid, path, actions, attributes, arguments, environment); \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* A wait that blocks may take long, so that the books are compared before it, too. */
#define WAIT(result_type, name, parameters, arguments, blocks, has_reaped) \
    result_type hook_##name parameters \
    { \
        if (blocks) \
            compare_around_child(false); \
        result_type result = REAL(name) arguments; \
        if (has_reaped) \
            compare_around_child(true); \
        return result; \
    }

WAIT(pid_t, wait, (int *status), (status), true, result > 0)
WAIT(pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options), !(options & WNOHANG), result > 0)
WAIT(pid_t, wait3, (int *status, int options, struct rusage *usage), (status, options, usage), !(options & WNOHANG), result > 0)
WAIT(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage), (pid, status, options, usage), !(options & WNOHANG),
     result > 0)
WAIT(int, waitid, (idtype_t whose, id_t id, siginfo_t *information, int options), (whose, id, information, options),
     !(options & WNOHANG), result == 0 && !(options & WNOWAIT))
int hook_system(const char *command)
{
    before_fork();
    compare_around_child(false);
    int result = REAL(system)(command);
    if (result >= 0)
        compare_around_child(true);
    return result;
}

#define EXIT(name) \
    __attribute__((noreturn)) void hook_##name(int status) \
    { \
        compare_last(true); \
        REAL(name)(status); \
        __builtin_unreachable(); \
    }

EXIT(_exit)
EXIT(_Exit)
EXIT(quick_exit)
