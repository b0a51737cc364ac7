/* Hooks of calls that send to a pipe, socket or eventfd: somebody may wait for that. Writes to files
 * are passed on. */
#include "channels.h"
#include "real.h"
#include "switches.h"

#include <errno.h>

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

/* A large message takes long also where there is room for it: then the thread is not switched out. */
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

#define SEND(type, name, parameters, arguments, has_sent) \
    type hook_##name parameters \
    { \
        struct sending sending = begin_sending(descriptor); \
        type sent = REAL(name) arguments; \
        if (sending.file != NULL) \
            end_sending(descriptor, &sending, has_sent); \
        return sent; \
    }

SEND(ssize_t, write, (int descriptor, const void *buffer, size_t size), (descriptor, buffer, size),
     sent > 0)
SEND(ssize_t, writev, (int descriptor, const struct iovec *parts, int count),
     (descriptor, parts, count), sent > 0)
SEND(ssize_t, send, (int descriptor, const void *buffer, size_t size, int flags),
     (descriptor, buffer, size, flags), sent > 0)
SEND(ssize_t, sendto,
     (int descriptor, const void *buffer, size_t size, int flags, const void *address,
      unsigned length),
     (descriptor, buffer, size, flags, address, length), sent > 0)
SEND(ssize_t, sendmsg, (int descriptor, const void *message, int flags),
     (descriptor, message, flags), sent > 0)
SEND(int, sendmmsg, (int descriptor, void *messages, unsigned count, int flags),
     (descriptor, messages, count, flags), sent > 0)
SEND(int, eventfd_write, (int descriptor, uint64_t value), (descriptor, value), sent == 0)
