/* The names by which the job looked up addresses, so that a peer is named as the job names it. */
#ifndef IOPROF_HOST_NAMES_H
#define IOPROF_HOST_NAMES_H

#include "gnu_source.h"

#include <netdb.h>
#include <stddef.h>
#include <sys/socket.h>

#define HOST_NAME_BYTES 104

#pragma GCC visibility push(hidden)

/* `node` was looked up and has these addresses. The last 64 addresses are kept. */
void add_host_names(const char *node, const struct addrinfo *found);

/* The host and port of an Internet address, as in a URL: a name if it was looked up, else the
 * number. Returns the length, 0: it is no such address. `into` has HOST_NAME_BYTES + 8 bytes. */
size_t write_host(char *into, const struct sockaddr_storage *address);

#pragma GCC visibility pop

#endif
