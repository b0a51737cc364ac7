/* Pipes, sockets and eventfds as objects of waits: what comes out at one end was sent at another.
 *
 * The object of a channel is that of its receiving end: of a pipe or eventfd there is one, of a
 * local socket it is the socket, of one of the Internet the two addresses. */
#ifndef IOPROF_CHANNELS_H
#define IOPROF_CHANNELS_H

#include "open_files.h"
#include "waits.h"

#define NO_CHANNEL 1 /* the number of what has no object */

#pragma GCC visibility push(hidden)

/* Of an identified pipe, socket or eventfd; NO_CHANNEL: not known. errno is kept. */
uint64_t find_channel(int descriptor, struct open_file *file, bool sends);

#pragma GCC visibility pop

static inline bool is_channel(const struct open_file *file)
{
    return flags_of(file) & (FILE_SOCKET | FILE_PIPE | FILE_EVENT);
}

static inline uint64_t channel_of(int descriptor, struct open_file *file, bool sends)
{
    uint64_t known = sends ? GET(file, sends) : GET(file, receives);
    return __builtin_expect(known != 0, 1) ? known : find_channel(descriptor, file, sends);
}

/* The thread waited from `start` to `end` until something could be received (or sent). */
static inline void emit_channel_block(int descriptor, struct open_file *file, int64_t start,
                                      int64_t end, bool sends, enum ioprof_end how)
{
    if (end - start >= LEAST_BLOCK_NS)
        emit_block(start, end, sends ? OBJECT_ROOM : OBJECT_CHANNEL,
                   channel_of(descriptor, file, sends), how);
}

/* Something was sent (or received, which makes room). */
static inline void emit_channel_wake(int descriptor, struct open_file *file, int64_t start,
                                     int64_t end, bool sends)
{
    uint64_t channel = channel_of(descriptor, file, sends);
    if (channel != NO_CHANNEL)
        emit_wake(start, end, sends ? OBJECT_CHANNEL : OBJECT_ROOM, channel);
}

#endif
