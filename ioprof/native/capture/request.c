#include "request.h"

#include "real.h"

ssize_t make_request(const struct request *request)
{
    const struct iovec *first = request->parts;
    if (request->flags != 0)
        return REAL(preadv64v2)(request->descriptor, first, request->count, request->offset,
                                request->flags);
    if (request->count == 1 && request->offset == AT_POSITION)
        return REAL(read)(request->descriptor, first->iov_base, first->iov_len);
    if (request->count == 1)
        return REAL(pread64)(request->descriptor, first->iov_base, first->iov_len, request->offset);
    if (request->offset == AT_POSITION)
        return REAL(readv)(request->descriptor, first, request->count);
    return REAL(preadv64)(request->descriptor, first, request->count, request->offset);
}

struct request rest_of_request(const struct request *request, int64_t done, struct iovec *parts)
{
    struct request rest = *request;
    int place = 0;
    int64_t skip = done;
    while (place < request->count && skip >= (int64_t)request->parts[place].iov_len)
        skip -= (int64_t)request->parts[place++].iov_len;
    rest.count = request->count - place;
    for (int number = 0; number < rest.count; number++)
        parts[number] = request->parts[place + number];
    parts[0].iov_base = (char *)parts[0].iov_base + skip;
    parts[0].iov_len -= (size_t)skip;
    rest.parts = parts;
    if (request->offset != AT_POSITION)
        rest.offset += done;
    return rest;
}

int64_t wanted_bytes(const struct request *request)
{
    uint64_t sum = 0;
    for (int place = 0; place < request->count; place++) {
        if (request->parts[place].iov_len > MAX_READ_BYTES)
            return -1;
        sum += request->parts[place].iov_len;
    }
    return sum > MAX_READ_BYTES ? -1 : (int64_t)sum;
}
