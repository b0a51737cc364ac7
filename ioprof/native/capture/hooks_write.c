/* Hooks of calls that write: to a pipe, socket or eventfd, for which somebody may wait, and to
 * files, of which those that take long are spans. */
#include "real.h"
#include "receiving.h"
#include "request.h"
#include "short_calls.h"

#include <errno.h>
#include <sys/socket.h>

#define FROM_BUFFER &(struct iovec){(void *)(uintptr_t)buffer, size}, 1

struct sending {
    struct open_file *file; /* NULL: no pipe, socket or eventfd */
    int64_t start;
};

static inline struct sending begin_sending(int descriptor)
{
    if (!is_recording_already() || regular_file(descriptor) != NULL)
        return (struct sending){NULL, 0};
    struct open_file *file = known_file(descriptor);
    if (file == NULL || !is_channel(file))
        return (struct sending){NULL, 0};
    int64_t now = clock_now();
    if (can_watch_switches())
        begin_switch_watch();
    return (struct sending){file, now};
}

/* A large message takes long also where there is room for it: then the thread is not switched out.
 */
static void end_sending(int descriptor, const struct sending *sending, bool has_sent)
{
    bool has_waited = !can_watch_switches() || was_switched_out();
    int saved_errno = errno;
    int64_t end = clock_now();
    if (has_waited)
        emit_channel_block(descriptor, sending->file, sending->start, end, true, END_WOKEN);
    if (has_sent)
        emit_channel_wake(descriptor, sending->file, sending->start, end, true);
    errno = saved_errno;
}

/* What is sent first on a connection to another host's address decides whether it is followed. */
static __attribute__((noinline)) void follow(int descriptor, struct open_file *file,
                                             struct transfer sent, int64_t start)
{
    int saved_errno = begin_own_work();
    if (unsent_key != 0 && flags_of(file) & FILE_NO_HTTP)
        exchange_below(descriptor);
    else if (!(flags_of(file) & FILE_HTTP))
        set_flags(file, begins_exchange(descriptor, sent) ? FILE_HTTP : FILE_NO_HTTP);
    if (flags_of(file) & FILE_HTTP &&
        !exchange_sent(socket_key(descriptor), false, -1, sent, start))
        stop_following(file);
    end_own_work(saved_errno);
}

static inline bool may_be_followed(const struct open_file *file)
{
    uint32_t flags = flags_of(file) & (FILE_SOCKET | FILE_NO_HTTP | FILE_BELOW_HTTP);
    return flags == FILE_SOCKET || (unsent_key != 0 && flags == (FILE_SOCKET | FILE_NO_HTTP));
}

#define LEAST_WRITE_BYTES 4096 /* a shorter one is a line of a log, and is not timed */

/* Of a file that was not seen when it was opened nothing is known: the spool's own are such. */
static inline bool is_known_file(int descriptor)
{
    return is_recording_already() && known_file(descriptor) != NULL &&
           regular_file(descriptor) != NULL;
}

/* A `user` span named "write" with file and bytes (`WRITE` in schema.py), if it took long. */
static void end_writing(int descriptor, int64_t start, ssize_t written)
{
    int saved_errno = begin_own_work();
    int64_t end = clock_now();
    if (end - start < SLOW_CALL_NS)
        tally_short_call(end - start);
    else
        emit_event(&(struct event){start, end, written, -1, known_path(descriptor), NAME("write"),
                                   KIND_USER, SOURCE_NONE});
    end_own_work(saved_errno);
}

/* 0: the kernel will refuse it. */
static size_t size_of_parts(const struct iovec *parts, int count)
{
    size_t size = 0;
    if (!has_valid_parts(parts, count))
        return 0;
    for (int i = 0; i < count; i++)
        size += parts[i].iov_len;
    return size;
}

/* `otherwise`: what is done if it is not timed. */
#define WRITE(name, parameters, arguments, size, otherwise)           \
    ssize_t hook_##name parameters                                    \
    {                                                                 \
        if (!is_known_file(descriptor) || (size) < LEAST_WRITE_BYTES) \
            return otherwise;                                         \
        int64_t start = clock_now();                                  \
        ssize_t written = REAL(name) arguments;                       \
        end_writing(descriptor, start, written);                      \
        return written;                                               \
    }

#define SEND_BY(linkage, type, function, name, parameters, arguments, has_sent, ...)               \
    linkage type function parameters                                                               \
    {                                                                                              \
        struct sending sending = begin_sending(descriptor);                                        \
        type sent = REAL(name) arguments;                                                          \
        if (sending.file != NULL)                                                                  \
            end_sending(descriptor, &sending, has_sent);                                           \
        if (sending.file != NULL && sent > 0 && may_be_followed(sending.file))                     \
            follow(descriptor, sending.file, (struct transfer){__VA_ARGS__, sent}, sending.start); \
        return sent;                                                                               \
    }

#define SEND(type, name, parameters, arguments, has_sent, ...) \
    SEND_BY(, type, hook_##name, name, parameters, arguments, has_sent, __VA_ARGS__)

SEND_BY(static, ssize_t, send_by_write, write, (int descriptor, const void *buffer, size_t size),
        (descriptor, buffer, size), sent > 0, FROM_BUFFER)
SEND_BY(static, ssize_t, send_by_writev, writev,
        (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count),
        sent > 0, parts, count)
WRITE(write, (int descriptor, const void *buffer, size_t size), (descriptor, buffer, size), size,
      send_by_write(descriptor, buffer, size))
WRITE(writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count),
      size_of_parts(parts, count), send_by_writev(descriptor, parts, count))
WRITE(pwrite, (int descriptor, const void *buffer, size_t size, off_t offset),
      (descriptor, buffer, size, offset), size, REAL(pwrite)(descriptor, buffer, size, offset))
WRITE(pwrite64, (int descriptor, const void *buffer, size_t size, off_t offset),
      (descriptor, buffer, size, offset), size, REAL(pwrite64)(descriptor, buffer, size, offset))

SEND(ssize_t, send, (int descriptor, const void *buffer, size_t size, int flags),
     (descriptor, buffer, size, flags), sent > 0, FROM_BUFFER)
SEND(ssize_t, sendto,
     (int descriptor, const void *buffer, size_t size, int flags, const void *address,
      unsigned length),
     (descriptor, buffer, size, flags, address, length), sent > 0, FROM_BUFFER)
SEND(ssize_t, sendmsg, (int descriptor, const void *message, int flags),
     (descriptor, message, flags), sent > 0, ((const struct msghdr *)message)->msg_iov,
     (int)((const struct msghdr *)message)->msg_iovlen)
SEND(int, sendmmsg, (int descriptor, void *messages, unsigned count, int flags),
     (descriptor, messages, count, flags), sent > 0, NULL, 0)
SEND(int, eventfd_write, (int descriptor, uint64_t value), (descriptor, value), sent == 0, NULL, 0)
