/* Requests of HTTP/1.1 and their responses, each one span of kind `request`: at sockets, and at
 * OpenSSL for what is encrypted.
 *
 * A connection is HTTP if the first bytes that the process sends on it begin a request; that is
 * decided once. The span lasts from the call that sent the request to the one that received the end
 * of the response; `file` is the URL without its query, `bytes` are those of the body, `offset` the
 * nanoseconds to the first byte of the response, `name` the method, the status, and whether the
 * connection is new or the response was not received to its end. What a GET or HEAD waited for is
 * `read` spans of source socket, with the bytes since and their place in the object: what was there
 * already when it was received is no wait. */
#ifndef IOPROF_EXCHANGES_H
#define IOPROF_EXCHANGES_H

#include "gnu_source.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* What was sent or received: the first `bytes` of some parts; `parts` NULL: not known. */
struct transfer {
    const struct iovec *parts;
    int count;
    int64_t bytes;
};

/* When a thread waited for what it received, or only when it received that. */
struct receipt_wait {
    int64_t start, end;
    bool has_waited;
};

#pragma GCC visibility push(hidden)

/* The connection through TLS for which this thread has encrypted a request into memory, as asyncio
 * does: the socket on which it sends next is below that. 0: none. */
extern __thread uint64_t unsent_key;

/* That was this socket. */
void exchange_below(int descriptor);

/* The following under the reentrancy guard. `key`: of a connection. */

/* Whether what is sent first on a connection to an address of the Internet begins a request. */
bool begins_exchange(int descriptor, struct transfer sent);

/* Sent by a call that began at `start`. False: the connection is none of HTTP, or is none any more.
 * `descriptor`: of the socket below TLS; -1: not known, or no TLS. */
bool exchange_sent(uint64_t key, bool is_tls, int descriptor, struct transfer sent, int64_t start);

/* Nothing received: the other end has closed the connection. False, as above. */
bool exchange_received(uint64_t key, struct transfer received, struct receipt_wait wait);

/* This end closes the connection. */
void exchange_closed(uint64_t key);

/* The same of a connection through TLS, after `exchange_sent`: what was received from its socket
 * since it was last asked for is when it waited. */
void exchange_decrypted(uint64_t key, struct transfer received);

/* A receipt from a socket which may be below TLS. */
void note_encrypted(int descriptor, struct receipt_wait wait);

#pragma GCC visibility pop

static inline uint64_t socket_key(int descriptor)
{
    return (uint64_t)descriptor + 1;
}

static inline uint64_t tls_key(const void *connection)
{
    return (uint64_t)(uintptr_t)connection | (uint64_t)1 << 63;
}

#endif
