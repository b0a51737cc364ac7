/* Hooks of calls that receive from sockets, that wait until a descriptor can be read, and that look up hosts. */
#include "host_names.h"
#include "open_files.h"
#include "process.h"
#include "real.h"
#include "receiving.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

/* What is received with MSG_PEEK is received again. */
#define RECEIVE(name, parameters, arguments, flags) \
    ssize_t hook_##name parameters \
    { \
        if (((flags) & (MSG_PEEK | MSG_ERRQUEUE)) || !is_recording() || regular_file(descriptor) != NULL) \
            return REAL(name) arguments; \
        struct receiving receiving = begin_receiving(descriptor); \
        ssize_t got = REAL(name) arguments; \
        end_receiving(&receiving, got, __builtin_return_address(0)); \
        return got; \
    }

RECEIVE(recv, (int descriptor, void *buffer, size_t size, int flags), (descriptor, buffer, size, flags), flags)
RECEIVE(__recv_chk, (int descriptor, void *buffer, size_t size, size_t room, int flags), (descriptor, buffer, size, room, flags),
        flags)
RECEIVE(recvfrom, (int descriptor, void *buffer, size_t size, int flags, void *address, void *length),
        (descriptor, buffer, size, flags, address, length), flags)
RECEIVE(__recvfrom_chk, (int descriptor, void *buffer, size_t size, size_t room, int flags, void *address, void *length),
        (descriptor, buffer, size, room, flags, address, length), flags)
RECEIVE(recvmsg, (int descriptor, void *message, int flags), (descriptor, message, flags), flags)

int hook_recvmmsg(int descriptor, void *messages, unsigned count, int flags, void *timeout)
{
    if ((flags & (MSG_PEEK | MSG_ERRQUEUE)) || !is_recording() || regular_file(descriptor) != NULL)
        return REAL(recvmmsg)(descriptor, messages, count, flags, timeout);
    const struct mmsghdr *headers = messages;
    struct receiving receiving = begin_receiving(descriptor);
    int result = REAL(recvmmsg)(descriptor, messages, count, flags, timeout);
    int64_t got = result < 0 ? -1 : 0;
    for (int place = 0; place < result; place++)
        got += headers[place].msg_len;
    end_receiving(&receiving, got, __builtin_return_address(0));
    return result;
}

/* ---------------------------------------------------------------------------------------- waiting */

/* A call without descriptors is a sleep. */
#define POLL(name, parameters, arguments, has_descriptors) \
    int hook_##name parameters \
    { \
        if (!(has_descriptors) || !is_recording_already()) \
            return REAL(name) arguments; \
        int64_t start = clock_now(); \
        int result = REAL(name) arguments; \
        end_poll(start, result); \
        return result; \
    }

POLL(poll, (void *polled, unsigned long count, int timeout), (polled, count, timeout), count > 0)
POLL(__poll_chk, (void *polled, unsigned long count, int timeout, size_t room), (polled, count, timeout, room), count > 0)
POLL(ppoll, (void *polled, unsigned long count, const void *timeout, const void *signals), (polled, count, timeout, signals),
     count > 0)
POLL(__ppoll_chk, (void *polled, unsigned long count, const void *timeout, const void *signals, size_t room),
     (polled, count, timeout, signals, room), count > 0)
POLL(select, (int count, void *readable, void *writable, void *failed, void *timeout),
     (count, readable, writable, failed, timeout), readable != NULL)
POLL(pselect, (int count, void *readable, void *writable, void *failed, const void *timeout, const void *signals),
     (count, readable, writable, failed, timeout, signals), readable != NULL)
POLL(epoll_wait, (int descriptor, void *events, int count, int timeout), (descriptor, events, count, timeout), true)
POLL(epoll_pwait, (int descriptor, void *events, int count, int timeout, const void *signals),
     (descriptor, events, count, timeout, signals), true)
POLL(epoll_pwait2, (int descriptor, void *events, int count, const void *timeout, const void *signals),
     (descriptor, events, count, timeout, signals), true)

/* ---------------------------------------------------------------------------------------- names of hosts */

int hook_getaddrinfo(const char *node, const char *service, const void *hints, void **found)
{
    int result = REAL(getaddrinfo)(node, service, hints, found);
    if (result == 0 && node != NULL && is_recording_already()) {
        int saved_errno = errno;
        guard_enter();
        add_host_names(node, *found);
        guard_leave();
        errno = saved_errno;
    }
    return result;
}
