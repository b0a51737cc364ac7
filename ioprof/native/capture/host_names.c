#include "host_names.h"

#include "decimal.h"
#include "process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#define NUM_NAMES 64

/* Written under a lock; a thread that finds it taken keeps no name. */
static struct {
    _Atomic uint32_t holder;
    uint32_t count;
    struct {
        unsigned char address[16];
        char text[HOST_NAME_BYTES];
    } entries[NUM_NAMES];
} names;

/* The bytes of an Internet address, an IPv4 address as the IPv6 address that it is mapped to; NULL:
 * none. */
static const void *address_bytes(const struct sockaddr *address, unsigned char mapped[16])
{
    static const unsigned char prefix[12] = {[10] = 0xff, [11] = 0xff};
    if (address->sa_family == AF_INET) {
        memcpy(mapped, prefix, sizeof prefix);
        memcpy(mapped + sizeof prefix,
               &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        memcpy(mapped, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
    } else {
        return NULL;
    }
    return mapped;
}

static char *find_name(const unsigned char *address)
{
    for (uint32_t place = 0; place < NUM_NAMES && place < names.count; place++)
        if (memcmp(names.entries[place].address, address, 16) == 0)
            return names.entries[place].text;
    return NULL;
}

void add_host_names(const char *node, const struct addrinfo *found)
{
    unsigned char bytes[16];
    struct in6_addr number;
    size_t length = strnlen(node, HOST_NAME_BYTES);
    if (length == HOST_NAME_BYTES || inet_pton(AF_INET, node, &number) == 1 ||
        inet_pton(AF_INET6, node, &number) == 1 || !try_lock(&names.holder))
        return;
    for (; found != NULL; found = found->ai_next) {
        if (found->ai_addr == NULL || address_bytes(found->ai_addr, bytes) == NULL)
            continue;
        char *text = find_name(bytes);
        if (text == NULL) {
            uint32_t place = names.count++ % NUM_NAMES;
            memcpy(names.entries[place].address, bytes, sizeof bytes);
            text = names.entries[place].text;
        }
        memcpy(text, node, length + 1);
    }
    unlock(&names.holder);
}

size_t write_host(char *into, const struct sockaddr_storage *address)
{
    unsigned char bytes[16];
    const char *name = NULL;
    char *end = into;
    if (address_bytes((const struct sockaddr *)address, bytes) == NULL)
        return 0;
    if (try_lock(&names.holder)) {
        name = find_name(bytes);
        if (name != NULL)
            end = stpcpy(into, name);
        unlock(&names.holder);
    }
    const struct sockaddr_in6 *wide =
        (const struct sockaddr_in6 *)(const void *)address; /* ports are in the same place */
    if (name == NULL && (address->ss_family == AF_INET || IN6_IS_ADDR_V4MAPPED(&wide->sin6_addr))) {
        inet_ntop(AF_INET, bytes + 12, into, INET_ADDRSTRLEN);
        end = into + strlen(into);
    } else if (name == NULL) {
        into[0] = '[';
        inet_ntop(AF_INET6, bytes, into + 1, INET6_ADDRSTRLEN);
        end = into + strlen(into);
        *end++ = ']';
    }
    *end++ = ':';
    return (size_t)(append_decimal(end, ntohs(wide->sin6_port)) - into);
}
