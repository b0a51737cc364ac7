/* Hooks of calls that receive from sockets, that wait until a descriptor can be read, and that look
 * up hosts. */
#include "host_names.h"
#include "open_files.h"
#include "process.h"
#include "reading.h"
#include "real.h"
#include "receiving.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>

#define INTO_BUFFER &(struct iovec){buffer, size}

/* What is received with MSG_PEEK is received again; with MSG_TRUNC, a stream is not written to the
 * buffer. */
#define RECEIVE(name, parameters, arguments, flags, parts, count)                   \
    ssize_t hook_##name parameters                                                  \
    {                                                                               \
        if (((flags) & (MSG_PEEK | MSG_ERRQUEUE)) || !is_recording() ||             \
            regular_file(descriptor) != NULL)                                       \
            return REAL(name) arguments;                                            \
        struct receiving receiving = begin_receiving(descriptor);                   \
        ssize_t got = REAL(name) arguments;                                         \
        end_receiving(&receiving, got, (flags) & MSG_TRUNC ? NULL : (parts), count, \
                      __builtin_return_address(0));                                 \
        return got;                                                                 \
    }

RECEIVE(recv, (int descriptor, void *buffer, size_t size, int flags),
        (descriptor, buffer, size, flags), flags, (INTO_BUFFER), 1)
RECEIVE(__recv_chk, (int descriptor, void *buffer, size_t size, size_t room, int flags),
        (descriptor, buffer, size, room, flags), flags, (INTO_BUFFER), 1)
RECEIVE(recvfrom,
        (int descriptor, void *buffer, size_t size, int flags, void *address, void *length),
        (descriptor, buffer, size, flags, address, length), flags, (INTO_BUFFER), 1)
RECEIVE(__recvfrom_chk,
        (int descriptor, void *buffer, size_t size, size_t room, int flags, void *address,
         void *length),
        (descriptor, buffer, size, room, flags, address, length), flags, (INTO_BUFFER), 1)
RECEIVE(recvmsg, (int descriptor, void *message, int flags), (descriptor, message, flags), flags,
        got < 0 ? NULL : ((const struct msghdr *)message)->msg_iov,
        got < 0 ? 0 : (int)((const struct msghdr *)message)->msg_iovlen)

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
    end_receiving(&receiving, got, NULL, 0, __builtin_return_address(0));
    return result;
}

int hook_eventfd_read(int descriptor, uint64_t *value)
{
    if (!is_recording_already() || regular_file(descriptor) != NULL)
        return REAL(eventfd_read)(descriptor, value);
    struct receiving receiving = begin_receiving(descriptor);
    int result = REAL(eventfd_read)(descriptor, value);
    count_read(result == 0 ? (int64_t)sizeof *value : 0);
    end_receiving(&receiving, result == 0 ? (int64_t)sizeof *value : -1, NULL, 0, NULL);
    return result;
}

/* ------------------------------------------------------------------------------------- waiting */

static const struct ready not_known = {-1, false, END_WOKEN};

static struct ready first_polled(const struct pollfd *polled, unsigned long count, int result)
{
    bool is_readable = result >= 0 || errno == EINTR; /* the kernel has accepted the address */
    for (unsigned long place = 0; is_readable && place < count; place++) {
        short what = result > 0 ? polled[place].revents : polled[place].events;
        bool sends = !(what & ~(POLLOUT | POLLWRNORM)), has_data = what & POLLIN;
        if (polled[place].fd >= 0 && what != 0)
            return (struct ready){polled[place].fd, sends,
                                  what & POLLHUP && !has_data ? END_HUNG_UP : END_WOKEN};
    }
    return not_known;
}

/* After a call without a result the sets are empty. */
static struct ready first_selected(const fd_set *readable, const fd_set *writable, int count,
                                   int result)
{
    for (int place = 0; result > 0 && place < count && place < FD_SETSIZE; place++) {
        if (readable != NULL && FD_ISSET(place, readable))
            return (struct ready){place, false, END_WOKEN};
        if (writable != NULL && FD_ISSET(place, writable))
            return (struct ready){place, true, END_WOKEN};
    }
    return not_known;
}

/* A call without descriptors is a sleep. */
#define POLL(name, parameters, arguments, has_descriptors, ready, set) \
    int hook_##name parameters                                         \
    {                                                                  \
        if (!is_recording_already())                                   \
            return REAL(name) arguments;                               \
        int64_t start = clock_now();                                   \
        int result = REAL(name) arguments;                             \
        if (has_descriptors)                                           \
            end_poll(start, result, ready, set);                       \
        else                                                           \
            end_sleep(start);                                          \
        return result;                                                 \
    }

static void end_sleep(int64_t start)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    if (end - start >= LEAST_BLOCK_NS)
        emit_block(start, end, OBJECT_SLEEP, 0, END_TIME_WAS_OVER);
    errno = saved_errno;
}

#define POLLED first_polled(polled, count, result)
#define SELECTED first_selected(readable, writable, count, result)
#define EPOLL_SET epoll_set(descriptor)
#define SELECTS (readable != NULL || writable != NULL)

POLL(poll, (void *polled, unsigned long count, int timeout), (polled, count, timeout), count > 0,
     POLLED, NO_SET)
POLL(__poll_chk, (void *polled, unsigned long count, int timeout, size_t room),
     (polled, count, timeout, room), count > 0, POLLED, NO_SET)
POLL(ppoll, (void *polled, unsigned long count, const void *timeout, const void *signals),
     (polled, count, timeout, signals), count > 0, POLLED, NO_SET)
POLL(__ppoll_chk,
     (void *polled, unsigned long count, const void *timeout, const void *signals, size_t room),
     (polled, count, timeout, signals, room), count > 0, POLLED, NO_SET)
POLL(select, (int count, void *readable, void *writable, void *failed, void *timeout),
     (count, readable, writable, failed, timeout), SELECTS, SELECTED, NO_SET)
POLL(pselect,
     (int count, void *readable, void *writable, void *failed, const void *timeout,
      const void *signals),
     (count, readable, writable, failed, timeout, signals), SELECTS, SELECTED, NO_SET)

/* A set of epoll as an object of waits; lower numbers are no objects (channels.h). */
static inline uint64_t epoll_set(int descriptor)
{
    return (uint64_t)descriptor + 2;
}

/* An eventfd that can always be read is modified to wake who waits, as Boost.Asio does. */
int hook_epoll_ctl(int descriptor, int operation, int member, void *event)
{
    struct open_file *file = NULL;
    if (operation == EPOLL_CTL_MOD && is_recording_already() && regular_file(member) == NULL)
        file = known_file(member);
    int64_t start = file == NULL ? 0 : clock_now();
    int result = REAL(epoll_ctl)(descriptor, operation, member, event);
    if (file != NULL && result == 0 && flags_of(file) & FILE_EVENT) {
        int saved_errno = errno;
        emit_wake(start, clock_now(), OBJECT_DESCRIPTORS, epoll_set(descriptor));
        errno = saved_errno;
    }
    return result;
}

POLL(epoll_wait, (int descriptor, void *events, int count, int timeout),
     (descriptor, events, count, timeout), true, not_known, EPOLL_SET)
POLL(epoll_pwait, (int descriptor, void *events, int count, int timeout, const void *signals),
     (descriptor, events, count, timeout, signals), true, not_known, EPOLL_SET)
POLL(epoll_pwait2,
     (int descriptor, void *events, int count, const void *timeout, const void *signals),
     (descriptor, events, count, timeout, signals), true, not_known, EPOLL_SET)

/* ------------------------------------------------------------------------------ names of hosts */

int hook_getaddrinfo(const char *node, const char *service, const void *hints, void **found)
{
    int result = REAL(getaddrinfo)(node, service, hints, found);
    if (result == 0 && node != NULL && is_recording_already()) {
        int saved_errno = begin_own_work();
        add_host_names(node, *found);
        end_own_work(saved_errno);
    }
    return result;
}
