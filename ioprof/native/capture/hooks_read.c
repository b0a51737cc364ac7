#include "process.h"
#include "reading.h"
#include "reads.h"
#include "real.h"

#define CALLER __builtin_return_address(0)

HOT ssize_t hook_read(int descriptor, void *buffer, size_t size)
{
    return is_recording() ? read_single(descriptor, buffer, size, AT_POSITION, CALLER)
                          : REAL(read)(descriptor, buffer, size);
}

/* Fortified: a size that is too large ends the program, which is left to the real function. */
ssize_t hook___read_chk(int descriptor, void *buffer, size_t size, size_t room)
{
    return size <= room && is_recording()
               ? read_single(descriptor, buffer, size, AT_POSITION, CALLER)
               : REAL(__read_chk)(descriptor, buffer, size, room);
}

#define PREAD(name)                                                                  \
    HOT ssize_t hook_##name(int descriptor, void *buffer, size_t size, off_t offset) \
    {                                                                                \
        return offset >= 0 && is_recording()                                         \
                   ? read_single(descriptor, buffer, size, offset, CALLER)           \
                   : REAL(name)(descriptor, buffer, size, offset);                   \
    }
#define PREAD_CHECKED(name)                                                                   \
    ssize_t hook_##name(int descriptor, void *buffer, size_t size, off_t offset, size_t room) \
    {                                                                                         \
        return offset >= 0 && size <= room && is_recording()                                  \
                   ? read_single(descriptor, buffer, size, offset, CALLER)                    \
                   : REAL(name)(descriptor, buffer, size, offset, room);                      \
    }

PREAD(pread)
PREAD(pread64)
PREAD_CHECKED(__pread_chk)
PREAD_CHECKED(__pread64_chk)

ssize_t hook_readv(int descriptor, const struct iovec *parts, int count)
{
    if (!has_valid_parts(parts, count) || !is_recording())
        return REAL(readv)(descriptor, parts, count);
    return read_request(&(struct request){descriptor, count, parts, AT_POSITION, 0}, CALLER);
}

#define PREADV(name)                                                                         \
    ssize_t hook_##name(int descriptor, const struct iovec *parts, int count, off_t offset)  \
    {                                                                                        \
        if (offset < 0 || !has_valid_parts(parts, count) || !is_recording())                 \
            return REAL(name)(descriptor, parts, count, offset);                             \
        return read_request(&(struct request){descriptor, count, parts, offset, 0}, CALLER); \
    }
#define PREADV2(name)                                                                            \
    ssize_t hook_##name(int descriptor, const struct iovec *parts, int count, off_t offset,      \
                        int flags)                                                               \
    {                                                                                            \
        if (offset < AT_POSITION || !has_valid_parts(parts, count) || !is_recording())           \
            return REAL(name)(descriptor, parts, count, offset, flags);                          \
        return read_request(&(struct request){descriptor, count, parts, offset, flags}, CALLER); \
    }

PREADV(preadv)
PREADV(preadv64)
PREADV2(preadv2)
PREADV2(preadv64v2)

/* -------------------------------------------------------------------- copies within the kernel */

/* The bytes that left `from`, at `*offset` or its position. An offset is read only after the kernel
 * has accepted its address. Where `from` is no regular file, the bytes are only counted. */
#define COPY_BODY(call, from, from_offset, counted)                                              \
    if (!is_recording())                                                                         \
        return call;                                                                             \
    struct reading reading;                                                                      \
    bool is_file = begin_other_reading(from, (from_offset) == NULL ? AT_POSITION : 0, &reading); \
    reading.is_uncounted = !(counted);                                                           \
    ssize_t copied = call;                                                                       \
    if (copied > 0 && (from_offset) != NULL)                                                     \
        reading.position = *(from_offset) - copied;                                              \
    if (copied > 0 && is_file && (from_offset) == NULL)                                          \
        atomic_fetch_add(&reading.file->position, copied);                                       \
    if (is_file)                                                                                 \
        end_other_reading(&reading, copied);                                                     \
    else if (counted)                                                                            \
        count_read(copied);                                                                      \
    return copied;

#define SENDFILE(name)                                                    \
    ssize_t hook_##name(int to, int from, off_t *offset, size_t size)     \
    {                                                                     \
        COPY_BODY(REAL(name)(to, from, offset, size), from, offset, true) \
    }

SENDFILE(sendfile)
SENDFILE(sendfile64)

ssize_t hook_copy_file_range(int from, off_t *from_offset, int to, off_t *to_offset, size_t size,
                             unsigned flags){
    COPY_BODY(REAL(copy_file_range)(from, from_offset, to, to_offset, size, flags), from,
              from_offset, true)}

/* The kernel does not count what splice moves as read. */
ssize_t
    hook_splice(int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags)
{
    COPY_BODY(REAL(splice)(from, from_offset, to, to_offset, size, flags), from, from_offset, false)
}
