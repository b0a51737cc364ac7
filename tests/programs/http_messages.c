/* Feeds messages to the parser of the capture library: whole, and twice in pieces of random sizes,
 * which must give the same. Input: for each message a byte (1: a request, 0: a response, 2: a
 * response to HEAD), its length as 4 bytes, and its bytes. Prints for each the bytes that are of
 * it, the phase, the status, the bytes of the body, the first byte of the range, and the URL. */
#include "http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct result {
    struct http_message message;
    size_t used, length, origin;
    char url[HTTP_HOST_BYTES + HTTP_TARGET_BYTES + 16];
};

static struct result parse(int kind, const char *data, size_t size, unsigned seed)
{
    static struct result found;
    memset(&found, 0, sizeof found);
    if (kind == 1)
        http_begin_request(&found.message);
    else
        http_begin_response(&found.message, kind == 2);
    while (found.used < size && found.message.phase < HTTP_DONE) {
        size_t most = size - found.used, piece = seed == 0 ? most : 1 + (size_t)rand_r(&seed) % 40;
        piece = piece < most ? piece : most;
        char *copy = malloc(piece); /* nothing behind it may be read */
        memcpy(copy, data + found.used, piece);
        found.used += http_feed(&found.message, copy, piece);
        free(copy);
    }
    if (kind == 1 && http_has_head(&found.message))
        found.length = http_url(&found.message, 0, found.url, &found.origin);
    return found;
}

static int is_same(const struct result *a, const struct result *b)
{
    return a->used == b->used && a->message.phase == b->message.phase &&
           a->message.status == b->message.status && a->message.body == b->message.body &&
           a->message.first == b->message.first && a->length == b->length &&
           a->origin <= a->length && memcmp(a->url, b->url, a->length) == 0;
}

int main(void)
{
    unsigned char head[5];
    while (fread(head, 1, 5, stdin) == 5) {
        size_t size =
            (size_t)head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24;
        char *data = malloc(size + 1);
        if (fread(data, 1, size, stdin) != size)
            return 2;
        struct result whole = parse(head[0], data, size, 0);
        for (unsigned seed = 1; seed < 3; seed++) {
            struct result pieces = parse(head[0], data, size, seed);
            if (!is_same(&whole, &pieces))
                return 3;
        }
        printf("%zu %d %d %lld %lld %.*s\n", whole.used, (int)whole.message.phase,
               whole.message.status, (long long)whole.message.body, (long long)whole.message.first,
               (int)whole.length, whole.url);
        free(data);
    }
    return 0;
}
