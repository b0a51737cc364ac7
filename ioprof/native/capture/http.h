/* Messages of HTTP/1.1 (RFC 9112), taken from what is sent or received in pieces of any size: pure
 * functions, no memory is allocated.
 *
 * Kept are the method, the target without its query, the host, the first byte of a range, the
 * status, and how long the body is. Nothing of a query, of credentials before a host, or of another
 * header field is ever copied. The bytes may be anybody's: what is no message is HTTP_INVALID, and
 * then nothing more is read of it. */
#ifndef IOPROF_HTTP_H
#define IOPROF_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_METHOD_BYTES 8    /* the longest methods that are followed have 7 */
#define HTTP_HOST_BYTES 256    /* of a name of the DNS, and a port */
#define HTTP_TARGET_BYTES 1025 /* keys of S3 have up to 1,024; longer ones are cut */
#define HTTP_LINE_BYTES (HTTP_METHOD_BYTES + HTTP_TARGET_BYTES + 16)
#define HTTP_HEAD_BYTES (1 << 20) /* a longer head is none */

enum http_phase {
    HTTP_START_LINE,
    HTTP_FIELDS,
    HTTP_BODY, /* `left` bytes are still to come */
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK, /* `left` bytes of it */
    HTTP_CHUNK_END,
    HTTP_TRAILERS,
    HTTP_UNTIL_CLOSE, /* the body ends with the connection */
    HTTP_DONE,
    HTTP_INVALID,
};

struct http_message {
    enum http_phase phase;
    bool is_request;
    bool is_bodiless; /* a response: to HEAD */
    bool skips;       /* what follows of the target, or of the line, is not kept */
    bool has_name;    /* of the line: its colon was seen */
    bool has_length, is_chunked;
    int status; /* of a response */
    uint32_t line_length, head_length;
    int64_t left;
    int64_t body;  /* bytes of the body so far, without the marks of chunks */
    int64_t first; /* of a range: its first byte; -1: none */
    char method[HTTP_METHOD_BYTES], host[HTTP_HOST_BYTES],
        target[HTTP_TARGET_BYTES]; /* of a request, ended by 0 */
    char line[HTTP_LINE_BYTES];
};

#pragma GCC visibility push(hidden)

void http_begin_request(struct http_message *message);

/* `is_bodiless`: the response to a HEAD. */
void http_begin_response(struct http_message *message, bool is_bodiless);

/* The next bytes; returns how many of them are of this message. */
size_t http_feed(struct http_message *message, const char *data, size_t size);

/* Whether what is sent first on a connection may begin a request. */
bool http_is_request(const char *data, size_t size);

/* The URL of a request whose head is complete, without query and credentials, and the length of its
 * origin (scheme, host and port) in it. `into` has HTTP_HOST_BYTES + HTTP_TARGET_BYTES + 16 bytes.
 */
size_t http_url(const struct http_message *message, bool is_tls, char *into, size_t *origin_length);

#pragma GCC visibility pop

static inline bool http_has_head(const struct http_message *message)
{
    return message->phase > HTTP_FIELDS && message->phase != HTTP_INVALID;
}

#endif
